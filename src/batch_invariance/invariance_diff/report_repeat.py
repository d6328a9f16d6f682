"""The command that measures a cell again, as far as certificate and evidence tell it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.codewords import codeword_of
from batch_invariance.invariance_diff.model import Item, Source
from batch_invariance.invariance_diff.records import Header, Plan
from batch_invariance.scorers import SHIPPED

PROGRAM = "batch-invariance"
TOY_NAME = "toy "
"""How the name in a canary's header begins; its spec follows."""
OWN_WORKSET = "built-in"
PROFILE = "spark"
_PROFILE_WORKSET = re.compile(r"spark-seed-?[0-9]+-ctx[0-9]+")
"""The name that the profile gives to a work-set of its own; a file's name has an ending."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The command, quoted for a shell (None where there is none), and what it leaves open."""

    command: str | None
    notes: tuple[str, ...]


def repeat_of(certificate: Certificate, header: Header | None) -> Repeat:
    """How to measure the cell again; `header` is the evidence's, None where there is none."""
    notes = [] if header else ["without the evidence the options of the measurement are unknown"]
    if certificate.source is Source.MOCK:
        words = ["run-mock", *_figures(certificate)]
        if certificate.sensitivity.n_ac_divergent:
            notes.append("with the --batch-divergence of then, which is not recorded")
    elif certificate.source in (Source.LIVE, Source.CANARY):
        words = ["run-live", *_subject(certificate, notes), *_figures(certificate)]
    else:
        return Repeat(None, ("the server was not started by the tool",))
    words += _measurement(certificate, header.plan if header is not None else None)
    words += _scorer(certificate, notes)
    words += _workset(certificate, header.workset.items if header is not None else (), notes)
    flags = certificate.promotion_scope.valid_for.server_flags
    if flags:
        words += ["--", *flags]
    environment = certificate.promotion_scope.valid_for.environment
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    return Repeat(" ".join([*settings, PROGRAM, shlex.join(words)]), tuple(notes))


def _workset(certificate: Certificate, items: Sequence[Item], notes: list[str]) -> list[str]:
    name = certificate.workset.name
    words = []
    if _of_profile(certificate):
        words += ["--profile", PROFILE, *_fills(items)]
    elif name != OWN_WORKSET:
        words += ["--workset", name]
        notes.append(
            f"the same work-set: {certificate.workset.n_items} items, "
            f"sha256 {certificate.workset_sha256}"
        )
    if items and all(codeword_of(item.messages) is not None for item in items):
        words.append("--codewords")
    return words


def _fills(items: Sequence[Item]) -> list[str]:
    """The options that shape the profile's work-set, read off its items."""
    fills = {item.fill: None for item in items if item.fill is not None}
    families = {item.family for item in items}
    if not fills:
        return []
    per_family = len(items) // (len(fills) * len(families))
    return ["--fills", ",".join(f"{fill:g}" for fill in fills), "--per-family", str(per_family)]


def _of_profile(certificate: Certificate) -> bool:
    return _PROFILE_WORKSET.fullmatch(certificate.workset.name) is not None


def _subject(certificate: Certificate, notes: list[str]) -> list[str]:
    model = certificate.subject.model
    argv = certificate.lifetimes[0].start.argv if certificate.lifetimes else ()
    server = argv[0] if argv else certificate.subject.server_file
    words = ["--server-bin", server]
    if certificate.source is Source.CANARY:
        name = model.name or ""
        if name.startswith(TOY_NAME):
            return [*words, "--canary", name.removeprefix(TOY_NAME)]
        notes.append("with the --canary of then")
        return words
    words += ["--model", _after("--model", argv) or model.file]
    if certificate.model != model.file.removesuffix(".gguf"):
        words += ["--model-alias", certificate.model]
    notes.append(f"the same model file: sha256 {model.sha256}")
    return words


def _figures(certificate: Certificate) -> list[str]:
    return ["--ctx", str(certificate.ctx), "--parallel", str(certificate.dispatch_n)]


def _measurement(certificate: Certificate, plan: Plan | None) -> list[str]:
    words = []
    if certificate.schedule.file is None:
        words += ["--passes", str(certificate.n_passes)]
    else:
        words += ["--schedule", certificate.schedule.file]
    if plan is not None:
        words += ["--max-tokens", str(plan.sampling.max_tokens)]
        words += ["--top-logprobs", str(plan.sampling.top_logprobs)]
        if plan.logit_drift is not None:
            words += ["--logit-drift", plan.logit_drift]
    return [*words, "--seed", str(certificate.schedule.seed)]


def _scorer(certificate: Certificate, notes: list[str]) -> list[str]:
    scorer = certificate.scorer
    if scorer.name == (PROFILE if _of_profile(certificate) else SHIPPED[0].name):
        return []
    if scorer.name not in {shipped.name for shipped in SHIPPED}:
        notes.append(f"the same scorer: {scorer.name}, sha256 {scorer.sha256}")
        return []
    words = ["--scorer", scorer.name]
    for key, value in sorted(scorer.params.items()):
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--scorer-param", f"{key}={text}"]
    return words


def _after(option: str, argv: Sequence[str]) -> str | None:
    """The word after an option of a command line."""
    for word, following in pairwise(argv):
        if word == option:
            return following
    return None
