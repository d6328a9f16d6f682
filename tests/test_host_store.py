"""Guards of the host, digests of models, and files that are whole or absent."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from batch_invariance.errors import BatchInvarianceError, GuardRefused, UsageError
from batch_invariance.live_invariance import host
from batch_invariance.live_invariance.digests import ModelDigestCache, file_sha256, split_parts
from batch_invariance.live_invariance.host import (
    check_disk,
    check_memory,
    disk_free,
    format_bytes,
    host_facts,
    memory_available,
    memory_installed,
    memory_refusal,
)
from batch_invariance.live_invariance.store import (
    OutDirLock,
    cell_paths,
    open_evidence,
    prepare_out_dir,
    safe_model_name,
    set_aside,
    write_atomic,
)

GIB = 1 << 30
SOURCES = str(Path(__file__).resolve().parent.parent / "src")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal: 9000000 kB\nMemAvailable: 8388608 kB\n"


@pytest.mark.parametrize(
    ("membership", "groups", "expected"),
    [
        ("0::/a/b\n", {}, 8 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "5\n"}, 8 * GIB),
        (
            "0::/a/b\n",
            {"a/memory.max": f"{4 * GIB}\n", "a/memory.current": f"{3 * GIB}\n"},
            1 * GIB,
        ),
        (
            "0::/\n",
            {
                "memory.max": f"{4 * GIB}\n",
                "memory.current": f"{3 * GIB}\n",
                "memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
            },
            3 * GIB,
        ),
        (
            "5:cpu,memory:/job\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
                "memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
            },
            0,
        ),
        (
            "0::/a\n",
            {
                "a/memory.max": f"{6 * GIB}\n",
                "a/memory.high": f"{2 * GIB}\n",
                "a/memory.current": f"{1 * GIB}\n",
            },
            1 * GIB,
        ),
        (
            # A container that sees its own group as the root, and its path from outside.
            "0::/system.slice/container.scope\n",
            {"memory.max": f"{5 * GIB}\n", "memory.current": f"{1 * GIB}\n"},
            4 * GIB,
        ),
        ("0::/\n", {"memory.max": f"{64 * GIB}\n", "memory.current": "0\n"}, 8 * GIB),
        ("0::/\n", {"memory.max": "5\n"}, 8 * GIB),
        (
            "4:memory:/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "4096\n",
            },
            8 * GIB,
        ),
    ],
)
def test_available_memory_is_what_the_tightest_limit_leaves(
    tmp_path: Path, membership: str, groups: dict[str, str], expected: int
) -> None:
    proc = write_tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": membership})
    assert memory_available(proc, write_tree(tmp_path / "cgroup", groups)) == expected


def macos(name: str) -> int:
    """What `sysconf` knows there."""
    known = {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}
    if name not in known:
        raise ValueError("unrecognized configuration name")
    return known[name]


def test_available_memory_is_unknown_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert memory_available(tmp_path / "proc", tmp_path / "cgroup", macos) is None
    assert memory_installed(macos) == 4 * GIB


def test_free_pages_are_read_where_there_is_no_meminfo(tmp_path: Path) -> None:
    def solaris(name: str) -> int:
        return {"SC_AVPHYS_PAGES": 1 << 19, "SC_PAGE_SIZE": 8192}[name]

    assert memory_available(tmp_path / "proc", tmp_path / "cgroup", solaris) == 4 * GIB


def test_unknown_memory_leaves_the_cap_and_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "memory_available", lambda: None)
    monkeypatch.setattr(host, "memory_installed", lambda: 8 * GIB)
    check_memory(5 * GIB, 3 * GIB, 6 * GIB, enabled=True)
    with pytest.raises(GuardRefused, match=r"memory guard: this machine has 8\.0 GiB in all, "):
        check_memory(6 * GIB, 3 * GIB, None, enabled=True)
    with pytest.raises(GuardRefused, match="footprint guard"):
        check_memory(5 * GIB, 3 * GIB, 4 * GIB, enabled=True)
    monkeypatch.setattr(host, "memory_installed", lambda: None)
    check_memory(6 * GIB, 3 * GIB, None, enabled=True)


def test_a_broken_meminfo_says_nothing(tmp_path: Path) -> None:
    for text in ("", "MemAvailable:\n", "MemAvailable: lots\n"):
        proc = write_tree(tmp_path / "proc", {"meminfo": text})
        assert memory_available(proc, tmp_path / "cgroup", macos) is None


def test_the_host_is_described_without_names() -> None:
    facts = host_facts()
    assert facts.cpu_count >= 1
    assert facts.python_version == ".".join(str(part) for part in sys.version_info[:3])


def test_bytes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 5 << 20, 3 * GIB // 2, 2048 * GIB)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 MiB", "1.5 GiB", "2048.0 GiB"),
    ]


def test_guards_refuse_with_their_name_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "memory_available", lambda: 8 * GIB)
    check_memory(5 * GIB, 3 * GIB, 5 * GIB, enabled=True)
    with pytest.raises(GuardRefused, match=r"footprint guard: .* 5\.0 GiB, .* 4\.0 GiB allowed"):
        check_memory(5 * GIB, 0, 4 * GIB, enabled=True)
    with pytest.raises(GuardRefused, match=r"memory guard: 8\.0 GiB .* 5\.0 GiB, and 4\.0 GiB"):
        check_memory(5 * GIB, 4 * GIB, None, enabled=True)
    check_memory(5 * GIB, 4 * GIB, None, enabled=False)
    with pytest.raises(GuardRefused, match="footprint"):
        check_memory(5 * GIB, 0, 4 * GIB, enabled=False)
    with pytest.raises(GuardRefused, match="disk guard"):
        check_disk(tmp_path / "not" / "yet", 1 << 60)
    check_disk(tmp_path, 1)


def test_a_refusal_names_its_guard_without_raising() -> None:
    assert memory_refusal(5 * GIB, 3 * GIB, 5 * GIB, 8 * GIB) is None
    assert memory_refusal(5 * GIB, 3 * GIB, None, None) is None
    over = memory_refusal(5 * GIB, 3 * GIB, 4 * GIB, 7 * GIB)
    assert over is not None
    assert over.guard == "footprint"
    short = memory_refusal(5 * GIB, 3 * GIB, None, 7 * GIB)
    assert short is not None
    assert short.guard == "memory"


def test_free_disk_of_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    assert disk_free(tmp_path / "a" / "b") > 0


def test_a_model_is_hashed_once_and_again_when_it_changed(tmp_path: Path) -> None:
    model, cache = tmp_path / "m.gguf", tmp_path / "cache" / "digests.json"
    model.write_bytes(b"weights")
    expected = hashlib.sha256(b"weights").hexdigest()
    assert file_sha256(model) == expected
    assert ModelDigestCache(cache).digest(model) == (expected, "computed")
    assert ModelDigestCache(cache).digest(model) == (expected, "cache")
    model.write_bytes(b"other weights")
    changed = ModelDigestCache(cache).digest(model)
    assert changed == (hashlib.sha256(b"other weights").hexdigest(), "computed")


@pytest.mark.parametrize("content", ["{", "[]", '{"k": 5}', "\x00", "[" * 100_000])
def test_a_broken_cache_only_costs_time(tmp_path: Path, content: str) -> None:
    model, cache = tmp_path / "m.gguf", tmp_path / "digests.json"
    model.write_bytes(b"weights")
    cache.write_text(content)
    assert ModelDigestCache(cache).digest(model).sha256_from == "computed"
    assert ModelDigestCache(cache).digest(model).sha256_from == "cache"


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    model, blocked = tmp_path / "m.gguf", tmp_path / "file"
    model.write_bytes(b"weights")
    blocked.write_bytes(b"")
    for _ in range(2):
        assert ModelDigestCache(blocked / "x" / "d.json").digest(model).sha256_from == "computed"


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert ModelDigestCache().path == Path("/var/xdg/batch-invariance/model-digests.json")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert ModelDigestCache().path == Path("/home/me/.cache/batch-invariance/model-digests.json")


def test_a_split_model_is_digested_over_all_its_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for number, part in enumerate(parts):
        part.write_bytes(bytes([number]))
    assert split_parts(parts[0]) == parts
    lines = "".join(hashlib.sha256(bytes([n])).hexdigest() + "\n" for n in range(3))
    expected = hashlib.sha256(lines.encode()).hexdigest()
    cache = ModelDigestCache(tmp_path / "digests.json")
    assert cache.digest(parts[0]) == (expected, "computed")
    assert cache.digest(parts[0]) == (expected, "cache")
    parts[2].write_bytes(b"changed")
    assert cache.digest(parts[0]).sha256 != expected
    with pytest.raises(UsageError, match=r"name m-00001-of-00003\.gguf"):
        split_parts(parts[1])
    parts[1].unlink()
    with pytest.raises(UsageError, match=r"missing: m-00002-of-00003\.gguf"):
        cache.digest(parts[0])
    for ordinary in ("plain.gguf", "m-00001-of-00000.gguf", "m-00009-of-00003.gguf"):
        assert split_parts(tmp_path / ordinary) == [tmp_path / ordinary]
    with pytest.raises(UsageError) as caught:
        split_parts(tmp_path / "m-00001-of-99999.gguf")
    assert len(str(caught.value)) < 500


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    cache = ModelDigestCache(tmp_path / "digests.json")
    with pytest.raises(UsageError, match=r"absent\.gguf: No such file"):
        cache.digest(tmp_path / "absent.gguf")
    with pytest.raises(UsageError, match="Is a directory"):
        cache.digest(tmp_path)


def test_an_atomic_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_atomic(path, b"old and longer")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["c.json"]


def test_a_full_disk_leaves_the_old_file_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BatchInvarianceError, match=r"c\.json: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["c.json"]


def test_a_write_onto_a_folder_or_into_nothing_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "absent" / "c.json"):
        with pytest.raises(BatchInvarianceError, match="cannot write"):
            write_atomic(path, b"x")
    assert names(tmp_path) == ["folder"]


def test_an_interrupt_in_a_write_leaves_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "c.json", b"x")
    assert names(tmp_path) == []


def test_the_out_dir_is_made_and_proved_writable(tmp_path: Path) -> None:
    prepare_out_dir(tmp_path / "a" / "b")
    prepare_out_dir(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; name a folder"):
        prepare_out_dir(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        prepare_out_dir(tmp_path / "file" / "below")
    if Path("/proc/self").exists():
        with pytest.raises(UsageError, match="/proc cannot be written"):
            prepare_out_dir(Path("/proc"))


@pytest.mark.parametrize("name", ["Qwen2.5-7B_Q4.K+M", "m", "1.5"])
def test_an_ordinary_model_name_stays_as_it_is(name: str) -> None:
    assert safe_model_name(name) == name


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/b", "a\\b", ".hidden", "", "a\x00b\n", "é", "..", "x" * 5000]
)
def test_any_other_model_name_becomes_one_harmless_name(tmp_path: Path, name: str) -> None:
    safe = safe_model_name(name)
    assert safe.isascii()
    assert not safe.startswith(".")
    assert "/" not in safe
    assert len(safe) <= 130
    assert safe != safe_model_name(name + "?")
    paths = cell_paths(tmp_path, name, 8192, 4)
    for path in (paths.certificate, paths.evidence, paths.previous_evidence):
        path.write_bytes(b"")
        assert path.parent == tmp_path


def test_files_of_a_cell_have_the_contracts_names(tmp_path: Path) -> None:
    paths = cell_paths(tmp_path, "m.Q4", 8192, 4)
    assert paths.certificate == tmp_path / "m.Q4__ctx8192__N4.json"
    assert paths.evidence == tmp_path / "m.Q4__ctx8192__N4.evidence.jsonl"
    assert paths.previous_certificate == tmp_path / "m.Q4__ctx8192__N4.previous.json"
    assert paths.previous_evidence == tmp_path / "m.Q4__ctx8192__N4.previous.evidence.jsonl"


def test_older_files_are_set_aside_over_still_older_ones(tmp_path: Path) -> None:
    paths = cell_paths(tmp_path, "m", 256, 2)
    assert set_aside([paths.certificate, paths.evidence]) == ()
    paths.previous_certificate.write_text("oldest")
    paths.certificate.write_text("older")
    paths.evidence.write_text("its evidence")
    moved = set_aside([paths.certificate, paths.evidence])
    assert moved == (paths.previous_certificate, paths.previous_evidence)
    assert paths.previous_certificate.read_text() == "older"
    assert paths.previous_evidence.read_text() == "its evidence"
    assert len(names(tmp_path)) == 2


def test_a_file_that_cannot_be_set_aside_is_named(tmp_path: Path) -> None:
    paths = cell_paths(tmp_path, "m", 256, 2)
    paths.certificate.write_text("older")
    paths.previous_certificate.mkdir()
    with pytest.raises(UsageError, match="cannot rename the older"):
        set_aside([paths.certificate])


def test_evidence_is_private_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "m.evidence.jsonl"
    with open_evidence(path) as file:
        file.write(b"one\n")
        file.seek(0)
        file.write(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="exists already"):
        open_evidence(path)
    with pytest.raises(UsageError, match="No such file"):
        open_evidence(tmp_path / "absent" / "m.evidence.jsonl")


def test_one_driver_per_out_dir(tmp_path: Path) -> None:
    half = tmp_path / ".tmp-0123-m__ctx256__N2.json"
    half.write_text("of a driver that was killed while it wrote")
    with OutDirLock(tmp_path):
        assert not half.exists()
        with pytest.raises(UsageError, match="another run is writing in "):
            OutDirLock(tmp_path).__enter__()
        (tmp_path / "other").mkdir()
        with OutDirLock(tmp_path / "other"):
            pass
    assert names(tmp_path) == ["other"]
    with OutDirLock(tmp_path):
        pass


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from batch_invariance.live_invariance.store import OutDirLock\n"
        f"lock = OutDirLock(Path({str(tmp_path)!r})); lock.__enter__()\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    lock = OutDirLock(tmp_path)
    with pytest.raises(UsageError, match="another run"):
        lock.__enter__()
    holder.kill()
    holder.communicate()
    with lock:
        pass
    assert names(tmp_path) == []


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot lock"):
        OutDirLock(tmp_path / "absent").__enter__()
