"""What the mock answers: a completion spelled out, and the ways it may differ under load."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from batch_invariance.errors import UsageError
from batch_invariance.live_invariance.mock_model import (
    EOS_ID,
    Candidate,
    Step,
    advance,
    candidates,
    next_float32_down,
    twin_of,
)


class BatchDivergence(str, Enum):
    """What a shared batch does to an answer.

    SCORE: one word of the text changes, as when the two best tokens change places. TOKEN: one
    token id changes to another id with the same text. LOGPROB: one logprob moves by one unit in
    the last place. FINISH_REASON: the same tokens, cut off at their limit, are said to have stopped
    by themselves. (The other way round they would read as cut off by the context.)
    """

    NONE = "none"
    SCORE = "score"
    TOKEN = "token"
    LOGPROB = "logprob"
    FINISH_REASON = "finish_reason"


@dataclass(frozen=True, slots=True)
class MockBehaviour:
    """How the mock behaves under load.

    A request whose decodes were shared by at least `batch_threshold` slots at some time shows
    `batch_divergence`, if its prompt is among the `divergence_fraction` (0 to 1, chosen by the
    prompt's digest). `tick_s`: length of a decode. `gather_s`: how long an idle engine waits for
    companions after an arrival. Raises UsageError for values out of range.
    """

    batch_divergence: BatchDivergence = BatchDivergence.NONE
    batch_threshold: int = 2
    divergence_fraction: float = 1.0
    tick_s: float = 0.0004
    gather_s: float = 0.002

    def __post_init__(self) -> None:
        if self.batch_threshold < 1:
            raise UsageError(
                f"mock batch threshold {self.batch_threshold}: give 1 or more co-active slots"
            )
        if not 0.0 <= self.divergence_fraction <= 1.0:
            raise UsageError(
                f"mock divergence fraction {self.divergence_fraction}: give a share from 0 to 1"
            )

    def strikes(self, prompt: str, peak_batch: int) -> bool:
        """Whether an answer to this prompt, once in a batch of `peak_batch`, diverges."""
        if self.batch_divergence is BatchDivergence.NONE or peak_batch < self.batch_threshold:
            return False
        digest = hashlib.sha256(b"divergence\0" + prompt.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:4], "big") < self.divergence_fraction * 2**32


class Finish(str, Enum):
    """Why a completion ended, as `finish_reason` spells it."""

    LENGTH = "length"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One generated token; `top` lists the best candidates at its place, before any bias."""

    token_id: int
    text: str
    logprob: float
    top: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion: its tokens in order and why it ended."""

    tokens: tuple[GeneratedToken, ...]
    finish: Finish

    @property
    def text(self) -> str:
        """The visible text."""
        return "".join(token.text for token in self.tokens)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What one request asks for.

    `prompt`: the templated text, of `prompt_tokens` tokens. `id_slot`: the pinned slot; None or
    out of range takes any. `bias` is added to the logprobs by token id, minus infinity bans.
    `logprobs`: whether to report them, with the `top` best candidates at each place.
    """

    prompt: str
    prompt_tokens: int
    max_tokens: int
    id_slot: int | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    logprobs: bool = False
    top: int = 0


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What came out of one request.

    `id_task`: its number. `peak_batch`: the most slots that shared one of its decodes. Times in
    seconds: from the launch on its slot to the first token, and from there to the last.
    """

    id_task: int
    answer: Answer
    peak_batch: int
    prompt_s: float
    predicted_s: float


def spell_out(start: Step, ids: Sequence[int], top: int, finish: Finish) -> Answer:
    """Walk the chosen ids again, with texts, logprobs and `top` candidates for each place."""
    tokens: list[GeneratedToken] = []
    step = start
    for token_id in ids:
        # A banned best token puts the chosen one further down, one place for each banned id.
        wanted = max(top, 1)
        listed = candidates(step, wanted)
        while all(one.token_id != token_id for one in listed):
            wanted *= 2
            listed = candidates(step, wanted)
        chosen = next(one for one in listed if one.token_id == token_id)
        tokens.append(GeneratedToken(token_id, chosen.text, chosen.logprob, listed[:top]))
        step = advance(step, token_id)
    return Answer(tuple(tokens), finish)


def diverge(kind: BatchDivergence, answer: Answer, start: Step) -> Answer:
    """Give the answer as a shared batch changes it: in exactly one place, in exactly one way."""
    if kind is BatchDivergence.NONE:
        return answer
    if kind is BatchDivergence.FINISH_REASON:
        return replace(answer, finish=Finish.STOP)
    place = (len(answer.tokens) - (answer.tokens[-1].token_id == EOS_ID)) // 2
    old = answer.tokens[place]
    if kind is BatchDivergence.SCORE:
        new = _runner_up(old, _step_at(start, answer, place))
    elif kind is BatchDivergence.TOKEN:
        new = _replaced(old, replace(_as_candidate(old), token_id=twin_of(old.token_id)))
    else:
        new = _replaced(old, replace(_as_candidate(old), logprob=next_float32_down(old.logprob)))
    return replace(answer, tokens=(*answer.tokens[:place], new, *answer.tokens[place + 1 :]))


def _step_at(start: Step, answer: Answer, place: int) -> Step:
    step = start
    for token in answer.tokens[:place]:
        step = advance(step, token.token_id)
    return step


def _as_candidate(token: GeneratedToken) -> Candidate:
    return Candidate(token.token_id, token.text, token.logprob)


def _replaced(token: GeneratedToken, new: Candidate) -> GeneratedToken:
    """Put `new` in the token's place, also where it stands among the candidates."""
    top = tuple(new if one.token_id == token.token_id else one for one in token.top)
    return GeneratedToken(new.token_id, new.text, new.logprob, top)


def _runner_up(token: GeneratedToken, step: Step) -> GeneratedToken:
    """Let the best other candidate change places with the chosen one; logprobs keep their rank."""
    other = next(one for one in candidates(step, 3) if one.token_id not in (token.token_id, EOS_ID))
    swapped = {
        token.token_id: replace(other, logprob=token.logprob),
        other.token_id: replace(_as_candidate(token), logprob=other.logprob),
    }
    top = tuple(swapped.get(one.token_id, one) for one in token.top)
    return GeneratedToken(other.token_id, other.text, token.logprob, top)
