"""`ringline simulate all-gather` and its like: the time of a collective, packet by packet."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar, Literal

import tyro
from rich.console import Console
from rich.table import Table

from ringline import trace
from ringline.cli._collective_flags import Collective, Layout, axes_of, schedule_of
from ringline.cli._files import write_text
from ringline.cli._flag_types import File, FileOrOutput, Whole, takes
from ringline.cli._sizes import read_bytes
from ringline.schedule import CollectiveSchedule, Program
from ringline.simulate import (
    CollectiveRun,
    collective_bound_s,
    collective_s,
    simulate_collective,
)
from ringline.topology import Line, Mover, Ring, mover

_LARGEST_RUN_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _SimulateCollective:
    collective: ClassVar[Collective]

    topology: Layout = "ring"
    """How the devices are linked; grid: lines in both axes, torus: rings in both."""
    devices: int = 8
    """n, how many devices."""
    rows: Whole = None
    """Rows of a grid or a torus."""
    directions: Literal[1, 2] = 2
    """How many directions of a link work at the same time."""
    channels: int = 1
    """Queues of a directed link, each with slots of its own."""
    begin: Annotated[str, tyro.conf.arg(aliases=["-b"], metavar="BYTES")] = "64KiB"
    """Smallest size: gathered bytes; K, M, G and KiB, MiB, GiB are binary."""
    end: Annotated[str, tyro.conf.arg(aliases=["-e"], metavar="BYTES")] = "16MiB"
    """Largest size. Above 16 MiB the time goes on with the slope from 8 to 16 MiB."""
    factor: Annotated[int, tyro.conf.arg(aliases=["-f"])] = 4
    """Each size is this many times the one before."""
    packet: Annotated[int | None, takes("BYTES")] = None
    """Largest payload of a packet; the data mover's own if not given. Slots share its memory."""
    slots: Whole = None
    """Packets that the receiver of a channel holds; the data mover's own if not given."""
    sender_slots: Whole = None
    """Packets that each sender of a channel holds; half of --slots if not given, or the data
    mover's own."""
    injection: Literal["greedy", "bubble"] = "bubble"
    """bubble: on a ring a device puts in a packet of its own only while two slots are free ahead;
    greedy: while one is."""
    forwarding: Literal["cut-through", "store-and-forward"] = "cut-through"
    """cut-through: packets go on from slot to slot; store-and-forward: from memory."""
    mover: str = "wormhole-ethernet"
    """The data mover, or a .toml file of one."""
    trace: File = None
    """Write a Chrome trace of the largest run, which ui.perfetto.dev opens."""
    html: File = None
    """Write a page to zoom and look around in."""
    svg: File = None
    """Write a picture."""
    json: FileOrOutput = None
    """Write the rows; `-` for standard output, which then holds nothing else."""


@dataclass(frozen=True, slots=True)
class SimulateAllGather(_SimulateCollective):
    """Time an all-gather packet by packet, over slots and credits, and draw its largest run."""

    collective: ClassVar[Collective] = "all-gather"


@dataclass(frozen=True, slots=True)
class SimulateReduceScatter(_SimulateCollective):
    """Time a reduce-scatter packet by packet, over slots and credits, and draw its largest run."""

    collective: ClassVar[Collective] = "reduce-scatter"


@dataclass(frozen=True, slots=True)
class SimulateAllReduce(_SimulateCollective):
    """Time an all-reduce packet by packet, over slots and credits, and draw its largest run."""

    collective: ClassVar[Collective] = "all-reduce"


@dataclass(frozen=True, slots=True)
class _Row:
    """One size; rates are payload, decimal."""

    size_bytes: int
    time_s: float
    bound_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    linkbw_bytes_per_s: float
    linkbw_share: float
    extrapolated: bool


