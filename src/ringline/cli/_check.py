"""`ringline check`: can a collective hang, or overwrite what is in use?"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from ringline.cli._collective_flags import Layout, axes_of, read_collective, schedule_of
from ringline.cli._files import write_text
from ringline.cli._flag_types import FileOrOutput, Whole, takes
from ringline.cli._sizes import read_bytes
from ringline.schedule import (
    CollectiveSchedule,
    FlowControl,
    Program,
    Smallest,
    Verdict,
    check_collective,
    smallest_configurations,
    smallest_hanging_bytes,
)
from ringline.topology import Ring, mover

_MOST_STEPS_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Check:
    """Decide for every order of events whether a collective can hang or race.

    Prints the shortest run that stops with the cycle of who waits for whom, the races between
    one call and the next, and the smallest settings that hang and that are safe. The exit status
    is 0 when all is safe, and 1 when it can hang or race, or when the search left it open.
    """

    collective: tyro.conf.Positional[str]
    """all-gather, reduce-scatter, all-reduce, or the text file of a schedule, which then says
    itself what --topology, --devices, --directions and --channels are."""
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
    slots: Whole = None
    """Packets that the receiver of a channel holds; the data mover's own if not given."""
    sender_slots: Whole = None
    """Packets that the sender of forwarded traffic holds; half of --slots if not given, or the data
    mover's own."""
    size: Annotated[str, tyro.conf.arg(metavar="BYTES")] = "16MiB"
    """Gathered bytes; K, M, G and KiB, MiB, GiB are binary."""
    packet: Annotated[int | None, takes("BYTES")] = None
    """Largest payload of a packet; the data mover's own if not given."""
    injection: Literal["greedy", "bubble"] = "greedy"
    """greedy: a device puts in a packet of its own while a slot is free ahead; bubble: on a ring,
    while two are."""
    forwarding: Literal["cut-through", "store-and-forward", "threads"] = "cut-through"
    """cut-through: from slot to slot; store-and-forward: from memory; threads: no routers, each
    device's thread sends and receives, and blocks."""
    start: Literal["none", "neighbours", "all"] = "all"
    """Who has to have entered a call before a device sends in it."""
    buffers: int = 1
    """1: packets land in the result; more: buffers of the collective's own, in turns."""
    credits: Literal["counter", "flag", "shared"] = "counter"
    """How arrivals are counted: a counter for each queue, a flag for each value, or one counter
    for all queues of a device."""
    mover: str = "wormhole-ethernet"
    """The data mover that slots and packets are taken from, or a .toml file of one."""
    max_states: int = 20_000
    """Bound of the search; beyond it random runs are made."""
    json: FileOrOutput = None
    """Write the verdict; `-` for standard output, which then holds nothing else."""


