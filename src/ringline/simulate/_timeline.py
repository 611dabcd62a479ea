"""`Timeline`: what ran when, and the numbers that people ask of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ringline.schedule import Value

Interval = tuple[float, float]
# Of events that a stage's chips do among themselves, beside the channels to its neighbours.
GROUP_CHANNEL = -1


@dataclass(frozen=True, slots=True)
class Event:
    """One computation on a device, or one transfer over a link.

    Attributes:
        start_s: when it starts, from the start of the step.
        duration_s: how long it takes; for a transfer until the value has arrived.
        device: the stage or device that computes, or sends.
        queue: `compute` or `transfer`.
        kind: the operation: F, B, I, W, SEND_F, SEND_B, SEND, GATHER, REDUCE and so on.
        label: the text form: `2F0` is the forward of chunk 2 for microbatch 0.
        index: the chunk that computes, or that reads what is sent; or the stripe's owner.
        part: the microbatch, or the piece of the stripe.
        peer: the device a transfer goes to, itself for a gather or a reduction among the chips
            of a stage; None for a computation.
        channel: the channel of a transfer.
        bytes: size of a transfer, 0 where it is not known.
        wait_s: how long before `start_s` it could have started but for what `wait` names: a
            computation waits with its device idle, a transfer with its value ready.
        wait: what it waited for, or an empty text.
        reads: the values it needs on `device`.
        writes: the values it makes: on `device`, or for a transfer on `peer`.
    """

    start_s: float
    duration_s: float
    device: int
    queue: Literal["compute", "transfer"]
    kind: str
    label: str
    index: int
    part: int
    peer: int | None = None
    channel: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    wait: str = ""
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.duration_s

    @property
    def track(self) -> str:
        """The line of a drawing it belongs to: `stage 2`, or `link 2 > 3`."""
        if self.peer is None:
            return f"stage {self.device}"
        if self.peer == self.device:
            return f"chips of stage {self.device}"
        return f"link {self.device} > {self.peer}"


@dataclass(frozen=True)
class Timeline:
    """The events of one run of a program, in the order they start.

    Two bubbles exist, and schedules differ in which of them they shrink:

    * `bubble_s`: of the stage whose span (first to last computation) is the longest, the part of
      that span without work. This is the bubble that papers report.
    * `makespan_bubble_s`: the step's time minus the work of the busiest stage. This is what a
      step pays when something at its end waits for all stages.

    Attributes:
        name: the schedule's name.
        events: every computation and transfer.
        devices: how many devices (stages) took part.
        peak_activations: per device, the most residuals it held at once.

    Example:
        >>> from ringline import schedules
        >>> from ringline.simulate import simulate
        >>> step = simulate(schedules.linear(stages=4, microbatches=8), forward_s=1, backward_s=2)
        >>> step.makespan_s, step.bubble_s, step.peak_activations
        (33.0, 9.0, (8, 8, 8, 8))
    """

    name: str
    events: tuple[Event, ...]
    devices: int
    peak_activations: tuple[int, ...] = ()

    @cached_property
    def makespan_s(self) -> float:
        """Time from the start of the step until everything has run and arrived."""
        return max((event.end_s for event in self.events), default=0.0)

    @cached_property
    def work_per_stage_s(self) -> tuple[float, ...]:
        """Per stage, the sum of its computations."""
        return tuple(sum(e.duration_s for e in row) for row in self._computes)

    @cached_property
    def span_per_stage_s(self) -> tuple[float, ...]:
        """Per stage, the time from the start of its first computation to the end of its last."""
        return tuple(row[-1].end_s - row[0].start_s if row else 0.0 for row in self._computes)

    @cached_property
    def bubble_s(self) -> float:
        """The longest stage's span minus its work."""
        return self.span_per_stage_s[self._longest] - self.work_per_stage_s[self._longest]

    @cached_property
    def bubble_rate(self) -> float:
        """`bubble_s` as a share of the longest stage's span."""
        return _share(self.bubble_s, self.span_per_stage_s[self._longest])

    @cached_property
    def makespan_bubble_s(self) -> float:
        """The makespan minus the work of the busiest stage."""
        return self.makespan_s - max(self.work_per_stage_s)

    @cached_property
    def makespan_bubble_rate(self) -> float:
        """`makespan_bubble_s` as a share of the makespan."""
        return _share(self.makespan_bubble_s, self.makespan_s)

    @cached_property
    def exposed_transfer_per_stage_s(self) -> tuple[float, ...]:
        """Per stage, the time in which it communicates and computes nothing.

        It sends, is being sent to, or its chips gather weights or reduce gradients.
        """
        transfers: list[list[Interval]] = [[] for _ in range(self.devices)]
        for event in self.events:
            if event.peer is not None:
                for device in {event.device, event.peer}:
                    transfers[device].append((event.start_s, event.end_s))
        return tuple(
            _length_outside(busy, [(e.start_s, e.end_s) for e in computes])
            for busy, computes in zip(transfers, self._computes)
        )

    @cached_property
    def exposed_transfer_s(self) -> float:
        """The largest of `exposed_transfer_per_stage_s`."""
        return max(self.exposed_transfer_per_stage_s)

    @cached_property
    def _computes(self) -> tuple[tuple[Event, ...], ...]:
        rows: list[list[Event]] = [[] for _ in range(self.devices)]
        for event in self.events:
            if event.queue == "compute":
                rows[event.device].append(event)
        return tuple(tuple(row) for row in rows)

    @cached_property
    def _longest(self) -> int:
        """The stage with the longest span; among equals the one with the least work."""
        return max(
            range(self.devices),
            key=lambda stage: (self.span_per_stage_s[stage], -self.work_per_stage_s[stage]),
        )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as disjoint intervals in order.

    Example:
        >>> union([(3, 4), (0, 2), (1, 3), (6, 7)])
        [(0, 4), (6, 7)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length_outside(intervals: Iterable[Interval], covered: Iterable[Interval]) -> float:
    """The length of the union of `intervals` that the union of `covered` leaves."""
    total = 0.0
    holes = union(covered)
    position = 0
    for start, end in union(intervals):
        while position < len(holes) and holes[position][1] <= start:
            position += 1
        at = position
        total += end - start
        while at < len(holes) and holes[at][0] < end:
            total -= min(end, holes[at][1]) - max(start, holes[at][0])
            at += 1
    return total


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
