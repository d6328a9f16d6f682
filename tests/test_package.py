"""The package as others get it: built, installed into an empty environment, and run there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

from batch_invariance import __version__

ROOT = Path(__file__).resolve().parent.parent
SETUPTOOLS = "setuptools>=77"
BUILT_FROM = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")
FOLDERS = (".ci", "src", "docs", "examples", "tests")
STEM = "llamacpp_batch_invariance"


@dataclass(frozen=True)
class Built:
    """The sdist, and the wheel that was built from it."""

    sdist: Path
    wheel: Path


def _run(*argv: str | Path, cwd: Path, code: int = 0) -> str:
    # A PYTHONPATH of the caller would put the checkout before the installed package.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in argv]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _has_setuptools() -> bool:
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return False
    return int(version.partition(".")[0]) >= 77


def _python_of(env: Path) -> Path:
    return env / "bin" / "python"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that can import setuptools >= 77."""
    if _has_setuptools():
        return Path(sys.executable)
    env = tmp_path_factory.mktemp("builder") / "env"
    venv.create(env, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", _python_of(env))
    _run(*pip, "install", "--quiet", "--disable-pip-version-check", SETUPTOOLS, cwd=env)
    return _python_of(env)


@pytest.fixture(scope="module")
def built(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    source, out = folder / "source", folder / "out"
    source.mkdir()
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.jsonl")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    backend = "import sys; from setuptools import build_meta as b; "
    _run(builder, "-c", backend + "b.build_sdist(sys.argv[1])", out, cwd=source)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    # From the unpacked sdist, so that a file missing there is missed here.
    _run(builder, "-c", backend + "b.build_wheel(sys.argv[1])", out, cwd=unpacked)
    (wheel,) = out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and nothing else."""
    env = tmp_path_factory.mktemp("empty") / "env"
    venv.create(env, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", _python_of(env))
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index")
    _run(*pip, "install", *quiet, built.wheel, cwd=env)
    return env / "bin"


def _wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = f"{STEM}-{__version__}.dist-info/METADATA"
        return BytesParser().parsebytes(archive.read(name))


def test_the_names_carry_the_version(built: Built) -> None:
    assert built.sdist.name == f"{STEM}-{__version__}.tar.gz"
    assert built.wheel.name == f"{STEM}-{__version__}-py3-none-any.whl"


def test_the_wheel_holds_types_licence_and_notice(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        licences = f"{STEM}-{__version__}.dist-info/licenses"
        assert archive.read(f"{licences}/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert archive.read(f"{licences}/NOTICE") == (ROOT / "NOTICE").read_bytes()
    assert "batch_invariance/py.typed" in names
    assert "batch_invariance/profiles/spark/models.example.toml" in names
    modules = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "batch_invariance").rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules


def test_the_sdist_holds_what_the_tests_need(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "NOTICE", "README.md", "tests/conftest.py", "docs/index.md", ".ci/run"):
        assert name in names
    assert not [name for name in names if name.endswith((".pyc", ".gguf"))]


def test_nothing_is_required_at_run_time(built: Built) -> None:
    metadata = _wheel_metadata(built.wheel)
    required = metadata.get_all("Requires-Dist") or []
    assert required
    assert all(re.search(r"extra == ['\"]dev['\"]", line) for line in required)
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Name"] == "llamacpp-batch-invariance"


def test_the_command_and_the_module_run(installed: Path, tmp_path: Path) -> None:
    expected = f"batch-invariance {__version__}\n"
    assert _run(installed / "batch-invariance", "--version", cwd=tmp_path) == expected
    module = (installed / "python", "-m", "batch_invariance", "--version")
    assert _run(*module, cwd=tmp_path) == expected


def test_a_profile_is_there_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    command = installed / "batch-invariance"
    shown = json.loads(_run(command, "profiles", "show", "spark", "--json", cwd=tmp_path))
    assert len(shown["families"]) >= 10
    _run(command, "profiles", "init", "spark", cwd=tmp_path)
    example = ROOT / "src" / "batch_invariance" / "profiles" / "spark" / "models.example.toml"
    assert (tmp_path / "models.toml").read_bytes() == example.read_bytes()
    _run(command, "profiles", "init", "spark", cwd=tmp_path, code=2)


def test_the_mock_runs_and_its_certificate_is_borne_out(installed: Path, tmp_path: Path) -> None:
    command = installed / "batch-invariance"
    report = json.loads(_run(command, "run-mock", "--quiet", "--json", cwd=tmp_path))
    assert report["verdict"] == "GREEN"
    assert report["promotable"] is False
    check = _run(command, "verify-cert", "--json", report["certificate"], cwd=tmp_path, code=3)
    assert json.loads(check)["borne_out"] is True
