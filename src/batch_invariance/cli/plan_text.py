"""The plan of a run, as `--dry-run` prints it: what would start, be sent, and be needed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.plan import request_count
from batch_invariance.invariance_diff.records import Header
from batch_invariance.live_invariance.cell_choice import Setting
from batch_invariance.live_invariance.host import format_bytes, memory_available
from batch_invariance.live_invariance.launch import LaunchCommand, build_argv
from batch_invariance.live_invariance.prepare import ServerChoice, ServerKnowledge, launch_spec
from batch_invariance.live_invariance.produce import evidence_bytes
from batch_invariance.live_invariance.text import printable

UNKNOWN_MEMORY = (
    "this system does not say how much is free, so that --max-footprint-gb alone guards it"
)


@dataclass(frozen=True, slots=True)
class PlanView:
    """A run that has not begun: its header, server and model, where each value of the cell stands,
    why it can never be GREEN, and what else is to be said."""

    header: Header
    choice: ServerChoice
    known: ServerKnowledge
    origins: tuple[Setting, ...]
    shortfalls: tuple[str, ...]
    notes: tuple[str, ...]

    def commands(self) -> tuple[LaunchCommand, ...]:
        """Both server command lines; port and key file are chosen at the launch."""
        return tuple(
            build_argv(launch_spec(self.choice, self.known, parallel))
            for parallel in (1, self.header.cell.dispatch_n)
        )


def plan_text(view: PlanView) -> str:
    """The plan for a person, ending in a newline."""
    header, choice, known = view.header, view.choice, view.known
    cell, model = header.cell, known.model
    launches = view.commands()
    footprint = known.footprint
    free = memory_available()
    experts = f", {model.expert_count} experts" if model.expert_count else ", dense"
    lines = [
        f"cell       {printable(cell.model)}, ctx {cell.ctx}, N={cell.dispatch_n}, "
        f"source {header.source.value}",
        f"model      {printable(model.file)}: {model.architecture} {model.file_type}{experts}, "
        f"sha256 {(model.sha256 or 'unknown')[:16]}... ({model.sha256_from})",
        f"server     {choice.server_bin}: {printable(known.version or 'version unknown')}",
        f"work-set   {printable(header.workset.name)}: {len(header.workset.items)} items, "
        f"sha256 {header.workset.sha256[:16]}...",
        f"scorer     {printable(header.scorer.name)}",
        f"requests   {request_count(header.plan.passes, cell.dispatch_n)}, and up to "
        f"{header.plan.confirm_limit} to confirm divergences",
    ]
    lines += [
        f"  {p.arm.value:2} pass {p.pass_index}: {p.n_requests} requests, {p.kind.value}, "
        f"order {p.ordering.value}"
        for p in header.plan.passes
    ]
    lines += [
        f"memory     {format_bytes(footprint.total_bytes)} projected: weights "
        f"{format_bytes(footprint.weights_bytes)}, KV {format_bytes(footprint.kv_bytes)}, "
        f"overhead {format_bytes(footprint.overhead_bytes)}; "
        + (f"{format_bytes(free)} available" if free is not None else UNKNOWN_MEMORY),
        f"disk       at most {format_bytes(evidence_bytes(header))} of evidence",
        "launches   (port 0 and KEYFILE are chosen at the launch)",
    ]
    lines += [f"  {shlex.join(launch.argv)}" for launch in launches]
    if launches[0].omitted_flags:
        lines.append(f"  left out, unknown to this build: {' '.join(launches[0].omitted_flags)}")
    lines.append("from")
    lines += [f"  {s.name} {printable(s.value)}: {printable(s.origin)}" for s in view.origins]
    lines += view.notes
    lines += [f"this run can never be GREEN: {reason}" for reason in view.shortfalls]
    return "\n".join(lines) + "\n"


def plan_as_json(view: PlanView) -> dict[str, object]:
    """The plan as one JSON object."""
    header, known = view.header, view.known
    launches = view.commands()
    return {
        "cell": to_json(header.cell),
        "source": header.source.value,
        "plan": to_json(header.plan),
        "requests": request_count(header.plan.passes, header.cell.dispatch_n),
        "launches": [list(launch.argv) for launch in launches],
        "omitted_flags": list(launches[0].omitted_flags),
        "footprint": {
            **to_json(known.footprint),
            "overhead_bytes": known.footprint.overhead_bytes,
            "total_bytes": known.footprint.total_bytes,
        },
        "memory_available_bytes": memory_available(),
        "evidence_bytes": evidence_bytes(header),
        "origins": to_json(view.origins),
        "notes": list(view.notes),
        "never_green": list(view.shortfalls),
    }
