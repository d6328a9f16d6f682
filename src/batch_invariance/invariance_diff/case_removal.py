"""Taking private text out of a case that cannot be shown without it."""

from __future__ import annotations

from dataclasses import replace

from batch_invariance.invariance_diff.case import Case, Redaction
from batch_invariance.invariance_diff.model import Message


def removed(case: Case) -> Case:
    """The case without prompts and answers: a prompt becomes a note of its length. What is left
    says what was measured and cannot be sent again."""
    shape = case.shape
    for index, request in enumerate(shape.requests):
        messages = tuple(
            Message(m.role, f"[removed: {len(m.content)} characters]")
            for m in request.item.messages
        )
        name = "target" if index == shape.target else f"companion-{index}"
        item = replace(
            request.item, id=name, messages=messages, expected_answer=None, family=None, fill=None
        )
        shape = shape.with_item(index, item)
    expected = replace(case.expected, alone_text=None, other_text=None)
    return replace(case, shape=shape, expected=expected, redaction=Redaction.REMOVED)
