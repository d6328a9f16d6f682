"""How often a server diverges from one start to the next: certificates of several lifetimes.

Within a lifetime a server may repeat itself bit for bit and still differ after a restart (kernels
are chosen at start, addresses change), so trials of one lifetime say nothing about the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.rules import CONFIDENCE
from batch_invariance.invariance_diff.stats import exact_zero_bound


@dataclass(frozen=True, slots=True)
class LifetimeOutcome:
    """One lifetime: its certificate by file and digest, its verdict, whether arm C differed from A
    at all (None where the run proves neither), and whether the restart before it was seen (None:
    there was none, or nothing shows it)."""

    certificate: str
    sha256: str
    verdict: Verdict
    diverged: bool | None
    restart_seen: bool | None


@dataclass(frozen=True, slots=True)
class LifetimeRate:
    """The lifetime rate: `n_diverged` of `n_judged` lifetimes diverged. Where none did,
    `rate_upper_bound_95` bounds it (Clopper and Pearson, zero events), but not where some restart
    was not seen: what may be one lifetime does not count as two.
    `n_reference_changed` counts items whose serial answer is not the same in all lifetimes. No name
    here is one of a certificate's required fields: as a file it must not pass for one."""

    endpoint_model: str
    concurrency: int
    n: int
    n_judged: int
    n_diverged: int
    rate: float | None
    rate_upper_bound_95: float | None
    n_reference_changed: int
    lifetimes: tuple[LifetimeOutcome, ...]

    @property
    def all_restarts_seen(self) -> bool:
        """Whether something shows every restart."""
        return all(one.restart_seen for one in self.lifetimes[1:])


@dataclass(frozen=True, slots=True)
class Lived:
    """A certificate, the name of its file, and whether the restart before it was seen."""

    certificate: Certificate
    file: str
    restart_seen: bool | None


def lifetime_rate(lived: Sequence[Lived]) -> LifetimeRate:
    """The rate over lifetimes of one endpoint, at least one."""
    outcomes = tuple(_outcome(one) for one in lived)
    judged = [o.diverged for o in outcomes if o.diverged is not None]
    n_diverged = sum(judged)
    answers: dict[str, set[str | None]] = {}
    for one in lived:
        for row in one.certificate.rows:
            answers.setdefault(row.id, set()).add(row.content_sha)
    first = lived[0].certificate
    unseen = any(not one.restart_seen for one in outcomes[1:])
    bound = exact_zero_bound(len(judged), CONFIDENCE)
    return LifetimeRate(
        endpoint_model=first.model,
        concurrency=first.dispatch_n,
        n=len(outcomes),
        n_judged=len(judged),
        n_diverged=n_diverged,
        rate=n_diverged / len(judged) if judged else None,
        rate_upper_bound_95=None if n_diverged or unseen else bound,
        n_reference_changed=sum(len(found) > 1 for found in answers.values()),
        lifetimes=outcomes,
    )


def _outcome(one: Lived) -> LifetimeOutcome:
    cert = one.certificate
    differs = bool(cert.mismatch or cert.token_divergence_ids)
    diverged = True if differs else None if cert.verdict is Verdict.UNVERIFIED else False
    return LifetimeOutcome(
        one.file, sha256_hex(cert.to_bytes()), cert.verdict, diverged, one.restart_seen
    )
