"""Which tests assert what: only these may kill a mutant.

A mutant of a module counts as killed when a test fails that lies in one of the files about that
module and, where the mutated unit has words of its own, names one of them: in its parameters or in
its own source. For a gate the word is the gate's name, so a mutant of one gate is never killed by
a test of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Asserted:
    """The test files about a module, and by unit (or the beginning of its name) the words that a
    test must name; a unit without words is asserted by the whole of the files. `units` restricts
    what is mutated; empty: the whole module."""

    files: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    units: tuple[str, ...] = ()

    def covers(self, unit: str) -> bool:
        """Whether this unit is mutated at all."""
        return not self.units or unit in self.units

    def words_of(self, unit: str) -> tuple[str, ...]:
        """The words of the longest beginning of a unit's name that has some."""
        known = [name for name in self.words if unit == name or unit.startswith(name + ".")]
        return self.words[max(known, key=len)] if known else ()


def names(word: str, text: str) -> bool:
    """Whether a test's id or source names a word: as a parameter, a literal, or an identifier.

    Words of gates that are common words (`lost`, `tokens`) do not count inside other text.
    """
    quoted = re.escape(word)
    if word in COMMON_WORDS:
        pattern = rf"\[{quoted}[-\]]|[\"']{quoted}[\"']|\b{quoted}="
    else:
        pattern = rf"\b{quoted}\b"
    return re.search(pattern, text) is not None


COMMON_WORDS = frozenset(
    {"completeness", "lost", "isolation", "identity", "reference", "tokens", "sample"}
)

_RUNS = (
    "test_gates.py",
    "test_gate_edges.py",
    "test_facts_edges.py",
    "test_endpoint_facts.py",
    "test_no_way_to_green.py",
    "test_resume.py",
)
_PROOF = (*_RUNS, "test_decode_witness.py", "test_certificate.py")
_FOLD = tuple(name for name in _PROOF if name != "test_resume.py")
"""What is told of whole runs; a run that was interrupted is told of in test_measure.py as well, in
a hundredth of the time."""
_ISOLATION = ("isolation", "check_isolation", "_isolation")
_IDENTITY = ("identity", "check_identity", "_identity")
_F1, _F3 = (
    ("F1_overlap", "overlap_of", "overlap", "Overlap"),
    ("F3_coverage", "coverage_of", "sample"),
)

