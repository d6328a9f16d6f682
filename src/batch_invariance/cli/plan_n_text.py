"""A plan of N, for a person and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from batch_invariance.cli.plan_n_options import PlannedModel, PlanRequest
from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.kv_cache import kv_bytes_per_token
from batch_invariance.invariance_diff.plan_n import ContextPlan, Limit, PlanRow
from batch_invariance.invariance_diff.rules import MAX_SLOTS
from batch_invariance.live_invariance.host import MEMORY_FLOOR_BYTES, format_bytes
from batch_invariance.live_invariance.text import printable

WIDTH = 10


def plan_n_text(
    request: PlanRequest, available: int | None, plans: Sequence[ContextPlan], style: Style
) -> str:
    """The plan for a person: one context as a table of its parts, several as a grid of totals."""
    lines = _head(request, available)
    lines += _table(plans[0], style) if len(plans) == 1 else _grid(plans, style)
    for plan in plans:
        lines.append(_verdict(plan, request, style))
    lines += [f"warning: {warning}" for plan in plans for warning in _warnings(plan, request)]
    return "\n".join(lines) + "\n"


def plan_n_as_json(
    request: PlanRequest, available: int | None, plans: Sequence[ContextPlan]
) -> dict[str, object]:
    """The plan as one JSON object; sizes are in bytes."""
    shape, header = request.model.shape, request.model.header
    return {
        "model": request.model.name,
        "architecture": None if header is None else header.architecture,
        "context_length": None if header is None else header.context_length,
        "kv_exact": not shape.upper_bounds,
        "upper_bounds": list(shape.upper_bounds),
        "settings": {
            **to_json(request.settings),
            "k_type": request.settings.k_type.label,
            "v_type": request.settings.v_type.label,
        },
        "kv_bytes_per_token": kv_bytes_per_token(shape.blocks, request.settings),
        "available_bytes": available,
        "floor_bytes": MEMORY_FLOOR_BYTES,
        "cap_bytes": request.cap_bytes,
        "max_n": request.max_n,
        "contexts": [
            {
                "ctx": plan.ctx,
                "largest_n": plan.largest,
                "binding": plan.binding.value,
                "warnings": _warnings(plan, request),
                "rows": [_row_as_json(row) for row in plan.rows],
            }
            for plan in plans
        ],
    }


def _row_as_json(row: PlanRow) -> dict[str, object]:
    return {
        "n": row.n,
        **to_json(row.footprint),
        "overhead_bytes": row.footprint.overhead_bytes,
        "total_bytes": row.footprint.total_bytes,
        "fits": row.broken is None,
        "broken": None if row.broken is None else row.broken.value,
    }


def _head(request: PlanRequest, available: int | None) -> list[str]:
    shape, settings = request.model.shape, request.settings
    per_token = kv_bytes_per_token(shape.blocks, settings)
    attention = "on" if settings.flash_attention else "off"
    lines = [
        f"model    {printable(request.model.name)}: {_described(request.model)}",
        f"server   KV {settings.k_type.label}/{settings.v_type.label}, "
        f"flash attention {attention}, -b {settings.batch_tokens} -ub {settings.ubatch_tokens}"
        + (", unified KV" if settings.kv_unified else "")
        + (", full windows" if settings.swa_full else ""),
        f"KV       {format_bytes(per_token)} a token, "
        + ("an upper bound" if shape.upper_bounds else "exact"),
    ]
    lines += [f"         {printable(reason)}" for reason in shape.upper_bounds]
    lines.append(f"memory   {_memory(request, available)}")
    return lines


def _described(model: PlannedModel) -> str:
    shape, header = model.shape, model.header
    parts = (
        [] if header is None else [f"{header.architecture} {header.file_type_name or ''}".strip()]
    )
    parts += [f"{len(shape.blocks)} blocks with a KV cache", f"{shape.head_count} heads"]
    if shape.window is not None:
        windowed = sum(block.windowed for block in shape.blocks)
        parts.append(f"{windowed} blocks keep a window of {shape.window} tokens")
    if shape.state_elements:
        parts.append("recurrent blocks")
    if header is not None and header.is_moe:
        parts.append(f"{header.expert_used_count} of {header.expert_count} experts")
    return printable(", ".join(parts))


def _memory(request: PlanRequest, available: int | None) -> str:
    if available is None:
        known = "how much is available is unknown here and limits nothing"
    else:
        assumed = " (assumed)" if request.memory_bytes is not None else ""
        known = (
            f"{format_bytes(available)} available{assumed}, "
            f"{format_bytes(MEMORY_FLOOR_BYTES)} must remain"
        )
    cap = request.cap_bytes
    return known + ("; no cap" if cap is None else f"; cap {format_bytes(cap)}")


def _table(plan: ContextPlan, style: Style) -> list[str]:
    names = ("N", "weights", "KV", "overhead", "total")
    lines = [style.dim("".join(f"{name:>{WIDTH}}" for name in names))]
    for row in plan.rows:
        part = row.footprint
        sizes = (part.weights_bytes, part.kv_bytes, part.overhead_bytes, part.total_bytes)
        text = f"{row.n:>{WIDTH}}" + "".join(f"{_short(size):>{WIDTH}}" for size in sizes)
        if row.broken is not None:
            text = style.dim(f"{text}  over {_limit_name(row.broken)}")
        lines.append(style.bold(text) if row.n == plan.largest else text)
    return lines


def _grid(plans: Sequence[ContextPlan], style: Style) -> list[str]:
    """Totals, one line a context; those that do not fit are marked."""
    most = max(row.n for plan in plans for row in plan.rows)
    columns = [1 << bit for bit in range(most.bit_length())]
    lines = [style.dim(f"{'ctx':>{WIDTH}}" + "".join(f"{f'N={n}':>{WIDTH}} " for n in columns))]
    for plan in plans:
        text = f"{plan.ctx:>{WIDTH}}"
        for n in columns:
            row = plan.row(n)
            if row is not None:
                mark = " " if row.broken is None else "!"
                text += f"{_short(row.footprint.total_bytes):>{WIDTH}}{mark}"
        lines.append(text.rstrip())
    if any(row.broken for plan in plans for row in plan.rows):
        lines.append(style.dim("! does not fit"))
    return lines


def _verdict(plan: ContextPlan, request: PlanRequest, style: Style) -> str:
    reason = {
        Limit.MEMORY: "available memory, less what must remain",
        Limit.FOOTPRINT: "--max-footprint-gb",
        Limit.BATCH: "a micro-batch holds no more requests; raise -ub and -b",
        Limit.SLOTS: f"llama-server's limit of {MAX_SLOTS} slots",
        Limit.MAX_N: f"--max-n {request.max_n}; more may fit",
    }[plan.binding]
    if plan.largest == 0:
        return f"ctx {plan.ctx}: {style.bold('no N fits')} ({reason})"
    return f"ctx {plan.ctx}: the largest N is {style.bold(str(plan.largest))} ({reason})"


def _warnings(plan: ContextPlan, request: PlanRequest) -> list[str]:
    header = request.model.header
    if header is None or plan.ctx <= header.context_length:
        return []
    return [
        f"ctx {plan.ctx} exceeds the model's context length of {header.context_length} tokens: "
        "the server gives a slot no more than that, and run-live ends without a verdict"
    ]


def _limit_name(limit: Limit) -> str:
    return "the available memory" if limit is Limit.MEMORY else "the cap"


def _short(size: int) -> str:
    """A size in MiB below 10 GiB, so that columns compare, and in GiB above."""
    return f"{size / (1 << 20):.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):.1f} GiB"