def run(flags: Check) -> int:
    """Check, print and write what the flags ask for; 0 if safe, else 1."""
    for name in ("packet", "max_states"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    hardware = mover(flags.mover)
    if flags.packet is not None:
        hardware = hardware.with_packet(flags.packet)
    flow = FlowControl(
        slots=hardware.receiver_slots if flags.slots is None else flags.slots,
        sender_slots=hardware.sender_slots
        if flags.slots is None and flags.sender_slots is None
        else flags.sender_slots,
        packet_bytes=hardware.packet_bytes,
        injection=flags.injection,
        forwarding=flags.forwarding,
        buffers=flags.buffers,
        start=flags.start,
        credits=flags.credits,
    )
    size = read_bytes("--size", flags.size)
    flags, schedule_for, most_channels = _schedules(flags)
    verdict = check_collective(
        schedule_for(flags.channels), size, flow, max_states=flags.max_states
    )
    smallest = smallest_configurations(schedule_for, size, flow, most_channels=most_channels)
    least_bytes = smallest_hanging_bytes(schedule_for(flags.channels), flow)
    if flags.json is not None:
        found = _as_json(flags, size, verdict, smallest, least_bytes)
        write_text(flags.json, json.dumps(found, indent=2) + "\n")
    if flags.json != "-":
        console = Console(highlight=False, soft_wrap=True)
        _print(console, flags, size, verdict, smallest, least_bytes)
    return 0 if verdict.safe else 1


def _schedules(
    flags: Check,
) -> tuple[Check, Callable[[int], CollectiveSchedule | Program], int]:
    """The flags as the schedule has them, the schedule by channels, and how many can be tried."""
    given = read_collective(flags.collective)
    if isinstance(given, CollectiveSchedule):
        layout: Layout = "ring" if isinstance(given.topology, Ring) else "line"
        flags = replace(
            flags,
            collective=given.name,
            topology=layout,
            devices=given.devices,
            directions=2 if given.directions == 2 else 1,
            channels=given.channels,
        )
        return flags, lambda channels: given, 1
    axes = axes_of(flags.topology, flags.devices, flags.rows)
    most_channels = 4 if len(axes) == 1 else 1

    def schedule_for(channels: int) -> CollectiveSchedule | Program:
        return schedule_of(given, axes, flags.directions, channels)

    return flags, schedule_for, most_channels


def _print(
    console: Console,
    flags: Check,
    size: int,
    verdict: Verdict,
    smallest: tuple[Smallest, Smallest],
    least_bytes: int | None,
) -> None:
    flow = verdict.flow
    console.print(
        f"{flags.collective} of {size:,} B on a {flags.topology} of {flags.devices}: "
        f"{flags.channels} channel(s) x {flow.slots} + {flow.forwarding_slots} slots, "
        f"{verdict.packets} packets of {flow.packet_bytes} B a piece, {flow.injection}, "
        f"{flow.forwarding}"
    )
    word = {True: "[bold red]can hang[/]", False: "[green]cannot hang[/]", None: "open"}
    console.print(f"{word[verdict.can_hang]} ({verdict.proof})")
    if verdict.hang:
        lines = verdict.hang.lines()
        console.print(f"\n{len(verdict.hang.steps)} moves, then nothing moves any more:")
        for line in lines[:_MOST_STEPS_SHOWN]:
            console.print(f"  {line}", markup=False)
        if len(lines) > _MOST_STEPS_SHOWN:
            console.print(f"  and {len(lines) - _MOST_STEPS_SHOWN} more; --json has them all")
        console.print("who waits for whom:")
        for line in [*map(str, verdict.hang.waits), *verdict.hang.threads.split("; ")]:
            if line:
                console.print(f"  {line}", markup=False)
        console.print()
    if verdict.races:
        for race in verdict.races:
            console.print(f"[bold red]race[/], {_escaped(str(race))}")
        console.print(f"  {_remedy(verdict)}")
    else:
        console.print(
            "[green]no races[/] between calls or with a device that starts late (every timing: "
            "vector clocks)"
        )
    console.print()
    for one in smallest:
        console.print(
            f"{one.injection}: smallest that hangs {_text(one.hangs)}; "
            f"smallest that is safe {_text(one.safe)}"
        )
    least = "no size can hang"
    if least_bytes is not None:
        least = f"every size from {least_bytes:,} B on can hang"
    console.print(f"with the settings given: {least}")


def _remedy(verdict: Verdict) -> str:
    """What makes the races go away."""
    fixes = []
    kinds = {race.kind for race in verdict.races}
    if kinds & {"skewed start", "buffer reuse"}:
        fixes.append(
            "wait for all devices before a call (--start all) or take buffers in turns "
            "(--buffers 2)"
        )
    if "credit of the last call" in kinds:
        fixes.append("count credits instead of setting flags (--credits counter)")
    if "shared credit" in kinds:
        fixes.append("give each queue a counter of its own (--credits counter)")
    return "; ".join(fixes)


def _text(configuration) -> str:
    if configuration is None:
        return "none"
    flow = configuration.flow
    return (
        f"{configuration.channels} channel(s) x {flow.slots} + {flow.forwarding_slots} slots "
        f"({configuration.memory_bytes / 1024:,.0f} KiB a directed link)"
    )


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def _as_json(
    flags: Check,
    size: int,
    verdict: Verdict,
    smallest: tuple[Smallest, Smallest],
    least_bytes: int | None,
) -> dict[str, Any]:
    hang = verdict.hang
    return {
        "collective": flags.collective,
        "topology": flags.topology,
        "devices": flags.devices,
        "rows": flags.rows,
        "directions": flags.directions,
        "channels": flags.channels,
        "gathered_bytes": size,
        "packets_per_piece": verdict.packets,
        "flow": {**asdict(verdict.flow), "sender_slots": verdict.flow.forwarding_slots},
        "safe": verdict.safe,
        "can_hang": verdict.can_hang,
        "proof": verdict.proof,
        "states": verdict.states,
        "hang": None
        if hang is None
        else {
            "moves": len(hang.steps),
            "shortest": hang.shortest,
            "trace": [str(step) for step in hang.steps],
            "cycle": [
                {
                    "queue": list(wait.queue),
                    "packets": wait.held,
                    "oldest": None if wait.value is None else str(wait.value),
                    "waits_for": list(wait.ahead),
                }
                for wait in hang.waits
            ],
            "threads": hang.threads,
        },
        "races": [
            {
                "kind": race.kind,
                "device": race.device,
                "source": race.source,
                "value": str(race.value),
                "call": race.call,
                "text": str(race),
            }
            for race in verdict.races
        ],
        "smallest": {
            one.injection: {
                name: None
                if found is None
                else {
                    "channels": found.channels,
                    "slots": found.flow.slots,
                    "sender_slots": found.flow.forwarding_slots,
                    "memory_bytes": found.memory_bytes,
                }
                for name, found in (("hangs", one.hangs), ("safe", one.safe))
            }
            for one in smallest
        },
        "smallest_hanging_bytes": least_bytes,
    }
