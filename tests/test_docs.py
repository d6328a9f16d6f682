"""README and docs say what the program does: commands, options, fields, gates, links."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import batch_invariance
from batch_invariance.cli.main import build_parser
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff import gates, gates_endpoint, gates_server, records
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.gates import GATES
from batch_invariance.invariance_diff.model import FailureKind, Outcome, Source, Verdict
from batch_invariance.invariance_diff.stats import exact_zero_bound
from batch_invariance.live_invariance.flags import OWNED_FLAGS, check_user_flags

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
JOBS = tuple(sorted((ROOT / "examples" / "ci").iterdir()))
GENERATED = "cli.md"
OTHERS_OPTIONS = {
    # llama-server's, the user's to pass after --
    "--flash-attn", "--kv-unified", "--no-kv-unified", "--threads", "--lora", "--mmproj",
    "--chat-template-file",
    # of vLLM, SGLang and llama-server, for endpoints that their operators start
    "--no-enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-log-stats",
    "--enable-metrics", "--disable-radix-cache", "--enable-cache-report",
    "--decode-log-interval", "--served-model-name", "--no-slots", "--continuous-batching",
    # pip's, mypy's and ours outside the program
    "--no-deps", "--strict",
}  # fmt: skip
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE_ROW = re.compile(r"^\| (`.*?) \|", re.MULTILINE)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _prose(text: str) -> str:
    return FENCE.sub("", text)


def _shell_lines(path: Path) -> Iterator[str]:
    """The logical lines of shell in a page or a script."""
    text = path.read_text("utf-8")
    blocks = [text] if path.suffix == ".sh" else [b for kind, b in FENCE.findall(text) if kind]
    if path.suffix == ".py":
        blocks = []
    for block in blocks:
        yield from block.replace("\\\n", " ").splitlines()


def _commands(path: Path) -> Iterator[list[str]]:
    """The words of every call of the program, from the verb on."""
    for line in _shell_lines(path):
        if line.lstrip().startswith("#") or "batch-invariance" not in line:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError:
            continue  # a line of prose in a block
        call: list[str] | None = None
        for word in words:
            if set(word) <= set("&|;<>()"):
                if call:
                    yield call
                call = None
            elif call is not None:
                call.append(word)
            elif word.rpartition("/")[2] == "batch-invariance":
                call = []
        if call:
            yield call


def _all_commands() -> list[tuple[str, list[str]]]:
    pages = [page for page in (*PAGES, *JOBS) if page.name != GENERATED]
    return [(_name(page), words) for page in pages for words in _commands(page)]


def test_the_search_for_commands_finds_them() -> None:
    found = [shlex.join(words) for _, words in _all_commands()]
    assert len(found) >= 12
    assert "run-live --server-bin .venv/bin/llama-server-vulkan --canary" in found
    assert {words.split()[0] for words in found} >= {"run-live", "run-mock", "verify-cert"}


@pytest.mark.parametrize(("page", "words"), _all_commands())
def test_every_command_of_the_docs_parses(page: str, words: list[str]) -> None:
    cut = words.index("--") if "--" in words else len(words)
    try:
        args = build_parser().parse_args(words[:cut])
    except SystemExit:
        pytest.fail(f"{page}: {shlex.join(words)}")
    assert callable(args.run)
    try:
        check_user_flags(words[cut + 1 :])
    except UsageError as error:
        pytest.fail(f"{page}: {error}")


def _option_strings() -> set[str]:
    found: set[str] = set()
    for _, _, sub in _cli_generator().verbs(build_parser()):
        for action in sub._actions:
            found.update(action.option_strings)
    return found | {"--version"}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_option_that_is_mentioned_exists(page: Path) -> None:
    spans = re.findall(r"`([^`]+)`", _prose(page.read_text("utf-8")))
    options = {o for span in spans for o in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
    unknown = options - _option_strings() - OTHERS_OPTIONS - set(OWNED_FLAGS)
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_verb_that_is_mentioned_exists(page: Path) -> None:
    verbs = {name for name, _, _ in _cli_generator().verbs(build_parser())} | {"VERB"}
    said = re.findall(r"`(?:\S*/)?batch-invariance ([^`\s]+)", _prose(page.read_text("utf-8")))
    assert {word for word in said if not word.startswith("-")} <= verbs


def _cli_generator() -> ModuleType:
    path = ROOT / "docs" / "generate_cli.py"
    spec = importlib.util.spec_from_file_location("generate_cli", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bounds_of_the_method_are_those_of_the_program() -> None:
    page = (ROOT / "docs" / "method.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) % \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for prompts, share in rows:
        bound = exact_zero_bound(int(prompts), 0.95)
        assert bound is not None
        assert f"{bound:.1%}" == f"{share}%"


def test_the_tables_are_those_of_the_checked_in_runs() -> None:
    script = str(ROOT / "docs" / "generate_tables.py")
    done = subprocess.run([sys.executable, script, "--check"])
    assert done.returncode == 0, "run python docs/generate_tables.py"


def test_the_page_of_the_command_line_is_in_step() -> None:
    rendered = _cli_generator().render()
    assert (ROOT / "docs" / GENERATED).read_text("utf-8") == rendered, (
        "run: python docs/generate_cli.py"
    )
    for option in _option_strings() - {"-h"}:
        assert f"`{option}" in rendered


def _slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_inside_the_repository_resolves(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page.read_text("utf-8"))):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        at = (page.parent / file).resolve() if file else page
        if not at.exists():
            broken.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", at.read_text("utf-8"), re.MULTILINE)
            if anchor not in {_slug(heading) for heading in headings}:
                broken.append(target)
    assert not broken


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in PAGES[1:]:
        assert page.name == "index.md" or f"]({page.name})" in index


def _dataclasses_of(hint: object, seen: dict[str, type]) -> None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if hint.__name__ in seen:
            return
        seen[hint.__name__] = hint
        for inner in typing.get_type_hints(hint).values():
            _dataclasses_of(inner, seen)
    for inner in typing.get_args(hint):
        _dataclasses_of(inner, seen)


def _contract_types() -> dict[str, type]:
    seen: dict[str, type] = {}
    for root in (Certificate, *typing.get_args(records.Record)):
        _dataclasses_of(root, seen)
    return seen


def _contract_sections() -> dict[str, set[str]]:
    """The fields in the table under each `### `Name`` of the contract."""
    text = (ROOT / "docs" / "output-contract.md").read_text("utf-8")
    found = {}
    for part in re.split(r"^#{2,3} ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        cells = " ".join(TABLE_ROW.findall(body))
        found[heading.strip("`")] = set(re.findall(r"`(\w+)`", cells))
    return found


def test_the_contract_is_found() -> None:
    assert {"Certificate", "Row", "Trial", "Header", "Footer"} <= _contract_types().keys()


@pytest.mark.parametrize("name", sorted(_contract_types()))
def test_every_field_of_certificate_and_evidence_is_documented(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(_contract_types()[name])}
    assert _contract_sections().get(name) == fields


def test_every_value_of_the_enums_is_documented() -> None:
    text = (ROOT / "docs" / "output-contract.md").read_text("utf-8")
    for value in (*Source, *FailureKind):
        assert f"`{value.value}`" in text
    for word in (*Verdict, *Outcome):
        assert re.search(rf"\b{word.value}\b", text)


def _codes_of(module: ModuleType) -> set[str]:
    """Every reason code that a gate's check can give, read from its source."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    found: set[str] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        assigned = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id in ("failed", "unknown"):
                found |= _strings(call.args[1], assigned)
    return found


