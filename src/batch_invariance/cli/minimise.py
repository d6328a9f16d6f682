"""`minimise`: the smallest case that still shows a certificate's divergence, for others to run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batch_invariance.cli.cell_options import ChosenCell, add_safety_options, guarded_launcher
from batch_invariance.cli.cert_files import verify_file
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.minimise_text import (
    SearchProgress,
    minimised_as_json,
    not_reproduced_as_json,
    render_minimised,
    render_not_reproduced,
)
from batch_invariance.cli.recorded_cell import read_launch, recorded_cell, recorded_scorer
from batch_invariance.cli.run_options import add_scorer_options, positive
from batch_invariance.cli.style import Style
from batch_invariance.errors import CertificateError, EvidenceError, UsageError
from batch_invariance.invariance_diff.case import (
    SCHEMA,
    Case,
    DivergenceKind,
    Origin,
    Ran,
    Redaction,
)
from batch_invariance.invariance_diff.case_judge import wanted_of
from batch_invariance.invariance_diff.case_origin import (
    ItemStarts,
    choose,
    find_starts,
    reference_for,
)
from batch_invariance.invariance_diff.case_removal import removed
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.records import Header
from batch_invariance.live_invariance.case_bench import BenchSettings, CaseBench
from batch_invariance.live_invariance.case_folder import check_no_folder, write_case
from batch_invariance.live_invariance.case_subject import differs_from_run, ran_of
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.minimise import (
    Minimised,
    NotReproduced,
    SearchLimits,
    SearchTask,
    minimise,
)
from batch_invariance.live_invariance.prepare import ServerKnowledge, know_server, observer_now
from batch_invariance.live_invariance.store import safe_model_name
from batch_invariance.scorer_api import ScoringSession

MAX_PROBES = 200
ATTEMPTS = 10
TIME_BUDGET_S = 1800.0
MOST = 100_000
EXAMPLES = """examples:
  batch-invariance minimise certs/model__ctx8192__N4.json
  batch-invariance minimise certs/model__ctx8192__N4.json --item q17 --out case --redact
  batch-invariance minimise certs/model__ctx8192__N4.json --time-budget 600

Server and model lie where they lay, or where --server-bin and --model say. Exit status 0: a case
was written and shows the divergence on a server launched for it. 3: it was not reproduced, or not
on such a server.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "minimise",
        help="shrink a divergence to the smallest case that still shows it",
        description="Takes a divergence out of a certificate's evidence, leaves out companions, "
        "tokens, slots and text as long as it still shows, and writes a folder that anyone can run "
        "again: case.json, a script of curl calls, and a report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", type=Path, metavar="CERT", help="RED or AMBER")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    parser.add_argument("--server-bin", metavar="S", help="default: the path of the first launch")
    parser.add_argument("--model", type=Path, metavar="M", help="default: that of the first launch")
    parser.add_argument(
        "--any-subject",
        action="store_true",
        help="go on where server or model are not those of the certificate",
    )
    group = parser.add_argument_group("the divergence")
    group.add_argument("--item", metavar="ID", help="default: the id that diverges most often")
    group.add_argument(
        "--kind",
        choices=[kind.value for kind in DivergenceKind],
        help="what must differ (default: score where it does, else token, else an armed logprob)",
    )
    add_scorer_options(group)
    _add_search_options(parser)
    add_safety_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="a folder that is not there yet (./case-ID)"
    )
    group.add_argument(
        "--redact",
        action="store_true",
        help="replace private text: by filler of equal length that still shows it, else take it "
        "out, and then the case cannot be sent again",
    )
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, only trouble")
    parser.set_defaults(run=run)


def _add_search_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the search")
    group.add_argument(
        "--attempts",
        type=int,
        default=ATTEMPTS,
        metavar="K",
        help=f"at the start, and at the end to state the rate ({ATTEMPTS})",
    )
    group.add_argument(
        "--max-probes",
        type=int,
        default=MAX_PROBES,
        metavar="K",
        help=f"candidates to try at most ({MAX_PROBES})",
    )
    group.add_argument(
        "--time-budget",
        type=positive,
        default=TIME_BUDGET_S,
        metavar="S",
        help=f"try no candidate after so many seconds ({TIME_BUDGET_S:g})",
    )
    group.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="per request (600)"
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """The certificate, the divergence that was chosen in it, what scores it, and where it goes."""

    certificate: Certificate
    header: Header
    argv: tuple[str, ...]
    item: ItemStarts
    session: ScoringSession | None
    folder: Path


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("minimise takes the server's flags from the evidence: nothing follows --")
    for option, value in (("--attempts", args.attempts), ("--max-probes", args.max_probes)):
        if not 1 <= value <= MOST:
            raise UsageError(f"{option} {value}: give 1 to {MOST}")
    task = _task(args)
    with recorded_cell(args, task.header, task.argv) as cell:
        known = know_server(cell.server, task.header.cell.dispatch_n)
        changed = differs_from_run(task.header, known)
        if changed and not args.any_subject:
            raise EvidenceError(
                f"certificate {args.certificate.name}",
                ["another server or model:", *changed, "--any-subject goes on all the same"],
            )
        made, ran = _search(args, task, cell, known)
    if isinstance(made, NotReproduced):
        return _nothing(args, task.item, made)
    assert ran is not None
    case = _case(args, task, made, known, ran)
    write_case(task.folder, case)
    if made.interrupted is not None:
        print(f"interrupted: the best case so far is in {task.folder}", file=sys.stderr)
        raise made.interrupted
    shown = made.fresh and made.rate.shown
    code = ExitCode.PROMOTABLE if shown else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(minimised_as_json(case, task.folder, code)))
    else:
        print(render_minimised(case, made, task.folder, Style(sys.stdout)), end="")
    return code


