"""The server of somebody else that a case is made small on, or is replayed on."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from batch_invariance.cli.endpoint_job import Address, connect
from batch_invariance.cli.endpoint_options import (
    add_address_options,
    add_limit_options,
    key_of,
    limits_of,
    metrics_url_of,
)
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.live_invariance.case_endpoint import EndpointSeating, EndpointSeats, Heard
from batch_invariance.live_invariance.case_subject import RecordedEndpoint, differs_from_endpoint
from batch_invariance.live_invariance.endpoint_client import base_url

OF_ENDPOINTS = (
    "url",
    "metrics_url",
    "api_key_file",
    "api_key_env",
    "max_requests",
    "max_total_tokens",
)
"""The options by the names under which they are parsed."""


def add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    """What only a certificate or a case of an endpoint takes."""
    group = parser.add_argument_group("on a server that somebody else runs")
    group.add_argument(
        "--url", metavar="URL", help="where it is; needed for what certify-endpoint has measured"
    )
    add_address_options(group)
    add_limit_options(group)


def check_fits_source(args: argparse.Namespace, of_endpoint: bool, what: str) -> None:
    """Raises UsageError where options are those of the other kind of server."""
    if of_endpoint and args.url is None:
        raise UsageError(f"{what} is of an endpoint: give --url, where its server is now")
    if of_endpoint and args.server_bin is not None:
        raise UsageError(f"{what} is of an endpoint: --server-bin has no part in it, --url has")
    if not of_endpoint:
        for name in OF_ENDPOINTS:
            if getattr(args, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')}: {what} is of a server that is launched for it; "
                    "an endpoint's comes from certify-endpoint"
                )


@dataclass(frozen=True, slots=True)
class EndpointGround:
    """A server of somebody else: seats on it, and the same server as it was recorded. The requests
    are in the dialect that was recorded, under the name of `--model` where it is given."""

    seats: EndpointSeats
    recorded: RecordedEndpoint

    @property
    def sampling(self) -> Sampling:
        """The sampling of every request."""
        return self.seats.seating.sampling

    @property
    def url(self) -> str:
        """Where it is."""
        return self.seats.seating.client.base_url

    def differences(self, now: Heard, answered: bool) -> list[str]:
        """What it says of itself that was not recorded so."""
        return differs_from_endpoint(self.recorded, now, answered)

    def since(self, before: Heard, now: Heard) -> list[str]:
        """What it says of itself `now` and did not say `before`, nothing where it is silent now."""
        then = replace(
            self.recorded,
            endpoint=before.endpoint(self.recorded.endpoint, self.url),
            model=before.model,
            ctx=before.told.identity.n_ctx or 0,
            chat_template_sha256=before.told.identity.chat_template_sha256,
        )
        return differs_from_endpoint(then, now, True) if now.told.facts else []

    def waits(self) -> str | None:
        """What to say of the server's rate limit; None where it held nothing up."""
        n = self.seats.n_waited
        return f"rate limit: {n} requests waited and went out again" if n else None


@contextlib.contextmanager
def endpoint_ground(
    args: argparse.Namespace, recorded: RecordedEndpoint, sampling: Sampling, attempts: int
) -> Iterator[EndpointGround]:
    """Connects to the server at `--url`; nothing is sent yet. A measurement makes `attempts`.

    Raises UsageError for an address or a key that is none.
    """
    url = base_url(args.url)
    address = Address(url, metrics_url_of(args, url), key_of(args, url))
    clients = connect(address, limits_of(args), args.request_timeout)
    dialect = sampling.dialect
    if dialect is not None and args.model is not None:
        sampling = replace(sampling, dialect=replace(dialect, model=args.model))
    seating = EndpointSeating(
        client=clients.requests,
        metrics=clients.metrics,
        recorded=recorded.endpoint,
        sampling=sampling,
        attempts=attempts,
        timeout_s=args.request_timeout,
    )
    ground = EndpointGround(EndpointSeats(seating), recorded)
    try:
        yield ground
    finally:
        clients.requests.close()
        said = ground.waits()
        if said is not None and not args.quiet:
            print(said, file=sys.stderr)
