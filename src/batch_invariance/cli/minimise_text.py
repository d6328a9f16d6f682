"""The search for a small case, for a person: progress on stderr, the result on stdout."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TextIO

from batch_invariance.cli.progress import REDRAW_S, duration
from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.attempts import Rate
from batch_invariance.invariance_diff.case import Case, CaseShape, DivergenceKind, Redaction, Seen
from batch_invariance.invariance_diff.case_origin import ItemStarts
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.rules import CONFIDENCE
from batch_invariance.invariance_diff.stats import exact_zero_bound
from batch_invariance.live_invariance.case_bench import Tried
from batch_invariance.live_invariance.minimise import Minimised, NotReproduced, SearchLimits
from batch_invariance.live_invariance.text import printable

WHAT = {
    DivergenceKind.SCORE: "another scored answer",
    DivergenceKind.TOKEN: "other tokens",
    DivergenceKind.LOGPROB: "moved logprobs",
}
MAX_SEEN = 4


class SearchProgress:
    """A `SearchObserver` that prints: a moving line on a terminal, a line per part elsewhere."""

    def __init__(self, stream: TextIO, quiet: bool, limits: SearchLimits) -> None:
        self._stream = stream
        self._style = Style(stream)
        self._quiet = quiet
        self._moving = stream.isatty() and not quiet
        self._limits = limits
        self._began = time.monotonic()
        self._search_began: float | None = None
        self._stage = ""
        self._n_left = 0
        self._n = 0
        self._size = ""
        self._drawn = 0.0

    def launching(self, lanes: int) -> None:
        """A server is about to be launched."""
        self._say(f"launching the server with {lanes} slot{'' if lanes == 1 else 's'}")

    def stage(self, text: str, n_left: int) -> None:
        """A part begins; about `n_left` candidates are left in all."""
        self._n_left = n_left
        if n_left and self._search_began is None:
            self._search_began = time.monotonic()
        self._say(text)

    def candidate(self, shape: CaseShape, tried: Tried, kept: bool) -> None:
        """A candidate was tried."""
        self._n += 1
        self._n_left = max(1, self._n_left - 1)
        if kept:
            characters = sum(len(m.content) for item in shape.items for m in item.messages)
            tokens = sum(item.max_tokens or 0 for item in shape.items)
            self._size = (
                f", {len(shape.requests)} requests, {characters} characters, {tokens} tokens"
            )
            if not self._quiet and not self._moving:
                self._print(f"[{self._n}] kept{self._size} ({tried.rate})")
        self._draw()

    def close(self) -> None:
        """Clears the moving line."""
        if self._moving:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _say(self, text: str) -> None:
        self._stage = text
        if not self._quiet and not self._moving:
            self._print(self._line())
        self._draw(force=True)

    def _line(self) -> str:
        return f"[{self._n}] {self._stage}{self._size}{self._estimate()}"

    def _estimate(self) -> str:
        """From the pace so far, the candidates that are left, and the limits."""
        if self._search_began is None or not self._n:
            return ""
        now = time.monotonic()
        n = min(self._n_left, self._limits.max_candidates - self._n)
        seconds = n * (now - self._search_began) / self._n
        seconds = min(seconds, max(0.0, self._began + self._limits.seconds - now))
        return f", about {duration(seconds)} left"

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if not self._moving or (not force and now - self._drawn < REDRAW_S):
            return
        self._drawn = now
        self._stream.write(f"\r\x1b[K{self._style.dim(self._line())}")
        self._stream.flush()

    def _print(self, text: str) -> None:
        self.close()
        self._stream.write(text + "\n")
        self._stream.flush()


def render_minimised(case: Case, made: Minimised, folder: Path, style: Style) -> str:
    """The result as text, ending in a newline."""
    shape, origin, search = case.shape, case.origin, case.search
    shown = case.rate.shown > 0
    word = (
        style.verdict(Verdict.RED, "CASE") if shown else style.verdict(Verdict.UNVERIFIED, "LOST")
    )
    head = (
        f"{word}  {printable(origin.item_id)}: {WHAT[case.expected.kind]} in {case.rate} attempts"
    )
    lines = [
        f"{head} {_where(case)}",
        f"  sends      {_n(len(shape.requests), 'request')}, {shape.kind.value}, "
        f"{_lanes(case, shape.lanes)} (start: {_n(origin.start_requests, 'request')} "
        f"{_lanes(case, origin.start_lanes)})",
        f"  prompts    {_characters(shape)} characters (start: {origin.start_characters})",
        f"  generates  up to {_tokens(shape)} tokens (start: {origin.start_tokens})",
    ]
    lines += [f"  {seen_text(one)}, in {one.count}" for one in case.expected.seen[:MAX_SEEN]]
    lines += _texts(case, style)
    if case.one_slot_agrees is not None:
        agrees = "the same answer" if case.one_slot_agrees else "another answer"
        lines.append(f"  one slot   gives the target {agrees} as alone on this server")
    lines.append(
        f"  search     {_n(search.n_candidates, 'candidate')}, {_n(search.n_attempts, 'attempt')}, "
        f"{duration(search.seconds)}; start: {search.start}"
    )
    plan = search.plan
    lines.append(
        f"  each       candidate was kept once it showed in {plan.needed} of {plan.limit} "
        f"attempts: one with the start's rate is missed with probability {plan.missed:.2g}, one "
        f"with a quarter of it kept with {plan.lucky:.2g}"
    )
    if search.ended_early is not None:
        lines.append(f"  ended early: {printable(search.ended_early)}; a smaller case may exist")
    if not case.rate_is_fresh:
        lines.append(
            "  It was measured on no server launched for it: replay says whether it holds."
        )
    elif not shown:
        lines.append("  The smallest case did not show it again: take it as a lead, not as a case.")
    lines += _redaction(case)
    lines.append(f"case         {folder}")
    if case.redaction is not Redaction.REMOVED:
        on = "--server-bin S --model M"
        if case.endpoint is not None:
            on = f"--url {shlex.quote(case.endpoint.url)}"
        lines.append(f"next         batch-invariance replay {folder} {on}")
    return "\n".join(lines) + "\n"


def _where(case: Case) -> str:
    """Where the rate comes from."""
    if not case.rate_is_fresh:
        return "of the search"
    if case.endpoint is None:
        return "on a freshly launched server"
    return "once the search was over"


def _lanes(case: Case, lanes: int) -> str:
    return f"on {_n(lanes, 'slot')}" if case.endpoint is None else f"{lanes} at once"


def _redaction(case: Case) -> list[str]:
    if case.redaction is Redaction.FILLER:
        return ["  redacted   all prompts are filler of equal length, and the case was measured so"]
    if case.redaction is Redaction.REMOVED:
        return [
            "  redacted   no filler was found to show it, so the prompts were taken out: this case "
            "cannot be sent again"
        ]
    return []


def _texts(case: Case, style: Style) -> list[str]:
    alone, other = case.expected.alone_text, case.expected.other_text
    if alone is None or other is None or alone == other:
        return []
    n = 0
    while alone[n : n + 1] == other[n : n + 1] != "":
        n += 1
    shared = _visible(("..." if n > 40 else "") + alone[max(0, n - 40) : n])
    return [
        f"  {name + ':':10} {shared}{style.bold('|' + _visible(text[n : n + 60]))}"
        for name, text in (("alone", alone), ("together", other))
    ]


def seen_text(seen: Seen) -> str:
    """One way of differing, in words."""
    if seen.token_index is None:
        return f"differs   in {', '.join(seen.fields)}"
    if seen.token_alone is None and seen.token_here is None:
        return f"differs   in {', '.join(seen.fields)} from token {seen.token_index} on"
    margin = "" if seen.margin is None else f", margin {seen.margin:.2g} nats"
    alone = "the end" if seen.token_alone is None else f"id {seen.token_alone}"
    here = "the end" if seen.token_here is None else f"id {seen.token_here}"
    return f"parts at  token {seen.token_index} ({alone} alone, {here} together{margin})"


def render_not_reproduced(item: ItemStarts, made: NotReproduced, style: Style) -> str:
    """Why there is no case, as text, ending in a newline."""
    word = style.verdict(Verdict.UNVERIFIED, "NOT REPRODUCED")
    lines = [
        f"{word}  {printable(item.item.id)}: {WHAT[item.kind]} in {item.n_divergent} of "
        f"{item.n_trials} trials of the certificate, in no attempt now"
    ]
    lines += [f"  - {what}: {rate} attempts{_bound(rate)}" for what, rate in made.rates]
    lines.append("Raise --attempts, choose another --item, or see whether the machine has changed.")
    return "\n".join(lines) + "\n"


def _bound(rate: Rate) -> str:
    bound = exact_zero_bound(rate.n - rate.lost, CONFIDENCE)
    if bound is None:
        return ", no answer to compare"
    return f"; with {CONFIDENCE:.0%} confidence it shows in fewer than {bound:.0%}"


def minimised_as_json(case: Case, folder: Path, exit_code: int) -> dict[str, object]:
    """What `--json` prints of a case: its figures, and where the whole of it is."""
    shape = case.shape
    return {
        "case": str(folder),
        "item": case.origin.item_id,
        "kind": case.expected.kind.value,
        "rate": to_json(case.rate),
        "rate_is_fresh": case.rate_is_fresh,
        "one_slot_agrees": case.one_slot_agrees,
        "n_requests": len(shape.requests),
        "schedule": shape.kind.value,
        "slots": shape.lanes,
        "characters": _characters(shape),
        "max_tokens": _tokens(shape),
        "seen": to_json(case.expected.seen),
        "search": to_json(case.search),
        "redaction": case.redaction.value,
        "exit_code": exit_code,
    }


def not_reproduced_as_json(
    item: ItemStarts, made: NotReproduced, exit_code: int
) -> dict[str, object]:
    """What `--json` prints where there is no case."""
    return {
        "case": None,
        "item": item.item.id,
        "kind": item.kind.value,
        "starts": [{"start": what, "rate": to_json(rate)} for what, rate in made.rates],
        "exit_code": exit_code,
    }


def _characters(shape: CaseShape) -> int:
    return sum(len(message.content) for item in shape.items for message in item.messages)


def _tokens(shape: CaseShape) -> int:
    return sum(item.max_tokens or 0 for item in shape.items)


def _n(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _visible(text: str) -> str:
    return printable(text).replace("\n", "\\n")
