"""`plan-n`: which N fits, which limit binds, and that it says what run-live would do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli import plan_n
from batch_invariance.errors import GgufError, GuardRefused, UsageError
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.budget import ModelShape, ServerSettings, project
from batch_invariance.invariance_diff.kv_cache import BlockCache
from batch_invariance.invariance_diff.plan_n import Limit, plan_contexts, slot_ceiling
from batch_invariance.live_invariance import host
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.prepare import ServerChoice, know_server
from gguf_builder import named_model

MIB, GIB = 1 << 20, 1 << 30
SHAPE = ModelShape(
    blocks=(BlockCache(8, 128, 128),) * 32,
    head_count=32,
    key_length=128,
    embedding_length=4096,
    feed_forward_length=14_336,
    vocab_size=128_256,
    weights_bytes=4 * GIB,
)
DESCRIBED = (
    *("--layers", "32", "--heads", "32", "--kv-heads", "8", "--head-dim", "128"),
    *("--embedding", "4096", "--feed-forward", "14336", "--vocab", "128256", "--weights-gb", "4"),
)


def run(*words: str, after: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser()
    plan_n.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["plan-n", *words])
    code: int = args.run(args, after)
    return code


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(*words, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.gguf"
    path.write_bytes(toy_model_bytes(ToySpec.parse("q8_0")))
    return path


def up_to(limit: int, kind: Limit) -> Any:
    return lambda total: kind if total > limit else None


def test_the_largest_n_is_the_last_that_the_guard_lets_through() -> None:
    limit = project(SHAPE, 8192, 11).total_bytes
    (found,) = plan_contexts(SHAPE, [8192], ServerSettings(), 64, up_to(limit, Limit.MEMORY))
    assert (found.largest, found.binding) == (11, Limit.MEMORY)
    assert [row.n for row in found.rows] == [1, 2, 4, 8, 11, 12, 16, 32, 64]
    assert [row.broken for row in found.rows] == [None] * 5 + [Limit.MEMORY] * 4
    for row in found.rows:
        assert row.footprint == project(SHAPE, 8192, row.n)


def test_nothing_fits() -> None:
    (found,) = plan_contexts(SHAPE, [256], ServerSettings(), 4, up_to(0, Limit.FOOTPRINT))
    assert (found.largest, found.binding) == (0, Limit.FOOTPRINT)
    assert [row.n for row in found.rows] == [1, 2, 4]


def test_without_a_limit_of_memory_another_one_binds() -> None:
    free = up_to(1 << 60, Limit.MEMORY)
    (found,) = plan_contexts(SHAPE, [256], ServerSettings(), 6, free)
    assert (found.largest, found.binding) == (6, Limit.MAX_N)
    assert slot_ceiling(ServerSettings(), 256) == (256, Limit.SLOTS)
    assert slot_ceiling(ServerSettings(ubatch_tokens=16), 64) == (16, Limit.BATCH)
    assert slot_ceiling(ServerSettings(batch_tokens=8, ubatch_tokens=0), 64) == (8, Limit.BATCH)


def test_a_model_given_by_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    document = plan(capsys, "--ctx", "8192", "--memory-gb", "20", *DESCRIBED)
    assert document["kv_bytes_per_token"] == 32 * 8 * 256 * 2
    assert document["available_bytes"] == 20 * GIB
    assert document["floor_bytes"] == host.MEMORY_FLOOR_BYTES
    (context,) = document["contexts"]
    last = max(row["n"] for row in context["rows"] if row["fits"])
    assert (context["largest_n"], context["binding"]) == (last, "memory")
    room = 20 * GIB - host.MEMORY_FLOOR_BYTES
    assert project(SHAPE, 8192, last).total_bytes <= room
    assert project(SHAPE, 8192, last + 1).total_bytes > room
    row = next(row for row in context["rows"] if row["n"] == 4)
    expected = project(SHAPE, 8192, 4)
    assert row["total_bytes"] == expected.total_bytes
    assert row["overhead_bytes"] == expected.overhead_bytes
    assert row["total_bytes"] == sum(row[f"{p}_bytes"] for p in ("weights", "kv", "overhead"))


def test_a_table_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--ctx", "8192", "--memory-gb", "20", *DESCRIBED) == 0
    out = capsys.readouterr().out
    assert "KV       128.0 KiB a token, exact" in out
    assert "20.0 GiB available (assumed), 512.0 MiB must remain; no cap" in out
    assert "over the available memory" in out
    assert "the largest N is 15 (available memory, less what must remain)" in out
    assert "\x1b" not in out


def test_several_contexts_give_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ctx", "2048, 4096", "--ctx", "8192,2048", "--max-footprint-gb", "10"]
    assert run(*words, "--memory-gb", "64", "--max-n", "16", *DESCRIBED) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "N=1" in line)
    assert head.split() == ["ctx", "N=1", "N=2", "N=4", "N=8", "N=16"]
    rows = [line.split() for line in lines if line.strip().startswith(("2048 ", "4096 ", "8192 "))]
    assert [row[0] for row in rows] == ["2048", "4096", "8192"]
    assert lines[-4:] == [
        "! does not fit",
        "ctx 2048: the largest N is 16 (--max-n 16; more may fit)",
        "ctx 4096: the largest N is 11 (--max-footprint-gb)",
        "ctx 8192: the largest N is 5 (--max-footprint-gb)",
    ]


def test_the_servers_flags_move_the_figures(capsys: pytest.CaptureFixture[str], toy: Path) -> None:
    def first(*words: str) -> dict[str, int]:
        row: dict[str, int] = plan(capsys, "--model", str(toy), "--ctx", "4096", *words)[
            "contexts"
        ][0]["rows"][1]
        return row

    plain = first()
    assert first("--kv", "q8_0")["kv_bytes"] == plain["kv_bytes"] * 17 // 32
    assert first("--kv", "q8_0/f16")["kv_bytes"] == plain["kv_bytes"] * (17 + 32) // 64
    assert first("--flash-attn", "off")["compute_bytes"] > plain["compute_bytes"]
    assert first("-ub", "64")["compute_bytes"] == plain["compute_bytes"] // 8
    assert first("-b", "64")["compute_bytes"] == plain["compute_bytes"] // 8
    assert first("--kv-unified")["compute_bytes"] > plain["compute_bytes"]


def test_a_micro_batch_limits_n(capsys: pytest.CaptureFixture[str], toy: Path) -> None:
    document = plan(capsys, "--model", str(toy), "--ctx", "256", "--ubatch-size", "4")
    assert document["contexts"][0]["largest_n"] == 4
    assert document["contexts"][0]["binding"] == "batch"


def test_an_upper_bound_is_called_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "windowed.gguf"
    path.write_bytes(named_model("llama", {"attention.sliding_window": 512}))
    assert run("--model", str(path), "--ctx", "8192") == 0
    out = capsys.readouterr().out
    assert "a token, an upper bound" in out
    assert "window of 512 tokens" in out
    assert plan(capsys, "--model", str(path), "--ctx", "8192")["kv_exact"] is False


def test_a_context_beyond_the_models_is_warned_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(named_model("llama", {}))
    contexts = plan(capsys, "--model", str(path), "--ctx", "4096,8192")["contexts"]
    assert [len(context["warnings"]) for context in contexts] == [0, 1]
    assert run("--model", str(path), "--ctx", "8192") == 0
    assert "warning: ctx 8192 exceeds the model's context length of 4096" in capsys.readouterr().out


def test_unknown_memory_is_said_and_the_cap_still_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_n, "memory_available", lambda: None)
    assert run("--ctx", "8192", *DESCRIBED) == 0
    out = capsys.readouterr().out
    assert "how much is available is unknown here and limits nothing; no cap" in out
    assert "the largest N is 64 (--max-n 64; more may fit)" in out
    document = plan(capsys, "--ctx", "8192", "--max-footprint-gb", "10", *DESCRIBED)
    assert document["available_bytes"] is None
    assert document["contexts"][0]["binding"] == "footprint"


def test_no_n_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--ctx", "8192", "--max-footprint-gb", "1", *DESCRIBED) == 0
    assert "ctx 8192: no N fits (--max-footprint-gb)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--ctx is missing"),
        ((), "a model without a file needs --layers, --heads, --kv-heads, --embedding, --vocab, "),
        ((), "--weights-gb, --head-dim, or a file with --model"),
        (("--layers", "3", "--key-length", "64"), "--value-length"),
        (("--ctx", "0"), "--ctx '0' is no whole number from 1"),
        (("--ctx", "-256"), "--ctx '-256' is no whole number"),
        (("--ctx", "1e9"), "--ctx '1e9'"),
        (("--ctx", "\u0662\u0665\u0666"), "is no whole number"),
        (("--ctx", "256,"), "--ctx '' is no whole number"),
        (("--ctx", "300"), "use 256 or 512"),
        (("--ctx", str(1 << 40)), "is no whole number from 1 to 1073741824"),
        (("--max-n", "257"), "--max-n '257' is no whole number from 1 to 256"),
        (("--max-n", "x"), "--max-n 'x'"),
        (("-ub", "0"), "--ubatch-size '0'"),
        (("-b", "-1"), "--batch-size '-1'"),
        (("--memory-gb", "nan"), "--memory-gb 'nan' is no number above 0"),
        (("--memory-gb", "-1"), "--memory-gb '-1'"),
        (("--max-footprint-gb", "inf"), "--max-footprint-gb 'inf'"),
        (("--weights-gb", "0"), "--weights-gb '0'"),
        (("--layers", "99999"), "--layers '99999' is no whole number from 1 to 4096"),
        (("--kv", "f17"), "unknown KV cache type 'f17'"),
        (("--kv", "f16/"), "unknown KV cache type ''"),
        (("--kv", "f16/f16/f16"), "unknown KV cache type 'f16/f16'"),
        (("--flash-attn", "auto"), "--flash-attn 'auto' is neither on nor off"),
        (("--model", "m.gguf", "--heads", "3"), "--heads: --model states these itself"),
    ],
)
def test_nonsense_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*(f"{word}" for word in words))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        run("--ctx", "100,x", "--kv", "z", "--max-n", "0", "--memory-gb", "no", "--heads", "h")
    for fault in ("--ctx 100", "'x'", "'z'", "--max-n", "--memory-gb", "--heads 'h'", "--layers"):
        assert fault in str(caught.value)


def test_what_the_server_would_refuse_is_refused(toy: Path, tmp_path: Path) -> None:
    words = ["--model", str(toy), "--ctx", "256"]
    with pytest.raises(UsageError, match="needs flash attention"):
        run(*words, "--kv", "q8_0", "--flash-attn", "off")
    with pytest.raises(UsageError, match="nothing may follow --"):
        run(*words, after=["--threads", "2"])
    with pytest.raises(UsageError, match=r"absent\.gguf: No such file"):
        run("--model", str(tmp_path / "absent.gguf"), "--ctx", "256")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK")
    with pytest.raises(GgufError, match=r"other\.gguf"):
        run("--model", str(other), "--ctx", "256")


def guard_of_run_live(total: int) -> str | None:
    try:
        host.check_memory(total, host.MEMORY_FLOOR_BYTES, int(0.05 * GIB), enabled=True)
    except GuardRefused as refusal:
        return refusal.guard
    return None


def test_run_live_projects_and_refuses_the_same(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    toy: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\necho ok\n")
    server.chmod(0o755)
    words = ["--model", str(toy), "--ctx", "1024", "--kv", "q8_0/f16", "-ub", "64"]
    document = plan(capsys, *words, "--memory-gb", "1", "--max-footprint-gb", "0.05")
    (context,) = document["contexts"]
    flags = UserFlags(("-ctk", "q8_0", "-ub", "64"))
    monkeypatch.setattr(host, "memory_available", lambda: GIB)
    for row in context["rows"]:
        known = know_server(ServerChoice(server, toy, 1024, flags), row["n"])
        assert known.footprint.total_bytes == row["total_bytes"]
        assert guard_of_run_live(known.footprint.total_bytes) == row["broken"]
    assert {row["fits"] for row in context["rows"]} == {True, False}
