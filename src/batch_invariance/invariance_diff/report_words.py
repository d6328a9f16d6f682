"""What a report calls things, for somebody who has never seen a certificate."""

from __future__ import annotations

from enum import Enum

from batch_invariance.invariance_diff.cell_checks import MEANING
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.invariance_diff.verdict import CONTAMINATION


class Standing(str, Enum):
    """What a reader may rely on: the verdict of a certificate that its evidence bears out, else
    `NOT_VERIFIED`. From worst to best."""

    RED = "RED"
    NOT_VERIFIED = "NOT VERIFIED"
    UNVERIFIED = "UNVERIFIED"
    AMBER = "AMBER"
    GREEN = "GREEN"


STANDING_OF = {
    Verdict.RED: Standing.RED,
    Verdict.UNVERIFIED: Standing.UNVERIFIED,
    Verdict.AMBER: Standing.AMBER,
    Verdict.GREEN: Standing.GREEN,
}
IN_WORDS = {
    **{STANDING_OF[verdict]: words for verdict, words in MEANING.items()},
    Standing.NOT_VERIFIED: "no evidence bears it out",
}
"""Each standing in a line."""
GATE_QUESTIONS = {
    "F0_score": "Is every scored answer the same alone and under load?",
    "completeness": "Did everything run that was planned?",
    "lost": "Was every request answered?",
    "F1_overlap": "Did batches of N form at all?",
    "F2_completion_floor": "Were there enough real answers to compare?",
    "F3_coverage": "Is every prompt proved to have shared forward passes?",
    "F4_logit_drift": "Did the logprobs stay where they were?",
    "F5_provenance": "Was a real server measured?",
    "isolation": "Was the server busy with this run alone?",
    "identity": "Was it the same server, model and context all along?",
    "control_b": "Do the slots alone, without load, leave the answers as they are?",
    "reference": "Does the reference repeat itself?",
    "tokens": "Is every generated token the same?",
    "positive_control": "Does the comparison see a change that is there?",
    "sample": "Was enough compared to say anything?",
}
"""What each gate asks, for somebody who has never seen one."""
GATE_SHORTFALLS = {
    "completeness": "incomplete",
    "lost": "requests lost",
    "F1_overlap": "no batch of N proved",
    "F2_completion_floor": "too few real answers",
    "F3_coverage": "too little proved batched",
    "F4_logit_drift": "logprobs moved",
    "F5_provenance": "no real server",
    "isolation": "not alone on the server",
    "identity": "not one server all along",
    "control_b": "slots alone change it",
    "reference": "reference not stable",
    "positive_control": "planted change not seen",
    "sample": "too little compared",
}
"""What it means in a few words that a gate is not passed; score and tokens have their counts."""
CLASS_WORDS = {
    "co_batching": (
        "Put down to the batch: alone on the same slots every changed answer comes out as in the "
        "reference, and the changed ones are proved to have shared forward passes."
    ),
    "slot_allocation(+co_batching)": (
        "Put down to the slots: a server with N slots gives other answers even to one request at "
        "a time. The batch may add to it."
    ),
    "unstable_reference": (
        "Not put down to the batch: the reference, run twice, does not agree with itself."
    ),
    CONTAMINATION: (
        "An answer holds text of another request. That is no rounding: data of one user reached "
        "another."
    ),
}
SOURCE_WORDS = {
    Source.LIVE: "a real model on a real server",
    Source.CANARY: (
        "a canary: a toy model of random weights. It tests the server, its flags and the machine, "
        "and says nothing about any real model"
    ),
    Source.MOCK: "a mock: it shows how the tool works and says nothing about any server",
    Source.ENDPOINT: "a server that the tool did not start",
}
