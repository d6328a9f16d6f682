"""What a case is about, as it runs now, and whether that is what was recorded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batch_invariance.invariance_diff.case import Case, Ran
from batch_invariance.invariance_diff.case_launch import portable_words, with_slots
from batch_invariance.invariance_diff.endpoint import Endpoint
from batch_invariance.invariance_diff.records import Header, Observer, Subject
from batch_invariance.live_invariance.case_endpoint import Heard
from batch_invariance.live_invariance.endpoint_facts import PROCESS_START, VERSIONS
from batch_invariance.live_invariance.launch import engine_environment
from batch_invariance.live_invariance.prepare import ServerKnowledge, observer_now
from batch_invariance.live_invariance.server import ServerFacts

SHOWN = 200
ABSENT = "not loaded"
Pair = tuple[str, object, object]
IN_ANSWERS = ("system_fingerprint", "model in answers")
"""What a server says of itself only in its answers: every name that any of them had."""


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


@dataclass(frozen=True, slots=True)
class RecordedEndpoint:
    """A server of somebody else as it was recorded: what it said, the model's name in requests, the
    context of a request (0 for unknown), and its chat template's digest where it told that."""

    endpoint: Endpoint
    model: str
    ctx: int
    chat_template_sha256: str | None

    @property
    def versionless(self) -> bool:
        """Whether nothing that it says names a version, so that another cannot be told apart."""
        return not any(place in self.endpoint.said for place in VERSIONS)


def differs_from_endpoint(recorded: RecordedEndpoint, now: Heard, answered: bool) -> list[str]:
    """What the server says of itself that was not recorded so. `answered`: it has answered a
    request, so that what stands in answers counts too. Where it is and since when its process runs
    is no part of it."""
    identity, before = now.told.identity, recorded.endpoint
    template = recorded.chat_template_sha256
    pairs: list[Pair] = [
        ("the engine", before.engine.value, now.seen.engine.value),
        ("the model's name", recorded.model, now.model),
        ("the context of a request", recorded.ctx or None, identity.n_ctx),
        ("the chat template's digest", template, identity.chat_template_sha256),
    ]
    for place, said in sorted(before.said.items()):
        other = now.told.facts.get(place)
        if place in IN_ANSWERS:
            known = other is not None and {*other.split(", ")} <= {*said.split(", ")}
            if known or not answered:
                continue
        if place != PROCESS_START:
            pairs.append((place, said, other))
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
