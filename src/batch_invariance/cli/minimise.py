"""`minimise`: the smallest case that still shows a certificate's divergence, for others to run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.case_endpoint import add_endpoint_options, check_fits_source
from batch_invariance.cli.cell_options import add_safety_options
from batch_invariance.cli.cert_files import verify_file
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.minimise_ground import About, Ground, MinimiseTask, ground_of
from batch_invariance.cli.minimise_text import (
    SearchProgress,
    minimised_as_json,
    not_reproduced_as_json,
    render_minimised,
    render_not_reproduced,
)
from batch_invariance.cli.recorded_cell import read_start, recorded_scorer
from batch_invariance.cli.run_options import add_scorer_options, non_empty, positive
from batch_invariance.cli.style import Style
from batch_invariance.errors import CertificateError, UsageError
from batch_invariance.invariance_diff.case import (
    ENDPOINT_SCHEMA,
    SCHEMA,
    Case,
    DivergenceKind,
    Origin,
    Redaction,
    Reference,
)
from batch_invariance.invariance_diff.case_judge import wanted_of
from batch_invariance.invariance_diff.case_origin import ItemStarts, choose, find_starts
from batch_invariance.invariance_diff.case_removal import removed
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Source
from batch_invariance.live_invariance.case_bench import BenchSettings, CaseBench
from batch_invariance.live_invariance.case_folder import check_no_folder, write_case
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.minimise import (
    Minimised,
    NotReproduced,
    SearchLimits,
    SearchTask,
    minimise,
)
from batch_invariance.live_invariance.prepare import observer_now
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
  batch-invariance minimise certs/somebodys.json --url http://localhost:8000 --max-requests 500

Server and model lie where they lay, or where --server-bin and --model say; what certify-endpoint
measured is tried again at --url. Exit status 0: a case was written and showed the divergence when
it was measured at the end. 3: it was not reproduced, or not in that last measurement.
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
    parser.add_argument(
        "--model",
        type=non_empty,
        metavar="M",
        help="a file, default: that of the first launch; with --url a name as requests give it, "
        "default: the recorded one",
    )
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
    add_endpoint_options(parser)
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


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("minimise takes the server's flags from the evidence: nothing follows --")
    for option, value in (("--attempts", args.attempts), ("--max-probes", args.max_probes)):
        if not 1 <= value <= MOST:
            raise UsageError(f"{option} {value}: give 1 to {MOST}")
    task = _task(args)
    folder = args.out or Path(f"case-{safe_model_name(task.item.item.id)}")
    check_no_folder(folder)
    progress = SearchProgress(sys.stderr, args.quiet, task.limits)
    with ground_of(args, task, progress.launching) as ground:
        made = _search(args, task, ground, progress)
        if isinstance(made, NotReproduced):
            return _nothing(args, task.item, made)
        case = _case(task, made, ground.reference, ground.about(made.shape.lanes))
    write_case(folder, case)
    if made.interrupted is not None:
        print(f"interrupted: the best case so far is in {folder}", file=sys.stderr)
        raise made.interrupted
    shown = made.fresh and made.rate.shown
    code = ExitCode.PROMOTABLE if shown else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(minimised_as_json(case, folder, code)))
    else:
        print(render_minimised(case, made, folder, Style(sys.stdout)), end="")
    return code


def _task(args: argparse.Namespace) -> MinimiseTask:
    found = verify_file(args.certificate, args.evidence)
    if not found.borne_out or found.derived is None:
        raise CertificateError(str(args.certificate), found.problems)
    certificate, name = found.derived, args.certificate.name
    of_endpoint = certificate.source is Source.ENDPOINT
    check_fits_source(args, of_endpoint, name)
    if args.model is not None and not of_endpoint:
        args.model = Path(args.model)
    evidence = args.evidence or args.certificate.parent / certificate.evidence.file
    kind = None if args.kind is None else DivergenceKind(args.kind)
    item = choose(find_starts(EvidenceReader(read_lines(evidence)), kind), args.item)
    header, start = read_start(evidence)
    scored = item.kind is DivergenceKind.SCORE
    session = ScoringSession(recorded_scorer(args, header.scorer)) if scored else None
    limits = SearchLimits(args.max_probes, args.time_budget, args.attempts)
    return MinimiseTask(name, certificate, header, start, item, session, limits)


def _search(
    args: argparse.Namespace, task: MinimiseTask, ground: Ground, progress: SearchProgress
) -> Minimised | NotReproduced:
    """The search on the ground's seats."""
    wanted = wanted_of(task.item.kind, task.header.plan.logit_drift)
    reference = ground.reference
    settings = BenchSettings(ground.seats, ground.sampling, task.session, wanted, reference)
    what = SearchTask(task.item.starts, wanted, reference, task.limits, args.redact)
    try:
        with CaseBench(settings) as bench:
            return minimise(what, bench, progress)
    finally:
        progress.close()


def _nothing(args: argparse.Namespace, item: ItemStarts, made: NotReproduced) -> int:
    code = ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(not_reproduced_as_json(item, made, code)))
    else:
        print(render_not_reproduced(item, made, Style(sys.stdout)), end="")
    return code


def _case(task: MinimiseTask, made: Minimised, reference: Reference, about: About) -> Case:
    header, cert, start = task.header, task.certificate, made.start.shape
    origin = Origin(
        certificate=task.name,
        evidence_sha256=cert.evidence.sha256,
        cell_sha256=cert.cell_sha256,
        item_id=task.item.item.id,
        divergence_class=cert.divergence_class,
        start_lanes=start.lanes,
        start_requests=len(start.requests),
        start_characters=sum(len(m.content) for item in start.items for m in item.messages),
        start_tokens=sum(item.max_tokens or 0 for item in start.items),
    )
    case = Case(
        schema=SCHEMA if about.endpoint is None else ENDPOINT_SCHEMA,
        ts_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        source=header.source,
        origin=origin,
        cell=about.cell,
        subject=about.subject,
        ran=about.ran,
        observer=observer_now(),
        sampling=about.sampling,
        scorer=header.scorer,
        logit_drift=header.plan.logit_drift,
        reference=reference,
        shape=made.shape,
        expected=made.expected,
        rate=made.rate,
        rate_is_fresh=made.fresh,
        one_slot_agrees=made.one_slot_agrees,
        search=made.search,
        redaction=made.redaction,
        endpoint=about.endpoint,
    )
    return removed(case) if made.redaction is Redaction.REMOVED else case
