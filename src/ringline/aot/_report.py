"""What a compiled program does, as a table for the terminal and as JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringline.aot._collectives import Collective
from ringline.aot._compile import Compiled
from ringline.aot._memory import Memory, gib


def report_json(compiled: Compiled) -> dict[str, Any]:
    """Everything of the report as plain data; times in microseconds, for one device."""
    return {
        "target": compiled.target.name,
        "topology": compiled.target.topology,
        "slices": compiled.target.cluster.slices,
        "devices": compiled.target.device_count,
        "mesh": dict(compiled.mesh.shape) if compiled.mesh else None,
        "memory": memory_json(compiled.memory),
        "flops": compiled.flops,
        "compute_us": compiled.compute_us,
        "compile_s": compiled.compile_s,
        "collectives": [collective_json(c) for c in compiled.collectives],
    }


def memory_json(memory: Memory) -> dict[str, Any]:
    """The compiler's estimate of one device's memory."""
    return {
        "arguments_bytes": memory.arguments_bytes,
        "temporaries_bytes": memory.temporaries_bytes,
        "outputs_bytes": memory.outputs_bytes,
        "limit_bytes": memory.limit_bytes,
        "fits": memory.fits,
        "largest": [asdict(buffer) for buffer in memory.largest],
    }


def collective_json(collective: Collective) -> dict[str, Any]:
    """One collective, with the instructions by which it is found in the program."""
    return {
        "name": collective.name,
        "kind": collective.kind,
        "link": collective.link,
        "axis": collective.axis,
        "bytes": collective.bytes,
        "in_loop": collective.in_loop,
        "times_per_step": collective.times_per_step,
        "times_known": collective.times_known,
        "in_branch": collective.in_branch,
        "asynchronous": collective.asynchronous,
        "spans_compute_us": collective.spans_compute_us,
        "transfer_us": collective.transfer_us,
        "exposed": collective.exposed,
        "exposed_us": collective.exposed_us,
        "posted": list(collective.posted),
        "ended": list(collective.ended),
    }


def report(compiled: Compiled) -> RenderableType:
    """Memory, work and collectives for a rich console."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        right = name in ("size", "runs a step", "spans", "transfer")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in collective_rows(compiled):
        table.add_row(*row)
    lines = summary_lines(compiled)
    return Group(*(Text(line) for line in lines), table, Text(FOOTNOTE))


def summary_lines(compiled: Compiled) -> list[str]:
    """What, where, how much memory, how much work."""
    target, memory = compiled.target, compiled.memory
    axes = compiled.mesh.shape.items() if compiled.mesh else ()
    mesh = " x ".join(f"{name} {size}" for name, size in axes) or "none"
    slices = target.cluster.slices
    certain = all(context.certain for context in compiled.walk.contexts())
    spare = memory.limit_bytes - memory.total_bytes
    return [
        f"{target.name}: {slices} slice{'s' * (slices > 1)} of {target.topology}, "
        f"{target.device_count} devices, mesh {mesh}; compiled in {compiled.compile_s:.1f} s.",
        f"Memory of a device (the compiler's estimate): arguments {gib(memory.arguments_bytes)}, "
        f"temporaries {gib(memory.temporaries_bytes)}, outputs {gib(memory.outputs_bytes)}; "
        f"fits {gib(memory.limit_bytes)} with {gib(spare)} to spare.",
        "Largest: " + "; ".join(map(str, memory.largest[:3])) + ".",
        f"Work of a device: {compiled.flops / 1e12:.4g} TFLOP in matrix products, "
        f"{_ms(compiled.compute_us)} of computation by {_estimate(compiled)}, no branch skipped"
        f"{'' if certain else ', one trip of loops whose trips the program does not say'}.",
    ]


def _estimate(compiled: Compiled) -> str:
    return "the compiler's cycles" if compiled.walk.has_cycles else "FLOPs and bytes"


COLUMNS = ("collective", "link", "axis", "size", "runs a step", "spans", "transfer", "")
FOOTNOTE = (
    "times: of one execution; a transfer is hidden when the computation between its last start "
    "and its first wait takes longer. Computation by the estimate above, transfers by the "
    "links' rates; nothing was run."
)


def collective_rows(compiled: Compiled) -> list[tuple[str, ...]]:
    """The table of collectives, those that read the same in one row."""
    rows: list[tuple[str, ...]] = []
    for alike in _alike(compiled.collectives):
        first = alike[0]
        times = f"{len(alike)} x " * (len(alike) > 1) + str(first.times_per_step)
        if first.in_branch:
            times = f"at most {times}"
        if first.in_loop:
            times += " in a loop" if first.times_known else " a trip, trips unknown"
        spans = _ms(first.spans_compute_us) if first.asynchronous else "waits"
        verdict = f"{_ms(first.exposed_us)} exposed" if first.exposed else "hidden"
        rows.append(
            (
                *(first.kind, first.link, first.axis, gib(first.bytes), times, spans),
                *(_ms(first.transfer_us), verdict),
            )
        )
    return rows


def _alike(collectives: Iterable[Collective]) -> list[list[Collective]]:
    """Collectives that read the same in the table, together."""
    groups: dict[tuple[Any, ...], list[Collective]] = {}
    for c in collectives:
        spans = round(c.spans_compute_us) if c.asynchronous else None
        key = (c.kind, c.link, c.axis, c.bytes, c.in_loop, c.times_per_step, c.in_branch, spans)
        groups.setdefault(key, []).append(c)
    return list(groups.values())


def _ms(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.2f} ms"
