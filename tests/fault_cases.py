"""Every fault that the tests plant, and what a user sees of it.

The one list: it parametrises the tests, and docs/reliability.md is written from it. Nothing here
may import more than the standard library, because the page is made without the test equipment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

PASSES = 2
BEFORE_C = 2 + 8
"""Completions of the second launch before arm C: a warm-up on two slots, arm B of eight items."""
BEFORE_CONFIRM = BEFORE_C + PASSES * 8


class Group(str, Enum):
    """What goes wrong; the value is the heading on the page."""

    OWNERSHIP = "The run is ended, or its parts are"
    MACHINE = "The machine has no room, or its clock moves"
    START = "The server does not start as asked"
    DEATH = "The server dies or stands still"
    ANSWERS = "Answers are lost or odd"
    WITNESS = "What the server shows of itself does not fit"
    VERSIONS = "Fields and flags of other builds"


class Kept(str, Enum):
    """What is on the disk afterwards; the value is what the page says."""

    NOTHING = "nothing was started, written or renamed"
    OPEN = "the evidence so far; `resume` goes on with it"
    CLOSED = "the evidence so far, closed; no certificate"
    EVIDENCE = "the whole evidence; no certificate"
    CERTIFICATE = "evidence and certificate"


@dataclass(frozen=True)
class FaultCase:
    """One fault. `sees` stands word for word in what the program prints.

    `verdict` is empty where there is none. `plant` are fields of `fake_faults.Faults`, `options`
    more words of the command line. `own_process`: the fault needs a server process. `reasons`: the
    gates that do not pass, with their reasons. `together`: planted with all others that say so, in
    one run. `by_hand`: a test of its own plants the fault; `of_run` in `fault_runs` does it for all
    others.
    """

    name: str
    group: Group
    fault: str
    sees: str
    exit_code: int
    kept: Kept
    verdict: str = ""
    plant: Mapping[str, object] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    own_process: bool = False
    together: bool = False
    by_hand: bool = False


def _ended(name: str, fault: str, sees: str, exit_code: int, kept: Kept = Kept.OPEN) -> FaultCase:
    return FaultCase(name, Group.OWNERSHIP, fault, sees, exit_code, kept, by_hand=True)


def _refused(name: str, fault: str, sees: str) -> FaultCase:
    return FaultCase(name, Group.MACHINE, fault, sees, 2, Kept.NOTHING, by_hand=True)


def _machine(
    name: str, fault: str, sees: str, exit_code: int, kept: Kept, verdict: str = ""
) -> FaultCase:
    return FaultCase(name, Group.MACHINE, fault, sees, exit_code, kept, verdict, by_hand=True)


def _no_start(
    name: str,
    fault: str,
    sees: str,
    own_process: bool = True,
    options: tuple[str, ...] = (),
    **plant: object,
) -> FaultCase:
    return FaultCase(
        name,
        Group.START,
        fault,
        sees,
        1,
        Kept.CLOSED,
        plant=plant,
        options=options,
        own_process=own_process,
    )


def _death(name: str, fault: str, sees: str, verdict: str = "", **plant: object) -> FaultCase:
    kept, code = (Kept.CERTIFICATE, 3) if verdict else (Kept.CLOSED, 1)
    return FaultCase(
        name,
        Group.DEATH,
        fault,
        sees,
        code,
        kept,
        verdict,
        plant,
        own_process=True,
    )


def _lost(
    name: str, fault: str, sees: str, options: tuple[str, ...] = (), **plant: object
) -> FaultCase:
    return FaultCase(
        name, Group.ANSWERS, fault, sees, 3, Kept.CERTIFICATE, "UNVERIFIED", plant, options
    )


def _one_lost(number: int, name: str, fault: str, kind: str) -> FaultCase:
    """The `number`th concurrent request is lost, counted from 1 with the warm-up's two."""
    plant = {"fail_nth_concurrent": {name: number}}
    case = _lost(name, fault, f": {kind}: ", ("--request-timeout", "1"), **plant)
    return replace(case, together=True)


