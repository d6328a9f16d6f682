"""What a report says of a case on a server that somebody else runs; see `case_report`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from batch_invariance.formats.case_words import TOKENS, WHAT, count, names_slots, two_columns
from batch_invariance.invariance_diff.case import Case
from batch_invariance.invariance_diff.endpoint import Endpoint


def endpoint_head(case: Case) -> Iterator[str]:
    """The title, and what was seen how often."""
    n = len(case.shape.companions)
    beside = f"beside {count(n, 'request')}" if n else "in one request after another"
    yield f"# {_engine(case)} answers a request differently {beside}"
    yield ""
    stated = "" if case.sampling.dialect is None else ", ".join(_stated(case))
    where = "measured once the search was over" if case.rate_is_fresh else "of the search"
    slot = " on the same slot" if names_slots(case) else ""
    yield (
        f"At temperature 0, every request stating {stated}, one request is answered with "
        f"{WHAT[case.expected.kind]} than alone{slot} on the same server: in **{case.rate}** "
        f"attempts {where}."
    )
    yield "The server was used as it was found: nothing was started or stopped for this case."
    yield ""


def _engine(case: Case) -> str:
    engine = "other" if case.endpoint is None else case.endpoint.engine.value
    return "A server" if engine == "other" else engine


def _stated(case: Case) -> list[str]:
    """The parameters that requests state, in Markdown."""
    return [f"`{name}`" for name in case.sampling.to_json() if name.isidentifier()]


def endpoint_steps(case: Case) -> Iterator[str]:
    """How to run the script."""
    url = "https://host:port" if case.endpoint is None else case.endpoint.url
    yield "```sh"
    yield f"URL={shlex.quote(url)} sh case.sh"
    yield "```"
    yield ""
    yield (
        "`MODEL` is the model's name in the requests where it is another, `API_KEY` a key of the "
        "server. Or by hand:"
    )
    yield ""


def endpoint_subject(case: Case, endpoint: Endpoint) -> Iterator[str]:
    """A table of what the server says of itself, and what that leaves unknown."""
    rows = [
        ("address", endpoint.url),
        ("engine", endpoint.engine.value),
        ("model, by name", case.cell.model),
        ("tokens are named", TOKENS[endpoint.capabilities.tokens]),
        ("context of a request", str(case.cell.ctx or "unknown")),
        ("at once", str(case.shape.lanes)),
        *endpoint.said.items(),
    ]
    if endpoint.claim is not None:
        rows.append(("claimed by its operator", endpoint.claim))
    yield "## Environment"
    yield ""
    yield "What the server says of itself:"
    yield ""
    yield from two_columns(rows)
    yield (
        "Its weights, flags and machine are not known, nor whether others used it at the same time."
    )
    yield ""
