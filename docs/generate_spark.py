"""Writes the examples of docs/spark.md from the generator. Run it from the repository's root.

A test compares the page with what this makes, so a question that changes without the page fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from batch_invariance.invariance_diff.model import Message
from batch_invariance.profiles.spark.families import Family
from batch_invariance.profiles.spark.generate import SparkPlan, generate

PAGE = Path(__file__).resolve().parent / "spark.md"
HEADING = "## Examples\n"
PLAN = SparkPlan(seed=1, ctx=2048, fills=(0.05,))
HEAD = f"""
The user messages of seed {PLAN.seed} at a fill of 0.05 of {PLAN.ctx} tokens, with a quarter of the
characters counted as tokens, and the expected answers. Written by `docs/generate_spark.py`.
"""


def quarter(messages: Sequence[Message]) -> int:
    """Count a quarter of the characters, a stand-in for a tokenizer."""
    return sum(len(message.content) for message in messages) // 4


def examples() -> Iterator[str]:
    """Yield one section per family."""
    made = generate(PLAN, quarter)
    for family, item, said in zip(Family, made.workset.items, made.calibration, strict=True):
        yield f"\n### {family.value}: {family.summary}\n\n"
        yield f"~~~text\n{item.messages[-1].content}\n~~~\n\n"
        if said.floor:
            yield f"A floor: {said.measured} tokens for a target of {said.target}. "
        yield f"Expected answer:\n\n~~~text\n{item.expected_answer}\n~~~\n"


def render(page: str) -> str:
    """Return the page with its examples made anew."""
    return page.partition(HEADING)[0] + HEADING + HEAD + "".join(examples())


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")