def _shown(
    name: str, fault: str, sees: str, reasons: Mapping[str, str], **plant: object
) -> FaultCase:
    return FaultCase(
        name, Group.WITNESS, fault, sees, 3, Kept.CERTIFICATE, "UNVERIFIED", plant, (), reasons
    )


def _tolerated(
    name: str, group: Group, fault: str, own_process: bool = False, **plant: object
) -> FaultCase:
    return FaultCase(
        name, group, fault, "GREEN", 0, Kept.CERTIFICATE, "GREEN", plant, own_process=own_process
    )


def _drifted(name: str, fault: str, gate: str, reason: str, sees: str = "") -> FaultCase:
    return FaultCase(
        name,
        Group.VERSIONS,
        fault,
        sees or f"{gate}: {reason}",
        3,
        Kept.CERTIFICATE,
        "UNVERIFIED",
        {"drift": name},
        (),
        {gate: reason},
    )


OWNERSHIP = (
    _ended("sigint", "Ctrl-C, or SIGINT", "interrupted by signal 2", 130),
    _ended("sigterm", "SIGTERM", "interrupted by signal 15", 143),
    _ended("sighup", "SIGHUP", "interrupted by signal 1", 129),
    _ended("early_signal", "a signal while the server starts", "interrupted by signal 1", 129),
    _ended("closed_terminal", "its terminal is closed", "", 129),
    _ended("sigint_twice", "Ctrl-C twice: it ends at once", "", 130),
    _ended("sigkill", "SIGKILL, also where the server ignores SIGTERM", "", -9),
    _ended(
        "stubborn_server", "SIGTERM, and the server ignores it", "interrupted by signal 15", 143
    ),
    _ended(
        "busy_server", "Ctrl-C, and the server hangs while busy", "interrupted by signal 2", 130
    ),
    _ended("lost_stderr", "nobody reads its progress any more", "GREEN", 0, Kept.CERTIFICATE),
    _ended("ignored_hangup", "SIGHUP under nohup", "GREEN", 0, Kept.CERTIFICATE),
)
MACHINE = (
    _refused("memory", "too little memory is free", "memory guard: "),
    _refused("footprint", "the server would exceed `--max-footprint-gb`", "footprint guard: "),
    _refused("disk", "too little disk is free for the evidence", "disk guard: "),
    _refused("second_run", "another run writes in the same out-dir", "another run is writing in "),
    _refused("out_dir_file", "the out-dir is a file, or cannot be written", "--out-dir "),
    _machine(
        "memory_gone",
        "the memory is gone before the second launch",
        "no launch: memory guard: ",
        1,
        Kept.CLOSED,
    ),
    _machine(
        "no_free_port", "every free port is reserved", "outside the reserved set", 1, Kept.CLOSED
    ),
    _machine(
        "port_taken",
        "another program takes each chosen port first",
        "could not bind its port",
        1,
        Kept.CLOSED,
    ),
    _machine(
        "temporary_full",
        "no room for temporary files",
        "cannot make a temporary folder: ",
        1,
        Kept.NOTHING,
    ),
    _machine(
        "evidence_full",
        "the disk is full in the middle of the run",
        "cannot write the evidence ",
        1,
        Kept.OPEN,
    ),
    _machine("certificate_full", "the disk is full at the end", "cannot write ", 1, Kept.EVIDENCE),
    _machine(
        "log_full", "the disk of the server's log is full", "GREEN", 0, Kept.CERTIFICATE, "GREEN"
    ),
    _machine("clock", "the clock is set, forth and back", "GREEN", 0, Kept.CERTIFICATE, "GREEN"),
)
START = (
    _tolerated(
        "slow_start", Group.START, "it is slow to get ready", own_process=True, ready_delay_s=0.5
    ),
    _no_start(
        "never_ready",
        "it never gets ready",
        "the server was not ready after 0.2 s",
        options=("--ready-timeout", "0.2"),
        ready_delay_s=3600.0,
    ),
    _no_start(
        "dies_at_start",
        "it ends by itself",
        "the server died at start: exit code 7",
        die_at_start=7,
    ),
    _no_start(
        "wrong_processor",
        "it was built for another processor",
        "SIGILL: this build of the server uses processor instructions that this machine lacks",
        die_at_start=-4,
    ),
    _no_start(
        "daemon",
        "it puts itself into the background",
        "of its processes behind: it put itself into the background",
        daemonise=True,
    ),
    _no_start(
        "wrong_slots",
        "it has other slots than asked",
        "the server has 4 slots, --parallel 1 was asked",
        own_process=False,
        slots_override=4,
    ),
    _no_start(
        "wrong_context",
        "a slot has another context than asked",
        "the server gives a slot 256 tokens of context, 512 were asked",
        own_process=False,
        wrong_ctx=256,
    ),
)
DEATH = (
    _death(
        "dies_in_warm_up", "in the warm-up", "the server died in arm warmup", die_at_completion=1
    ),
    _death(
        "dies_in_a",
        "in arm A",
        "the server died in arm A (exit code 9)",
        die_at_completion=4,
        die_message="boom \x1b[31m at line 7",
    ),
    _death("dies_in_a2", "in arm A2", "the server died in arm A2", die_at_completion=12),
    _death(
        "dies_in_b",
        "in arm B",
        "the server died in arm B",
        spare_reference=True,
        die_at_completion=5,
    ),
    _death(
        "dies_in_c",
        "in arm C, under load",
        "server died: the server died in arm C: killed by SIGSEGV",
        "UNVERIFIED",
        die_when_concurrent=-11,
        die_after=4,
    ),
    _death(
        "dies_in_confirm",
        "while a divergence is confirmed",
        "the server died in arm confirm",
        "RED",
        spare_reference=True,
        die_at_completion=BEFORE_CONFIRM + 1,
        behaviour={"batch_divergence": "score"},
    ),
    _death(
        "dies_in_p",
        "in the positive control",
        "the server died in arm P",
        "UNVERIFIED",
        spare_reference=True,
        die_at_completion=BEFORE_CONFIRM + 1,
    ),
    _death(
        "guardian_lost_in_a",
        "its guardian is killed, before the load",
        "the server died in arm A (its guardian process was killed, and it with its whole group "
        "after that)",
        lose_guardian_at_completion=4,
    ),
    _death(
        "guardian_lost_in_c",
        "its guardian is killed, under load",
        "the server died in arm C: its guardian process was killed",
        "UNVERIFIED",
        spare_reference=True,
        lose_guardian_at_completion=BEFORE_C + 5,
    ),
    FaultCase(
        "stands_still",
        Group.DEATH,
        "it answers nothing any more, and does not end",
        "is still busy after its request timed out",
        3,
        Kept.CERTIFICATE,
        "UNVERIFIED",
        {"spare_reference": True, "freeze_at_completion": BEFORE_C + 5},
        ("--request-timeout", "0.5"),
        own_process=True,
        by_hand=True,
    ),
)
ANSWERS = (
    _one_lost(4, "http_500", "status 500", "http_error"),
    _one_lost(5, "hang", "no answer; its slot is idle again", "timeout"),
    _one_lost(6, "drip", "an answer that drips without end", "timeout"),
    _one_lost(7, "reset", "the connection is reset", "connection"),
    _one_lost(8, "no_http", "something that is no HTTP", "connection"),
    _one_lost(9, "truncated_json", "the body breaks off", "truncated_body"),
    _one_lost(10, "broken_chunk", "a chunk that does not come whole", "truncated_body"),
    _one_lost(11, "bad_json", "half an answer as if it were whole", "bad_json"),
    _one_lost(12, "page", "a page for people with status 200", "bad_json"),
    _one_lost(13, "stream", "a stream of events that was not asked for", "bad_json"),
    _one_lost(14, "oversized", "a body larger than any answer", "oversized_body"),
    _lost(
        "hang_busy",
        "no answer, and its slot stays busy",
        "is still busy after its request timed out",
        ("--request-timeout", "0.5"),
        fail_nth_concurrent={"hang_busy": 5},
    ),
    _lost(
        "error_object", "an error object with status 200", ": error_object: ", error_object_200=True
    ),
    _lost("split_character", "an answer that is no UTF-8", ": bad_json: ", split_utf8=True),
    _lost(
        "one_id_fails",
        "one item fails in every arm",
        "lost trial: q3: http_error: planted failure for this prompt",
        http_500_for_prompt_containing="Question 3",
    ),
    _tolerated("chunked", Group.ANSWERS, "every body comes in chunks", chunked=True),
    _tolerated(
        "content_type", Group.ANSWERS, "answers are labelled as text", content_type="text/plain"
    ),
)
WITNESS = (
    _shown(
        "foreign_traffic",
        "somebody else's requests are counted on our server",
        "isolation: not_isolated",
        {"isolation": "not_isolated"},
        foreign_tokens=2,
    ),
    _shown(
        "backwards",
        "counters that run backwards",
        "isolation: isolation_unknown",
        {"isolation": "isolation_unknown"},
        metrics_shape="backwards",
    ),
    _shown(
        "counter_reset",
        "counters that begin again in the middle",
        "isolation: ",
        {},
        metrics_shape="reset",
    ),
    _shown(
        "no_metrics",
        "no `/metrics`",
        "weak_witness",
        {"F3_coverage": "weak_witness"},
        no_metrics=True,
    ),
    _shown(
        "queueing",
        "slots that take turns",
        "no_overlap",
        {},
        one_executor=True,
    ),
    _shown(
        "prompt_cache",
        "a prompt cache was used",
        "reused a prompt cache",
        {"isolation": "not_isolated"},
        cached_tokens_report=3,
    ),
    _shown(
        "speculation",
        "speculation was used",
        "used speculation",
        {"isolation": "not_isolated"},
        draft_n_report=3,
    ),
    _shown(
        "ignored_ban",
        "the planted ban is ignored",
        "positive_control: control_not_seen",
        {"positive_control": "control_not_seen"},
        ignore_logit_bias=True,
    ),
)
VERSIONS = (
    _tolerated(
        "old_build",
        Group.VERSIONS,
        "a build that lacks newer flags",
        own_process=True,
        old_build=True,
    ),
    _tolerated(
        "old_slots", Group.VERSIONS, "`/slots` with a number as `state`", slots_shape="state"
    ),
    _tolerated("slots_off", Group.VERSIONS, "`/slots` answers 501", slots_shape="501"),
    _tolerated("slots_absent", Group.VERSIONS, "there is no `/slots`", slots_shape="404"),
    _tolerated(
        "without_timings",
        Group.VERSIONS,
        "no `timings`; counts in `usage`",
        drift="without_timings",
    ),
    _tolerated(
        "cache_at_the_top",
        Group.VERSIONS,
        "the cache's counter is `tokens_cached`",
        drift="cache_at_the_top",
    ),
    _tolerated("new_fields", Group.VERSIONS, "fields that nobody knows", drift="new_fields"),
    _drifted(
        "without_cache_counters",
        "nothing says what came out of a cache",
        "isolation",
        "isolation_unknown",
    ),
    _drifted("without_usage", "nothing counts the prompt", "F0_score", "prompt_tokens_unknown"),
    _drifted("without_token_ids", "logprobs without token ids", "tokens", "tokens_unknown"),
    _drifted(
        "old_probabilities", "probabilities as builds of 2024 have them", "tokens", "tokens_unknown"
    ),
    _drifted("without_finish_reason", "no finish reason", "isolation", "isolation_unknown"),
    _drifted(
        "all_reasoning",
        "reasoning beside an empty answer",
        "F2_completion_floor",
        "completion_floor",
    ),
    FaultCase(
        "old_props",
        Group.VERSIONS,
        "`/props` lacks slots and build",
        "identity: identity_unknown",
        3,
        Kept.CERTIFICATE,
        "UNVERIFIED",
        {"props_without": ("total_slots", "build_info")},
        (),
        {"identity": "identity_unknown"},
    ),
)
CASES: Mapping[str, FaultCase] = {
    case.name: case
    for case in (*OWNERSHIP, *MACHINE, *START, *DEATH, *ANSWERS, *WITNESS, *VERSIONS)
}
"""All of them by name."""
