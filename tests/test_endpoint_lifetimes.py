"""`--lifetimes`: the whole over restarts of the server, and the rate over them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from batch_invariance.cli.main import main
from batch_invariance.errors import ServerError
from batch_invariance.live_invariance.endpoint_client import EndpointClient
from batch_invariance.live_invariance.endpoint_restart import restart
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from fake_endpoints import KEY, MODEL, FakeEndpoint, Plan, Surface

ITEMS = [{"id": f"q{i}", "prompt": f"Question {i}: " + "word " * (3 + i % 5)} for i in range(8)]


def _lives(folder: Path, server: FakeEndpoint, command: str, n: int, *more: str) -> int:
    (folder / "w.json").write_text(json.dumps(ITEMS), "utf-8")
    (folder / "key").write_text(KEY, "utf-8")
    words = ["certify-endpoint", "--url", server.url, "--model", MODEL, "--quiet"]
    words += ["--workset", str(folder / "w.json"), "--concurrency", "4", "--passes", "2"]
    words += ["--max-tokens", "12", "--api-key-file", str(folder / "key")]
    words += ["--lifetimes", str(n), "--restart-command", command, "--ready-timeout", "5", *more]
    return main([*words, "--out-dir", str(folder / "out")])


def test_each_lifetime_has_its_certificate_and_all_have_a_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = tmp_path / "starts"
    starts.write_bytes(b"")
    with FakeEndpoint(Plan(started_by=starts)) as server:
        code = _lives(tmp_path, server, f"printf x >> {shlex.quote(str(starts))}", 2)
    assert code == 0
    rate = json.loads((tmp_path / "out" / "lifetimes.json").read_bytes())
    assert (rate["n"], rate["n_judged"], rate["n_diverged"]) == (2, 2, 0)
    assert rate["rate_upper_bound_95"] == pytest.approx(1 - 0.05**0.5)
    assert [one["restart_seen"] for one in rate["lifetimes"]] == [None, True]
    for one in rate["lifetimes"]:
        assert main(["verify-cert", str(tmp_path / "out" / one["certificate"])]) == 3
    said = capsys.readouterr().out
    assert main(["list", str(tmp_path / "out"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [Path(file).name for file in listed["left_out"]] == ["lifetimes.json"]
    assert [cell["verdict"] for cell in listed["cells"]] == ["GREEN", "GREEN"]
    assert "0 of 2 judged lifetimes diverged" in said
    assert said.count("borne out by its evidence") == 2
    policy = {"version": 1, "required": ["*/*/4"], "sources": ["endpoint"]}
    for least, passes in ((None, False), (2, True), (3, False)):
        asked = policy if least is None else {**policy, "min_runs": least}
        (tmp_path / "p.json").write_text(json.dumps(asked), "utf-8")
        words = ["gate", str(tmp_path / "out"), "--policy", str(tmp_path / "p.json")]
        assert main(words) == (0 if passes else 3)


def test_a_run_that_fails_leaves_no_older_certificate_standing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = tmp_path / "starts"
    starts.write_bytes(b"")
    with FakeEndpoint(Plan(started_by=starts)) as server:
        assert _lives(tmp_path, server, f"printf x >> {shlex.quote(str(starts))}", 2) == 0
        assert len(list((tmp_path / "out").glob("*/*__N4.json"))) == 2
        assert _lives(tmp_path, server, "exit 7", 2) == 1
    (first,) = (tmp_path / "out").glob("*/*__N4.json")
    assert first.parent.name == "lifetime-1"
    assert len(list((tmp_path / "out").glob("*/*.previous.json"))) == 2
    # The server has gone: not even the probes are answered.
    words = ["certify-endpoint", "--url", server.url, "--model", MODEL, "--quiet"]
    words += ["--workset", str(tmp_path / "w.json"), "--concurrency", "4"]
    assert main([*words, "--out-dir", str(first.parent)]) == 1
    assert not first.exists()
    assert "check --url" in capsys.readouterr().err


def test_a_restart_that_cannot_be_seen_is_said_to_be_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour = MockBehaviour(BatchDivergence.SCORE)
    with FakeEndpoint(Plan(Surface.LLAMA_CPP), behaviour=behaviour) as server:
        assert _lives(tmp_path, server, "true", 2) == 3
    rate = json.loads((tmp_path / "out" / "lifetimes.json").read_bytes())
    assert rate["rate"] == 1.0
    assert rate["rate_upper_bound_95"] is None
    assert rate["lifetimes"][1]["restart_seen"] is None
    assert "nothing shows the restart" in capsys.readouterr().out


def test_lifetimes_that_may_be_one_have_no_bound(tmp_path: Path) -> None:
    with FakeEndpoint(Plan(Surface.LLAMA_CPP)) as server:
        assert _lives(tmp_path, server, "true", 2) == 3
    rate = json.loads((tmp_path / "out" / "lifetimes.json").read_bytes())
    assert [one["verdict"] for one in rate["lifetimes"]] == ["GREEN", "GREEN"]
    assert (rate["rate"], rate["rate_upper_bound_95"]) == (0.0, None)


def test_every_lifetime_is_signed(tmp_path: Path) -> None:
    starts, key = tmp_path / "starts", tmp_path / "sign"
    starts.write_bytes(b"")
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    signed = ("--sign-key", str(key))
    with FakeEndpoint(Plan(started_by=starts)) as server:
        command = f"printf x >> {shlex.quote(str(starts))}"
        assert _lives(tmp_path, server, command, 2, *signed) == 0
    rate = json.loads((tmp_path / "out" / "lifetimes.json").read_bytes())
    for one in rate["lifetimes"]:
        path = tmp_path / "out" / one["certificate"]
        assert path.with_name(path.name + ".hmac").exists()
        assert main(["verify-cert", *signed, str(path)]) == 3


@pytest.mark.parametrize("words", [["--lifetimes", "2"], ["--restart-command", "true"]])
def test_the_two_options_need_each_other(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(ITEMS), "utf-8")
    command = ["certify-endpoint", "--url", "http://127.0.0.1:9", "--model", "m"]
    command += ["--workset", str(tmp_path / "w.json"), "--concurrency", "4"]
    assert main([*command, *words]) == 2


@pytest.mark.parametrize(
    ("command", "timeout_s", "said"),
    [
        ("echo no such unit; exit 5", 5.0, "ended with 5: no such unit"),
        ("true", 0.3, "still the old process"),
        ("sleep 5", 0.2, "did not end"),
    ],
)
def test_a_restart_that_goes_wrong_is_no_verdict(
    command: str, timeout_s: float, said: str, tmp_path: Path
) -> None:
    with FakeEndpoint(Plan()) as server:
        client = EndpointClient(server.url.removesuffix("/v1"), KEY, 1.0)
        with pytest.raises(ServerError, match=said):
            restart(command, client, client, timeout_s)


def test_a_server_left_in_the_background_does_not_hold_the_run_up(tmp_path: Path) -> None:
    with FakeEndpoint(Plan(Surface.LLAMA_CPP)) as server:
        client = EndpointClient(server.url.removesuffix("/v1"), KEY, 1.0)
        assert restart("sleep 3 &", client, client, 2.0) is None