ASSERTED: dict[str, Asserted] = {
    "gates": Asserted(
        (*_RUNS, "test_decode_witness.py", "test_verdict.py"),
        {
            "_score": ("F0_score",),
            "_overlap": ("F1_overlap", "overlap"),
            "_completion_floor": ("F2_completion_floor", "completion_floor"),
            "_coverage": ("F3_coverage", "coverage"),
            "_logit_drift": ("F4_logit_drift",),
            "_provenance": ("F5_provenance",),
            "_control_b": ("control_b",),
            "_reference": ("reference",),
            "_tokens": ("tokens",),
            "_control_p": ("positive_control",),
            "_sample": ("sample",),
            "_some": ("F0_score", "tokens"),
            "_counts": ("control_b", "reference"),
            "_or_unknown": ("F1_overlap",),
            "_gauge_faults": ("F1_overlap",),
            "_spelt": ("tokens",),
            "GATES": ("COLOURS", "GATES"),
        },
    ),
    "gates_server": Asserted(
        (*_RUNS, "test_decode_witness.py", "test_verdict.py"),
        {
            "STOP_EVENTS": ("completeness",),
            "check_completeness": ("completeness",),
            "_lost_in": ("completeness",),
            "check_lost": ("lost",),
            "check_isolation": ("isolation",),
            "_decodes_add_up": ("isolation",),
            "chunk_allowance": ("isolation",),
            "check_identity": _IDENTITY,
            "file_name": ("identity",),
            "_wrong_lanes": ("identity",),
        },
    ),
    "gates_endpoint": Asserted(
        ("test_endpoint_facts.py", "test_endpoint_gates.py"),
        {
            "check_reference": ("reference", "check_reference"),
            "_counts": ("reference", "check_reference"),
            "check_isolation": _ISOLATION,
            "_cache": _ISOLATION,
            "_traffic": _ISOLATION,
            "_names": _ISOLATION,
            "_serial_faults": _ISOLATION,
            "foreign_traffic": ("foreign_traffic", *_ISOLATION),
            "check_identity": _IDENTITY,
            "changed_facts": _IDENTITY,
            "_REQUIRED": ("ENDPOINT_GATES",),
            "_CHECKS": ("isolation", "identity", "reference"),
        },
    ),
    "endpoint": Asserted(("test_endpoint_rules.py",)),
    "gauge": Asserted(("test_endpoint_rules.py",)),
    "control": Asserted(("test_endpoint_rules.py", "test_endpoint_parts.py")),
    "lifetime_rate": Asserted(("test_endpoint_rules.py",)),
    "verdict": Asserted(
        (
            "test_verdict.py",
            "test_gate_edges.py",
            "test_endpoint_facts.py",
            "test_no_way_to_green.py",
        )
    ),
    "diff": Asserted(("test_diff_edges.py", "test_diff.py", "test_impact.py")),
    "pairs": Asserted(
        ("test_diff_edges.py", "test_diff.py", "test_certificate.py", "test_impact.py")
    ),
    "comparisons": Asserted(
        (
            "test_comparisons.py",
            "test_diff_edges.py",
            "test_measure.py",
            *_FOLD,
            "test_verdict.py",
            "test_evidence.py",
        )
    ),
    "overlap": Asserted(("test_overlap.py",)),
    "proof": Asserted(
        _PROOF,
        {
            "overlap_of": _F1,
            "_log_fault": _F1,
            "covered": _F3,
            "coverage_of": _F3,
        },
    ),
    "decode_witness": Asserted(("test_decode_tally.py", "test_decode_witness.py")),
    "ubatch": Asserted(("test_ubatch.py",)),
    "certificate": Asserted(
        ("test_certificate.py", "test_facts_edges.py", "test_evidence.py", "test_resume.py")
    ),
    "verify": Asserted(("test_verify.py",)),
    "policy_judge": Asserted(("test_policy.py",)),
    "tracker": Asserted(
        ("test_tracker.py", "test_measure.py", *_FOLD, "test_evidence.py"),
        {
            "PassTracker.add": ("completeness", "isolation", "counts", "facts"),
            "PassTracker._sharers": ("F3_coverage", "coverage", "rows", "members"),
            "PassTracker.companions": ("companions",),
        },
    ),
    "measure": Asserted(
        ("test_measure.py", *_FOLD, "test_verdict.py", "test_evidence.py", "test_impact.py"),
        {
            "Fold._expected_body": ("isolation",),
            "Fold._control": ("positive_control", "controls", "token_seen", "companions_divergent"),
            "Fold._note_mode": ("F2_completion_floor", "completion_floor", "failure_modes"),
            "Fold._note_margins": ("closeness", "margins"),
        },
    ),
    "arm_c": Asserted(
        ("test_measure.py", *_FOLD, "test_verdict.py", "test_evidence.py", "test_impact.py"),
        {"ArmC._note_score": ("score_impact", "impact_of", "mean_score_c", "n_score_changed")},
    ),
    "facts": Asserted(
        ("test_measure.py", *_FOLD, "test_evidence.py"),
        {"SERIAL_ARMS": ("isolation",), "Isolation": ("isolation",)},
    ),
    "reading": Asserted(("test_gates.py",)),
    "sections": Asserted(
        ("test_certificate.py", "test_no_way_to_green.py"),
        {"claims_of": ("claims",), "sensitivity_of": ("sensitivity",)},
        ("claims_of", "claims_of.claim", "sensitivity_of"),
    ),
    "rules": Asserted(
        ("test_gates.py", "test_overlap.py", "test_certificate.py", "test_evidence.py",
         "test_diff.py", "test_decode_witness.py"),
        {
            "MIN_OK_FRACTION": ("F2_completion_floor",),
            "MIN_COVERAGE_FRACTION": ("F3_coverage",),
            "MIN_COVERED_IDS": ("F3_coverage", "coverage_of"),
            "MIN_DISTINCT_BODIES": ("sample",),
            "MIN_COBATCHED_TOKENS": ("sample",),
            "MIN_DIFFERENT_PASSES": ("sample",),
        },
        (
            "RULES_VERSION", "CERTIFICATE_SCHEMA", "MIN_OK_FRACTION", "MIN_COVERAGE_FRACTION",
            "MIN_COVERED_IDS", "MIN_SHARED_DECODES", "MIN_DISTINCT_BODIES",
            "MIN_COBATCHED_TOKENS", "MIN_DIFFERENT_PASSES", "LENGTH_BOUNDARIES", "MAX_SLOTS",
            "CONFIDENCE", "INVARIANT_FIELDS",
        ),
    ),
}  # fmt: skip
"""By module of `invariance_diff`."""