def _strings(node: ast.expr, assigned: dict[str, ast.expr]) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _strings(node.body, assigned) | _strings(node.orelse, assigned)
    if isinstance(node, ast.Name):
        return _strings(assigned[node.id], assigned)
    if isinstance(node, ast.JoinedStr):
        # f"source_{...}" of the provenance gate
        return {f"source_{source.value}" for source in Source if source is not Source.LIVE}
    raise AssertionError(f"a reason code that cannot be read: {ast.dump(node)}")


def test_every_gate_and_every_reason_code_is_documented() -> None:
    text = (ROOT / "docs" / "hardening.md").read_text("utf-8")
    headings = re.findall(r"^## `(\w+)`$", text, re.MULTILINE)
    assert headings == [gate.name for gate in GATES]
    rows = " ".join(re.findall(r"^\| (?:FAIL|UNKNOWN).*$", text, re.MULTILINE))
    documented = set(re.findall(r"`([A-Za-z_]+)`", " ".join(re.findall(r"\| (`[^|]*) \|", rows))))
    codes = _codes_of(gates) | _codes_of(gates_server) | _codes_of(gates_endpoint)
    assert len(codes) >= 25
    assert documented == codes


@pytest.mark.parametrize(("job", "language"), [("gate.sh", "sh"), ("gate.py", "python")])
def test_the_jobs_of_the_docs_are_the_files(job: str, language: str) -> None:
    page = (ROOT / "docs" / "ci-gating.md").read_text("utf-8")
    assert (language, (ROOT / "examples" / "ci" / job).read_text("utf-8")) in FENCE.findall(page)