def run(flags: _SimulateCollective) -> int:
    """Simulate, print and write what the flags ask for; gives the exit status."""
    begin, end = read_bytes("--begin", flags.begin), read_bytes("--end", flags.end)
    if not 0 < begin <= end or flags.factor < 2:
        raise ValueError(
            f"expected 0 < --begin <= --end and --factor of at least 2, got {begin}, {end} and "
            f"{flags.factor}; change one of them"
        )
    hardware = _hardware(flags)
    axes = axes_of(flags.topology, flags.devices, flags.rows)
    schedule = schedule_of(flags.collective, axes, flags.directions, flags.channels)
    rows, last = [], None
    size = begin
    while size <= end:
        if size <= _LARGEST_RUN_BYTES or last is None:
            last = simulate_collective(
                schedule,
                min(size, _LARGEST_RUN_BYTES),
                mover=hardware,
                injection=flags.injection,
                forwarding=flags.forwarding,
            )
        rows.append(_row(schedule, axes, size, hardware, flags, last))
        size *= flags.factor
    assert last is not None
    title = f"{flags.collective} of {last.gathered_bytes:,} B, {flags.topology} of {flags.devices}"
    text = json.dumps([asdict(row) for row in rows], indent=2) + "\n"
    if flags.trace:
        write_text(flags.trace, trace.chrome(last.timeline))
    if flags.html:
        write_text(flags.html, trace.html(last.timeline, title=title))
    if flags.svg:
        write_text(flags.svg, trace.svg(last.timeline))
    if flags.json:
        write_text(flags.json, text)
    if flags.json == "-":
        return 0
    _print(Console(highlight=False), hardware, flags, rows, last)
    return 0


def _hardware(flags: _SimulateCollective) -> Mover:
    """The data mover with the packets and slots that were asked for."""
    for name in ("packet", "slots", "sender_slots"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}; change {name}")
    hardware = mover(flags.mover)
    if flags.packet is not None:
        hardware = hardware.with_packet(flags.packet)
    slots, sender_slots = flags.slots, flags.sender_slots
    if slots is not None:
        sender_slots = sender_slots or -(-slots // 2)
        hardware = replace(hardware, receiver_slots=slots)
    return replace(hardware, sender_slots=sender_slots) if sender_slots else hardware


def _row(
    schedule: CollectiveSchedule | Program,
    axes: tuple[Ring | Line, ...],
    size: int,
    hardware: Mover,
    flags: _SimulateCollective,
    last: CollectiveRun,
) -> _Row:
    extrapolated = size > _LARGEST_RUN_BYTES
    time_s = last.time_s
    if extrapolated:
        time_s = collective_s(
            schedule,
            size,
            mover=hardware,
            injection=flags.injection,
            forwarding=flags.forwarding,
        )
    passes = 2 if flags.collective == "all-reduce" else 1
    bound_s = collective_bound_s(
        axes, size, mover=hardware, directions=flags.directions, passes=passes
    )
    share = passes * (flags.devices - 1) / flags.devices
    busiest_bytes = max(last.link_bytes.values(), default=0) * size / last.gathered_bytes
    linkbw = busiest_bytes / time_s if time_s else 0.0
    algbw = size / time_s if time_s else 0.0
    return _Row(
        size,
        time_s,
        bound_s,
        algbw,
        share * algbw,
        linkbw,
        linkbw / hardware.bytes_per_s,
        extrapolated,
    )


def _print(
    console: Console,
    hardware: Mover,
    flags: _SimulateCollective,
    rows: list[_Row],
    last: CollectiveRun,
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "size\n(B)",
        "time\n(us)",
        "at least\n(us)",
        "algbw\n(GB/s)",
        "busbw\n(GB/s)",
        "linkbw\n(GB/s)",
        "of line\nrate",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.size_bytes:,}{'*' if row.extrapolated else ''}",
            f"{row.time_s * 1e6:.2f}",
            f"{row.bound_s * 1e6:.2f}",
            *(
                f"{rate / 1e9:.2f}"
                for rate in (
                    row.algbw_bytes_per_s,
                    row.busbw_bytes_per_s,
                    row.linkbw_bytes_per_s,
                )
            ),
            f"{row.linkbw_share:.1%}",
        )
    console.print(
        f"{flags.collective} on a {flags.topology} of {flags.devices}, {flags.directions} "
        f"direction{'s' * (flags.directions > 1)}, {flags.channels} "
        f"channel{'s' * (flags.channels > 1)}; {hardware.name}, packets of "
        f"{hardware.packet_bytes} B, {hardware.sender_slots} sender and "
        f"{hardware.receiver_slots} receiver slots, {flags.injection}, {flags.forwarding}",
        soft_wrap=True,
    )
    console.print(table)
    if any(row.extrapolated for row in rows):
        console.print("* goes on with the slope from 8 to 16 MiB")
    if last.utilisation:
        busy = last.utilisation.values()
        console.print(
            f"wires busy in the run of {last.gathered_bytes:,} B: {min(busy):.0%} to "
            f"{max(busy):.0%} of its time, {len(busy)} directed links"
        )
