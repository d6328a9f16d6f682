"""What became of a reply, in a word, and the base of scorers that read an answer out of it.

A scorer on this base has an answer exactly when its mode is `ok`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import Enum
from types import ModuleType

from batch_invariance import answer_text
from batch_invariance.answer_text import encodable, is_refusal, is_runaway, without_reasoning
from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.scorer_base import Scorer


class FailureMode(str, Enum):
    """What became of a reply. Only `ok` counts towards the completion floor (gate F2).

    - `ok`: a real answer was given, right or wrong.
    - `empty`: no visible character, and no reasoning either.
    - `premature_eos`: the model ended the reply of its own accord before an answer: reasoning and
      nothing behind it, or JSON or code that was begun and not finished.
    - `truncated`: the reply was cut off, by the token limit or the end of the context, before an
      answer was surely complete.
    - `reasoning_leak`: a reasoning block was opened and never closed.
    - `runaway_repetition`: the reply ends in one unit over and over (`answer_text.is_runaway`).
    - `no_valid_json`: JSON was asked for, and none in the reply is complete and strict.
    - `parse_fail`: source was asked for, and none in the reply can be parsed.
    - `wrong_format`: text that is not of the form asked for.
    - `refusal`: the reply opens by declining to answer (`answer_text.is_refusal`).
    """

    OK = "ok"
    EMPTY = "empty"
    PREMATURE_EOS = "premature_eos"
    TRUNCATED = "truncated"
    REASONING_LEAK = "reasoning_leak"
    RUNAWAY_REPETITION = "runaway_repetition"
    NO_VALID_JSON = "no_valid_json"
    PARSE_FAIL = "parse_fail"
    WRONG_FORMAT = "wrong_format"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply as read: the answer, None unless `mode` is `ok`."""

    answer: str | None
    mode: FailureMode


@dataclass(frozen=True, slots=True)
class Reply:
    """The visible text of a reply.

    `cut_off`: it ended at the token limit or at the end of the context. `ended`: the model ended
    it. Both are False where the server does not say.
    """

    text: str
    cut_off: bool
    ended: bool

    def without_answer(self, mode: FailureMode, *, unfinished: bool = False) -> Reading:
        """Read no answer: `truncated` where it was cut off, `premature_eos` where `unfinished`.

        `unfinished` is for the caller to tell: a form was begun and not finished.
        """
        if self.cut_off:
            return Reading(None, FailureMode.TRUNCATED)
        if unfinished and self.ended:
            return Reading(None, FailureMode.PREMATURE_EOS)
        return Reading(None, mode)


def answered(answer: str) -> Reading:
    """Read an answer."""
    return Reading(encodable(answer), FailureMode.OK)


def read_reply(completion: Completion, *, judge_text: bool = False) -> Reply | Reading:
    """Return the visible reply, or the reading of one that no answer can be in.

    With `judge_text` runaway repetitions and refusals are such too.
    """
    visible = without_reasoning(completion.text)
    cut_off = completion.finish_reason == "length" or bool(completion.truncated)
    reply = Reply(visible.text.strip(), cut_off, completion.finish_reason == "stop")
    if visible.leaked:
        return Reading(None, FailureMode.REASONING_LEAK)
    if not reply.text:
        reasoned = bool(completion.text.strip() or (completion.reasoning or "").strip())
        return reply.without_answer(FailureMode.EMPTY, unfinished=True) if reasoned else _EMPTY
    if judge_text and is_runaway(reply.text):
        return Reading(None, FailureMode.RUNAWAY_REPETITION)
    if judge_text and is_refusal(reply.text):
        return Reading(None, FailureMode.REFUSAL)
    return reply


_EMPTY = Reading(None, FailureMode.EMPTY)


class ReadingScorer(Scorer):
    """Base of scorers that read answer and failure mode in one go; a subclass writes `read`."""

    rests_on: tuple[ModuleType, ...] = (answer_text,)

    @abstractmethod
    def read(self, completion: Completion, item: Item) -> Reading:
        """Read the answer out of a completion."""

    def extract_answer(self, completion: Completion, item: Item) -> str | None:
        """Return what was read, None where there is no answer."""
        return self.read(completion, item).answer

    def classify_failure_mode(self, completion: Completion, answer: str | None, item: Item) -> str:
        """Return the mode of what was read."""
        return self.read(completion, item).mode.value
