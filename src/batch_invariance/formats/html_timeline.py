"""A run on its clock as SVG: all arms in one chart, and single passes with every request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from batch_invariance.formats.html_markup import Markup, element
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.report_evidence import PassView, Span
from batch_invariance.invariance_diff.schedule import DispatchKind

WIDTH = 1000.0
GUTTER = 62.0
"""Room for the names of the rows, in the chart's units."""
TOP = 18.0
ROOM_ALL = 120.0
"""What the lanes of one server share in height."""
MOST_LANE, LEAST_LANE = 14.0, 3.0
GAP = 0.6
LOW = 0.4
"""Height of a request that is not proved co-batched, as a share of its lane."""
NAME_WIDTH = 6.4
"""A character of a request's name."""
PASS_LANE = 24.0
AXIS = 18.0
TICKS = (0.001, 0.002, 0.005)
"""The finest steps of the time axis, in seconds; the others are these times powers of ten."""
ARM_NAMES = {
    Arm.A: "reference, one request at a time",
    Arm.A2: "the reference again",
    Arm.B: "one at a time, over all slots",
    Arm.C: "the load: many at once",
    Arm.CONFIRM: "changed ones again, one at a time",
    Arm.P: "a planted change",
    Arm.WARMUP: "warm-up, compared with nothing",
}


@dataclass(frozen=True, slots=True)
class _Scale:
    """Seconds to the chart's units."""

    begin_s: float
    end_s: float

    def x(self, seconds: float) -> float:
        whole = self.end_s - self.begin_s
        share = (seconds - self.begin_s) / whole if whole > 0 else 0.0
        return GUTTER + share * (WIDTH - GUTTER - 4.0)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar: its place in the chart's units, and the class that paints it."""

    x: float
    width: float
    y: float
    height: float
    paint: str


def run_chart(passes: Sequence[PassView], n_bars: int) -> Markup | None:
    """All passes of a run, one row for a lane; None without a single request.

    Above `n_bars` bars, neighbours are drawn as one.
    """
    spans = [span for one in passes for span in one.spans]
    if not spans:
        return None
    scale = _Scale(min(s.start_s for s in spans), max(s.end_s for s in spans))
    drawn: list[Markup] = []
    bars: list[_Bar] = []
    y = TOP
    groups = sorted({one.lanes for one in passes})
    for lanes in groups:
        members = [one for one in passes if one.lanes == lanes]
        height = max(LEAST_LANE, min(MOST_LANE, ROOM_ALL / lanes))
        drawn += _names_of_passes(members, scale, y - 4)
        drawn.append(_label(f"{lanes} slot{'s' if lanes > 1 else ''}", y + lanes * height / 2 + 4))
        for one in members:
            bars += _bars(one, scale, y, height)
        y += lanes * height + TOP
    drawn += _paths(_thinned(bars, n_bars))
    drawn += _axis(scale, y - TOP + 4)
    words = ", ".join(_arm_seconds(passes))
    return _svg(y + AXIS - 10, f"Timeline of the run: {words}", drawn)


def arms_of(passes: Sequence[PassView]) -> tuple[Arm, ...]:
    """The arms that ran, in the order of their first request."""
    return tuple(dict.fromkeys(one.arm for one in passes if one.spans))


def _arm_seconds(passes: Sequence[PassView]) -> Iterator[str]:
    for arm in arms_of(passes):
        spans = [s for one in passes if one.arm is arm for s in one.spans]
        seconds = max(s.end_s for s in spans) - min(s.start_s for s in spans)
        yield f"{arm.value} {seconds:.1f} s"


def paint_of(arm: Arm) -> str:
    """The class that paints an arm's requests."""
    return f"a-{arm.value.lower()}"


def _bars(one: PassView, scale: _Scale, top: float, height: float) -> Iterator[_Bar]:
    for span in one.spans:
        lane = min(max(span.lane, 0), one.lanes - 1)
        x, end = scale.x(span.start_s), scale.x(span.end_s)
        paint = "a-lost" if span.lost else paint_of(one.arm)
        tall = span.lost or one.arm is not Arm.C or span.co_batched
        size = (height - 1.0) * (1.0 if tall else LOW)
        y = top + (lane + 1) * height - 1.0 - size
        yield _Bar(x, max(0.4, end - x - GAP), y, size, paint)


