"""One certification of an endpoint, and several over restarts of its server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.ci_output import CiTargets, produced_cell, write_ci_outputs
from batch_invariance.cli.endpoint_text import found_lines, lifetime_lines
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.run_options import conduct_from, positive
from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.cell_checks import CheckedCell
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.lifetime_rate import Lived, lifetime_rate
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance.endpoint_client import (
    EndpointClient,
    Limits,
    on_loopback,
)
from batch_invariance.live_invariance.endpoint_prepare import endpoint_header
from batch_invariance.live_invariance.endpoint_probe import Asked, probe
from batch_invariance.live_invariance.endpoint_restart import restart
from batch_invariance.live_invariance.endpoint_run import Target, run_endpoint
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.prepare import RunSettings
from batch_invariance.live_invariance.produce import Produced, produce_by
from batch_invariance.live_invariance.signing import set_aside_signed
from batch_invariance.live_invariance.store import (
    EVIDENCE_SUFFIX,
    OutDirLock,
    certificates_of,
    prepare_out_dir,
    set_aside,
    write_atomic,
)
from batch_invariance.live_invariance.text import printable
from batch_invariance.scorer_api import Scorer

RATE_FILE = "lifetimes.json"
LIFETIME = "lifetime-"
"""What the folder of each is called, before its number."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure, the arguments that say how, and what the certificates are signed with."""

    args: argparse.Namespace
    settings: RunSettings
    workset: WorkSet
    scorer: Scorer
    sign_key: SigningKey | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server and its metrics are, and the key. The key goes to the server alone, not to
    whatever else shows its metrics."""

    url: str
    metrics_url: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Clients:
    """One for requests and one for metrics, which may be the same."""

    requests: EndpointClient
    metrics: Client


def add_lifetime_options(parser: argparse.ArgumentParser) -> None:
    """Repeating the whole over restarts."""
    group = parser.add_argument_group("over restarts")
    group.add_argument(
        "--lifetimes", type=_lifetimes, default=1, metavar="L", help="certify so many (1)"
    )
    group.add_argument(
        "--restart-command",
        metavar="CMD",
        help="for the shell, between lifetimes; leaves a new server running in the background",
    )
    group.add_argument(
        "--ready-timeout", type=positive, default=600.0, metavar="S", help="per restart (600)"
    )


def _lifetimes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 to 1000")
    return int(text)


def connect(address: Address, limits: Limits, patience_s: float) -> Clients:
    """Clients for one run."""
    client = EndpointClient(address.url, address.key, patience_s, limits)
    if address.metrics_url == address.url:
        return Clients(client, client)
    proxies = not on_loopback(address.metrics_url)
    return Clients(client, Client(address.metrics_url, None, proxies=proxies))


def certify_once(job: Job, clients: Clients, out_dir: Path) -> Produced:
    """Probes the server and runs the cell against it. Raises what `probe` and `produce_by` do.

    Older certificates are set aside first, as wherever a run begins: the context, which is in their
    name, is known only once the server has answered.
    """
    args = job.args
    _set_aside(job, out_dir)
    asked = Asked(
        model=args.model,
        sampling=job.settings.sampling,
        concurrency=job.settings.parallel,
        claim=args.claims_invariance,
        timeout_s=args.request_timeout,
    )
    found = probe(clients.requests, clients.metrics, asked)
    if not args.quiet:
        say(found_lines(found.endpoint))
    header = endpoint_header(args.model, found, job.settings, job.workset, job.scorer)
    target = Target(clients.requests, clients.metrics, found)
    conduct, progress = conduct_from(args, header, job.sign_key)
    try:
        return produce_by(
            header,
            lambda recorder: run_endpoint(recorder, target, args.request_timeout),
            job.scorer,
            out_dir,
            conduct,
        )
    finally:
        progress.close()


def _set_aside(job: Job, folder: Path) -> None:
    older = certificates_of(folder, job.args.model, job.settings.parallel)
    if not older:
        return
    with OutDirLock(folder):
        for certificate in older:
            evidence = certificate.with_name(certificate.stem + EVIDENCE_SUFFIX)
            set_aside_signed(certificate, [evidence])


def run_lifetimes(job: Job, address: Address, limits: Limits, targets: CiTargets) -> int:
    """Certifies each lifetime in a folder of its own, and states the rate over all of them."""
    args = job.args
    prepare_out_dir(args.out_dir)
    rate_file = args.out_dir / RATE_FILE
    set_aside([rate_file])
    for folder in args.out_dir.glob(f"{LIFETIME}*"):
        # Those that this run does not reach, or does not have, are not its own.
        _set_aside(job, folder)
    lived: list[Lived] = []
    cells: list[CheckedCell] = []
    seen: bool | None = None
    for number in range(1, args.lifetimes + 1):
        clients = connect(address, limits, args.request_timeout)
        if lived:
            if not args.quiet:
                say([f"lifetime {number} of {args.lifetimes}: restarting the server"])
            seen = restart(
                args.restart_command, clients.requests, clients.metrics, args.ready_timeout
            )
        began = time.monotonic()
        produced = certify_once(job, clients, args.out_dir / f"{LIFETIME}{number}")
        cells.append(produced_cell(produced, time.monotonic() - began))
        limits = clients.requests.left
        file = produced.paths.certificate.relative_to(args.out_dir).as_posix()
        lived.append(Lived(produced.certificate, file, seen))
    rate = lifetime_rate(lived)
    data = json.dumps(to_json(rate), sort_keys=True, indent=2).encode("ascii") + b"\n"
    write_atomic(rate_file, data)
    write_ci_outputs(targets, cells)
    green = all(outcome.verdict is Verdict.GREEN for outcome in rate.lifetimes)
    green = green and rate.all_restarts_seen
    code = ExitCode.PROMOTABLE if green else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps({**to_json(rate), "exit_code": code}))
    else:
        print("\n".join(lifetime_lines(rate, Style(sys.stdout))))
        print(f"rate         {rate_file}")
    return code


def say(lines: Sequence[str]) -> None:
    """Remarks for a person, apart from the result."""
    for line in lines:
        print(printable(line), file=sys.stderr)
