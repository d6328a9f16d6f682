"""A certificate with the header of its evidence, once that has borne it out."""

from __future__ import annotations

from pathlib import Path

from batch_invariance.cli.cert_files import verify_file
from batch_invariance.errors import BatchInvarianceError
from batch_invariance.invariance_diff.reference_digests import AnswerDigests, ReferenceCollector
from batch_invariance.invariance_diff.subject_facts import Run


def read_run(path: Path, evidence: Path | None = None) -> tuple[Run, tuple[AnswerDigests, ...]]:
    """The run of a certificate file and the digests of its serial answers.

    Raises BatchInvarianceError where its evidence, which is looked for beside it, does not bear it
    out: what such a file says is used for nothing.
    """
    collector = ReferenceCollector()

    file = verify_file(path, evidence, lambda _: collector)
    if file.derived is None or collector.header is None:
        problems = "; ".join(file.problems[:3])
        raise BatchInvarianceError(
            f"{path} is not used, its evidence does not bear it out: {problems}; see verify-cert"
        )
    return Run(file.derived, collector.header), collector.items()