def _task(args: argparse.Namespace) -> _Task:
    found = verify_file(args.certificate, args.evidence)
    if not found.borne_out or found.derived is None:
        raise CertificateError(str(args.certificate), found.problems)
    certificate = found.derived
    if certificate.source is Source.ENDPOINT:
        raise UsageError(
            f"{args.certificate.name} is of an endpoint: minimise launches servers with fewer "
            "slots, and an endpoint's server is not ours; certify its model with run-live"
        )
    evidence = args.evidence or args.certificate.parent / certificate.evidence.file
    kind = None if args.kind is None else DivergenceKind(args.kind)
    item = choose(find_starts(EvidenceReader(read_lines(evidence)), kind), args.item)
    header, argv = read_launch(evidence)
    folder = args.out or Path(f"case-{safe_model_name(item.item.id)}")
    check_no_folder(folder)
    scored = item.kind is DivergenceKind.SCORE
    session = ScoringSession(recorded_scorer(args, header.scorer)) if scored else None
    return _Task(certificate, header, argv, item, session, folder)


def _search(
    args: argparse.Namespace, task: _Task, cell: ChosenCell, known: ServerKnowledge
) -> tuple[Minimised | NotReproduced, Ran | None]:
    """The search on the cell's server, and what ran, for the slots of the case that was found."""
    wanted = wanted_of(task.item.kind, task.header.plan.logit_drift)
    reference = reference_for(task.certificate.divergence_class)
    settings = BenchSettings(
        launcher=guarded_launcher(args, cell, known),
        model_file=cell.server.model.name,
        ctx=cell.server.ctx,
        sampling=task.header.plan.sampling,
        session=task.session,
        request_timeout_s=args.request_timeout,
        wanted=wanted,
        reference=reference,
    )
    limits = SearchLimits(args.max_probes, args.time_budget, args.attempts)
    progress = SearchProgress(sys.stderr, args.quiet, limits)
    what = SearchTask(task.item.starts, wanted, reference, limits, args.redact)
    try:
        with CaseBench(settings, progress.launching) as bench:
            made = minimise(what, bench, progress)
            facts = bench.facts
    finally:
        progress.close()
    if isinstance(made, NotReproduced) or facts is None:
        return made, None
    return made, ran_of(facts, cell.server.ctx, made.shape.lanes)


def _nothing(args: argparse.Namespace, item: ItemStarts, made: NotReproduced) -> int:
    code = ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(not_reproduced_as_json(item, made, code)))
    else:
        print(render_not_reproduced(item, made, Style(sys.stdout)), end="")
    return code


def _case(
    args: argparse.Namespace, task: _Task, made: Minimised, known: ServerKnowledge, ran: Ran
) -> Case:
    header, cert, start = task.header, task.certificate, made.start.shape
    origin = Origin(
        certificate=args.certificate.name,
        evidence_sha256=cert.evidence.sha256,
        cell_sha256=cert.cell_sha256,
        item_id=task.item.item.id,
        divergence_class=cert.divergence_class,
        start_lanes=start.lanes,
        start_requests=len(start.requests),
        start_characters=sum(len(m.content) for item in start.items for m in item.messages),
        start_tokens=sum(item.max_tokens or 0 for item in start.items),
    )
    subject = replace(
        header.subject,
        server_sha256=known.server_sha256,
        server_version=known.version,
        model=known.model,
    )
    case = Case(
        schema=SCHEMA,
        ts_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        source=header.source,
        origin=origin,
        cell=header.cell,
        subject=subject,
        ran=ran,
        observer=observer_now(),
        sampling=header.plan.sampling,
        scorer=header.scorer,
        logit_drift=header.plan.logit_drift,
        reference=reference_for(cert.divergence_class),
        shape=made.shape,
        expected=made.expected,
        rate=made.rate,
        rate_is_fresh=made.fresh,
        one_slot_agrees=made.one_slot_agrees,
        search=made.search,
        redaction=made.redaction,
    )
    return removed(case) if made.redaction is Redaction.REMOVED else case
