"""The event simulator: when each instruction of a `Program` runs.

A device's instructions wait in lanes, each in order. Read asynchronously, every queue of the
device (its computations, its sends to one peer, ...) is a lane; read as blocking, the whole
device is one. The instruction at the head of a lane starts as soon as the lane is free and the
device holds what it reads. Time moves from event to event over one heap, ties in the order they
were scheduled, so equal inputs give equal timelines, event for event.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

from ringline.schedule import (
    Compute,
    Instruction,
    Program,
    Receive,
    ScheduleError,
    Send,
    Value,
    check_program,
)
from ringline.simulate._link import Link
from ringline.simulate._memory import peak_live
from ringline.simulate._timeline import GROUP_CHANNEL, Event, Timeline

Channel = tuple[int, int, int]


def simulate_program(
    program: Program,
    *,
    compute_s: Callable[[int, Compute], float],
    link: Callable[[Channel], Link] | Link = Link(),  # noqa: B008 (frozen)
    size_bytes: Callable[[Value], int] = lambda value: 0,
    overlap: bool = True,
    name: str = "program",
) -> Timeline:
    """Run `program` on links and give back what happened when.

    Args:
        program: the instructions of every device.
        compute_s: the time of a computation on a device.
        link: what carries the transfers: one for all, or one for each
            (source, target, channel).
        size_bytes: the size of a value that is sent.
        overlap: whether transfers run beside the computations (asynchronous reading). False for
            one instruction after the other (blocking reading): a send then keeps its device
            busy, and a receive waits for the arrival.
        name: of the timeline.

    Returns:
        The events in the order they start, with the peak of `residual` values.

    Raises:
        ScheduleError: when the program cannot reach its end, naming stage and step.
    """
    run = _Run(program, compute_s, link, size_bytes, overlap)
    events = run.to_end()
    return Timeline(name, tuple(events), program.devices, peak_live(program, "residual"))


class _Lane:
    """Instructions that run one after the other."""

    __slots__ = ("blocked_by", "device", "free_s", "instructions", "position")

    def __init__(self, device: int):
        self.device = device
        self.instructions: list[Instruction] = []
        self.position = 0
        self.free_s = 0.0
        self.blocked_by: Value | None = None


class _Run:
    """One run, from time 0 until nothing moves."""

    def __init__(
        self,
        program: Program,
        compute_s: Callable[[int, Compute], float],
        link: Callable[[Channel], Link] | Link,
        size_bytes: Callable[[Value], int],
        overlap: bool,
    ):
        self.program = program
        self.compute_s = compute_s
        self.link = (lambda channel: link) if isinstance(link, Link) else link
        self.size_bytes = size_bytes
        self.lanes = [
            lane for d, row in enumerate(program.rows) for lane in _lanes(d, row, overlap)
        ]
        self.held_since: list[dict[Value, float]] = [
            dict.fromkeys(values, 0.0) for values in program.initial
        ]
        self.came_from: list[dict[Value, int]] = [{} for _ in program.rows]
        self.waiting: dict[tuple[int, Value], list[_Lane]] = {}
        self.arrived: dict[Channel, deque[Value]] = {}
        self.receiving: dict[Channel, _Lane] = {}
        self.events: list[Event] = []
        self.heap: list[tuple[float, int, Callable, tuple]] = []
        self.scheduled = 0

    def to_end(self) -> list[Event]:
        for lane in self.lanes:
            self._go_on(lane, 0.0)
        while self.heap:
            now, _, action, arguments = heapq.heappop(self.heap)
            action(now, *arguments)
        if any(lane.position < len(lane.instructions) for lane in self.lanes):
            self._explain_stop()
        return self.events

    def _at(self, time_s: float, action: Callable, *arguments: object) -> None:
        self.scheduled += 1
        heapq.heappush(self.heap, (time_s, self.scheduled, action, arguments))

    def _go_on(self, lane: _Lane, now: float) -> None:
        """Start the instruction at the head of a free lane, unless something is missing."""
        while lane.position < len(lane.instructions):
            instruction = lane.instructions[lane.position]
            held = self.held_since[lane.device]
            for value in instruction.reads:
                if value not in held:
                    lane.blocked_by = value
                    self.waiting.setdefault((lane.device, value), []).append(lane)
                    return
            match instruction:
                case Compute():
                    return self._start_compute(lane, instruction, now)
                case Send():
                    return self._start_send(lane, instruction, now)
                case Receive():
                    channel = (instruction.peer, lane.device, instruction.channel)
                    queue = self.arrived.get(channel)
                    if not queue:
                        lane.blocked_by = instruction.value
                        self.receiving[channel] = lane
                        return
                    if queue[0] != instruction.value:
                        return  # nothing mends this: the lane stays here, see `_explain_stop`
                    lane.position += 1
                    self.came_from[lane.device][queue[0]] = instruction.peer
                    self._hold(lane.device, queue.popleft(), now)

    def _start_compute(self, lane: _Lane, compute: Compute, now: float) -> None:
        duration_s = self.compute_s(lane.device, compute)
        wait_s = now - lane.free_s
        group = compute.queue[0] == "group"
        self.events.append(
            Event(
                now,
                duration_s,
                lane.device,
                "transfer" if group else "compute",
                compute.op,
                str(compute),
                compute.index,
                compute.part,
                lane.device if group else None,
                GROUP_CHANNEL if group else 0,
                wait_s=wait_s,
                wait=self._reason(lane) if wait_s > 0 else "",
                reads=() if group else compute.reads,
                writes=() if group else compute.writes,
            )
        )
        self._at(now + duration_s, self._finish, lane, compute)

    def _start_send(self, lane: _Lane, send: Send, now: float) -> None:
        channel = (lane.device, send.peer, send.channel)
        link = self.link(channel)
        size = self.size_bytes(send.value)
        busy_s = link.busy_s(size)
        wait_s = now - self.held_since[lane.device][send.value]
        self.events.append(
            Event(
                now,
                busy_s + link.latency_s,
                lane.device,
                "transfer",
                send.op,
                str(send),
                send.value.index,
                send.value.part,
                send.peer,
                send.channel,
                size,
                wait_s,
                f"the link to stage {send.peer}" if wait_s > 0 else "",
                send.reads,
                send.reads,
            )
        )
        self._at(now + busy_s, self._finish, lane, send)
        self._at(now + busy_s + link.latency_s, self._arrive, channel, send.value)

    def _finish(self, now: float, lane: _Lane, instruction: Instruction) -> None:
        lane.position += 1
        lane.free_s = now
        lane.blocked_by = None
        for value in instruction.writes:
            self._hold(lane.device, value, now)
        self._go_on(lane, now)

    def _arrive(self, now: float, channel: Channel, value: Value) -> None:
        self.arrived.setdefault(channel, deque()).append(value)
        lane = self.receiving.pop(channel, None)
        if lane:
            self._go_on(lane, now)

    def _hold(self, device: int, value: Value, now: float) -> None:
        self.held_since[device][value] = now
        for lane in self.waiting.pop((device, value), ()):
            self._go_on(lane, now)

    def _reason(self, lane: _Lane) -> str:
        value = lane.blocked_by
        if value is None:
            return ""
        peer = self.came_from[lane.device].get(value)
        return str(value) if peer is None else f"{value} from stage {peer}"

    def _explain_stop(self) -> None:
        """Raise what the checker says: a run that stops here stops there too."""
        check_program(self.program)
        raise ScheduleError("the program does not reach its end; check it with `check_program`")


def _lanes(device: int, row: Sequence[Instruction], overlap: bool) -> list[_Lane]:
    lanes: dict[object, _Lane] = {}
    for instruction in row:
        key = instruction.queue if overlap else "all"
        if key not in lanes:
            lanes[key] = _Lane(device)
        lanes[key].instructions.append(instruction)
    return list(lanes.values())
