"""`simulate_collective`: the time of a collective, packet by packet."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from ringline.schedule import CollectiveSchedule, Compute, Program, ScheduleError, Value
from ringline.schedule._hops import Injection, hops_of, piece_bytes
from ringline.simulate._packets import Computed, Crossing, PacketRun
from ringline.simulate._timeline import Event, Timeline
from ringline.topology import Line, Mover, Ring

Forwarding = Literal["cut-through", "store-and-forward"]


@dataclass(frozen=True)
class CollectiveRun:
    """What one run of a collective took.

    Attributes:
        name: of the schedule.
        devices: how many took part.
        gathered_bytes: T, all stripes together.
        mover: what moved the packets.
        time_s: from the start of the call until the last packet is in memory.
        timeline: one event for each value over each link.
        link_bytes: per directed link, the payload it carried.
        link_busy_s: per directed link, how long packets kept its wire.
    """

    name: str
    devices: int
    gathered_bytes: int
    mover: Mover
    time_s: float
    timeline: Timeline
    link_bytes: Mapping[tuple[int, int], int]
    link_busy_s: Mapping[tuple[int, int], float]

    @cached_property
    def algorithm_bytes_per_s(self) -> float:
        """T / t, nccl-tests' algbw."""
        return _rate(self.gathered_bytes, self.time_s)

    @cached_property
    def link_bytes_per_s(self) -> float:
        """Payload of the busiest directed link over the time."""
        return _rate(max(self.link_bytes.values(), default=0), self.time_s)

    @cached_property
    def utilisation(self) -> dict[tuple[int, int], float]:
        """Per directed link, the share of the time in which its wire was busy."""
        return {
            link: busy_s / self.time_s if self.time_s else 0.0
            for link, busy_s in self.link_busy_s.items()
        }


def simulate_collective(
    schedule: CollectiveSchedule | Program,
    gathered_bytes: int,
    *,
    mover: Mover,
    injection: Injection = "bubble",
    forwarding: Forwarding = "cut-through",
    size_bytes: Callable[[Value], int] | None = None,
    compute_s: Callable[[int, Compute], float] = lambda device, compute: 0.0,
) -> CollectiveRun:
    """Time a collective packet by packet, over slots and credits.

    On a line a faster link, or a shorter packet, never takes more time. On a ring it can: which
    packet takes a slot that gets free depends on who asks first, and once all slots are full the
    rate depends on how many holes are left to move through them. 2% less hop latency has cost a
    ring of 8 a tenth more time at 4 MiB, the most that was found; between 90% and 110% of the
    latency it moves within that tenth.

    Args:
        schedule: a collective on a ring or a line, or a program on any links: a grid of chips is
            a program whose devices send to their neighbours in both axes.
        gathered_bytes: T, all stripes together. Pieces differ by a byte where it does not divide.
        mover: the hardware, such as `ringline.topology.mover("wormhole-ethernet")`.
        injection: `bubble`: on a ring a chip puts in a packet of its own only while two slots
            are free ahead; `greedy`: while one is.
        forwarding: `cut-through`: packets go on from slot to slot; `store-and-forward`: from
            memory, once the whole piece is there.
        size_bytes: the size of each value, for stripes that differ; by default they share T.
        compute_s: the time of a computation, for collectives that add.

    Returns:
        The time with its timeline and the traffic of every link.

    Raises:
        ScheduleError: when packets stop before all have arrived, with the links that wait for
            each other.

    Example:
        >>> from ringline.schedule import all_gather
        >>> from ringline.topology import Line, mover
        >>> run = simulate_collective(
        ...     all_gather(Line(4)), 1 << 20, mover=mover("wormhole-ethernet").with_packet(6144)
        ... )
        >>> round(run.time_s * 1e6), max(run.link_bytes.values())
        (77, 786432)
    """
    wire_of = {}
    if isinstance(schedule, Program):
        program, name = schedule, "program"
    else:
        program, name = schedule.program(), schedule.name
        wire_of = {"wire_of": schedule.topology.wire}
    if gathered_bytes < 0:
        raise ValueError(f"gathered_bytes must be >= 0, got {gathered_bytes}; change the size")
    hops = hops_of(program, cut_through=forwarding == "cut-through")
    start_s = mover.launch_s(program.devices)
    run = PacketRun(
        hops,
        mover,
        size_bytes or piece_bytes(program, gathered_bytes),
        compute_s,
        injection,
        start_s,
        **wire_of,
    )
    if run.stuck:
        raise _hang(run)
    time_s = max([start_s, *(c.end_s for c in run.crossings), *(c.end_s for c in run.computed)])
    return CollectiveRun(
        name,
        program.devices,
        gathered_bytes,
        mover,
        time_s,
        Timeline(name, _events(run), program.devices),
        {link: wire.payload_bytes for link, wire in run.links.items()},
        {link: wire.busy_s for link, wire in run.links.items()},
    )


