"""`certify-endpoint` against servers that look like other engines, from options to exit code."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.main import main
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.invariance_diff.verify import cert_is_green, is_promotable
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from fake_endpoints import KEY, MODEL, SERVERS_OWN_KEY, FakeEndpoint, Plan, Surface, written

SLOW_TICK_S = 0.006
"""A gauge is polled every 10 ms at most, so that requests must take some time to be seen."""
ITEMS = [{"id": f"q{i}", "prompt": f"Question {i}: " + "word " * (3 + i % 5)} for i in range(8)]


@dataclass(frozen=True)
class Ended:
    """A run: its exit code, what it said, its certificate and its folder."""

    code: int
    out: str
    err: str
    cert: dict[str, Any]
    folder: Path

    def outcome(self, gate: str) -> tuple[str, str, str | None]:
        row = next(r for r in self.cert["gates"] if r["gate"] == gate)
        return row["outcome"], row["measured"], row["reason"]

    @property
    def amiss(self) -> set[str]:
        """Gates that neither pass nor are without application, but for the source's own."""
        fine = ("PASS", "NOT_APPLICABLE")
        return {r["gate"] for r in self.cert["gates"] if r["outcome"] not in fine} - {
            "F5_provenance"
        }


Certify = Callable[..., Ended]


def _run(
    folder: Path,
    plan: Plan,
    *words: str,
    behaviour: MockBehaviour | None = None,
    slots: int = 4,
) -> Ended:
    """Runs the verb against a fake server with this plan."""
    workset = folder / "w.json"
    workset.write_text(json.dumps(ITEMS), "utf-8")
    out, err = io.StringIO(), io.StringIO()
    with (
        FakeEndpoint(plan, slots, behaviour) as server,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("FAKE_KEY", KEY)
        command = ["certify-endpoint", "--url", server.url, "--model", MODEL]
        command += ["--workset", str(workset), "--concurrency", "4", "--passes", "2"]
        command += ["--max-tokens", "12", "--api-key-env", "FAKE_KEY"]
        code = main([*command, "--out-dir", str(folder / "out"), *words])
    found = sorted((folder / "out").glob("*.json"))
    cert = json.loads(found[0].read_bytes()) if found else {}
    return Ended(code, out.getvalue(), err.getvalue(), cert, folder / "out")


@pytest.fixture
def certify(tmp_path: Path) -> Certify:
    return functools.partial(_run, tmp_path)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Plan]:
    """A plain run against a vLLM, and what that saw."""
    plan, folder = Plan(Surface.VLLM), tmp_path_factory.mktemp("vllm")
    return _run(folder, plan, "--claims-invariance", "deterministic"), plan


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run against a server that tells nothing."""
    folder = tmp_path_factory.mktemp("bare")
    return _run(folder, Plan(Surface.BARE), "--claims-invariance", "deterministic")


def _slow(kind: BatchDivergence = BatchDivergence.NONE) -> MockBehaviour:
    return MockBehaviour(kind, tick_s=SLOW_TICK_S)


# Engines.


def test_a_vllm_is_certified_by_its_own_steps(vllm: tuple[Ended, Plan]) -> None:
    ended, _ = vllm
    assert ended.code == 0
    assert ended.amiss == set()
    assert ended.cert["source"] == "endpoint"
    assert ended.cert["gate"] == "ac_union"
    assert ended.cert["overlap"]["witness"] == "decode_count"
    assert ended.cert["overlap"]["tested_n"] == 4
    endpoint = ended.cert["endpoint"]
    assert endpoint["engine"] == "vllm"
    assert endpoint["capabilities"]["tokens"] == "ids"
    assert endpoint["control"] == "logit_bias"
    assert endpoint["said"]["/version version"] == "0.32.0"
    assert ended.cert["ctx"] == 2048
    assert "this sends up to" in ended.err
    assert "vllm:iteration_tokens_total_count" in ended.err


def test_it_is_green_for_an_endpoint_and_for_nothing_else(vllm: tuple[Ended, Plan]) -> None:
    ended, _ = vllm
    assert cert_is_green(ended.cert, require_source="endpoint")
    assert not cert_is_green(ended.cert)
    assert not is_promotable(ended.cert)
    assert ended.cert["promotable"] is False
    path = next(ended.folder.glob("*.json"))
    assert main(["verify-cert", str(path), "--json"]) == 3


def test_a_vllm_that_diverges_is_red_and_put_down_to_the_batch(certify: Certify) -> None:
    ended = certify(Plan(), behaviour=MockBehaviour(BatchDivergence.SCORE))
    assert ended.code == 3
    assert ended.cert["verdict"] == "RED"
    assert ended.cert["divergence_class"] == "co_batching"
    assert ended.outcome("reference")[0] == "PASS"
    assert ended.cert["controls"]["confirm_done"] > 0


def test_an_sglang_is_certified_by_its_gauge_and_by_spelling(certify: Certify) -> None:
    ended = certify(Plan(Surface.SGLANG), behaviour=_slow())
    assert ended.code == 0, ended.out
    assert ended.cert["overlap"]["witness"] == "scheduler_gauge"
    assert ended.cert["endpoint"]["capabilities"]["tokens"] == "spelling"
    assert ended.cert["endpoint"]["control"] == "other_prompt"
    assert "spelling" in ended.outcome("tokens")[1]
    required = next(r["required"] for r in ended.cert["gates"] if r["gate"] == "F3_coverage")
    assert "weaker" in required
    assert SERVERS_OWN_KEY.encode() not in written(ended.folder)


def test_spelling_cannot_tell_twins_apart_and_ids_can(certify: Certify) -> None:
    """Twins are two tokens of one spelling."""
    twins = MockBehaviour(BatchDivergence.TOKEN)
    long = ("--max-tokens", "24")
    assert certify(Plan(), *long, behaviour=twins).cert["verdict"] == "AMBER"
    spelt = certify(Plan(spells=True), *long, behaviour=twins)
    assert spelt.cert["verdict"] == "GREEN"
    assert "spelling" in spelt.outcome("tokens")[1]


def test_a_tgi_is_certified_by_the_size_of_its_batch(certify: Certify) -> None:
    ended = certify(Plan(Surface.TGI), behaviour=_slow())
    assert ended.code == 0, ended.out
    assert ended.cert["endpoint"]["offered"]["running"] == "tgi_batch_current_size"


def test_a_llama_server_is_asked_on_pinned_slots(certify: Certify) -> None:
    plan = Plan(Surface.LLAMA_CPP)
    ended = certify(plan)
    assert ended.code == 0, ended.out
    assert ended.cert["promotion_scope"]["valid_for"]["slots"] == "pinned"
    assert {body["id_slot"] for body in plan.bodies} == {0, 1, 2, 3}
    assert all(body["cache_prompt"] is False for body in plan.bodies)


def test_a_llama_server_with_fewer_slots_is_not_green(certify: Certify) -> None:
    ended = certify(Plan(Surface.LLAMA_CPP), slots=2)
    assert ended.code == 3
    assert "2 slots" in ended.outcome("identity")[1]
    assert ended.outcome("F1_overlap")[2] == "batch_of_n_not_proved"


# What a server does not offer.


def test_a_server_that_tells_nothing_is_unverified_and_told_what_it_lacks(bare: Ended) -> None:
    ended = bare
    assert ended.code == 3
    assert ended.cert["verdict"] == "UNVERIFIED"
    assert ended.outcome("F3_coverage")[2] == "weak_witness"
    assert ended.outcome("F1_overlap")[2] == "no_server_witness"
    assert ended.cert["claims"] == {"score": None, "token": None, "logprob_bits": None}
    wants = " ".join(ended.cert["endpoint"]["wants"])
    assert "a witness of batches" in wants
    assert "logprobs" in wants
    assert "the server would have to offer a witness of batches" in ended.out
    assert ended.cert["ctx"] == 0


def test_each_thing_that_is_missing_is_named_with_its_flag(certify: Certify) -> None:
    ended = certify(Plan(Surface.VLLM, no_counters=True))
    assert ended.cert["endpoint"]["engine"] == "vllm"
    assert "--no-enable-prefix-caching" in ended.outcome("isolation")[1]
    assert "--disable-log-stats" in " ".join(ended.cert["endpoint"]["wants"])


@pytest.mark.parametrize(
    ("plan", "gate", "reason"),
    [
        (Plan(cached=2), "isolation", "not_isolated"),
        (Plan(foreign_at=1), "isolation", "not_isolated"),
        (Plan(restarts_after=30), "identity", "identity_mismatch"),
        (Plan(other_model_after=30), "identity", "identity_mismatch"),
    ],
    ids=["cache", "traffic", "restart", "model"],
)
def test_what_spoils_a_run_is_named(certify: Certify, plan: Plan, gate: str, reason: str) -> None:
    ended = certify(plan)
    assert ended.code == 3
    assert ended.cert["verdict"] == "UNVERIFIED"
    assert ended.outcome(gate)[2] == reason
    assert ended.amiss == {gate}


@pytest.mark.parametrize(
    ("surface", "boasts"),
    [(Surface.VLLM, False), (Surface.VLLM, True), (Surface.SGLANG, True)],
)
def test_a_server_that_computes_one_after_the_other_is_never_green(
    certify: Certify, surface: Surface, boasts: bool
) -> None:
    """Whatever its gauge calls its requests."""
    behaviour = _slow() if surface is Surface.SGLANG else None
    ended = certify(Plan(surface, one_at_a_time=True, boasts=boasts), behaviour=behaviour)
    assert ended.code == 3
    assert ended.cert["verdict"] == "UNVERIFIED"
    assert "F3_coverage" in ended.amiss
    if surface is Surface.SGLANG:
        assert "of the time that its requests take one at a time" in ended.outcome("F1_overlap")[1]


def test_a_cache_of_answers_in_front_is_seen_by_their_ids(
    certify: Certify, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the cache answers is never counted, so that every pass would wait for it.
    monkeypatch.setattr("batch_invariance.live_invariance.endpoint_telemetry.SETTLE_S", 0.1)
    ended = certify(Plan(keeps_answers=True))
    assert ended.code == 3
    assert ended.outcome("isolation")[2] == "not_isolated"
    assert "bear the id of an earlier one" in ended.outcome("isolation")[1]


def test_replicas_with_one_request_each_form_no_batch(certify: Certify) -> None:
    """However many their gauges come to together."""
    ended = certify(Plan(Surface.SGLANG, spread=True), behaviour=_slow())
    assert ended.code == 3
    assert ended.cert["verdict"] == "UNVERIFIED"
    assert {"F1_overlap", "F3_coverage"} <= ended.amiss


def test_an_endpoints_certificate_may_be_signed(
    certify: Certify, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, other = tmp_path / "sign", tmp_path / "other"
    key.write_bytes(b"k" * 32)
    other.write_bytes(b"o" * 32)
    for file in (key, other):
        file.chmod(0o600)
    ended = certify(Plan(), "--sign-key", str(key))
    assert ended.code == 0
    assert b"k" * 32 not in written(ended.folder)
    path = next(ended.folder.glob("*.json"))
    assert main(["verify-cert", "--sign-key", str(key), str(path)]) == 3
    assert "borne out by its evidence" in capsys.readouterr().out
    assert main(["verify-cert", "--sign-key", str(other), str(path)]) != 0
    assert "names another key" in capsys.readouterr().out


def test_other_peoples_traffic_beside_the_load_is_stated(certify: Certify) -> None:
    ended = certify(Plan(foreign_at=3))
    assert ended.code == 0, ended.out
    traffic = ended.cert["endpoint"]["foreign_traffic"]
    assert {part["arm"] for part in traffic} <= {"C", "P"}
    assert sum(part["tokens"] for part in traffic) > 0
    assert "other traffic:" in ended.out
    assert "other traffic beside C" in ended.outcome("isolation")[1]


# The claim.


def test_a_claim_that_does_not_hold_is_said_not_to(certify: Certify) -> None:
    ended = certify(
        Plan(),
        "--claims-invariance",
        "VLLM_BATCH_INVARIANT=1",
        behaviour=MockBehaviour(BatchDivergence.LOGPROB),
    )
    assert ended.cert["verdict"] == "GREEN"
    claim = {"text": "VLLM_BATCH_INVARIANT=1", "borne_out": False}
    assert ended.cert["endpoint"]["claim"] == claim
    assert "the measurement does not bear it out" in ended.out


def test_a_claim_that_holds_is_borne_out_bit_for_bit(vllm: tuple[Ended, Plan], bare: Ended) -> None:
    assert vllm[0].cert["endpoint"]["claim"]["borne_out"] is True
    assert "bears it out, bit for bit" in vllm[0].out
    assert bare.cert["endpoint"]["claim"]["borne_out"] is None


# Rates, caps, keys.


def test_a_429_is_waited_out_recorded_and_costs_nothing(certify: Certify) -> None:
    ended = certify(Plan(too_many=3, too_many_from=8))
    assert ended.code == 0, ended.out
    assert ended.cert["endpoint"]["n_rate_limited"] == 3
    events = [e for e in ended.cert["events"] if e["what"] == "rate_limited"]
    assert len(events) == 3
    assert "Retry-After 0 s" in events[0]["detail"]
    assert ended.cert["lost_trials"] == []


def test_a_429_that_asks_for_too_much_patience_is_a_lost_trial(certify: Certify) -> None:
    plan = Plan(too_many=1, too_many_from=8, retry_after="3600")
    ended = certify(plan, "--request-timeout", "5")
    assert ended.code == 3
    assert ended.cert["lost_trials"][0]["http_status"] == 429
    assert ended.outcome("lost")[0] == "FAIL"


def test_a_plan_above_the_cap_is_refused_before_anything_is_sent(certify: Certify) -> None:
    plan = Plan()
    ended = certify(plan, "--max-requests", "50")
    assert ended.code == 2
    assert "may need" in ended.err
    assert certify(plan, "--max-total-tokens", "100").code == 2
    assert plan.chats == 0
    assert not ended.folder.exists()


def test_requests_that_go_out_again_count_towards_the_cap(certify: Certify) -> None:
    dry = certify(Plan(), "--dry-run", "--json")
    cap = json.loads(dry.out)["n_requests"]
    plan = Plan(too_many=10**6, too_many_from=20)
    ended = certify(plan, "--max-requests", str(cap), "--request-timeout", "60")
    assert ended.code == 3
    assert plan.chats <= cap
    stopped = next(e for e in ended.cert["events"] if e["what"] == "stopped")
    assert "--max-requests" in stopped["detail"]
    assert ended.outcome("completeness")[0] == "FAIL"


def test_a_dry_run_sends_nothing(certify: Certify) -> None:
    plan = Plan()
    ended = certify(plan, "--dry-run")
    assert ended.code == 0
    assert plan.chats == 0
    assert "this sends up to" in ended.out


@pytest.mark.parametrize("surface", [Surface.VLLM, Surface.SGLANG])
def test_the_key_is_in_no_file_and_in_no_output(certify: Certify, surface: Surface) -> None:
    plan = Plan(surface, echoes_key=True, refuses=("seed", "top_k"))
    ended = certify(plan, "--verbose")
    assert ended.cert["endpoint"]["capabilities"]["seed"] is False
    assert set(ended.cert["endpoint"]["capabilities"]["refused"]) == {"seed", "top_k"}
    assert "[key]" in json.dumps(ended.cert)
    for secret in (KEY, SERVERS_OWN_KEY):
        assert secret.encode() not in written(ended.folder)
        assert secret not in ended.out + ended.err


def test_a_key_may_come_from_a_file(certify: Certify, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n", "utf-8")
    with FakeEndpoint(Plan()) as server:
        words = ["certify-endpoint", "--url", server.url, "--model", MODEL, "--concurrency", "4"]
        (tmp_path / "w.json").write_text(json.dumps(ITEMS), "utf-8")
        words += ["--workset", str(tmp_path / "w.json"), "--passes", "2", "--max-tokens", "12"]
        words += ["--out-dir", str(tmp_path / "o"), "--quiet"]
        assert main([*words, "--api-key-file", str(file)]) == 0
        assert main(words) == 1
        file.write_text("", "utf-8")
        assert main([*words, "--api-key-file", str(file)]) == 2


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://user:pw@host:1", "--api-key-file"),
        ("http://host:1/?key=abc", "without a query"),
        ("host:8000", "http://host:port"),
        ("http://[1", "--url"),
    ],
)
def test_an_address_that_could_leak_or_lead_nowhere_is_refused(
    url: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.json").write_text(json.dumps(ITEMS), "utf-8")
    words = ["certify-endpoint", "--url", url, "--model", "m", "--concurrency", "4"]
    assert main([*words, "--workset", str(tmp_path / "w.json")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "pw" not in err
    assert "abc" not in err
    # The option that is at fault is the one that is named.
    elsewhere = [*words[:2], "http://127.0.0.1:9", *words[3:], "--metrics-url", url]
    assert main([*elsewhere, "--workset", str(tmp_path / "w.json")]) == 2
    assert "--metrics-url: " in capsys.readouterr().err


def test_nobody_there_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.json").write_text(json.dumps(ITEMS), "utf-8")
    words = ["certify-endpoint", "--url", "http://127.0.0.1:9", "--model", "m", "--quiet"]
    words += ["--workset", str(tmp_path / "w.json"), "--concurrency", "4"]
    assert main([*words, "--out-dir", str(tmp_path / "o")]) == 1
    assert "check --url" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_every_request_of_an_item_is_the_same(vllm: tuple[Ended, Plan]) -> None:
    _, plan = vllm
    bodies: dict[str, set[bytes]] = {}
    for body in plan.bodies:
        if "logit_bias" not in body and body["max_tokens"] == 12:
            text = body["messages"][-1]["content"]
            bodies.setdefault(text, set()).add(canonical_json(body))
    assert len(bodies) == len(ITEMS)
    assert {len(found) for found in bodies.values()} == {1}
    body = json.loads(next(iter(bodies[next(iter(bodies))])))
    assert body["temperature"] == 0.0
    assert body["repetition_penalty"] == 1.0
    assert "id_slot" not in body
