"""`minimise` and `replay` on servers that somebody else runs, as a user meets them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import CaseError
from batch_invariance.invariance_diff.case import parse_case
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.model import Arm, Source
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from case_fixtures import a_case
from core_fixtures import (
    EVIDENCE_NAME,
    Ideal,
    encode,
    in_arm,
    on_header,
    on_trials,
    with_result,
)
from fake_endpoints import KEY, MODEL, FakeEndpoint, Plan, Surface, written
from reports_fixtures import Outcome, cli

CHANGES = MockBehaviour(BatchDivergence.SCORE, tick_s=0.0, gather_s=0.02)
PATIENT = replace(CHANGES, gather_s=0.3)
"""Waits long enough for a second curl, also on a busy machine."""
N = 3


def prompts() -> list[dict[str, object]]:
    return [{"id": f"q{i}", "prompt": f"Question {i}: name a river, say why."} for i in range(N)]


@dataclass(frozen=True)
class Red:
    """A server that changes what it batches, its certificate, and a case of it."""

    server: FakeEndpoint
    certificate: Path
    folder: Path
    outcome: Outcome

    @property
    def case(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "case.json").read_bytes())
        return document

    @property
    def n_chats(self) -> int:
        return self.server.plan.chats

    def minimise(self, *more: object, attempts: int = 4) -> Outcome:
        words = ["minimise", self.certificate, "--url", self.server.url]
        return cli(*words, "--attempts", attempts, *key_file(self.folder.parent), *more)

    def replay(self, *more: object, case: Path | None = None, url: str | None = None) -> Outcome:
        words = ["replay", case or self.folder, "--url", url or self.server.url]
        return cli(*words, *key_file(self.folder.parent), *more)

    def edited(self, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
        """The case with a change."""
        case = self.case
        change(case)
        path = folder / "case.json"
        path.write_text(json.dumps(case))
        return path


def key_file(folder: Path) -> Sequence[object]:
    (folder / "key").write_text(KEY)
    return "--api-key-file", folder / "key"


def certified(folder: Path, server: FakeEndpoint) -> Path:
    (folder / "w.json").write_text(json.dumps(prompts()))
    words = ["certify-endpoint", "--url", server.url, "--model", MODEL, "--quiet"]
    words += ["--workset", str(folder / "w.json"), "--concurrency", str(N), "--passes", "1"]
    words += ["--max-tokens", "6", "--out-dir", str(folder / "certs")]
    made = cli(*words, *key_file(folder), out_dir=folder / "certs")
    assert made.verdict == "RED", made.stderr
    return made.certificate_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Surface], Red]]:
    """A case on a server of a surface, which still runs; one for each surface."""
    known: dict[Surface, Red] = {}
    with contextlib.ExitStack() as stack:

        def of(surface: Surface) -> Red:
            if surface not in known:
                folder = tmp_path_factory.mktemp("red")
                server = stack.enter_context(FakeEndpoint(Plan(surface), behaviour=CHANGES))
                nothing = Outcome(0, "", "", folder)
                begun = Red(server, certified(folder, server), folder / "case", nothing)
                outcome = begun.minimise("--out", folder / "case")
                assert outcome.code == 0, outcome.stderr
                known[surface] = replace(begun, outcome=outcome)
            return known[surface]

        yield of


@pytest.fixture(params=[Surface.VLLM, Surface.LLAMA_CPP, Surface.BARE])
def red(request: pytest.FixtureRequest, made: Callable[[Surface], Red]) -> Red:
    return made(request.param)


@pytest.fixture
def vllm(made: Callable[[Surface], Red]) -> Red:
    return made(Surface.VLLM)


def test_a_wave_comes_down_to_two_requests_in_the_dialect_of_the_run(red: Red) -> None:
    case, surface = red.case, red.server.plan.surface
    assert len(case["shape"]["requests"]) == 2
    assert (case["schema"], case["source"]) == ("endpoint-case/1", "endpoint")
    assert case["origin"]["start_lanes"] == N
    assert case["rate"]["shown"] >= 3
    assert (case["rate_is_fresh"], case["one_slot_agrees"]) == (True, None)
    assert sorted(f.name for f in red.folder.iterdir()) == [
        "case.json", "case.sh", "report.md", "requests",
    ]  # fmt: skip
    body = json.loads((red.folder / "requests" / "target.json").read_bytes())
    assert body["model"] == MODEL
    assert ("id_slot" in body) is (surface is Surface.LLAMA_CPP)
    assert ("return_tokens_as_token_ids" in body) is (surface is not Surface.LLAMA_CPP)


def test_what_may_be_sent_is_said_before_and_what_was_found_after(red: Red) -> None:
    before, _, _ = red.outcome.stderr.partition("start: wave")
    assert "this sends up to" in before
    assert "greeting 1, starts" in before
    assert "cap: none (--max-requests, --max-total-tokens)" in before
    said = red.outcome.stdout
    assert "in 4 of 4 attempts once the search was over" in said
    assert f"2 requests, waves, 2 at once (start: {N} requests {N} at once)" in said
    url = red.server.url.removesuffix("/v1")
    assert f"next         batch-invariance replay {red.folder} --url {url}" in said


def test_never_more_in_flight_than_the_certificate_had(red: Red) -> None:
    assert red.case["shape"]["lanes"] <= N
    assert red.server.engine.counters().deferred == 0


def test_the_key_is_in_no_file_and_in_no_word(red: Red) -> None:
    assert KEY.encode() not in written(red.folder)
    assert KEY not in red.outcome.stdout + red.outcome.stderr


def test_a_replay_reproduces_it(red: Red) -> None:
    said = red.replay("--attempts", 3)
    assert said.code == 0, said.stdout + said.stderr
    assert said.stdout.startswith("REPRODUCED  q")
    assert "this sends up to 10 requests to" in said.stderr
    versionless = "the server names no version" in said.stdout
    assert versionless is (red.server.plan.surface is Surface.BARE)


def test_a_sound_server_does_not_reproduce_it(red: Red) -> None:
    with FakeEndpoint(Plan(red.server.plan.surface)) as sound:
        said = red.replay("-q", "--attempts", 10, url=sound.url)
    assert said.code == 3, said.stdout
    assert said.stdout.startswith("NOT REPRODUCED  q")
    assert "in 0 of 10 attempts; with 95% confidence it shows in fewer than 26%" in said.stdout


def test_another_version_is_another_subject_and_nothing_is_sent(vllm: Red, tmp_path: Path) -> None:
    def older(case: dict[str, Any]) -> None:
        case["endpoint"]["said"]["/version version"] = "0.31.0"

    case, before = vllm.edited(tmp_path, older), vllm.n_chats
    said = vllm.replay("-q", case=case)
    assert (said.code, said.stdout[:13]) == (5, "OTHER SUBJECT")
    assert "/version version is 0.32.0, was 0.31.0" in said.stdout
    assert "Nothing was sent" in said.stdout
    assert vllm.n_chats == before
    said = vllm.replay("-q", "--any-subject", "--attempts", 2, "--json", case=case)
    report = json.loads(said.stdout)
    assert (said.code, report["outcome"]) == (5, "other_subject")
    assert report["measured_on_other_subject"] == "reproduced"


def test_a_build_that_only_answers_name_is_seen_in_them(vllm: Red, tmp_path: Path) -> None:
    def other(case: dict[str, Any]) -> None:
        case["endpoint"]["said"]["system_fingerprint"] = "fp-0"

    said = vllm.replay("-q", "--attempts", 2, case=vllm.edited(tmp_path, other))
    assert said.code == 5
    assert "system_fingerprint is fp-1, was fp-0" in said.stdout
    assert "on this subject: reproduced" in said.stdout


def test_a_restart_is_no_other_subject(vllm: Red, tmp_path: Path) -> None:
    def earlier(case: dict[str, Any]) -> None:
        assert case["endpoint"]["said"]["process_start_time_seconds"] == "1.0"
        case["endpoint"]["said"]["process_start_time_seconds"] = "0.5"

    assert vllm.replay("-q", "--attempts", 2, case=vllm.edited(tmp_path, earlier)).code == 0


def test_another_server_than_the_certificates_is_refused_unless_it_is_wanted(
    vllm: Red, tmp_path: Path
) -> None:
    with FakeEndpoint(Plan(Surface.SGLANG), behaviour=CHANGES) as other:
        words = ["minimise", vllm.certificate, "--url", other.url, *key_file(tmp_path)]
        words += ["-q", "--attempts", 2, "--out", tmp_path / "case"]
        refused = cli(*words)
        assert refused.code == 1
        assert "another server or model:; the engine is sglang, was vllm" in refused.stderr
        assert other.plan.chats == 0
        assert cli(*words, "--any-subject").code == 0
    case = json.loads((tmp_path / "case" / "case.json").read_bytes())
    assert case["endpoint"]["engine"] == "sglang"
    assert case["endpoint"]["said"]["/server_info model_path"] == "/m"


def test_a_model_under_another_name_is_another_subject(vllm: Red) -> None:
    said = vllm.replay("-q", "--model", "org/other")
    assert said.code == 5
    assert f"the model's name is org/other, was {MODEL}" in said.stdout


def test_what_does_not_show_again_is_refused_with_its_rate(vllm: Red, tmp_path: Path) -> None:
    with FakeEndpoint(Plan(Surface.VLLM)) as sound:
        words = ["minimise", vllm.certificate, "--url", sound.url, *key_file(tmp_path), "-q"]
        said = cli(*words, "--attempts", 4, "--out", tmp_path / "case")
    assert said.code == 3
    assert said.stdout.startswith("NOT REPRODUCED  q")
    assert not (tmp_path / "case").exists()


# Limits.


def test_a_limit_that_leaves_no_room_is_refused_before_anything_is_sent(
    vllm: Red, tmp_path: Path
) -> None:
    before = vllm.n_chats
    said = vllm.minimise("--max-requests", 20, "--out", tmp_path / "case")
    assert said.code == 2
    assert "--max-requests: 20 are left, 30 may be needed for the start" in said.stderr
    said = vllm.minimise("--max-total-tokens", 50, "--out", tmp_path / "case")
    assert said.code == 2
    assert "--max-total-tokens: 50 are left" in said.stderr
    said = vllm.replay("--max-requests", 5, "--attempts", 4)
    assert said.code == 2
    assert "--max-requests: 5 are left, 12 may be needed for the replay" in said.stderr
    assert vllm.n_chats == before


def test_a_limit_ends_the_search_and_leaves_enough_to_measure(vllm: Red, tmp_path: Path) -> None:
    before = vllm.n_chats
    said = vllm.minimise("-q", "--max-requests", 70, "--out", tmp_path / "case")
    assert said.code == 0, said.stderr
    assert 30 < vllm.n_chats - before <= 70
    case = json.loads((tmp_path / "case" / "case.json").read_bytes())
    assert case["rate_is_fresh"]
    assert case["search"]["ended_early"].startswith("--max-requests: ")
    assert "ended early: --max-requests" in said.stdout


def test_a_rate_limit_is_obeyed_and_said(vllm: Red) -> None:
    vllm.server.plan.too_many = 3
    said = vllm.replay("--attempts", 2)
    assert said.code == 0, said.stderr
    assert "rate limit: 3 requests waited and went out again" in said.stderr
    assert vllm.server.plan.too_many == 0


def test_a_server_that_is_gone_is_an_error_in_one_line(vllm: Red, tmp_path: Path) -> None:
    with FakeEndpoint(Plan(Surface.VLLM)) as gone:
        url = gone.url
    said = vllm.replay("-q", "--any-subject", url=url)
    assert (said.code, said.stderr.count("\n")) == (1, 1)
    assert "does not answer" in said.stderr
    refused = cli("replay", vllm.folder, "--url", vllm.server.url, "-q", "--any-subject")
    assert refused.code == 1
    assert "give the key with --api-key-file or --api-key-env" in refused.stderr


# Which server it is about.


def test_an_endpoint_needs_its_address(vllm: Red, tmp_path: Path) -> None:
    for words in (["minimise", vllm.certificate], ["replay", vllm.folder]):
        said = cli(*words)
        assert (said.code, said.stderr.count("\n")) == (2, 1)
        assert "is of an endpoint: give --url, where its server is now" in said.stderr
    said = vllm.replay("--server-bin", "llama-server")
    assert said.code == 2
    assert "--server-bin has no part in it" in said.stderr


def test_a_launched_server_has_no_address(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_bytes(a_case().to_bytes())
    said = cli("replay", tmp_path, "--url", "http://127.0.0.1:9")
    assert (said.code, said.stderr.count("\n")) == (2, 1)
    assert "--url: " in said.stderr
    assert "is of a server that is launched for it" in said.stderr
    said = cli("replay", tmp_path)
    assert said.code == 2
    assert "--server-bin: needed" in said.stderr


def test_a_certificate_of_a_launch_has_no_address_either(tmp_path: Path) -> None:
    other = on_trials(in_arm(Arm.C, 0, 1), with_result(text="other"))
    mock = on_header(lambda header: replace(header, source=Source.MOCK))
    lines = encode(mock(other(Ideal([4, 4], n=2, passes=1).records())))
    (tmp_path / EVIDENCE_NAME).write_bytes(b"".join(lines))
    (tmp_path / "mock.json").write_bytes(certify(lines, EVIDENCE_NAME).to_bytes())
    said = cli("minimise", tmp_path / "mock.json", "--url", "http://127.0.0.1:9")
    assert said.code == 2
    assert "--url: mock.json is of a server that is launched for it" in said.stderr


# The files.


def test_the_case_is_read_as_it_was_written(red: Red) -> None:
    data = (red.folder / "case.json").read_bytes()
    assert parse_case(data, "case.json").to_bytes() == data


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("schema", "case/1", "schema, source and endpoint do not belong together"),
        ("source", "live", "schema, source and endpoint do not belong together"),
        ("endpoint", None, "schema, source and endpoint do not belong together"),
        ("reference", "one_slot", "reference is none that an endpoint has"),
        ("sampling", {"seed": 1, "max_tokens": 2, "top_logprobs": 2}, "not that of an endpoint"),
    ],
)
def test_what_no_search_can_have_written_is_no_case(
    vllm: Red, name: str, value: object, said: str
) -> None:
    document = vllm.case | {name: value}
    with pytest.raises(CaseError) as refusal:
        parse_case(json.dumps(document).encode(), "case.json")
    assert said in str(refusal.value)


def test_the_report_says_what_is_known_of_the_server(vllm: Red) -> None:
    report = (vllm.folder / "report.md").read_text()
    url = vllm.server.url.removesuffix("/v1")
    for words in (
        "# vllm answers a request differently beside 1 request",
        "in **4 of 4** attempts measured once the search was over",
        "nothing was started or stopped for this case",
        f"URL={url} sh case.sh",
        "| /version version | 0.32.0 |",
        "| system\\_fingerprint | fp-1 |",
        "Its weights, flags and machine are not known",
        "**target**: `max_tokens`",
    ):
        assert words in report, words
    assert "llama-server" not in report


# With curl alone.


def run_script(
    folder: Path, bin_folder: Path, **more: object
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs the script with a curl that writes down its own command line, and gives that too."""
    bin_folder.mkdir()
    seen, curl = bin_folder / "seen", shutil.which("curl")
    wrapper = bin_folder / "curl"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>"{seen}"\nenv >>"{seen}"\nexec {curl} "$@"\n')
    wrapper.chmod(0o700)
    env = {**os.environ, **{name: str(value) for name, value in more.items()}}
    env["PATH"] = f"{bin_folder}:{env['PATH']}"
    words = ["sh", folder / "case.sh"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)
    return done, seen.read_text() if seen.exists() else ""


