"""Which registry counts, and what it says of one model.

The first file found counts, alone: `--models-file`, `./models.toml`, `batch-invariance/models.toml`
in the user's config folder (XDG_CONFIG_HOME or ~/.config, on macOS too), the example of the
profile. docs/models.md describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from batch_invariance.errors import UsageError
from batch_invariance.live_invariance.profile_files import (
    EXAMPLE_REGISTRY,
    check_profile,
    example_registry,
)
from batch_invariance.live_invariance.registry_file import (
    Registry,
    RegistryFile,
    alias_fault,
    parse_registry,
)
from batch_invariance.live_invariance.registry_table import (
    MODELS_DIR,
    KvTypes,
    RegistryTable,
    close_match,
)

FILE_NAME: Final = "models.toml"
VARIABLE: Final = "MODELS_DIR"
MAX_REGISTRY_BYTES: Final = 1 << 18
_MAX_ALIASES = 20


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a registry is looked for, and what {MODELS_DIR} stands for.

    `models_file` and `models_dir` are the options of these names, `profile` that of --profile.
    """

    models_file: Path | None = None
    models_dir: Path | None = None
    profile: str | None = None
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)


@dataclass(frozen=True, slots=True)
class Origins:
    """Where each value of an entry stands: a file and its table, empty where no table gives it.

    `server_flags` has one origin for each of the entry's words.
    """

    gguf: str = ""
    server_bin: str = ""
    server_flags: tuple[str, ...] = ()
    kv: str = ""
    ctx: str = ""
    parallel: str = ""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What a registry says of one model, with its defaults, placeholders and paths resolved.

    `gguf` is absolute and exists. `server_bin` is a command for PATH or an absolute path.
    `server_flags` are those of the defaults and then the model's own; `kv` is not among them.
    `ctx` is in tokens per slot, `parallel` in slots. None where neither table says anything.
    """

    alias: str
    gguf: Path
    server_bin: str | None
    server_flags: tuple[str, ...]
    kv: KvTypes | None
    ctx: int | None
    parallel: int | None
    origins: Origins


def find_registry(lookup: Lookup) -> RegistryFile:
    """The registry that counts, unread but for its bytes.

    Raises:
        UsageError: there is none, it cannot be read, or there is no such profile.
    """
    if lookup.profile is not None:
        check_profile(lookup.profile)
    if lookup.models_file is not None:
        given = str(lookup.models_file)
        return _read(given, lookup.cwd / os.path.expanduser(given), "--models-file ")
    places = [(f"./{FILE_NAME}", lookup.cwd / FILE_NAME)]
    config = config_file(lookup.env)
    if config is not None:
        places.append((str(config), config))
    for label, path in places:
        # A link to nothing is the user's mistake to hear of, not a reason to look further.
        if os.path.lexists(path):
            return _read(label, path, "")
    if lookup.profile is not None:
        label = f"{EXAMPLE_REGISTRY} of profile {lookup.profile}"
        return RegistryFile(label, None, example_registry(lookup.profile))
    looked = " or ".join(label for label, _ in places)
    raise UsageError(
        f"no model registry: there is no {looked}; name one with --models-file, or write one with "
        "batch-invariance profiles init spark"
    )


def config_file(env: Mapping[str, str]) -> Path | None:
    """The user's own registry, there or not; None for a user without a home."""
    base = env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # The specification of these folders: a relative one is ignored.
        home = env.get("HOME") or os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return Path(base) / "batch-invariance" / FILE_NAME


def load_entry(alias: str, lookup: Lookup) -> ModelEntry:
    """What the registry that counts says of the model `alias`.

    Raises:
        UsageError: no registry, no such model in it, {MODELS_DIR} needed and not given, or no
            file where `gguf` says.
        RegistryError: the registry has faults, whichever model they are about.
    """
    bad_name = alias_fault(alias)
    if bad_name is not None:
        raise UsageError(f"--model-alias: {bad_name}")
    registry = parse_registry(find_registry(lookup))
    model = _model(registry, alias)
    return _resolve(registry, model, alias, lookup)


def _read(label: str, path: Path, option: str) -> RegistryFile:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_REGISTRY_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{option}{label}: {why}; no model registry can be read there") from error
    if len(data) > MAX_REGISTRY_BYTES:
        raise UsageError(
            f"{option}{label}: larger than {MAX_REGISTRY_BYTES >> 10} KiB, no model registry"
        )
    return RegistryFile(label, Path(os.path.abspath(path.parent)), data)


