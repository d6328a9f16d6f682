"""The report of a case in Markdown, ready to paste into a bug tracker."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from batch_invariance.formats.case_report_endpoint import (
    endpoint_head,
    endpoint_steps,
    endpoint_subject,
)
from batch_invariance.formats.case_words import (
    WAY,
    WHAT,
    count,
    lanes_text,
    names_slots,
    two_columns,
)
from batch_invariance.formats.step_summary import plain
from batch_invariance.invariance_diff.case import Case, Redaction, Reference, Seen

MOST_TEXT = 2000
"""Characters of a prompt or an answer that the report shows; the files hold all of it."""


def case_report(case: Case) -> str:
    """The text, ending in a newline."""
    if case.endpoint is None:
        head, steps, subject = _head(case), _launched_steps(case), _subject(case)
    else:
        head, steps = endpoint_head(case), endpoint_steps(case)
        subject = endpoint_subject(case, case.endpoint)
    parts = [*head, *_steps(case, steps), *_seen(case), *_prompts(case), *subject]
    parts += _small(case)
    return "\n".join(parts) + "\n"


def _head(case: Case) -> Iterator[str]:
    n = len(case.shape.companions)
    beside = "alone on a server of several slots" if not n else f"beside {count(n, 'request')}"
    yield f"# llama-server answers a request differently {beside}"
    yield ""
    alone = "alone on the same slot"
    if case.reference is Reference.ONE_SLOT:
        alone = "on a server of one slot"
    where = "on a freshly launched server" if case.rate_is_fresh else "of the search"
    yield (
        "At temperature 0, with a fixed seed, pinned slots and no prompt cache, "
        f"one request is answered with {WHAT[case.expected.kind]} than {alone}: in "
        f"**{case.rate}** attempts {where}."
    )
    if case.one_slot_agrees is not None:
        says = "the same answer" if case.one_slot_agrees else "another answer"
        yield f"A server of one slot gives {says} as the request alone on this server."
    yield ""


def _steps(case: Case, how: Iterator[str]) -> Iterator[str]:
    shape = case.shape
    yield "## To reproduce"
    yield ""
    if case.redaction is Redaction.REMOVED:
        yield (
            "The prompts are private and were removed, so this case **cannot be sent again**; the "
            "figures are those of the original prompts."
        )
        yield ""
        return
    if case.redaction is Redaction.FILLER:
        yield (
            "Private prompts were replaced by filler of equal token count. All figures here were "
            "measured with the filler."
        )
        yield ""
    yield "With the files beside this report, and nothing but curl:"
    yield ""
    yield from how
    names = ", ".join(f"`requests/{name}.json`" for name in shape.names)
    yield (
        f"POST `requests/target.json` alone to `/v1/chat/completions`, then {names} "
        f"{WAY[shape.kind]}, and compare the target's two answers."
    )
    yield ""


def _launched_steps(case: Case) -> Iterator[str]:
    yield "```sh"
    yield "LLAMA_SERVER=llama-server MODEL=model.gguf sh case.sh"
    yield "```"
    yield ""
    yield "or by hand: start the server,"
    yield ""
    words = ["llama-server", "--model", case.subject.model.file, *case.ran.words]
    yield from _fenced(shlex.join(words), "sh")


def _seen(case: Case) -> Iterator[str]:
    expected = case.expected
    yield "## Expected and actual"
    yield ""
    if expected.alone_text is not None and expected.other_text is not None:
        yield "Expected, the answer alone:"
        yield ""
        yield from _block(expected.alone_text)
        yield "Actual:"
        yield ""
        yield from _block(expected.other_text)
    for seen in expected.seen:
        yield f"- {_parting(seen)}, in {count(seen.count, 'attempt')}"
    yield ""


def _parting(seen: Seen) -> str:
    fields = ", ".join(seen.fields)
    if seen.token_index is None:
        return f"other {fields}"
    if seen.fields == ("logprobs",):
        return f"logprobs move from token {seen.token_index} on"
    margin = "" if seen.margin is None else f", {seen.margin:.2g} nats ahead of the runner-up"
    alone = "the end" if seen.token_alone is None else f"id {seen.token_alone}"
    here = "the end" if seen.token_here is None else f"id {seen.token_here}"
    return f"parts at token {seen.token_index}: {alone} alone{margin}, {here} here ({fields})"


def _prompts(case: Case) -> Iterator[str]:
    yield "## Requests"
    yield ""
    for name, request in zip(case.shape.names, case.shape.requests, strict=True):
        slot = "any slot, " if request.lane is None else f"slot {request.lane}, "
        slot = slot if names_slots(case) else ""
        delay = f", {request.delay_ms} ms after its release" if request.delay_ms else ""
        yield f"**{name}**: {slot}`max_tokens` {request.item.max_tokens}{delay}"
        yield ""
        for message in request.item.messages:
            yield f"{message.role}:"
            yield ""
            yield from _block(message.content)


def _subject(case: Case) -> Iterator[str]:
    model, ran = case.subject.model, case.ran
    version = (case.subject.server_version or "unknown").splitlines()
    rows: list[tuple[str, str]] = [
        ("server", version[0]),
        ("built", version[1] if len(version) > 1 else "unknown"),
        ("executable sha256", ran.executable_sha256 or case.subject.server_sha256 or "unknown"),
        ("flags", shlex.join(ran.words)),
        ("model", f"{model.file}, {model.file_type or 'unknown type'}, {model.size} bytes"),
        ("model sha256", model.sha256 or "unknown"),
        ("context per slot", str(case.cell.ctx)),
        ("slots", str(case.shape.lanes)),
        ("KV cache", f"{case.cell.kv_type_k}/{case.cell.kv_type_v}"),
        ("machine", f"{case.observer.system}, {case.observer.machine}"),
        ("processor", f"{case.observer.processor or 'unknown'}, {case.observer.cpu_count} usable"),
        *(("environment", f"{name}={value}") for name, value in case.cell.environment.items()),
        *((f"library {name}", digest or "unknown") for name, digest in ran.libraries.items()),
    ]
    yield "## Environment"
    yield ""
    yield from two_columns(rows)


def _small(case: Case) -> Iterator[str]:
    search, origin, shape = case.search, case.origin, case.shape
    characters = sum(len(m.content) for r in shape.requests for m in r.item.messages)
    tokens = sum(r.item.max_tokens or 0 for r in shape.requests)
    yield "## How it was made small"
    yield ""
    before = f"{count(origin.start_requests, 'request')} {lanes_text(case, origin.start_lanes)}"
    yield (
        f"From {before}, {origin.start_characters} characters of "
        f"prompts, up to {origin.start_tokens} generated tokens (seen in {search.start} attempts)"
    )
    yield (
        f"to {count(len(shape.requests), 'request')} {lanes_text(case, shape.lanes)}, {characters} "
        f"characters, up to {tokens} tokens: {count(search.n_candidates, 'candidate')}, "
        f"{count(search.n_attempts, 'attempt')}, {search.seconds:g} s."
    )
    if search.ended_early is not None:
        yield f"The search ended early: {plain(search.ended_early)}. A smaller case may exist."
    yield ""
    yield f"Found by {plain(case.observer.tool)} in certificate {plain(origin.certificate)}."


def _block(text: str) -> Iterator[str]:
    yield from _fenced(text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "...", "text")


def _fenced(text: str, language: str) -> Iterator[str]:
    """A block that no text can leave: its fence is longer than any run of its characters."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield shown
    yield fence
    yield ""
