"""Charts of counts as SVG and HTML: two histograms on one axis, and bars with their figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from batch_invariance.formats.html_markup import Markup, element

WIDTH, PANEL, HEAD, FOOT = 480.0, 52.0, 18.0, 20.0
LEFT = 6.0
LEAST_OCTAVES = 6
"""So that a single bin is not as wide as the chart."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper edge of their bin, as a certificate holds them, and what they count."""

    title: str
    counts: Mapping[str, int]
    paint: str
    none: str
    """What is said where there are no counts."""


def histograms(charts: Sequence[Histogram]) -> Markup:
    """Histograms one above the other over one logarithmic axis in nats, by octave."""
    octaves = [_octaves(chart.counts) for chart in charts]
    known = [octave for found in octaves for octave in found if octave is not None]
    low, high = (min(known), max(known)) if known else (-20, 0)
    low = min(low, high - LEAST_OCTAVES)
    zero = any(None in found for found in octaves)
    axis = _Axis(low - (2 if zero else 0), high, low if zero else None)
    parts: list[Markup] = []
    y = HEAD
    for chart, found in zip(charts, octaves, strict=True):
        parts.append(element("text", chart.title, class_="panel", x=LEFT, y=y - 5))
        parts += _panel(chart, found, axis, y)
        y += PANEL + HEAD
    parts += _ticks(axis, y - HEAD)
    words = "; ".join(f"{c.title}: {sum(c.counts.values()) or c.none}" for c in charts)
    box = f"0 0 {WIDTH:g} {y - HEAD + FOOT:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=words, class_="hist")


@dataclass(frozen=True, slots=True)
class _Axis:
    """Octaves `low` to `high`; `zero_before`: the first that is no place for exact zeros."""

    low: int
    high: int
    zero_before: int | None

    @property
    def step(self) -> float:
        return (WIDTH - 2 * LEFT) / (self.high - self.low + 1)

    def x(self, octave: float) -> float:
        return LEFT + (octave - self.low) * self.step


def _octaves(counts: Mapping[str, int]) -> dict[int | None, int]:
    """Counts by octave: n is 2**n to 2**(n+1), None an exact zero."""
    found: dict[int | None, int] = {}
    for edge, count in counts.items():
        octave = octave_of(edge)
        found[octave] = found.get(octave, 0) + max(0, count)
    return found


def octave_of(edge: str) -> int | None:
    """The octave below an upper edge; None for zero and for what is no number."""
    try:
        value = float(edge)
    except ValueError:
        return None
    if not (math.isfinite(value) and value > 0.0):
        return None
    mantissa, exponent = math.frexp(value)
    return exponent - 2 if mantissa == 0.5 else exponent - 1


def _panel(
    chart: Histogram, found: Mapping[int | None, int], axis: _Axis, y: float
) -> Iterator[Markup]:
    most = max(found.values(), default=0)
    base = y + PANEL
    yield element("line", class_="axis", x1=LEFT, x2=WIDTH - LEFT, y1=base, y2=base)
    if not most:
        yield element("text", chart.none, class_="tick", x=WIDTH / 2, y=y + PANEL / 2)
        return
    shapes = []
    for octave, count in sorted(found.items(), key=lambda pair: (pair[0] is not None, pair[0])):
        if not count:
            continue
        height = max(1.0, count / most * (PANEL - 8))
        x = axis.x(axis.low if octave is None else octave)
        width = axis.step - 1
        shapes.append(f"M{x:.1f} {base:g}v-{height:.1f}h{width:.1f}v{height:.1f}z")
    yield element("path", class_=chart.paint, d="".join(shapes))


def _ticks(axis: _Axis, y: float) -> Iterator[Markup]:
    if axis.zero_before is not None:
        yield element("text", "0", class_="tick", x=round(axis.x(axis.low + 0.5), 1), y=y + 14)
    free = axis.x(axis.zero_before or axis.low)
    for power in range(math.ceil(axis.low * math.log10(2)), 20):
        x = axis.x(power / math.log10(2))
        if x > WIDTH - 2 * LEFT:
            break
        if x < free:
            continue
        text = f"{10.0**power:g}"
        yield element("line", class_="axis", x1=round(x, 1), x2=round(x, 1), y1=y, y2=y + 4)
        yield element("text", text, class_="tick", x=round(x, 1), y=y + 15)
        free = x + 7.0 * len(text) + 10


def bar(share: float, paint: str = "") -> Markup:
    """A bar in a table cell; its figure stands beside it, so it is hidden from screen readers."""
    width = 100 * min(1.0, max(0.0, share))
    inner = element("i", style=f"width:{width:.1f}%", class_=paint or None)
    return element("span", inner, class_="bar", aria_hidden="true")