def test_the_script_shows_it_and_the_key_is_in_no_command_line(red: Red, tmp_path: Path) -> None:
    plan = Plan(red.server.plan.surface)
    with FakeEndpoint(plan, behaviour=PATIENT) as server:
        done, seen = run_script(red.folder, tmp_path / "bin", URL=server.url, API_KEY=KEY, TRIES=2)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    alone, again, together, attempt = lines[:4]
    assert alone == again
    assert alone.startswith('alone:      "content":')
    assert together.startswith('together:   "content":')
    assert together.split(maxsplit=1)[1] != alone.split(maxsplit=1)[1]
    assert attempt == "attempt 1 beside 1 other request: another answer"
    by_token = [line for line in lines if line.startswith("at token ")]
    assert len(by_token) == (plan.surface is not Surface.BARE)
    assert lines[-1] == "another answer in 2 of 2 attempts (recorded: 4 of 4)"
    assert done.stderr == ""
    assert KEY not in seen
    assert "-K -" in seen


def test_the_script_says_when_it_does_not_show_and_when_it_cannot_ask(
    vllm: Red, tmp_path: Path
) -> None:
    with FakeEndpoint(Plan(Surface.VLLM)) as server:
        done, _ = run_script(vllm.folder, tmp_path / "a", URL=server.url, API_KEY=KEY, TRIES=1)
        assert done.returncode == 1, done.stdout
        done, _ = run_script(vllm.folder, tmp_path / "b", URL=server.url, API_KEY="wrong-key")
        assert done.returncode == 2
        assert "no answer to target:" in done.stdout
        names = [body["model"] for body in server.plan.bodies]
        more = {"URL": server.url, "API_KEY": KEY, "MODEL": "a/b&c#d|e"}
        done, _ = run_script(vllm.folder, tmp_path / "c", **more)
        assert done.returncode == 2
        assert {body["model"] for body in server.plan.bodies[len(names) :]} == {"a/b&c#d|e"}
    done, _ = run_script(vllm.folder, tmp_path / "d")
    assert done.returncode == 2
    assert "give URL of a running server" in done.stderr


def test_a_private_prompt_is_taken_out_where_the_server_counts_no_tokens(
    vllm: Red, tmp_path: Path
) -> None:
    said = vllm.minimise("-q", "--redact", "--max-probes", 12, "--out", tmp_path / "case")
    assert said.code == 0, said.stderr
    assert sorted(f.name for f in (tmp_path / "case").iterdir()) == ["case.json", "report.md"]
    assert b"name a river" not in written(tmp_path / "case")
    assert "cannot be sent again" in said.stdout
