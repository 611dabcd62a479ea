"""Place the computations of a `Program` on ticks: what runs where when all devices keep step.

In one tick a device runs at most one operation of each *phase*, phases in order (forward, then
backward). A value that another device makes in tick t can be read from tick t + hop on.
"""

from dataclasses import dataclass

from ringline.schedule._errors import ScheduleError
from ringline.schedule._program import Compute, Program, Receive, Send, Value


@dataclass(frozen=True, slots=True)
class Placed:
    """A computation and the tick and phase it runs in."""

    compute: Compute
    tick: int
    phase: int


def place_on_ticks(
    program: Program, phases: tuple[str, ...] = ("FBIW",), hop: int = 1
) -> tuple[tuple[Placed, ...], ...]:
    """For each device, its computations in order with the earliest tick that each can have.

    Args:
        program: the instructions of every device.
        phases: the operations of each phase of a tick, such as `("F", "BIW")`; each operation
            belongs to one phase.
        hop: ticks from the making of a value to its first use on another device.

    Raises:
        ScheduleError: when no device can go on.

    Example:
        >>> from ringline.schedule import linear, place_on_ticks
        >>> rows = place_on_ticks(linear(stages=2, microbatches=2).forward().program())
        >>> [(str(p.compute), p.tick) for p in rows[1]]
        [('1F0', 1), ('1F1', 2)]
    """
    return _Placement(program, phases, hop).rows()


class _Placement:
    def __init__(self, program: Program, phases: tuple[str, ...], hop: int):
        self.program = program
        self.phases = phases
        self.hop = hop
        self.computes = [[i for i in row if isinstance(i, Compute)] for row in program.rows]
        self.position = [0] * program.devices
        self.placed: list[list[Placed]] = [[] for _ in program.rows]
        # When each device may first read a value, as (tick, phase).
        self.ready: list[dict[Value, tuple[int, int]]] = [
            dict.fromkeys(values, (-1, 0)) for values in program.initial
        ]
        self.sent_to = {
            (device, i.value): i.peer for device, _, i in program if isinstance(i, Send)
        }
        self.crosses = {(device, i.value) for device, _, i in program if isinstance(i, Receive)}

    def rows(self) -> tuple[tuple[Placed, ...], ...]:
        tick = last_progress = 0
        while any(p < len(c) for p, c in zip(self.position, self.computes)):
            for phase in range(len(self.phases)):
                for device in range(self.program.devices):
                    if self._place(device, tick, phase):
                        last_progress = tick
            if tick - last_progress > self.hop:
                self._stuck()
            tick += 1
        return tuple(tuple(row) for row in self.placed)

    def _place(self, device: int, tick: int, phase: int) -> bool:
        position = self.position[device]
        if position == len(self.computes[device]):
            return False
        compute = self.computes[device][position]
        if compute.op not in self.phases[phase]:
            return False
        ready = self.ready[device]
        if any(ready.get(value, (tick + 1, 0)) > (tick, phase) for value in compute.reads):
            return False
        for value in compute.writes:
            ready[value] = (tick, phase + 1)
            peer = self.sent_to.get((device, value))
            if peer is not None and (peer, value) in self.crosses:
                self.ready[peer][value] = (tick + self.hop, 0)
        self.placed[device].append(Placed(compute, tick, phase))
        self.position[device] += 1
        return True

    def _stuck(self) -> None:
        device = next(d for d, c in enumerate(self.computes) if self.position[d] < len(c))
        step = self.position[device]
        raise ScheduleError(
            f"stage {device} step {step}: {self.computes[device][step]} never finds what it "
            "reads; the order deadlocks",
            device=device,
            step=step,
        )