def collective_s(
    schedule: CollectiveSchedule | Program,
    gathered_bytes: int,
    *,
    mover: Mover,
    injection: Injection = "bubble",
    forwarding: Forwarding = "cut-through",
    largest_bytes: int = 16 << 20,
) -> float:
    """The cost of a collective of any size, which never falls as the size grows.

    Sizes that are powers of two are simulated, up to `largest_bytes`; between them the cost is
    linear, and beyond them it goes on with the last slope: by then a ring or a line is in its
    steady state. A single run can be a little faster than a smaller one, as the order in which
    senders take turns changes; here each size costs at least what smaller ones do.

    Args:
        schedule: a collective on a ring or a line, or a program on any links.
        gathered_bytes: T, all stripes together.
        mover: the hardware.
        injection: as in `simulate_collective`.
        forwarding: as in `simulate_collective`.
        largest_bytes: the largest size to simulate.
    """
    if gathered_bytes < 0:
        raise ValueError(f"gathered_bytes must be >= 0, got {gathered_bytes}; change the size")
    last = max(11, min(math.ceil(math.log2(max(gathered_bytes, 1))), int(math.log2(largest_bytes))))
    points = [(0, mover.launch_s(schedule.devices))]
    for size in (1 << power for power in range(max(10, last - 8), last + 1)):
        points.append(
            (size, max(points[-1][1], _run_s(schedule, size, mover, injection, forwarding)))
        )
    right = next((i for i, (size, _) in enumerate(points) if size >= gathered_bytes), -1)
    (x0, y0), (x1, y1) = (points[right - 1], points[right]) if right else points[:2]
    return y0 + (y1 - y0) * (gathered_bytes - x0) / (x1 - x0)


def collective_bound_s(
    topology: Ring | Line | tuple[Ring | Line, ...],
    gathered_bytes: int,
    *,
    mover: Mover,
    directions: int = 2,
    passes: int = 1,
) -> float:
    r"""The roofline of an all-gather or reduce-scatter: no schedule is faster.

        t >= max((n - 1) S / (K r), diameter h)

    with S = T / n bytes a device, r the rate of one direction of a link, h the hop latency and K
    the links that the worst placed device receives on: 2 on a ring that uses both directions,
    else 1 (the end of a line has one); on a grid the sum over its axes.

    Args:
        topology: ring or line of n devices, or the axes of a grid.
        gathered_bytes: T.
        mover: the hardware.
        directions: of a ring, 1 or 2.
        passes: 2 for an all-reduce, which is a reduce-scatter and an all-gather.

    Example:
        >>> from ringline.topology import mover
        >>> round(collective_bound_s(Line(4), 1 << 20, mover=mover("wormhole")) * 1e6, 1)
        62.9
    """
    axes = topology if isinstance(topology, tuple) else (topology,)
    axes = tuple(axis for axis in axes if axis.devices > 1)
    devices = math.prod(axis.devices for axis in axes)
    links = sum(_links_in(axis, directions) for axis in axes) or 1
    one_way = [isinstance(axis, Ring) and directions == 1 for axis in axes]
    hops = sum(a.devices - 1 if one else a.diameter for a, one in zip(axes, one_way))
    busiest_bytes = (devices - 1) * gathered_bytes / devices / links
    return passes * max(busiest_bytes / mover.bytes_per_s, hops * mover.hop_latency_s)


def _links_in(axis: Ring | Line, directions: int) -> int:
    """Links of one axis that the worst placed device receives on."""
    return 2 if isinstance(axis, Ring) and axis.devices > 2 and directions == 2 else 1


@lru_cache(maxsize=512)
def _run_s(
    schedule: CollectiveSchedule | Program,
    gathered_bytes: int,
    mover: Mover,
    injection: Injection,
    forwarding: Forwarding,
) -> float:
    run = simulate_collective(
        schedule, gathered_bytes, mover=mover, injection=injection, forwarding=forwarding
    )
    return run.time_s


def _hang(run: PacketRun) -> ScheduleError:
    full = [port for port in run.stuck if port.receiver]
    waits = "; ".join(
        f"{port.queue} has {len(port.receiver)} packets that wait for {port.waits_for}"
        for port in full[:8]
    )
    return ScheduleError(
        f"the packets stop for good, each full receiver waiting for the next: {waits}; use "
        "injection='bubble' or more slots"
    )


def _events(run: PacketRun) -> tuple[Event, ...]:
    events = [_transfer(crossing) for crossing in run.crossings]
    events += [_compute(computed) for computed in run.computed]
    return tuple(sorted(events, key=lambda event: (event.start_s, event.device)))


def _transfer(crossing: Crossing) -> Event:
    queue, value = crossing.hop.queue, crossing.hop.value
    wait_s = crossing.start_s - crossing.ready_s
    return Event(
        crossing.start_s,
        crossing.end_s - crossing.start_s,
        queue.source,
        "transfer",
        "SEND",
        f"{value.index}SEND{value.part}",
        value.index,
        value.part,
        queue.target,
        queue.channel,
        crossing.bytes,
        wait_s,
        f"the link to device {queue.target}" if wait_s > 0 else "",
        (value,),
        (value,),
    )


def _compute(computed: Computed) -> Event:
    compute = computed.compute
    return Event(
        computed.start_s,
        computed.end_s - computed.start_s,
        computed.device,
        "compute",
        compute.op,
        str(compute),
        compute.index,
        compute.part,
        reads=compute.reads,
        writes=compute.writes,
    )


def _rate(size_bytes: float, time_s: float) -> float:
    return size_bytes / time_s if time_s else 0.0