def _model(registry: Registry, alias: str) -> RegistryTable:
    for model in registry.models:
        if model.alias == alias:
            return model
    known = registry.aliases
    more = f" and {len(known) - _MAX_ALIASES} more" if len(known) > _MAX_ALIASES else ""
    raise UsageError(
        f"--model-alias {alias}: registry {registry.file.label} has no such model"
        f"{close_match(alias, known)}; it has {', '.join(known[:_MAX_ALIASES])}{more}"
    )


def _resolve(registry: Registry, model: RegistryTable, alias: str, lookup: Lookup) -> ModelEntry:
    defaults = registry.defaults
    own, shared = (f"{registry.file.label} {table.heading}" for table in (model, defaults))
    expand = _Expansion(registry.file, lookup)

    def origin(own_value: object, shared_value: object) -> str:
        return own if own_value is not None else "" if shared_value is None else shared

    gguf, gguf_origin = expand.path(model.gguf, own, "gguf")
    if not os.path.isfile(gguf):
        raise UsageError(f"{own}: gguf: there is no file {gguf}; check the path and --models-dir")
    server_bin = model.server_bin or defaults.server_bin
    server_origin = origin(model.server_bin, defaults.server_bin)
    if server_bin is not None:
        server_bin, server_origin = expand.command(server_bin, server_origin)
    words = [(word, shared) for word in defaults.server_flags]
    words += [(word, own) for word in model.server_flags]
    flags = [expand.placeholder(word, at, "server_flags") for word, at in words]
    return ModelEntry(
        alias=alias,
        gguf=Path(gguf),
        server_bin=server_bin,
        server_flags=tuple(word for word, _ in flags),
        kv=model.kv or defaults.kv,
        ctx=defaults.ctx if model.ctx is None else model.ctx,
        parallel=defaults.parallel if model.parallel is None else model.parallel,
        origins=Origins(
            gguf=gguf_origin,
            server_bin=server_origin,
            server_flags=tuple(at for _, at in flags),
            kv=origin(model.kv, defaults.kv),
            ctx=origin(model.ctx, defaults.ctx),
            parallel=origin(model.parallel, defaults.parallel),
        ),
    )


class _Expansion:
    """Turns the paths of one registry into paths that the system opens.

    Each method returns the text with its origin, which tells where {MODELS_DIR} came from.
    """

    def __init__(self, file: RegistryFile, lookup: Lookup) -> None:
        self.file = file
        self.lookup = lookup

    def path(self, text: str, origin: str, key: str) -> tuple[str, str]:
        """An absolute path; a relative one starts at the registry's folder."""
        expanded, origin_told = self.placeholder(text, origin, key)
        expanded = os.path.expanduser(expanded)
        if os.path.isabs(expanded):
            return expanded, origin_told
        if self.file.folder is None:
            raise UsageError(
                f"{origin}: {key}: {text!r} is relative, and the registry inside the package has "
                f"no folder to start from; begin it with {MODELS_DIR}/"
            )
        return os.path.join(self.file.folder, expanded), origin_told

    def command(self, text: str, origin: str) -> tuple[str, str]:
        """A bare name stays one, to be looked for on PATH."""
        is_path = os.sep in text or text.startswith("~") or MODELS_DIR in text
        return self.path(text, origin, "server_bin") if is_path else (text, origin)

    def placeholder(self, text: str, origin: str, key: str) -> tuple[str, str]:
        """`text` with {MODELS_DIR} replaced."""
        if MODELS_DIR not in text:
            return text, origin
        if self.lookup.models_dir is not None:
            given, source = str(self.lookup.models_dir), "--models-dir"
        else:
            given, source = self.lookup.env.get(VARIABLE, ""), f"{VARIABLE} in the environment"
        if not given:
            raise UsageError(
                f"{origin}: {key} needs {MODELS_DIR}; give --models-dir DIR or set {VARIABLE} in "
                "the environment"
            )
        folder = os.path.abspath(self.lookup.cwd / os.path.expanduser(given))
        if not os.path.isdir(folder):
            raise UsageError(f"{source}: {given}: there is no such folder; check the path")
        return text.replace(MODELS_DIR, folder), f"{origin}, {MODELS_DIR} from {source}"
