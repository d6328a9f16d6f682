"""The model registry: which file counts, what it must hold, what it says of a model."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import pytest

import batch_invariance
from batch_invariance.errors import RegistryError, UsageError
from batch_invariance.live_invariance.cell_choice import CellArguments, choose
from batch_invariance.live_invariance.registry import (
    Lookup,
    ModelEntry,
    config_file,
    find_registry,
    load_entry,
)
from batch_invariance.live_invariance.registry_file import RegistryFile, parse_registry

PACKAGE = Path(batch_invariance.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def here(tmp_path: Path) -> Lookup:
    """A user's folder, home, and folder of models, with nothing else around."""
    for name in ("work", "home", "models"):
        (tmp_path / name).mkdir()
    (tmp_path / "models" / "m.gguf").touch()
    (tmp_path / "models" / SMOLLM2).touch()
    return Lookup(
        models_dir=tmp_path / "models",
        cwd=tmp_path / "work",
        env={"HOME": str(tmp_path / "home")},
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def registry(alias: str = "a") -> str:
    return f'[models.{alias}]\ngguf = "{{MODELS_DIR}}/m.gguf"\n'


def entry_of(here: Lookup, text: str, alias: str = "a") -> ModelEntry:
    write(here.cwd / "models.toml", text)
    return load_entry(alias, here)


def faults_of(text: str) -> tuple[str, ...]:
    with pytest.raises(RegistryError) as caught:
        parse_registry(RegistryFile("x.toml", None, text.encode("utf-8", "surrogatepass")))
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith("registry x.toml: ")
    assert "\n" not in str(caught.value)
    return caught.value.issues


def refusal(alias: str, lookup: Lookup) -> str:
    with pytest.raises(UsageError) as caught:
        load_entry(alias, lookup)
    assert caught.value.exit_code == 2
    return str(caught.value)


# Which file counts


def test_the_order_of_the_places(here: Lookup, tmp_path: Path) -> None:
    here = replace(here, profile="spark")
    assert find_registry(here).label == "models.example.toml of profile spark"
    config = write(tmp_path / "home/.config/batch-invariance/models.toml", registry("config"))
    assert find_registry(here).label == str(config)
    write(here.cwd / "models.toml", registry("local"))
    assert find_registry(here).label == "./models.toml"
    write(here.cwd / "own.toml", registry("own"))
    here = replace(here, models_file=Path("own.toml"))
    assert find_registry(here).label == "own.toml"
    assert load_entry("own", here).gguf == tmp_path / "models" / "m.gguf"


def test_the_first_file_counts_alone(here: Lookup) -> None:
    here = replace(here, profile="spark")
    assert load_entry("smollm2", here).alias == "smollm2"
    write(here.cwd / "models.toml", registry("smollm"))
    assert refusal("smollm2", here) == (
        "--model-alias smollm2: registry ./models.toml has no such model; did you mean smollm?; "
        "it has smollm"
    )


def test_the_config_folder_moves_with_its_variable(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    tail = Path("batch-invariance/models.toml")
    assert config_file(home) == tmp_path / ".config" / tail
    assert config_file({**home, "XDG_CONFIG_HOME": "/etc/xdg"}) == Path("/etc/xdg") / tail
    for ignored in ("", "relative/folder"):
        assert config_file({**home, "XDG_CONFIG_HOME": ignored}) == tmp_path / ".config" / tail


def test_no_registry_names_the_places_and_the_way_out(here: Lookup) -> None:
    said = refusal("a", here)
    assert "there is no ./models.toml or " in said
    assert "/home/.config/batch-invariance/models.toml" in said
    assert "--models-file" in said
    assert "batch-invariance profiles init spark" in said


def test_an_unknown_profile_is_refused_whatever_else_there_is(here: Lookup) -> None:
    write(here.cwd / "models.toml", registry())
    for name in ("sparc", "../spark", "", "spark/..", "__pycache__"):
        with pytest.raises(UsageError, match="installed: spark"):
            load_entry("a", replace(here, profile=name))


def test_a_file_that_cannot_be_read_is_never_passed_over(here: Lookup) -> None:
    here = replace(here, profile="spark")
    missing = replace(here, models_file=Path("no.toml"))
    assert refusal("a", missing).startswith("--models-file no.toml: No such file")
    assert "Is a directory" in refusal("a", replace(here, models_file=here.cwd))
    link = here.cwd / "models.toml"
    link.symlink_to("nowhere.toml")
    assert refusal("smollm2", here).startswith("./models.toml: No such file")
    link.unlink()
    link.mkdir()
    assert refusal("smollm2", here).startswith("./models.toml: Is a directory")


def test_a_huge_file_is_no_registry(here: Lookup) -> None:
    write(here.cwd / "models.toml", registry() + "#" * (1 << 18))
    assert refusal("a", here) == "./models.toml: larger than 256 KiB, no model registry"


def test_a_byte_order_mark_and_windows_line_ends_are_read(here: Lookup) -> None:
    (here.cwd / "models.toml").write_bytes(
        b"\xef\xbb\xbf" + registry().replace("\n", "\r\n").encode()
    )
    assert load_entry("a", here).gguf.name == "m.gguf"


FROM_A_ZIP = """
import sys
from pathlib import Path
from batch_invariance.live_invariance.registry import Lookup, load_entry
models, cwd = map(Path, sys.argv[1:])
lookup = Lookup(models_dir=models, profile="spark", cwd=cwd, env={"HOME": "/nowhere"})
entry = load_entry("smollm2", lookup)
print(entry.gguf.name, entry.origins.kv)
"""


def test_the_example_is_found_inside_a_zip(here: Lookup, tmp_path: Path) -> None:
    """As with a zipped application: no folder, no checkout."""
    archive = tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in PACKAGE.rglob("*"):
            if path.suffix in (".py", ".toml"):
                file.write(path, path.relative_to(PACKAGE.parent).as_posix())
    done = subprocess.run(
        [sys.executable, "-c", FROM_A_ZIP, str(here.models_dir), str(here.cwd)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (f"{SMOLLM2} models.example.toml of profile spark [models.smollm2]\n")


# What a registry says


FULL = """
[defaults]
server_bin = "llama-server"
server_flags = ["--flash-attn", "on"]
kv = "f16"
ctx = 2048
parallel = 4

[models.plain]
gguf = "{MODELS_DIR}/m.gguf"

[models."own-q4.1"]
gguf = "{MODELS_DIR}/m.gguf"
server_bin = "/opt/llama/llama-server"
server_flags = ["--threads", "8", "--lora={MODELS_DIR}/lora.gguf"]
kv = "q8_0/f16"
ctx = 8192
parallel = 2
"""


def test_a_model_takes_the_defaults_that_it_does_not_state(here: Lookup) -> None:
    entry = entry_of(here, FULL, "plain")
    assert entry.server_bin == "llama-server"
    assert entry.server_flags == ("--flash-attn", "on")
    assert entry.kv is not None
    assert entry.kv.label == "f16"
    assert (entry.ctx, entry.parallel) == (2048, 4)
    origins = entry.origins
    assert origins.gguf == "./models.toml [models.plain], {MODELS_DIR} from --models-dir"
    shared = "./models.toml [defaults]"
    assert (origins.server_bin, origins.kv, origins.ctx, origins.parallel) == (shared,) * 4
    assert origins.server_flags == (shared,) * 2


def test_a_models_own_values_win_and_its_flags_are_added(here: Lookup) -> None:
    entry = entry_of(here, FULL, "own-q4.1")
    assert entry.server_bin == "/opt/llama/llama-server"
    lora = f"--lora={here.models_dir}/lora.gguf"
    assert entry.server_flags == ("--flash-attn", "on", "--threads", "8", lora)
    assert entry.kv is not None
    assert (entry.kv.k.label, entry.kv.v.label, entry.kv.label) == ("q8_0", "f16", "q8_0/f16")
    assert (entry.ctx, entry.parallel) == (8192, 2)
    own = './models.toml [models."own-q4.1"]'
    assert (entry.origins.server_bin, entry.origins.kv, entry.origins.ctx) == (own,) * 3
    told = f"{own}, {{MODELS_DIR}} from --models-dir"
    assert entry.origins.server_flags == ("./models.toml [defaults]",) * 2 + (own, own, told)


def test_a_bare_model_has_nothing_but_its_file(here: Lookup) -> None:
    entry = entry_of(here, registry())
    assert (entry.server_bin, entry.server_flags, entry.kv) == (None, (), None)
    assert (entry.ctx, entry.parallel, entry.origins.server_bin) == (None, None, "")


def test_the_folder_of_models(here: Lookup, tmp_path: Path) -> None:
    write(here.cwd / "models.toml", registry())
    nothing = replace(here, models_dir=None)
    said = refusal("a", nothing)
    assert said.startswith("./models.toml [models.a]: gguf needs {MODELS_DIR}; ")
    assert "--models-dir" in said
    assert "MODELS_DIR in the environment" in said
    assert "MODELS_DIR" in refusal("a", replace(nothing, env={**here.env, "MODELS_DIR": ""}))

    by_variable = replace(nothing, env={**here.env, "MODELS_DIR": "../models"})
    entry = load_entry("a", by_variable)
    assert entry.gguf == tmp_path / "models" / "m.gguf"
    assert entry.origins.gguf.endswith("{MODELS_DIR} from MODELS_DIR in the environment")

    both = replace(here, env={**here.env, "MODELS_DIR": "/no/such/folder"})
    assert load_entry("a", both).gguf == tmp_path / "models" / "m.gguf"
    missing = replace(here, models_dir=Path("/no/such/folder"))
    assert refusal("a", missing).startswith("--models-dir: /no/such/folder: there is no such")


def test_paths_start_at_the_registrys_folder(
    here: Lookup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "bin").mkdir(parents=True)
    (elsewhere / "r.gguf").touch()
    (tmp_path / "home" / "h.gguf").touch()
    text = """
[models.relative]
gguf = "r.gguf"
server_bin = "bin/llama-server"
[models.home]
gguf = "~/h.gguf"
server_bin = "~/llama-server"
[models.models_dir]
gguf = "../models/m.gguf"
server_bin = "{MODELS_DIR}/llama-server"
[models.gone]
gguf = "gone.gguf"
"""
    here = replace(here, models_file=write(elsewhere / "r.toml", text))
    entry = load_entry("relative", here)
    assert (entry.gguf, entry.server_bin) == (elsewhere / "r.gguf", f"{elsewhere}/bin/llama-server")
    entry = load_entry("home", here)
    assert entry.gguf == tmp_path / "home" / "h.gguf"
    assert entry.server_bin == f"{tmp_path}/home/llama-server"
    assert load_entry("models_dir", here).server_bin == f"{here.models_dir}/llama-server"
    said = refusal("gone", here)
    assert f"[models.gone]: gguf: there is no file {elsewhere}/gone.gguf" in said


@pytest.mark.parametrize(
    "alias", ["../a", "a/b", "", ".a", "-a", "a..b", "a b", "é", "a\n", "a" * 101]
)
def test_an_alias_is_a_name(here: Lookup, alias: str) -> None:
    write(here.cwd / "models.toml", registry())
    assert refusal(alias, here).startswith("--model-alias: ")


def test_many_models_are_named_in_part(here: Lookup) -> None:
    write(here.cwd / "models.toml", "".join(registry(f"model{i}") for i in range(30)))
    said = refusal("zzz", here)
    assert "it has model0, model1, " in said
    assert said.endswith("model19 and 10 more")


# What a registry must not hold


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sever_bin = 'x'", "unknown key sever_bin; did you mean server_bin?"),
        ("flags = []", "unknown key flags"),
        ("'a\\u001bb' = 1", r"unknown key 'a\\u001bb'"),
        ("server_bin = 1", "server_bin: must be a string in quotes, not the number 1"),
        ("server_bin = ''", "server_bin: is empty"),
        ("server_bin = ' '", "server_bin: is empty"),
        ('server_bin = "a\\u0000b"', "server_bin: holds the control character U+0000"),
        ('server_bin = "a\\u009bb"', "server_bin: holds the control character U+009B"),
        ("server_bin = '{MODEL_DIR}/s'", "'{MODEL_DIR}' is unknown; there is {MODELS_DIR}"),
        ("server_flags = '-t 8'", 'must be a list of strings, such as ["--threads", "8"]'),
        ("server_flags = ['-t', 8]", "server_flags[1]: must be a string in quotes, not the"),
        ("server_flags = ['-t', true]", "server_flags[1]: must be a string in quotes, not true"),
        ('server_flags = ["-t", "8\\n"]', "server_flags[1]: holds the control character U+000A"),
        ("server_flags = ['--ctx-size', '4096']", "--ctx-size (the context is given by --ctx"),
        ("server_flags = ['--ctx_size=1']", "--ctx-size (the context is given by --ctx"),
        ("server_flags = ['-m', 'x']", "-m (the model is given by --model alone)"),
        ("server_flags = ['--api-key', 'x']", "the driver owns the keys"),
        ("server_flags = ['on']", "'on' (belongs to no flag)"),
        ("kv = 16", "kv: must be a string in quotes, not the number 16"),
        ("kv = 'f17'", "kv: unknown KV cache type 'f17'"),
        ("kv = 'q8_0/'", "kv: unknown KV cache type ''"),
        ("kv = 'q8_0/f16/f16'", "kv: unknown KV cache type 'f16/f16'"),
        ("kv = 'f16'\nserver_flags = ['-ctk', 'f16']", "kv and -ctk or -ctv in server_flags both"),
        ("kv = 'f16'\nserver_flags = ['--cache_type_v=f16']", "both set the KV types"),
        ("ctx = '2048'", "ctx: must be a whole number, not a string"),
        ("ctx = true", "ctx: must be a whole number, not true"),
        ("ctx = []", "ctx: must be a whole number, not a list"),
        ("ctx = 700", "ctx: 700 is no positive multiple of 256"),
        ("ctx = 0", "ctx: 0 is no positive multiple of 256"),
        ("ctx = -256", "ctx: -256 is no positive multiple of 256"),
        ("parallel = 0", "parallel: 0 is not 1 to 256"),
        ("parallel = 257", "parallel: 257 is not 1 to 256"),
    ],
)  # fmt: skip
def test_a_fault_names_its_table(line: str, said: str) -> None:
    (fault,) = faults_of(f"{registry()}[defaults]\n{line}")
    assert fault.startswith("[defaults]: ")
    assert said in fault
    (fault,) = faults_of(registry() + line)
    assert fault.startswith("[models.a]: ")
    assert said in fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it holds no model; add a [models.NAME] table with its gguf"),
        ("[defaults]\n[models]", "it holds no model"),
        (registry() + "[model.b]", "and [models.NAME]; did you mean models?"),
        ("x = 1\n" + registry(), "unknown key x: a registry has"),
        ("models = 1", "[models]: must be a table, not the number 1"),
        ("defaults = 'x'\n" + registry(), "[defaults]: must be a table, not a string"),
        ("[models]\na = 'x.gguf'", "[models.a]: must be a table, not a string"),
        ("[models.a]\nkv = 'f16'", "[models.a]: gguf is missing"),
        (f"{registry()}[defaults]\ngguf = 'x'", "unknown key gguf; it belongs to a model's table"),
        (registry() + "ggguf = 'x'", "[models.a]: unknown key ggguf; did you mean gguf?"),
        ("[models.a]\ngguf = 1", "[models.a]: gguf: must be a string"),
        ("[models.a]\ngguf = '{DIR}/{x}'", "[models.a]: gguf: '{DIR}' is unknown"),
        (registry("m4.1"), "unknown key '1'; a name with a dot needs quotes: [models.\"m4.1\"]"),
        (registry("'../x'"), "[models]: '../x' is no name for a model"),
        (registry("'a/b'"), "[models]: 'a/b' is no name for a model"),
        (registry("'a..b'"), "[models]: 'a..b' is no name for a model"),
        (registry("-a"), "[models]: '-a' is no name for a model"),
        (registry('"a\\u001b[31m"'), r"'a\x1b[31m' is no name"),
        (registry("'" + "a" * 101 + "'"), "has more than 100 characters"),
        ("a = x\n", "line 1"),
        (registry() + registry(), "line 3"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_registry(text: str, said: str) -> None:
    assert said in faults_of(text)[0]


def test_text_that_is_no_utf8_is_refused_by_its_byte() -> None:
    assert faults_of("# \udc80") == ("not UTF-8 at byte 2; save it as UTF-8",)


def test_all_faults_come_at_once_and_a_thousand_are_cut() -> None:
    text = "[defaults]\nctx = 1\n[models.a]\n[models.'b c']\ngguf = 2\nserver_flags = ['-c', '1']\n"
    faults = faults_of(text)
    assert len(faults) == 5
    assert [fault.split(":")[0] for fault in faults] == [
        "[defaults]",
        "[models.a]",
        "[models]",
        '[models."b c"]',
        '[models."b c"]',
    ]
    many = faults_of("[defaults]\n" + "".join(f"k{i} = 1\n" for i in range(1000)))
    assert len(many) == 21
    assert many[-1] == "and 980 more"


@pytest.mark.parametrize(
    ("defaults", "model"),
    [
        ("kv = 'f16'", "server_flags = ['-ctv', 'f16']"),
        ("server_flags = ['-ctk=f16']", "kv = 'f16'"),
    ],
)
def test_kv_and_flags_may_not_contradict_across_tables(defaults: str, model: str) -> None:
    (fault,) = faults_of(f"[defaults]\n{defaults}\n{registry()}{model}")
    assert fault.startswith("[models.a]: with [defaults], kv and -ctk or -ctv")


def test_numbers_beyond_all_bounds_are_named_and_not_printed() -> None:
    assert len(faults_of(f"{registry()}ctx = {'9' * 4000}")[0]) < 200


# What a run uses


def test_the_registry_fills_what_the_command_line_leaves_out(here: Lookup) -> None:
    entry = entry_of(here, FULL, "own-q4.1")
    chosen = choose(CellArguments(), entry)
    assert (chosen.server_bin, chosen.model) == ("/opt/llama/llama-server", entry.gguf)
    assert (chosen.ctx, chosen.parallel) == (8192, 2)
    assert chosen.flags == ("-ctk", "q8_0", "-ctv", "f16", *entry.server_flags)
    own, shared = './models.toml [models."own-q4.1"]', "./models.toml [defaults]"
    told = f"{own}, {{MODELS_DIR}} from --models-dir"
    assert [(s.name, s.value, s.origin) for s in chosen.settings] == [
        ("--server-bin", "/opt/llama/llama-server", own),
        ("--model", str(entry.gguf), told),
        ("--ctx", "8192", own),
        ("--parallel", "2", own),
        ("--", "-ctk q8_0 -ctv f16", own),
        ("--", "--flash-attn on", shared),
        ("--", "--threads 8", own),
        ("--", f"--lora={here.models_dir}/lora.gguf", told),
    ]


def test_the_command_line_wins_value_by_value(here: Lookup) -> None:
    entry = entry_of(here, FULL, "plain")
    given = CellArguments("./s", None, 512, None, ("--threads", "2", "--cache_type_k=q4_0"))
    chosen = choose(given, entry)
    assert (chosen.server_bin, chosen.model, chosen.ctx) == ("./s", entry.gguf, 512)
    assert chosen.parallel == 4
    # llama-server takes the last of a flag; the side of the KV cache that is given is not repeated.
    assert chosen.flags == (
        "-ctv", "f16", "--flash-attn", "on", "--threads", "2", "--cache_type_k=q4_0",
    )  # fmt: skip
    told = {(s.name, s.value): s.origin for s in chosen.settings}
    assert told["--server-bin", "./s"] == "the command line"
    assert told["--ctx", "512"] == "the command line"
    assert told["--parallel", "4"] == "./models.toml [defaults]"
    assert told["--", "--threads 2 --cache_type_k=q4_0"] == "the command line"


def test_a_run_without_a_registry_uses_the_command_line_alone() -> None:
    given = CellArguments("s", Path("m.gguf"), None, 4, ("-fa", "off"))
    chosen = choose(given, None)
    assert (chosen.server_bin, chosen.model, chosen.ctx) == ("s", Path("m.gguf"), None)
    assert chosen.flags == ("-fa", "off")
    assert {setting.origin for setting in chosen.settings} == {"the command line"}
    assert [setting.name for setting in chosen.settings] == [
        "--server-bin", "--model", "--parallel", "--",
    ]  # fmt: skip


def test_the_registry_of_the_docs_is_one_and_every_key_is_documented() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    blocks = page.split("```toml\n")[1:]
    assert len(blocks) == 1
    text = blocks[0].split("```")[0]
    read = parse_registry(RegistryFile("docs/models.md", None, text.encode()))
    assert read.aliases == ("smollm2",)
    for table in (read.defaults, *read.models):
        for field in fields(table):
            assert field.name == "alias" or f"\n| `{field.name}` |" in page
