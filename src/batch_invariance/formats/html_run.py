"""How a cell was run: the timeline of its arms and the passes of the load in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_parts import scrolling
from batch_invariance.formats.html_timeline import (
    ARM_NAMES,
    arms_of,
    paint_of,
    pass_chart,
    run_chart,
)
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.report_data import CellReport, Detail
from batch_invariance.invariance_diff.report_evidence import PassView
from batch_invariance.invariance_diff.schedule import DispatchKind


def run_part(report: CellReport, detail: Detail) -> Markup | None:
    """The heading and both kinds of charts; None where there is no evidence to draw."""
    run, certificate = report.run, report.certificate
    if run is None or certificate is None:
        return None
    chart = run_chart(run.passes, detail.n_bars)
    if chart is None:
        return None
    parts: list[Child] = [
        element("h4", "How it was run"),
        scrolling(chart, "Timeline of all arms and lanes"),
        _key_of_arms(run.passes),
    ]
    names = [item.id for item in run.header.workset.items]
    for one in _chosen(run.passes, certificate, detail.n_passes):
        changed = _changed_in(certificate, one.pass_index)
        drawn = pass_chart(one, names, changed, detail.n_requests)
        if drawn is not None:
            parts += _one_pass(one, drawn, changed, detail)
    if any(one.void for one in run.passes):
        parts.append(
            element("p", "The run was interrupted; what was cut off ran again.", class_="note")
        )
    return joined(parts)


def _key_of_arms(passes: Sequence[PassView]) -> Markup:
    entries = [_swatch(paint_of(arm), f"{arm.value}: {ARM_NAMES[arm]}") for arm in arms_of(passes)]
    if any(span.lost for one in passes for span in one.spans):
        entries.append(_swatch("a-lost", "a lost request"))
    loaded = [span for one in passes if one.arm is Arm.C for span in one.spans]
    if any(not span.co_batched for span in loaded):
        entries.append(element("li", "C, low: not proved co-batched"))
    return element("ul", *entries, class_="key")


def _swatch(paint: str, text: str) -> Markup:
    shape = element("rect", width=12, height=12, class_=paint)
    return element("li", element("svg", shape, viewBox="0 0 12 12", aria_hidden="true"), text)


def _chosen(passes: Sequence[PassView], certificate: Certificate, limit: int) -> Sequence[PassView]:
    """The pass of the first divergence, else the first, and one of the other kind."""
    loaded = [one for one in passes if one.arm is Arm.C and not one.void]
    report = certificate.divergence_report.get("AC")
    first = report.per_id[0].first_divergence.pass_index if report and report.per_id else 0
    loaded.sort(key=lambda one: one.pass_index != first)
    kinds: dict[DispatchKind, PassView] = {}
    for one in loaded:
        kinds.setdefault(one.kind, one)
    return list(kinds.values())[:limit]


def _changed_in(certificate: Certificate, pass_index: int) -> frozenset[str]:
    tables: tuple[Mapping[str, tuple[str, ...]], ...] = (
        certificate.per_pass_ac_divergent,
        certificate.per_pass_ac_token_only,
    )
    return frozenset(name for table in tables for name in table.get(str(pass_index), ()))


def _one_pass(one: PassView, drawn: Markup, changed: frozenset[str], detail: Detail) -> list[Child]:
    kind = "waves, all awaited" if one.kind is DispatchKind.WAVES else "all slots always full"
    shared = (
        "The filled height is the share of its forward passes proved shared by the server's log."
        if one.by_log
        else "The filled height is the share of its forward passes proved shared by counting them; "
        "a broken outline means that nothing proves it."
    )
    flags = " A red flag marks an item whose answer changed." if changed else ""
    cut = ""
    if len(one.spans) > detail.n_requests:
        cut = f" {detail.n_requests} of {len(one.spans)} requests are shown."
    caption = f"Pass C{one.pass_index} ({kind}). {shared}{flags}{cut}"
    return [
        element("p", caption, class_="note"),
        scrolling(drawn, f"Pass {one.pass_index} of the load"),
    ]