def test_the_python_gate_refuses_a_mock(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "batch_invariance", "run-mock", "--quiet", "--passes", "2"]
    subprocess.run([*run, "--out-dir", str(tmp_path)], check=True, capture_output=True)
    certificate = tmp_path / "mock__ctx2048__N4.json"
    done = _gate(certificate)
    assert done.returncode == 1
    assert "not live green" in done.stderr


def test_the_python_gate_refuses_what_is_edited_or_alone(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "batch_invariance", "run-mock", "--quiet", "--passes", "2"]
    subprocess.run([*run, "--out-dir", str(tmp_path)], check=True, capture_output=True)
    certificate = tmp_path / "mock__ctx2048__N4.json"
    text = certificate.read_text("utf-8")
    certificate.write_text(text.replace('"source": "mock"', '"source": "live"'), "utf-8")
    assert "the evidence gives" in _gate(certificate).stderr
    certificate.with_suffix(".evidence.jsonl").unlink()
    assert _gate(certificate).returncode == 1


def _gate(certificate: Path) -> subprocess.CompletedProcess[str]:
    gate = ROOT / "examples" / "ci" / "gate.py"
    return subprocess.run(
        [sys.executable, gate, certificate], capture_output=True, text=True, check=False
    )


def test_readme_and_ci_use_the_same_equipment() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    wheel = re.search(r"^SERVER_WHEEL=(\S+)$", script, re.MULTILINE)
    builds = re.search(r'^SERVER_BUILDS="(.+)"$', script, re.MULTILINE)
    model = re.search(r"^MODEL_WHEEL=(\S+)$", script, re.MULTILINE)
    assert wheel is not None
    assert builds is not None
    assert model is not None
    assert f"{wheel[1]}=={builds[1].split()[-1]}" in readme
    assert model[1] in readme
    assert all(build in readme for build in builds[1].split())


def test_the_scorers_of_the_docs_work(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "scorers.md").read_text("utf-8")
    blocks = [body for kind, body in FENCE.findall(page) if kind == "python"]
    (tmp_path / "my_scorer.py").write_text("\n\n".join(reversed(blocks)), "utf-8")
    for name in ("contains", "LastLine"):
        command = [sys.executable, "-m", "batch_invariance", "run-mock", "--quiet"]
        command += ["--passes", "2", "--scorer", f"my_scorer:{name}", "--out-dir", str(tmp_path)]
        # A relative PYTHONPATH of the caller would be lost in another folder.
        env = {**os.environ, "PYTHONPATH": str(Path(batch_invariance.__file__).parent.parent)}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
