"""The certificate's section about a server that someone else runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batch_invariance.invariance_diff.endpoint import Capabilities, Engine, Offered, wants
from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.gates_endpoint import changed_facts, foreign_traffic
from batch_invariance.invariance_diff.model import Arm, Verdict
from batch_invariance.invariance_diff.sections import Claims

RATE_LIMITED = "rate_limited"
"""The event of a request that was refused for its rate and went out again later."""


@dataclass(frozen=True, slots=True)
class InvarianceClaim:
    """What the operator claims of the server, as given, and whether the run bears it out: false
    where anything differed between A and C, true where the verdict is GREEN and no logprob moved
    by a bit, null where the run shows neither."""

    text: str
    borne_out: bool | None


@dataclass(frozen=True, slots=True)
class ForeignTraffic:
    """Tokens that the server generated for others while a pass ran."""

    arm: Arm
    pass_index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """What was measured against, and by what. `changed` names what the server said otherwise at
    the end; `control` is how the positive control was planted; `n_polls` counts polls of the
    gauge; `n_rate_limited` requests that went out again after a 429; `wants` is what the server
    would have to offer for everything to be provable."""

    url: str
    engine: Engine
    said: Mapping[str, str]
    changed: tuple[str, ...]
    capabilities: Capabilities
    offered: Offered
    claim: InvarianceClaim | None
    control: str | None
    foreign_traffic: tuple[ForeignTraffic, ...]
    n_probes: int
    n_polls: int
    n_rate_limited: int
    wants: tuple[str, ...]


def report_of(facts: Facts, claims: Claims, verdict: Verdict) -> EndpointReport | None:
    """The section; None for a server of our own."""
    endpoint = facts.header.endpoint
    if endpoint is None:
        return None
    plan = facts.control.plan
    control = None
    if plan is not None:
        control = "other_prompt" if plan.banned_token is None else "logit_bias"
    claim = None
    if endpoint.claim is not None:
        claim = InvarianceClaim(endpoint.claim, _borne_out(claims, verdict))
    return EndpointReport(
        url=endpoint.url,
        engine=endpoint.engine,
        said=endpoint.said,
        changed=changed_facts(facts),
        capabilities=endpoint.capabilities,
        offered=endpoint.offered,
        claim=claim,
        control=control,
        foreign_traffic=tuple(
            ForeignTraffic(p.arm, p.pass_index, tokens) for p, tokens in foreign_traffic(facts)
        ),
        n_probes=endpoint.n_probes,
        n_polls=sum(p.gauge.n_polls for p in facts.passes if p.gauge is not None),
        n_rate_limited=sum(event.what == RATE_LIMITED for event in facts.events),
        wants=wants(endpoint),
    )


def _borne_out(claims: Claims, verdict: Verdict) -> bool | None:
    if False in (claims.score, claims.token, claims.logprob_bits):
        return False
    return True if verdict is Verdict.GREEN and claims.logprob_bits else None
