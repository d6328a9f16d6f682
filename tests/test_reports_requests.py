"""What goes out to the server, seen from the server: one body per item, one key, no surprises."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.invariance_diff.model import Arm
from reports_fixtures import N_ITEMS, Cell, Outcome, cli, make_cell

FLAGS = ("--temp", "1.5", "--seed", "7", "--threads", "2")


class Seen:
    """A run with flags and variables that would change the sampling, and what the fake saw."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.outcome: Outcome = cell.run("--", *FLAGS)
        self.starts = cell.starts()
        self.bodies = cell.bodies()
        self.parsed: list[dict[str, Any]] = [json.loads(body) for body in self.bodies]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_ARG_N_PARALLEL", "7")
        patch.setenv("LLAMA_API_KEY", "somebody-elses")
        patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        yield Seen(make_cell(tmp_path_factory.mktemp("requests")))


def test_d25_server_flags_that_change_the_sampling_do_not_cost_the_green(seen: Seen) -> None:
    assert (seen.outcome.code, seen.outcome.verdict) == (0, "GREEN")
    for start in seen.starts:
        assert start["argv"][-len(FLAGS) :] == list(FLAGS)
    assert seen.outcome.cert["promotion_scope"]["valid_for"]
    for life in seen.outcome.cert["lifetimes"]:
        assert life["start"]["argv"][-len(FLAGS) :] == list(FLAGS)


def test_d25_the_request_states_what_the_server_would_fill_in(seen: Seen) -> None:
    wanted = {
        "temperature": 0.0,
        "dynatemp_range": 0.0,
        "top_k": 1,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "seed": 1,
        "n": 1,
        "stream": False,
        "cache_prompt": False,
        "logprobs": True,
        "top_logprobs": 5,
    }
    for body in seen.parsed:
        assert {name: body.get(name, "missing") for name in wanted} == wanted
        assert body["samplers"]


def is_warm_up(body: dict[str, Any]) -> bool:
    return body["ignore_eos"] is True


def test_the_warm_up_comes_first_after_each_launch(seen: Seen) -> None:
    entries = seen.cell.journal()
    launches = [place for place, entry in enumerate(entries) if "pid" in entry]
    assert len(launches) == 2
    for lanes, place in zip((1, 2), launches, strict=True):
        first = [json.loads(entry["body"]) for entry in entries[place + 1 : place + lanes + 2]]
        assert [is_warm_up(body) for body in first] == [True] * lanes + [False]
        assert len({body["max_tokens"] for body in first[:lanes]}) == 1
    assert sum(map(is_warm_up, seen.parsed)) == 3
    warm = [trial for trial in seen.outcome.trials() if trial.key.arm is Arm.WARMUP]
    assert len(warm) == 3


def test_one_body_for_an_item_in_every_arm_but_for_the_slot(seen: Seen) -> None:
    by_prompt: dict[str, list[str]] = defaultdict(list)
    planted = []
    for text, body in zip(seen.bodies, seen.parsed, strict=True):
        if body["logit_bias"]:
            planted.append(body)
        elif not is_warm_up(body):
            bare, cut = re.subn(r',"id_slot":[01]}$', "}", text)
            assert cut == 1
            by_prompt[json.dumps(body["messages"])].append(bare)
    assert len(by_prompt) == N_ITEMS
    for bodies in by_prompt.values():
        assert len(set(bodies)) == 1
        # A, A2, B and three passes of C.
        assert len(bodies) >= 6
    # The positive control bans one token of one item and changes nothing else.
    (control,) = planted
    ((_, ban),) = control["logit_bias"]
    assert ban is False
    model = json.loads(by_prompt[json.dumps(control["messages"])][0])
    assert {**control, "logit_bias": [], "id_slot": 0} == {**model, "id_slot": 0}


def test_every_slot_is_used(seen: Seen) -> None:
    entries = seen.cell.journal()
    start = [place for place, entry in enumerate(entries) if "pid" in entry][1]
    bodies = [entry["body"] for entry in entries[start + 1 :] if "body" in entry]
    slots = {json.loads(body)["id_slot"] for body in bodies}
    assert slots == {0, 1}


def test_the_key_is_private_fresh_and_written_down_nowhere(seen: Seen) -> None:
    keys = {start["key"] for start in seen.starts}
    assert len(keys) == 2
    files = [path.read_text() for path in seen.cell.out_dir.iterdir()]
    for start in seen.starts:
        assert start["key_file_mode"] == "0o600"
        assert len(start["key"]) >= 32
        for text in (*files, " ".join(start["argv"]), seen.outcome.stdout, seen.outcome.stderr):
            assert start["key"] not in text
        key_file = Path(start["argv"][start["argv"].index("--api-key-file") + 1])
        assert not key_file.parent.exists()


def test_the_callers_variables_do_not_reach_the_server(seen: Seen) -> None:
    for start in seen.starts:
        assert not [name for name in start["environment"] if name.startswith("LLAMA_")]
        assert "PATH" in start["environment"]


def test_the_evidence_is_private(seen: Seen) -> None:
    assert seen.outcome.evidence_path.stat().st_mode & 0o777 == 0o600


def test_the_certificate_holds_no_text_and_the_evidence_does(seen: Seen) -> None:
    answer = next(t.result.text for t in seen.outcome.trials() if t.key.arm is Arm.A)  # type: ignore[union-attr]
    assert answer.strip()
    certificate = seen.outcome.certificate_path.read_text()
    assert "name a river" not in certificate
    assert answer.strip() not in certificate
    assert "name a river" in seen.outcome.evidence_path.read_text()


def test_the_run_verifies(seen: Seen) -> None:
    assert cli("verify-cert", seen.outcome.certificate_path).code == 0
