"""What a run records of its subject, as named facts by which two runs are compared.

A fact that one side does not know is never the same: nothing then shows that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.certificate import Certificate, kv_label
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.invariance_diff.records import Header, LifetimeStart


class FactKind(str, Enum):
    """What a fact is about. `MEASUREMENT`: not the subject, but what it was asked."""

    MODEL = "model"
    BUILD = "build"
    FLAGS = "flags"
    DEVICE = "device"
    ENVIRONMENT = "environment"
    MEASUREMENT = "measurement"


class Agreement(str, Enum):
    """Whether two sides of a fact agree. `UNKNOWN`: one of them does not say."""

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Run:
    """A certificate that its evidence bears out, and the header of that evidence."""

    certificate: Certificate
    header: Header


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is recorded. `values` in an order that counts, () for none; None where it is
    not known. Digests are SHA-256 in hexadecimal."""

    kind: FactKind
    name: str
    values: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class FactChange:
    """One fact on two sides, each as `Fact.values`."""

    kind: FactKind
    name: str
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None

    @property
    def agreement(self) -> Agreement:
        """Whether the sides agree."""
        return agreement_of(self.before, self.after)


MODEL_FILE = "model file"
WORK_SET = "work-set"
SAMPLING = "sampling"
SCORER = "scorer"


def agreement_of(before: object | None, after: object | None) -> Agreement:
    """Whether two sides agree, None being one that is not known."""
    if before is None or after is None:
        return Agreement.UNKNOWN
    return Agreement.SAME if before == after else Agreement.CHANGED


def facts_of(run: Run) -> tuple[Fact, ...]:
    """The facts of one run. Of a server of someone else flags, device and environment are not
    known: the observer's own are none of them."""
    cert, header = run.certificate, run.header
    starts = [life.start for life in cert.lifetimes]
    return (*_of_model_and_build(cert, starts), *_of_cell(cert, header, starts), *_of_asked(run))


def compare_facts(before: Sequence[Fact], after: Sequence[Fact]) -> tuple[FactChange, ...]:
    """Every fact of either side once: those of `before` in their order, then the others."""
    x, y = ({(fact.kind, fact.name): fact.values for fact in facts} for facts in (before, after))
    return tuple(FactChange(*place, x.get(place), y.get(place)) for place in {**x, **y})


def _of_model_and_build(cert: Certificate, starts: Sequence[LifetimeStart]) -> Iterable[Fact]:
    subject, build = cert.subject, FactKind.BUILD
    templates = _each([s.identity.chat_template_sha256 for s in starts])
    yield Fact(FactKind.MODEL, MODEL_FILE, _one(subject.model.sha256))
    yield Fact(FactKind.MODEL, "chat template", templates)
    yield Fact(build, "server version", _one(subject.server_version))
    yield Fact(build, "build", _each([s.identity.build for s in starts]))
    yield Fact(build, "server file", _one(subject.server_sha256))
    executables = _each([s.executable_sha256 for s in starts])
    yield Fact(build, "running executable", executables)
    libraries = sorted({f"{n} {digest}" for s in starts for n, digest in s.libraries.items()})
    # Where the system does not show what runs, no list of libraries is a short one.
    known = libraries or executables is not None
    yield Fact(build, "libraries", tuple(libraries) if known else None)
    if cert.endpoint is not None:
        said = tuple(f"{name}: {text}" for name, text in sorted(cert.endpoint.said.items()))
        yield Fact(build, "address", (cert.endpoint.url,))
        yield Fact(build, "what it says of itself", said or None)


def _of_cell(cert: Certificate, header: Header, starts: Sequence[LifetimeStart]) -> Iterable[Fact]:
    cell, observer = header.cell, cert.observer
    omitted = tuple(sorted({flag for s in starts for flag in s.omitted_flags}))
    variables = tuple(f"{name}={value}" for name, value in sorted(cell.environment.items()))
    own = (
        Fact(FactKind.FLAGS, "server flags", cell.server_flags),
        Fact(FactKind.FLAGS, "flags left out", omitted if starts else None),
        Fact(FactKind.FLAGS, "KV cache", (kv_label(header),)),
        Fact(FactKind.FLAGS, "micro-batch", (str(cell.n_ubatch),)),
        Fact(FactKind.DEVICE, "processor", _one(observer.processor)),
        Fact(FactKind.DEVICE, "processors", _one(observer.cpu_count)),
        Fact(FactKind.DEVICE, "machine", _one(observer.machine)),
        Fact(FactKind.DEVICE, "engine's report", _each([s.system_info for s in starts])),
        Fact(FactKind.ENVIRONMENT, "variables", variables),
        Fact(FactKind.ENVIRONMENT, "system", _one(observer.system)),
    )
    if cert.endpoint is None:
        yield from own
    else:
        yield from (Fact(fact.kind, fact.name, None) for fact in own)
    yield Fact(FactKind.FLAGS, "context per slot", (str(cell.ctx),))
    yield Fact(FactKind.ENVIRONMENT, "tool", (observer.tool,))
    yield Fact(FactKind.ENVIRONMENT, "Python", (observer.python,))


def _of_asked(run: Run) -> Iterable[Fact]:
    cert, asked = run.certificate, FactKind.MEASUREMENT
    sampling = to_json(run.header.plan.sampling)
    stated = (f"{name} {canonical_json(sampling[name]).decode('ascii')}" for name in sampling)
    yield Fact(asked, WORK_SET, (cert.workset.sha256,))
    yield Fact(asked, SAMPLING, tuple(stated))
    yield Fact(asked, SCORER, (cert.scorer.sha256,))
    yield Fact(asked, "schedule", (cert.schedule.digest,))


def _one(value: object | None) -> tuple[str, ...] | None:
    return None if value is None else (str(value),)


def _each(values: Sequence[str | None]) -> tuple[str, ...] | None:
    """The different values of all launches; None where one launch, or all, do not say."""
    known = {value for value in values if value is not None}
    return tuple(sorted(known)) if values and None not in values else None
