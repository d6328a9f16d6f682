"""A probe for a person: progress on stderr, the result on stdout; and the result as JSON."""

from __future__ import annotations

import time
from typing import TextIO

from batch_invariance.cli.progress import REDRAW_S, duration
from batch_invariance.cli.style import Speaker, Style
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Arm, Failure, Trial, Verdict
from batch_invariance.invariance_diff.probe import (
    ProbeOutcome,
    ProbeOverlap,
    ProbeResult,
    Series,
    Variant,
)
from batch_invariance.live_invariance.prepare import ServerChoice, ServerKnowledge, model_name
from batch_invariance.live_invariance.probe import ProbeEnd, ProbeRequest
from batch_invariance.live_invariance.text import printable

MAX_COUNTS = 8
MAX_SHOWN = 3
BEFORE, AFTER = 40, 60
LOG_LINES = 8
MEANING = {
    ProbeOutcome.SAME: "every answer at once is the serial answer, token by token",
    ProbeOutcome.DIFFERENT: "this prompt is answered differently under load",
    ProbeOutcome.UNSTABLE: "this prompt has no one answer even when nothing else runs",
    ProbeOutcome.UNPROVED: "no difference was seen, and too little was proved to say so",
}
COLOURS = {
    ProbeOutcome.SAME: Verdict.GREEN,
    ProbeOutcome.DIFFERENT: Verdict.RED,
    ProbeOutcome.UNSTABLE: Verdict.AMBER,
    ProbeOutcome.UNPROVED: Verdict.UNVERIFIED,
}


class ProbeProgress:
    """A `ProbeObserver` that prints: a line that moves on a terminal, a line per part elsewhere."""

    def __init__(self, request: ProbeRequest, stream: TextIO, quiet: bool) -> None:
        self._speaker = Speaker(stream)
        self._style = Style(stream)
        self._quiet = quiet
        self._moving = stream.isatty() and not quiet
        self._lanes = request.parallel
        self._total = request.n_serial + request.n_concurrent
        self._left = {True: request.n_serial, False: request.n_concurrent}
        self._pace: dict[bool, tuple[float, int]] = {True: (0.0, 0), False: (0.0, 0)}
        self._serial = True
        self._began = 0.0
        self._stage = ""
        self._drawn = 0.0

    def stage(self, text: str, n_requests: int) -> None:
        """A part of the probe begins."""
        self._stage = text
        self._began = time.monotonic()
        if not self._quiet and not self._moving:
            self._print(self._line())
        self._draw(force=True)

    def trial(self, trial: Trial) -> None:
        """A request was answered, or lost, which is said at once."""
        self._serial = trial.key.arm is not Arm.C
        self._left[self._serial] -= 1
        n = self._pace[self._serial][1] + 1
        self._pace[self._serial] = (time.monotonic() - self._began, n)
        if isinstance(trial.result, Failure):
            failure = trial.result
            self._print(f"lost request: {failure.kind.value}: {printable(failure.detail)}")
        self._draw()

    def close(self) -> None:
        """Clears the moving line."""
        if self._moving:
            self._speaker.say("\r\x1b[K")

    def _line(self) -> str:
        done = self._total - self._left[True] - self._left[False]
        return f"[{done}/{self._total}] {self._stage}{self._estimate()}"

    def _estimate(self) -> str:
        (serial_s, serial_n), (load_s, load_n) = self._pace[True], self._pace[False]
        if not serial_n:
            return ""
        serial = serial_s / serial_n
        # Until the load has shown its pace, batching is taken to gain half of what it could.
        load = load_s / load_n if load_n else serial / max(1.0, self._lanes / 2)
        left = self._left[True] * serial + self._left[False] * load
        return f", about {duration(left)} left"

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if not self._moving or (not force and now - self._drawn < REDRAW_S):
            return
        self._drawn = now
        self._speaker.say(f"\r\x1b[K{self._style.dim(self._line())}")

    def _print(self, text: str) -> None:
        self.close()
        self._speaker.say(text + "\n")