def _thinned(bars: Iterable[_Bar], most: int) -> Iterator[_Bar]:
    """At most about `most` bars; more are merged with their neighbours in the same lane, those
    of an arm by as much as it has room for."""
    rows: dict[tuple[float, float, str], list[_Bar]] = {}
    for bar in bars:
        rows.setdefault((bar.y, bar.height, bar.paint), []).append(bar)
    per_row = max(1, most // max(1, len(rows)))
    for row in rows.values():
        row.sort(key=lambda bar: bar.x)
        whole = row[-1].x + row[-1].width - row[0].x
        nearest = 0.0 if len(row) <= per_row else whole / per_row
        current = row[0]
        for bar in row[1:]:
            if bar.x - current.x < nearest:
                width = max(current.x + current.width, bar.x + bar.width) - current.x
                current = _Bar(current.x, width, bar.y, bar.height, bar.paint)
            else:
                yield current
                current = bar
        yield current


def _paths(bars: Iterable[_Bar]) -> Iterator[Markup]:
    """One path for all bars of a paint and height, drawn as strokes of that width."""
    shapes: dict[tuple[str, float], list[str]] = {}
    for bar in bars:
        text = f"M{_n(bar.x)} {_n(bar.y + bar.height / 2)}h{_n(bar.width)}"
        shapes.setdefault((bar.paint, bar.height), []).append(text)
    for (paint, height), parts in shapes.items():
        width = _n(height)
        yield element("path", class_=f"b {paint}", stroke_width=width, d="".join(parts))


def _names_of_passes(passes: Sequence[PassView], scale: _Scale, y: float) -> Iterator[Markup]:
    free = 0.0
    for one in passes:
        if not one.spans or one.arm is Arm.WARMUP:
            continue
        name = f"C{one.pass_index}" if one.arm is Arm.C else one.arm.value
        x = scale.x(min(span.start_s for span in one.spans))
        if x >= free:
            yield element("text", name, x=round(x, 1), y=round(y, 1))
            free = x + 7 * len(name) + 6


def pass_chart(
    one: PassView, names: Sequence[str], divergent: frozenset[str], n_requests: int
) -> Markup | None:
    """One pass with every request: its name, and how much of it is proved shared.

    Of more than `n_requests` those around the first divergent one are drawn.
    """
    spans = _window(one.spans, names, divergent, n_requests)
    if not spans:
        return None
    scale = _Scale(min(s.start_s for s in spans), max(s.end_s for s in spans))
    drawn = [_label(f"slot {i}", TOP + (i + 0.5) * PASS_LANE + 3) for i in range(one.lanes)]
    for span in spans:
        drawn += _request(span, one, names, divergent, scale)
    height = TOP + one.lanes * PASS_LANE
    drawn += _axis(scale, height + 2)
    kind = "waves" if one.kind is DispatchKind.WAVES else "always full"
    words = f"Pass {one.pass_index} of the load, {kind}, {len(spans)} of {len(one.spans)} requests"
    return _svg(height + AXIS, words, drawn)


def _window(
    spans: Sequence[Span], names: Sequence[str], divergent: frozenset[str], most: int
) -> Sequence[Span]:
    ordered = sorted(spans, key=lambda span: (span.start_s, span.lane))
    first = next((i for i, s in enumerate(ordered) if _name(s, names) in divergent), 0)
    begin = max(0, min(first - most // 2, len(ordered) - most))
    return ordered[begin : begin + most]


def _request(
    span: Span, one: PassView, names: Sequence[str], divergent: frozenset[str], scale: _Scale
) -> Iterator[Markup]:
    name = _name(span, names)
    x = scale.x(span.start_s)
    width = max(1.5, scale.x(span.end_s) - x - 1.5)
    y = TOP + min(max(span.lane, 0), one.lanes - 1) * PASS_LANE + 2
    height = PASS_LANE - 4
    place = {"x": round(x, 1), "width": round(width, 1)}
    parts = [element("title", f"{name}, slot {span.lane}: {_shared_words(span)}")]
    known = span.own is not None and span.shared is not None
    paint = "q-lost" if span.lost else "q" if known else "q q-unknown"
    parts.append(element("rect", class_=paint, y=y, height=height, **place))
    if span.own and span.shared:
        tall = round(height * min(1.0, span.shared / span.own), 1)
        parts.append(
            element("rect", class_="q-shared", y=round(y + height - tall, 1), height=tall, **place)
        )
    if name in divergent:
        parts.append(element("rect", class_="q-changed", y=y, height=height, **place))
        parts.append(element("path", class_="q-flag", d=f"M{_n(x)} {_n(y)}h9l-9 9z"))
        x, width = x + 8, width - 8
    room = int((width - 4) / NAME_WIDTH)
    if room >= 3:
        shown = name if len(name) <= room else name[: room - 1] + "…"
        parts.append(element("text", shown, class_="q-name", x=round(x + 3, 1), y=y + 14))
    yield element("g", *parts)


def _shared_words(span: Span) -> str:
    if span.lost:
        return "lost"
    if span.own is None or span.shared is None:
        return "what it shared is not proved"
    return f"at least {span.shared} of {span.own} forward passes shared"


def _name(span: Span, names: Sequence[str]) -> str:
    return names[span.item] if 0 <= span.item < len(names) else f"item {span.item}"


def _axis(scale: _Scale, y: float) -> Iterator[Markup]:
    """The baseline with four to ten ticks in seconds from the chart's beginning."""
    whole = scale.end_s - scale.begin_s
    steps = (tick * 10**power for power in range(12) for tick in TICKS)
    step = next((s for s in steps if whole / s <= 10), whole or 1.0)
    yield element("line", class_="axis", x1=GUTTER, x2=WIDTH - 4, y1=round(y, 1), y2=round(y, 1))
    count = int(whole / step) if whole > 0 else 0
    for i in range(count + 1):
        x = round(scale.x(scale.begin_s + i * step), 1)
        yield element("line", class_="axis", x1=x, x2=x, y1=round(y, 1), y2=round(y + 4, 1))
        if x < WIDTH - 40:
            yield element("text", f"{i * step:g} s", class_="tick", x=x, y=round(y + 14, 1))


def _label(text: str, y: float) -> Markup:
    return element("text", text, class_="row", x=0, y=round(y, 1))


def _svg(height: float, words: str, children: Sequence[Markup]) -> Markup:
    box = f"0 0 {_n(WIDTH)} {_n(height)}"
    return element("svg", *children, viewBox=box, role="img", aria_label=words, class_="time")


def _n(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")
