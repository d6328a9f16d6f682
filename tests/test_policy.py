"""Certificates against a policy: what passes, what does not, and in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import CertificateError, FileFormatError
from batch_invariance.invariance_diff.cert_reading import (
    CellName,
    CertView,
    lines_of_gates,
    read_view,
)
from batch_invariance.invariance_diff.dates import utc_seconds
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.invariance_diff.policy import (
    Acceptance,
    Candidate,
    CellPattern,
    Judgement,
    Policy,
    Rule,
)
from batch_invariance.invariance_diff.policy_judge import asked_rules, judge
from batch_invariance.invariance_diff.policy_reading import read_policy
from ci_fixtures import AMBER, CANARY, MOCK, NOW_S, RED, RUN_AT, UNVERIFIED, view, write_cert

CELL = CellName("toy", 512, 4)
EXACT = CellPattern("toy", "512", "4")
ANY = CellPattern("toy", "*", "*")
POLICY = Policy((EXACT,))
DAY = 86_400


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertView]:
    folder = tmp_path_factory.mktemp("views")
    changes = {"RED": RED, "AMBER": AMBER, "UNVERIFIED": UNVERIFIED, "canary": CANARY, "mock": MOCK}
    found = {"GREEN": view(write_cert(folder / "green"))}
    found |= {name: view(write_cert(folder / name, change)) for name, change in changes.items()}
    return found


def one(policy: Policy, seen: CertView, now_s: float = NOW_S) -> Judgement:
    return judge(policy, [Candidate("c.json", seen, ())], now_s)


def rules(judgement: Judgement) -> list[Rule]:
    return [violation.rule for violation in judgement.violations]


def test_the_fixtures_have_the_colours_that_they_are_named_after(
    views: dict[str, CertView],
) -> None:
    for name in ("GREEN", "RED", "AMBER", "UNVERIFIED"):
        assert views[name].verdict is Verdict(name)
    assert views["GREEN"].promotable
    assert (views["canary"].verdict, views["canary"].source) == (Verdict.GREEN, Source.CANARY)


def test_a_live_green_of_the_required_cell_passes(views: dict[str, CertView]) -> None:
    judgement = one(POLICY, views["GREEN"])
    assert judgement.passed
    assert judgement.violations == ()
    assert judgement.accepted == {}


@pytest.mark.parametrize("name", ["RED", "AMBER", "UNVERIFIED"])
def test_no_other_colour_passes(views: dict[str, CertView], name: str) -> None:
    judgement = one(POLICY, views[name])
    assert rules(judgement) == [Rule.VERDICT]
    assert str(judgement.violations[0]).startswith(f"toy/512/4: verdict: is {name}: ")
    assert str(judgement.violations[0]).endswith(" (c.json)")


def test_further_reasons_are_counted(views: dict[str, CertView]) -> None:
    for reasons, said in (
        ((), "is RED"),
        (("one",), "is RED: one"),
        (("one", "two"), "is RED: one and 1 more"),
        (("one", "two", "three"), "is RED: one and 2 more"),
    ):
        (violation,) = one(POLICY, replace(views["RED"], reasons=reasons)).violations
        assert violation.text == said


def test_a_live_green_that_may_not_be_promoted_does_not_pass(views: dict[str, CertView]) -> None:
    barred = replace(views["GREEN"], promotable=False)
    (violation,) = one(POLICY, barred).violations
    assert (violation.rule, violation.text) == (Rule.VERDICT, "is GREEN and may not be promoted")
    canary = replace(POLICY, sources=(Source.CANARY,))
    assert one(canary, replace(views["canary"], promotable=False)).passed


def test_a_missing_signature_is_a_violation(views: dict[str, CertView]) -> None:
    unsigned = Candidate("c.json", views["GREEN"], (), "is not signed")
    (violation,) = judge(POLICY, [unsigned], NOW_S).violations
    assert (violation.rule, violation.text) == (Rule.SIGNATURE, "is not signed")


def test_what_is_asked_of_every_certificate_and_what_a_policy_adds() -> None:
    always = [Rule.FOREIGN, Rule.DUPLICATE, Rule.SOURCE, Rule.VERDICT]
    assert list(asked_rules(POLICY)) == always
    assert set(asked_rules(POLICY, signed=True)) == {*always, Rule.SIGNATURE}
    asks: dict[str, tuple[Any, Rule]] = {
        "max_age_days": (1, Rule.AGE),
        "model_sha256": (("0" * 64,), Rule.MODEL),
        "server_sha256": (("0" * 64,), Rule.SERVER),
        "cell_sha256": (("0" * 64,), Rule.CELL),
        "max_bound": (0.5, Rule.BOUND),
        "min_horizon_tokens": (1, Rule.HORIZON),
        "min_runs": (1, Rule.RUNS),
    }
    for name, (value, rule) in asks.items():
        assert set(asked_rules(replace(POLICY, **{name: value}))) == {*always, rule}


@pytest.mark.parametrize(("name", "source"), [("canary", Source.CANARY), ("mock", Source.MOCK)])
def test_a_source_must_be_allowed(views: dict[str, CertView], name: str, source: Source) -> None:
    assert rules(one(POLICY, views[name])) == [Rule.SOURCE]
    assert one(replace(POLICY, sources=(source,)), views[name]).passed
    assert rules(one(replace(POLICY, sources=(source,)), views["GREEN"])) == [Rule.SOURCE]


def test_a_required_cell_must_be_there(views: dict[str, CertView]) -> None:
    other = CellPattern("toy", "512", "8")
    judgement = one(Policy((EXACT, other)), views["GREEN"])
    assert rules(judgement) == [Rule.REQUIRED]
    assert str(judgement.violations[0]) == ("toy/512/8: required: there is no certificate for it")
    assert rules(judge(POLICY, [], NOW_S)) == [Rule.REQUIRED]


def test_nothing_fulfils_a_policy_that_requires_nothing(views: dict[str, CertView]) -> None:
    assert not judge(Policy(()), [], NOW_S).passed
    assert rules(one(Policy(()), views["GREEN"])) == [Rule.FOREIGN, Rule.REQUIRED]


def test_a_certificate_of_another_cell_does_not_pass(views: dict[str, CertView]) -> None:
    stranger = replace(views["GREEN"], cell=CellName("other", 512, 4), cell_sha256="0" * 64)
    judgement = judge(
        POLICY,
        [Candidate("a.json", views["GREEN"], ()), Candidate("b.json", stranger, ())],
        NOW_S,
    )
    assert rules(judgement) == [Rule.FOREIGN]
    assert judgement.violations[0].file == "b.json"


def test_two_certificates_of_one_cell_do_not_pass(views: dict[str, CertView]) -> None:
    pair = [Candidate(name, views["GREEN"], ()) for name in ("a.json", "b.json")]
    judgement = judge(POLICY, pair, NOW_S)
    assert rules(judgement) == [Rule.DUPLICATE]
    assert "a.json is of the same cell" in judgement.violations[0].text
    other_flags = replace(views["GREEN"], cell_sha256="0" * 64)
    assert judge(POLICY, [pair[0], Candidate("b.json", other_flags, ())], NOW_S).passed


def of_run(seen: CertView, digest: str) -> CertView:
    return replace(seen, inputs=replace(seen.inputs, evidence_sha256=digest * 64))


RUNS = replace(POLICY, min_runs=3)


def test_several_runs_of_one_cell_pass_where_they_are_asked_for(
    views: dict[str, CertView],
) -> None:
    runs = [Candidate(name, of_run(views["GREEN"], name), ()) for name in "abc"]
    assert judge(RUNS, runs, NOW_S).passed
    assert rules(judge(POLICY, runs, NOW_S)) == [Rule.DUPLICATE, Rule.DUPLICATE]
    too_few = judge(RUNS, runs[:2], NOW_S)
    assert [str(violation) for violation in too_few.violations] == [
        "toy/512/4: runs: 2 runs of this cell, at least 3 asked (a)"
    ]


def test_a_copy_of_a_run_is_not_another_run(views: dict[str, CertView]) -> None:
    runs = [Candidate(name, of_run(views["GREEN"], name[0]), ()) for name in ("a", "b", "b2")]
    judgement = judge(RUNS, runs, NOW_S)
    assert rules(judgement) == [Rule.DUPLICATE, Rule.RUNS]
    assert "b is of the same run; keep one (b2)" in str(judgement.violations[0])
    unknown = replace(views["GREEN"].inputs, evidence_sha256=None)
    nameless = [Candidate(n, replace(views["GREEN"], inputs=unknown), ()) for n in "abc"]
    assert rules(judge(RUNS, nameless, NOW_S)) == [Rule.DUPLICATE, Rule.DUPLICATE, Rule.RUNS]


def test_every_run_must_pass_and_of_every_cell_there_must_be_enough(
    views: dict[str, CertView],
) -> None:
    red = replace(views["RED"], cell_sha256=views["GREEN"].cell_sha256)
    runs = [Candidate(name, of_run(views["GREEN"], name), ()) for name in "ab"]
    assert rules(judge(RUNS, [*runs, Candidate("c", of_run(red, "c"), ())], NOW_S)) == [
        Rule.VERDICT
    ]
    other_flags = replace(of_run(views["GREEN"], "c"), cell_sha256="0" * 64)
    found = judge(RUNS, [*runs, Candidate("c", other_flags, ())], NOW_S)
    assert [(v.rule, v.file) for v in found.violations] == [(Rule.RUNS, "a"), (Rule.RUNS, "c")]
    # A cell that nothing requires is foreign, however often it was run.
    stranger = replace(of_run(views["GREEN"], "d"), cell=CellName("other", 512, 4))
    alone = judge(RUNS, [Candidate("d", replace(stranger, cell_sha256="1" * 64), ())], NOW_S)
    assert rules(alone) == [Rule.FOREIGN, Rule.REQUIRED]


def test_every_certificate_of_a_required_cell_must_pass(views: dict[str, CertView]) -> None:
    red = replace(views["RED"], cell_sha256="0" * 64)
    pair = [Candidate("a.json", views["GREEN"], ()), Candidate("b.json", red, ())]
    assert rules(judge(POLICY, pair, NOW_S)) == [Rule.VERDICT]


def test_what_its_evidence_does_not_bear_out_is_one_violation(
    views: dict[str, CertView],
) -> None:
    refused = Candidate("c.json", views["GREEN"], ("status: says green", "no"))
    judgement = judge(POLICY, [refused], NOW_S)
    assert rules(judgement) == [Rule.EVIDENCE]
    assert judgement.violations[0].text == "status: says green; no"
    unreadable = judge(POLICY, [Candidate("c.json", None, ("is not JSON",))], NOW_S)
    assert rules(unreadable) == [Rule.EVIDENCE, Rule.REQUIRED]
    assert str(unreadable.violations[0]) == "c.json: evidence: is not JSON"


@pytest.mark.parametrize(
    ("seconds", "passes"),
    [(0, True), (30 * DAY, True), (30 * DAY + 1, False), (-3600, True), (-3601, False)],
)
def test_age_is_counted_from_the_run(
    views: dict[str, CertView], seconds: int, passes: bool
) -> None:
    began = utc_seconds(RUN_AT)
    assert began is not None
    judgement = one(replace(POLICY, max_age_days=30), views["GREEN"], began + seconds)
    assert judgement.passed is passes
    assert rules(judgement) == ([] if passes else [Rule.AGE])


def test_a_cell_is_no_younger_than_the_arms_that_it_shares(views: dict[str, CertView]) -> None:
    green = views["GREEN"]
    began = utc_seconds(green.ts_utc or "")
    assert began is not None
    policy = replace(POLICY, max_age_days=30)
    for older, passes in (("2025-12-30T00:00:00Z", True), ("2025-10-01T00:00:00Z", False)):
        judgement = one(policy, replace(green, shared_ts_utc=(older,)), began + 60)
        assert rules(judgement) == ([] if passes else [Rule.AGE])
    assert "its shared arms A and A2" in judgement.violations[0].text
    unknown = one(policy, replace(green, shared_ts_utc=(None,)), began + 60)
    assert rules(unknown) == [Rule.AGE]


@pytest.mark.parametrize("ts", [None, "", "yesterday", "2026-13-01T00:00:00Z", "2026-01-02"])
def test_an_unknown_age_does_not_pass(views: dict[str, CertView], ts: str | None) -> None:
    undated = replace(views["GREEN"], ts_utc=ts)
    assert rules(one(replace(POLICY, max_age_days=30), undated)) == [Rule.AGE]
    assert one(POLICY, undated).passed


def test_the_model_must_be_among_those_allowed(views: dict[str, CertView]) -> None:
    assert one(replace(POLICY, model_sha256=("b" * 64,)), views["GREEN"]).passed
    judgement = one(replace(POLICY, model_sha256=("0" * 64,)), views["GREEN"])
    assert rules(judgement) == [Rule.MODEL]
    assert judgement.violations[0].text == f"{'b' * 64} is not among the 1 allowed"
    subject = replace(views["GREEN"].subject, model_sha256=None)
    nameless = replace(views["GREEN"], subject=subject)
    assert rules(one(replace(POLICY, model_sha256=("b" * 64,)), nameless)) == [Rule.MODEL]


def test_the_server_that_ran_counts_and_not_the_file_that_was_named(
    views: dict[str, CertView],
) -> None:
    named, ran = ("a" * 64,), ("f" * 64,)
    assert one(replace(POLICY, server_sha256=ran), views["GREEN"]).passed
    assert rules(one(replace(POLICY, server_sha256=named), views["GREEN"])) == [Rule.SERVER]
    subject = replace(views["GREEN"].subject, executables=(None, None))
    unseen = replace(views["GREEN"], subject=subject)
    assert one(replace(POLICY, server_sha256=named), unseen).passed
    assert rules(one(replace(POLICY, server_sha256=ran), unseen)) == [Rule.SERVER]
    for executables in ((), ("f" * 64, "e" * 64)):
        subject = replace(views["GREEN"].subject, executables=executables, server_sha256=None)
        strange = replace(views["GREEN"], subject=subject)
        assert rules(one(replace(POLICY, server_sha256=ran), strange)) == [Rule.SERVER]


def test_the_whole_cell_can_be_pinned(views: dict[str, CertView]) -> None:
    own = views["GREEN"].cell_sha256
    assert own is not None
    assert one(replace(POLICY, cell_sha256=("0" * 64, own)), views["GREEN"]).passed
    assert rules(one(replace(POLICY, cell_sha256=("0" * 64,)), views["GREEN"])) == [Rule.CELL]


def test_the_bound_must_suffice_and_be_known(views: dict[str, CertView]) -> None:
    bound = views["GREEN"].power.bound_95
    assert bound is not None
    assert one(replace(POLICY, max_bound=bound), views["GREEN"]).passed
    assert rules(one(replace(POLICY, max_bound=bound - 1e-9), views["GREEN"])) == [Rule.BOUND]
    boundless = replace(views["GREEN"], power=replace(views["GREEN"].power, bound_95=None))
    assert rules(one(replace(POLICY, max_bound=1.0), boundless)) == [Rule.BOUND]


def test_the_horizon_must_suffice_and_be_known(views: dict[str, CertView]) -> None:
    total = views["GREEN"].power.horizon_total
    assert total is not None
    assert one(replace(POLICY, min_horizon_tokens=total), views["GREEN"]).passed
    assert rules(one(replace(POLICY, min_horizon_tokens=total + 1), views["GREEN"])) == [
        Rule.HORIZON
    ]
    power = replace(views["GREEN"].power, horizon_total=None)
    unknown = replace(views["GREEN"], power=power)
    assert rules(one(replace(POLICY, min_horizon_tokens=1), unknown)) == [Rule.HORIZON]


def accepting(cell: CellName = CELL, expires: str | None = None) -> Policy:
    return replace(POLICY, accept_amber=(Acceptance(cell, "known", "A. Person", expires),))


def test_an_accepted_amber_passes_with_its_words(views: dict[str, CertView]) -> None:
    judgement = one(accepting(expires="2026-01-03"), views["AMBER"])
    assert judgement.passed
    assert str(judgement.accepted["c.json"]) == "accepted by A. Person, until 2026-01-03: known"


@pytest.mark.parametrize("name", ["RED", "UNVERIFIED"])
def test_an_acceptance_is_for_amber_alone(views: dict[str, CertView], name: str) -> None:
    assert rules(one(accepting(), views[name])) == [Rule.VERDICT]


def test_an_acceptance_is_for_one_cell(views: dict[str, CertView]) -> None:
    policy = replace(accepting(CellName("toy", 512, 8)), required=(CellPattern("toy", "*", "*"),))
    assert rules(one(policy, views["AMBER"])) == [Rule.VERDICT]


def test_an_acceptance_of_something_else_is_not_told_of(views: dict[str, CertView]) -> None:
    policy = replace(accepting(CellName("toy", 512, 8), "2020-01-01"), required=(ANY,))
    for seen, asked in ((views["AMBER"], policy), (views["RED"], accepting(expires="2020-01-01"))):
        (violation,) = one(asked, seen).violations
        assert "acceptance" not in violation.text


def test_an_acceptance_may_be_for_one_digest(views: dict[str, CertView]) -> None:
    digest = views["AMBER"].cell_sha256
    entry = Acceptance(CELL, "known", "A. Person", None, digest)
    policy = replace(POLICY, accept_amber=(entry,))
    assert one(policy, views["AMBER"]).passed
    for other in ("0" * 64, None):
        judgement = one(policy, replace(views["AMBER"], cell_sha256=other))
        assert rules(judgement) == [Rule.VERDICT]
        shown = other or "unknown"
        assert f"its acceptance is for {digest}, this is {shown}" in judgement.violations[0].text


@pytest.mark.parametrize(
    ("expires", "passes"), [("2026-01-03", True), ("2026-01-02", False), ("2020-01-01", False)]
)
def test_an_acceptance_ends_with_its_last_day(
    views: dict[str, CertView], expires: str, passes: bool
) -> None:
    midnight = utc_seconds("2026-01-04T00:00:00Z")
    assert midnight is not None
    now_s = midnight - 1
    if passes:
        assert not one(accepting(expires=expires), views["AMBER"], midnight).passed
    judgement = one(accepting(expires=expires), views["AMBER"], now_s)
    assert judgement.passed is passes
    if not passes:
        assert f"its acceptance expired after {expires}" in judgement.violations[0].text


def test_an_accepted_amber_owes_all_else(views: dict[str, CertView]) -> None:
    policy = replace(
        accepting(), max_age_days=1, min_horizon_tokens=10**6, model_sha256=("0" * 64,)
    )
    found = rules(one(policy, views["AMBER"], NOW_S + 10 * DAY))
    assert found == [Rule.AGE, Rule.MODEL, Rule.HORIZON]


def test_what_was_seen_to_differ_has_no_bound_to_ask_for(views: dict[str, CertView]) -> None:
    assert views["AMBER"].power.bound_95 is None
    assert one(replace(accepting(), max_bound=0.5), views["AMBER"]).passed
    power = replace(views["AMBER"].power, n_divergent=None)
    unknown = replace(views["AMBER"], power=power)
    assert rules(one(replace(accepting(), max_bound=0.5), unknown)) == [Rule.BOUND]


@pytest.mark.parametrize(
    ("pattern", "cell", "matches"),
    [
        ("toy/512/4", ("toy", 512, 4), True),
        ("toy/512/4", ("toy", 512, 40), False),
        ("to*/*/?", ("toy", 512, 4), True),
        ("*/512/4", ("org/toy", 512, 4), True),
        ("org/toy/512/4", ("org/toy", 512, 4), True),
        ("to[yx]/512/4", ("toy", 512, 4), False),
        ("to[yx]/512/4", ("to[yx]", 512, 4), True),
        ("t.y/512/4", ("toy", 512, 4), False),
        ("*/*/*", ("any\nthing", 256, 1), True),
        ("toy/51?/4", ("toy", 512, 4), True),
        ("TOY/512/4", ("toy", 512, 4), False),
    ],
)
def test_patterns(pattern: str, cell: tuple[str, int, int], matches: bool) -> None:
    policy = read_policy({"version": 1, "required": [pattern]}, "p")
    assert policy.required[0].matches(CellName(*cell)) is matches


GOOD: dict[str, Any] = {"version": 1, "required": ["toy/*/4"]}


def test_a_policy_is_read_whole() -> None:
    policy = read_policy(
        {
            **GOOD,
            "sources": ["live", "canary"],
            "max_age_days": 30,
            "model_sha256": ["B" * 64],
            "server_sha256": ["a" * 64],
            "cell_sha256": ["c" * 64],
            "max_prompt_rate_upper_bound_95": "0.25",
            "min_horizon_tokens": 100,
            "min_runs": 5,
            "accept_amber": {
                "toy/512/4": {
                    "reason": "known\nsince",
                    "signed_off_by": "A. Person",
                    "expires": "2026-02-28",
                    "cell_sha256": "D" * 64,
                }
            },
        },
        "p",
    )
    assert policy == Policy(
        required=(CellPattern("toy", "*", "4"),),
        sources=(Source.LIVE, Source.CANARY),
        max_age_days=30,
        model_sha256=("b" * 64,),
        server_sha256=("a" * 64,),
        cell_sha256=("c" * 64,),
        max_bound=0.25,
        min_horizon_tokens=100,
        min_runs=5,
        accept_amber=(Acceptance(CELL, "known since", "A. Person", "2026-02-28", "d" * 64),),
    )
    assert read_policy(GOOD, "p").sources == (Source.LIVE,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": None}, "version: must be 1"),
        ({"version": 2}, "version: must be 1"),
        ({"version": True}, "version: is not a whole number"),
        ({"required": None}, "required: name at least one cell"),
        ({"required": []}, "required: name at least one cell"),
        ({"required": "toy/512/4"}, "required: is not a list of texts"),
        ({"required": ["toy"]}, "required: 'toy' is not MODEL/CTX/N"),
        ({"required": ["/512/4"]}, "required: '/512/4' is not MODEL/CTX/N"),
        ({"required": ["toy/ctx/4"]}, "is not MODEL/CTX/N"),
        ({"max_age": 30}, "max_age: unknown; known are version, required"),
        ({"sources": []}, "sources: an empty list allows nothing"),
        ({"sources": ["real"]}, "sources: 'real' is none of live, canary, mock, endpoint"),
        ({"max_age_days": 0}, "max_age_days: give a whole number from 1"),
        ({"max_age_days": None}, "max_age_days: give a whole number from 1"),
        ({"max_age_days": "30"}, "max_age_days: is not a whole number"),
        ({"max_age_days": 1.5}, "max_age_days: is not a whole number"),
        ({"model_sha256": []}, "model_sha256: an empty list allows nothing"),
        ({"model_sha256": ["abc"]}, "model_sha256: 'abc' is no SHA-256"),
        ({"server_sha256": "a" * 64}, "server_sha256: is not a list of texts"),
        ({"max_prompt_rate_upper_bound_95": 0}, "give a rate above 0"),
        ({"max_prompt_rate_upper_bound_95": 1.01}, "give a rate above 0"),
        ({"max_prompt_rate_upper_bound_95": "-1"}, "is not a number"),
        ({"max_prompt_rate_upper_bound_95": None}, "give a rate above 0"),
        ({"min_horizon_tokens": -1}, "min_horizon_tokens: is not a whole number"),
        ({"min_runs": 0}, "min_runs: give a whole number from 1"),
        ({"accept_amber": []}, "accept_amber: is not an object"),
        ({"accept_amber": {"toy/512/4": "fine"}}, "is not a table with reason"),
        ({"accept_amber": {"toy/*/4": {}}}, "is not one cell"),
        ({"accept_amber": {"toy/512/4": {"reason": "x"}}}, "signed_off_by: say it in words"),
        ({"accept_amber": {"toy/512/4": {"reason": " ", "signed_off_by": "x"}}}, "reason: say it"),
        ({"accept_amber": {"other/512/4": {}}}, "no entry of required names this cell"),
        ({"accept_amber": {"toy/512/4": {"expires": "soon"}}}, "'soon' is no day"),
        ({"accept_amber": {"toy/512/4": {"expires": "2026-02-30"}}}, "is no day"),
        ({"accept_amber": {"toy/512/4": {"expires": None}}}, "expires: say it, or leave it out"),
        ({"accept_amber": {"toy/512/4": {"cell_sha256": None}}}, "cell_sha256: say it, or leave"),
        ({"accept_amber": {"toy/512/4": {"cell_sha256": "abc"}}}, "'abc' is no SHA-256"),
        ({"accept_amber": {"toy/512/4": {"until": "x"}}}, "until: unknown; known are reason"),
    ],
)
def test_a_bad_policy_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read_policy({**GOOD, **changes}, "policy p.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith("policy p.json: ")


def test_all_faults_of_a_policy_are_said_at_once() -> None:
    with pytest.raises(FileFormatError) as caught:
        read_policy({"version": 3, "sources": ["x"], "max_age_days": 0, "typo": 1}, "p")
    assert len(caught.value.issues) == 5


def test_a_view_reads_what_the_certificate_says(tmp_path: Path) -> None:
    path = write_cert(tmp_path)
    cert = json.loads(path.read_bytes())
    seen = read_view(cert)
    assert str(seen.cell) == "toy/512/4"
    assert [row.gate for row in seen.gates] == [row["gate"] for row in cert["gates"]]
    assert seen.power.bound_95 == cert["sensitivity"]["prompt_rate_upper_bound_95"]
    assert seen.power.horizon_total == cert["horizon"]["total"]
    assert seen.subject.executables == ("f" * 64, "f" * 64)
    assert seen.subject.libraries == (("libggml.so", "1" * 64),)
    assert seen.inputs.evidence_sha256 == cert["evidence"]["sha256"]
    lines = path.read_text("ascii").splitlines()
    for gate, number in lines_of_gates(path.read_bytes()).items():
        assert f'"{gate}"' in lines[number - 1]


def test_a_view_of_the_least_certificate_knows_nothing_else() -> None:
    least = {"model": "m", "ctx": 1, "dispatch_n": 2, "status": "green", "source": "live"}
    seen = read_view({**least, "of_a_later_version": {}})
    assert (seen.verdict, seen.promotable, seen.gates) == (Verdict.GREEN, False, ())
    assert seen.cell_sha256 is None
    assert seen.power.bound_95 is None
    assert seen.subject.executables == ()


def test_a_view_refuses_all_wrong_fields_at_once() -> None:
    with pytest.raises(CertificateError) as caught:
        read_view(
            {
                "model": 3,
                "dispatch_n": True,
                "status": "green",
                "verdict": "RED",
                "source": "hearsay",
                "gates": [{"gate": "F0_score"}],
                "sensitivity": [],
                "horizon": {"total": -1},
            }
        )
    text = str(caught.value)
    for said in (
        "model: is not a text",
        "lacks 'ctx'",
        "dispatch_n: is not a whole number",
        "verdict RED is not what status green means",
        "source: is not one of live",
        "gates: a row lacks",
        "what should hold it is not an object",
        "horizon.total: is not a whole number",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T12:00:00Z", 951_825_600),
        ("2026-11-29T15:42:30Z", 1_795_966_950),
        ("1900-02-29T00:00:00Z", None),
        ("2026-00-10T00:00:00Z", None),
        ("2026-01-01T24:00:00Z", None),
        ("2026-01-01T00:00:00", None),
        ("٢٠٢٦-01-01T00:00:00Z", None),
        ("0000-01-01T00:00:00Z", None),
    ],
)
def test_times(text: str, seconds: int | None) -> None:
    assert utc_seconds(text) == seconds