def render_probe(end: ProbeEnd, choice: ServerChoice, style: Style) -> str:
    """The result as text, ending in a newline."""
    result = end.result
    word = style.verdict(COLOURS[result.outcome], result.outcome.value.upper())
    lines = [
        f"{word}  {printable(model_name(choice))}, ctx {choice.ctx}, {result.parallel} slots: "
        f"{MEANING[result.outcome]}"
    ]
    lines += [f"  - {printable(reason)}" for reason in result.reasons]
    lines += [f"  | {printable(line)}" for line in end.log_tail.splitlines()[-LOG_LINES:]]
    alone = next((v for v in result.serial.variants if not v.differs_in), None)
    lines += _series(f"at once on {result.parallel} slots", result.concurrent, alone, style)
    lines += _series(f"one at a time over {result.parallel} slots", result.serial, alone, style)
    lines += [_overlap(result.overlap), *_drift(result)]
    lines.append(
        "A probe of one prompt bounds nothing and writes no certificate; run-live judges a cell."
    )
    return "\n".join(lines) + "\n"


def _series(what: str, series: Series, alone: Variant | None, style: Style) -> list[str]:
    counts = ", ".join(str(variant.count) for variant in series.variants[:MAX_COUNTS])
    more = len(series.variants) - MAX_COUNTS
    counts += f" and {more} more" if more > 0 else ""
    line = f"{series.n_answered} answers {what}: {len(series.variants)} distinct"
    line += f" ({counts})" if series.variants else ""
    if series.n_distinct_texts != len(series.variants):
        line += f", {series.n_distinct_texts} by text"
    differing = [variant for variant in series.variants if variant.differs_in]
    lines = [line]
    for variant in differing[:MAX_SHOWN]:
        lines += _parting(variant, alone, style)
    if len(differing) > MAX_SHOWN:
        lines.append(f"  and {len(differing) - MAX_SHOWN} more; --json lists all")
    return lines


def _parting(variant: Variant, alone: Variant | None, style: Style) -> list[str]:
    """Where one answer leaves the serial one."""
    times = "once" if variant.count == 1 else f"{variant.count} times"
    slots = "slot " if len(variant.lanes) == 1 else "slots "
    slots += ", ".join(str(lane) for lane in variant.lanes)
    head = f"  {times}, first in request {variant.first_request}, on {slots}: "
    first = variant.first
    if first is None:
        return [head + f"another {', '.join(variant.differs_in)} than alone"]
    margin = "" if first.margin_x is None else f", margin {first.margin_x:.2g} nats"
    lines = [
        head + f"parts from the serial answer at token {first.token_index} "
        f"({_token(first.token_x)} alone, {_token(first.token_y)} here{margin})"
    ]
    if alone is not None and alone.text != variant.text:
        n = 0
        while alone.text[n : n + 1] == variant.text[n : n + 1] != "":
            n += 1
        start = max(0, n - BEFORE)
        shared = _visible(("..." if start else "") + variant.text[start:n])
        for name, text in (("alone", alone.text), ("here", variant.text)):
            rest = text[n : n + AFTER] + ("..." if len(text) > n + AFTER else "")
            lines.append(f"    {name + ':':7}{shared}{style.bold('|' + _visible(rest))}")
    return lines


def _token(token: int | None) -> str:
    return "the end" if token is None else f"id {token}"


def _visible(text: str) -> str:
    return printable(text)


def _overlap(overlap: ProbeOverlap) -> str:
    line = f"overlap: {overlap.client_depth} in flight at once, {overlap.n_tokens} tokens in "
    decodes = overlap.n_decodes
    line += f"{'an unknown number of' if decodes is None else decodes} forward passes"
    if overlap.slot_peak is not None:
        line += f", {overlap.slot_peak} slots seen busy"
    if overlap.log.peak is not None:
        line += f", {overlap.log.peak} in one by the server's log"
    proved = "proved" if overlap.proved else "proved, too few"
    return line + f": a batch of {overlap.tested_n} is {proved}"


def _drift(result: ProbeResult) -> list[str]:
    series = result.concurrent
    if not series.n_drifted:
        return []
    return [
        f"logprobs: moved in {series.n_drifted} of {series.n_answered} answers at once, by up to "
        f"{series.max_drift:.2g} nats on the tokens that agree"
    ]


def probe_as_json(
    end: ProbeEnd,
    choice: ServerChoice,
    known: ServerKnowledge,
    request: ProbeRequest,
    exit_code: int,
) -> dict[str, object]:
    """What `--json` prints: the result, and what it is about."""
    prompt = request.item.messages[0].content
    return {
        **to_json(end.result),
        "model": model_name(choice),
        "model_sha256": known.model.sha256,
        "server_version": known.version,
        "server_flags": list(choice.flags.flags),
        "ctx": choice.ctx,
        "max_tokens": request.sampling.max_tokens,
        "seed": request.sampling.seed,
        "prompt_sha256": sha256_hex(prompt.encode("utf-8", "surrogatepass")),
        "exit_code": exit_code,
    }
