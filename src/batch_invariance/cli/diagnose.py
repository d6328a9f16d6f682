"""`diagnose`: which setting takes a divergence away, and what it costs."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batch_invariance.cli.cell_options import (
    ChosenCell,
    add_safety_options,
    add_server_options,
    chosen_cell,
    guarded_launcher,
)
from batch_invariance.cli.cert_files import verify_file
from batch_invariance.cli.diagnose_text import diagnosis_as_json, diagnosis_text
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.recorded_cell import read_launch, recorded_cell
from batch_invariance.cli.run_options import (
    add_cell_options,
    add_output_options,
    conduct_from,
    load_scorer,
    positive,
    prepared,
)
from batch_invariance.cli.style import Style
from batch_invariance.errors import CertificateError, UsageError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.workset import WorkSet, items_sha256
from batch_invariance.live_invariance.diagnosis import (
    TODAY,
    Attempt,
    Diagnosis,
    DiagnosisPlan,
    Measured,
    Scope,
    diagnose,
    measured,
    screening_ids,
)
from batch_invariance.live_invariance.flags import check_user_flags
from batch_invariance.live_invariance.prepare import (
    RunSettings,
    ServerKnowledge,
    know_server,
    layout_is_unified,
    live_header,
)
from batch_invariance.live_invariance.produce import produce
from batch_invariance.live_invariance.remedies import Today, remedies_for
from batch_invariance.live_invariance.store import check_new, prepare_out_dir, write_new
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.scorer_api import Scorer, describe_scorer

REPORT = "diagnosis.json"
DEFAULT_MAX_TOKENS = 64
SCREEN_PASSES = 2
SCREEN_ITEMS = 8
CONFIRM_RUNS = 2
CELL_OPTIONS = (
    "workset",
    "ctx",
    "parallel",
    "model_alias",
    "models_file",
    "models_dir",
    "canary",
    "profile",
    "fills",
    "per_family",
    "passes",
    "schedule",
    "max_tokens",
    "top_logprobs",
    "seed",
    "codewords",
    "logit_drift",
)
"""What says which cell it is, and what a certificate's evidence therefore says instead."""
EXAMPLES = """examples:
  batch-invariance diagnose certs/model__ctx8192__N4.json
  batch-invariance diagnose certs/model__ctx8192__N4.json --remedy='--threads 1' --time-budget 600
  batch-invariance diagnose --server-bin llama-server --model m.gguf --workset w.json \\
      --ctx 8192 --parallel 4 -- --kv-unified

With a certificate the cell is the one that its evidence names; server and model lie where they lay,
or where --server-bin and --model say. A remedy counts only when every full run under it is GREEN.
Exit status: 0 with a GREEN remedy at today's N, or for a GREEN cell; 3 without; 1 where the cell
does not diverge again.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "diagnose",
        help="find the setting that takes a divergence away, and its price",
        description="Tries settings one at a time and then together on a diverging cell, then "
        "fewer slots, and prints what each came to and what it costs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "certificate",
        type=Path,
        nargs="?",
        metavar="CERT",
        help="of the cell; else it is run first",
    )
    group = parser.add_argument_group("the diagnosis")
    group.add_argument(
        "--remedy",
        action="append",
        default=[],
        metavar="FLAGS",
        help="a setting of your own, tried first; may be repeated",
    )
    group.add_argument(
        "--own-only", action="store_true", help="try the settings of --remedy and no others"
    )
    group.add_argument(
        "--confirm-runs",
        type=int,
        default=CONFIRM_RUNS,
        metavar="R",
        help=f"full runs that must all be GREEN ({CONFIRM_RUNS})",
    )
    group.add_argument("--keep-slots", action="store_true", help="do not look for a smaller N")
    group.add_argument(
        "--time-budget", type=positive, metavar="S", help="begin nothing after so many seconds"
    )
    add_server_options(parser)
    add_cell_options(parser, DEFAULT_MAX_TOKENS)
    add_safety_options(parser)
    add_output_options(parser, "diagnosis")
    # Absent until they are stated, so that with a certificate none is passed over in silence.
    defaults = {name: parser.get_default(name) for name in CELL_OPTIONS}
    parser.set_defaults(**dict.fromkeys(CELL_OPTIONS))
    parser.set_defaults(run=run, cell_defaults=defaults)


@dataclass(frozen=True, slots=True)
class _Case:
    """The diverging cell: how it is run, with which items, and its certificate if it has one."""

    cell: ChosenCell
    known: ServerKnowledge
    workset: WorkSet
    scorer: Scorer
    certificate: Certificate | None


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    began = time.monotonic()
    if not 1 <= args.confirm_runs <= 100:
        raise UsageError(f"--confirm-runs {args.confirm_runs}: give 1 to 100")
    own = [_words(text) for text in args.remedy]
    case_of = _recorded if args.certificate is not None else _given
    with case_of(args, server_flags) as case:
        parallel = case.cell.settings.parallel
        if parallel < 2:
            raise UsageError(f"the cell has {parallel} slot: nothing is batched that could differ")
        today = _today(case)
        remedies = tuple(remedies_for(today, own, built_in=not args.own_only))
        if case.certificate is not None and not _diverges(case.certificate):
            return _nothing(args, case.certificate)
        prepare_out_dir(args.out_dir)
        check_new(args.out_dir / REPORT)
        runner = _Runner(args, case)
        certificate = case.certificate or runner.first()
        if not _diverges(certificate):
            return _nothing(args, certificate)
        runner.choose(certificate)
        plan = DiagnosisPlan(today, remedies, args.confirm_runs, not args.keep_slots)

        def out_of_time() -> bool:
            return args.time_budget is not None and time.monotonic() - began > args.time_budget

        found = diagnose(plan, runner.run, out_of_time)
    return _finish(args, case, found)


def _today(case: _Case) -> Today:
    flags = case.cell.server.flags
    unified = layout_is_unified(flags, case.known)
    return Today(flags, unified, case.cell.settings.parallel, case.known.known_flags)


def _diverges(certificate: Certificate) -> bool:
    return bool(certificate.mismatch or certificate.token_divergence_ids)


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--remedy {text!r}: {error}") from error
    check_user_flags(words)
    return words


def _nothing(args: argparse.Namespace, certificate: Certificate) -> int:
    green = certificate.verdict is Verdict.GREEN
    code = ExitCode.PROMOTABLE if green else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps({"verdict": certificate.verdict.value, "rows": [], "exit_code": code}))
    else:
        said = certificate.verdict.value
        print(f"nothing to mend: the cell is {said} and no output differed under load")
    return code


@contextlib.contextmanager
def _given(args: argparse.Namespace, server_flags: Sequence[str]) -> Iterator[_Case]:
    """The cell of the command line, which has not been run yet."""
    for name, default in args.cell_defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    with chosen_cell(args, server_flags) as cell:
        if cell.workset is None:
            raise UsageError(
                "--profile: certify the cell with run-live first, then give its certificate"
            )
        known = know_server(cell.server, cell.settings.parallel)
        yield _Case(cell, known, prepared(cell.workset, args), load_scorer(args), None)


@contextlib.contextmanager
def _recorded(args: argparse.Namespace, server_flags: Sequence[str]) -> Iterator[_Case]:
    """The cell of a certificate, whose evidence must bear it out."""
    if server_flags:
        raise UsageError("with a certificate the server's flags come from its evidence")
    stated = [name for name in CELL_OPTIONS if getattr(args, name) is not None]
    if stated:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in stated)
        raise UsageError(f"{names}: with a certificate the cell comes from its evidence")
    found = verify_file(args.certificate)
    if not found.borne_out or found.derived is None:
        raise CertificateError(str(args.certificate), found.problems)
    header, argv = read_launch(args.certificate.parent / found.derived.evidence.file)
    scorer = load_scorer(args, SparkScorer() if header.scorer.name == SparkScorer.name else None)
    if describe_scorer(scorer).sha256 != header.scorer.sha256:
        raise UsageError(f"--scorer: the cell was scored by {header.scorer.name}; name it")
    record = header.workset
    with recorded_cell(args, header, argv) as cell:
        known = know_server(cell.server, header.cell.dispatch_n)
        if known.model.sha256 != header.subject.model.sha256:
            raise CertificateError(
                "the diagnosis",
                [f"{cell.server.model} is another model: its digest is {known.model.sha256}"],
            )
        workset = WorkSet(record.name, record.items, record.sha256)
        yield _Case(cell, known, workset, scorer, found.derived)


class _Runner:
    """Runs attempts, each in a folder of its own, and says so."""

    def __init__(self, args: argparse.Namespace, case: _Case) -> None:
        self._args = args
        self._case = case
        self._screen = case.workset
        self._n_runs = 0

    def choose(self, certificate: Certificate) -> None:
        """Chooses the items to screen with."""
        items = self._case.workset.items
        n = max(SCREEN_ITEMS, 2 * self._case.cell.settings.parallel)
        ids = set(screening_ids(certificate, [item.id for item in items], n))
        kept = tuple(item for item in items if item.id in ids)
        self._screen = WorkSet(self._case.workset.name, kept, items_sha256(kept))

    def first(self) -> Certificate:
        """Runs the cell as it is given, where it has no certificate yet."""
        cell = self._case.cell
        attempt = Attempt(TODAY, cell.server.flags, cell.settings.parallel, Scope.FULL)
        return self._produce(attempt)[0]

    def run(self, attempt: Attempt) -> Measured:
        """Runs one attempt. Raises what a run raises."""
        certificate, path = self._produce(attempt)
        return measured(attempt.scope, certificate, path)

    def _produce(self, attempt: Attempt) -> tuple[Certificate, Path]:
        case, args = self._case, self._args
        cell = replace(
            case.cell,
            server=replace(case.cell.server, flags=attempt.flags),
            settings=self._settings(attempt),
        )
        workset = self._screen if attempt.scope is Scope.SCREEN else case.workset
        self._n_runs += 1
        if not args.quiet:
            what = f"{attempt.scope.value}, {len(workset.items)} items, N={attempt.parallel}"
            print(f"run {self._n_runs}: {attempt.name} ({what})", file=sys.stderr)
        known = know_server(cell.server, attempt.parallel)
        launcher = guarded_launcher(args, cell, known)
        header = live_header(cell.source, cell.server, known, cell.settings, workset, case.scorer)
        conduct, progress = conduct_from(args, header)
        folder = args.out_dir / f"{self._n_runs:02}-{_slug(attempt.name)}"
        try:
            made = produce(header, launcher, case.scorer, folder, conduct)
        finally:
            progress.close()
        return made.certificate, made.paths.certificate

    def _settings(self, attempt: Attempt) -> RunSettings:
        settings = replace(self._case.cell.settings, parallel=attempt.parallel)
        same = attempt.parallel == self._case.cell.settings.parallel
        if attempt.scope is Scope.FULL and same:
            return settings
        # A listed schedule is for one number of items and slots.
        passes = settings.passes if attempt.scope is Scope.FULL else SCREEN_PASSES
        return replace(settings, passes=passes, schedule=None)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]


def _finish(args: argparse.Namespace, case: _Case, found: Diagnosis) -> int:
    if not found.reproduced:
        code = ExitCode.NO_VERDICT
    elif found.remedies:
        code = ExitCode.PROMOTABLE
    else:
        code = ExitCode.NOT_PROMOTED
    report = diagnosis_as_json(found, case.cell.server, code)
    write_new(args.out_dir / REPORT, json.dumps(report, indent=2).encode() + b"\n")
    if args.json:
        print(json.dumps(report))
    else:
        print(diagnosis_text(found, case.cell.server, Style(sys.stdout)), end="")
    return code
