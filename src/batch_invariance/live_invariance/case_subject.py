"""What a case is about, as it runs now, and whether that is what was recorded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping

from batch_invariance.invariance_diff.case import Case, Ran
from batch_invariance.invariance_diff.case_launch import portable_words, with_slots
from batch_invariance.invariance_diff.records import Header, Observer, Subject
from batch_invariance.live_invariance.launch import engine_environment
from batch_invariance.live_invariance.prepare import ServerKnowledge, observer_now
from batch_invariance.live_invariance.server import ServerFacts

SHOWN = 200
ABSENT = "not loaded"
Pair = tuple[str, object, object]


def ran_of(facts: ServerFacts, ctx: int, lanes: int) -> Ran:
    """What a launch shows of itself, its command line for `lanes` slots of `ctx` tokens."""
    return Ran(
        executable_sha256=facts.binary.executable_sha256,
        libraries=facts.binary.libraries,
        build=facts.identity.build,
        chat_template_sha256=facts.identity.chat_template_sha256,
        words=with_slots(portable_words(facts.argv), ctx, lanes),
    )


def differs_from_run(header: Header, known: ServerKnowledge) -> list[str]:
    """What is not as the certificate's run had it: server, model, environment of the engine."""
    return _said(_known_pairs(header.subject, header.cell.environment, known))


def differs_before_launch(case: Case, known: ServerKnowledge) -> list[str]:
    """What can be told from the files alone: model, version, environment of the engine, and the
    server's file where the case does not know which executable ran."""
    pairs = _known_pairs(case.subject, case.cell.environment, known)
    if case.ran.executable_sha256 is not None:
        # The file may be a wrapper, which is another on every machine.
        pairs = [pair for pair in pairs if pair[0] != "the server's digest"]
    return _said(pairs)


def differs_once_launched(case: Case, facts: ServerFacts) -> list[str]:
    """What the running process shows. What was recorded and cannot be read now is a difference,
    what was not recorded is none."""
    ran, binary = case.ran, facts.binary
    words = with_slots(portable_words(facts.argv), case.cell.ctx, case.shape.lanes)
    template = ran.chat_template_sha256, facts.identity.chat_template_sha256
    pairs: list[Pair] = [
        ("the build", ran.build, facts.identity.build),
        ("the chat template's digest", *template),
        ("the executable's digest", ran.executable_sha256, binary.executable_sha256),
        ("the server's command line", shlex.join(ran.words), shlex.join(words)),
    ]
    if ran.libraries:
        for name in sorted({*ran.libraries, *binary.libraries}):
            pairs.append((name, ran.libraries.get(name, ABSENT), binary.libraries.get(name)))
    return _said(pair for pair in pairs if pair[1] is not None)


def differs_by_machine(recorded: Observer) -> list[str]:
    """The machine is no part of the subject, and changes arithmetic all the same."""
    now = observer_now()
    return _said(
        [
            ("the machine", recorded.machine, now.machine),
            ("the processor", recorded.processor, now.processor),
            ("the number of processors", recorded.cpu_count, now.cpu_count),
        ]
    )


def _known_pairs(
    subject: Subject, environment: Mapping[str, str], known: ServerKnowledge
) -> list[Pair]:
    return [
        ("the model's digest", subject.model.sha256, known.model.sha256),
        ("the server's version", subject.server_version, known.version),
        ("the server's digest", subject.server_sha256, known.server_sha256),
        ("the environment of the engine", dict(environment), engine_environment(os.environ)),
    ]


def _said(pairs: Iterable[Pair]) -> list[str]:
    return [f"{what} is {_short(new)}, was {_short(old)}" for what, old, new in pairs if old != new]


def _short(value: object) -> str:
    if value is None:
        return "unknown"
    text = str(value)
    return text.splitlines()[0][:SHOWN] if text else "empty"
