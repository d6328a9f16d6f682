"""A model registry as its file states it: read and checked as a whole before a value is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batch_invariance.errors import RegistryError
from batch_invariance.invariance_diff.workset_json import bare, show
from batch_invariance.live_invariance.registry_table import (
    KV_TWICE,
    RegistryTable,
    close_match,
    kind,
    read_table,
)
from batch_invariance.live_invariance.toml_text import parse_toml

MAX_ALIAS_LENGTH: Final = 100
_TABLES: Final = ("defaults", "models")
_MAX_LISTED = 20
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class RegistryFile:
    """A registry that was found: its name for messages, the folder that relative paths start
    from (None inside the package), and its bytes."""

    label: str
    folder: Path | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry without a fault; `models` in the file's order."""

    file: RegistryFile
    defaults: RegistryTable
    models: tuple[RegistryTable, ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        """The models' names."""
        return tuple(model.alias for model in self.models if model.alias is not None)


def alias_fault(alias: str) -> str | None:
    """What is wrong with a model's name, or None. It becomes part of file names."""
    if len(alias) > MAX_ALIAS_LENGTH:
        return f"the name {show(alias)} has more than {MAX_ALIAS_LENGTH} characters"
    if not _ALIAS.fullmatch(alias) or ".." in alias:
        return (
            f"{show(alias)} is no name for a model: letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit, without '..'"
        )
    return None


def parse_registry(file: RegistryFile) -> Registry:
    """Reads and checks a registry.

    Raises:
        RegistryError: with every fault of the file, each behind the heading of its table. A file
            that is no TOML has the one fault at which reading ended.
    """
    what = f"registry {file.label}"
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RegistryError(what, [f"not UTF-8 at byte {error.start}; save it as UTF-8"]) from None
    document = parse_toml(text, what)
    faults = [
        f"unknown {'table' if isinstance(value, dict) else 'key'} {bare(key)}: a registry has "
        f"[defaults] and [models.NAME]{close_match(key, _TABLES)}"
        for key, value in document.items()
        if key not in _TABLES
    ]
    defaults_values = _table(document.get("defaults", {}), "[defaults]", faults)
    defaults = read_table(None, defaults_values, faults)
    models = tuple(
        _read_model(alias, value, defaults, faults)
        for alias, value in _table(document.get("models", {}), "[models]", faults).items()
    )
    if not models and not faults:
        faults.append("it holds no model; add a [models.NAME] table with its gguf")
    if faults:
        more = len(faults) - _MAX_LISTED
        tail = [f"and {more} more"] if more > 0 else []
        raise RegistryError(what, faults[:_MAX_LISTED] + tail)
    return Registry(file, defaults, models)


def _table(value: object, heading: str, faults: list[str]) -> Mapping[str, object]:
    if isinstance(value, dict):
        return value
    faults.append(f"{heading}: must be a table, not {kind(value)}")
    return {}


def _read_model(
    alias: str, value: object, defaults: RegistryTable, faults: list[str]
) -> RegistryTable:
    bad_name = alias_fault(alias)
    if bad_name is not None:
        faults.append(f"[models]: {bad_name}")
    heading = RegistryTable(alias).heading
    if not isinstance(value, dict):
        faults.append(f"{heading}: must be a table, not {kind(value)}")
        return RegistryTable(alias)
    model = read_table(alias, value, faults)
    across = (model.kv is not None and defaults.states_kv) or (
        model.states_kv and defaults.kv is not None
    )
    if across and not (model.kv is not None and model.states_kv):
        faults.append(f"{heading}: with [defaults], {KV_TWICE}")
    return model
