"""Check a `Program`: every read finds its value, every receive its send, and no run hangs.

Devices of a `Program` never choose: each runs its own list in order. Such a network is a Kahn
network (Kahn 1974): what it computes, and whether it gets stuck, does not depend on who runs
first. So one greedy run decides for all of them, as long as sends block only on a full channel
and receives only on an empty one.
"""

from collections import deque
from collections.abc import Sequence

from ringline.schedule._errors import ScheduleError
from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value


def check_program(
    program: Program,
    *,
    capacity: int | None = None,
    steps: Sequence[Sequence[int]] | None = None,
) -> None:
    """Raise `ScheduleError` at the first fault of `program`.

    Checks that every value read is held by the device, that nothing is written
    twice, that each receive meets the send of the same value in the channel's order, that all
    devices reach the end, and that each ends up holding its `final` values.

    Args:
        program: the instructions of every device.
        capacity: how many values a channel holds between sender and receiver before a send
            blocks; None for no limit; 0 for rendezvous, where a send waits for its receive.
        steps: what each instruction of each device is called in messages; None for its place
            among the device's instructions.

    Raises:
        ScheduleError: with `device` and `step` of the first fault.

    Example:
        >>> from ringline.schedule import linear, check_program
        >>> check_program(linear(stages=4, microbatches=8).program())
    """
    _Run(program, capacity, steps).to_end()


class _Run:
    """One greedy run of a program, every device one thread."""

    def __init__(
        self,
        program: Program,
        capacity: int | None,
        steps: Sequence[Sequence[int]] | None,
    ):
        self.program = program
        self.capacity = capacity
        self.steps = steps or [range(len(row)) for row in program.rows]
        self.position = [0] * program.devices
        self.held: list[set[Value]] = [set(values) for values in program.initial]
        self.channels: dict[tuple[int, int, int], deque[Value]] = {}

    def to_end(self) -> None:
        ready = deque(range(self.program.devices))
        while ready:
            device = ready.popleft()
            moved = False
            while self._advance(device):
                moved = True
            if moved:
                ready.extend(d for d in range(self.program.devices) if d not in ready)
        self._finished()

    def _advance(self, device: int) -> bool:
        """Run the device's next instruction if nothing blocks it."""
        row, step = self.program.rows[device], self.position[device]
        if step == len(row):
            return False
        instruction = row[step]
        self._require_held(device, step, instruction)
        match instruction:
            case Send():
                if not self._try_send(device, instruction):
                    return False
            case Receive():
                if not self._try_receive(device, step, instruction):
                    return False
            case Compute():
                self._write(device, step, instruction)
        self.position[device] += 1
        return True

    def _require_held(self, device: int, step: int, instruction: Instruction) -> None:
        for value in instruction.reads:
            if value not in self.held[device]:
                raise self._fault(
                    device,
                    step,
                    f"{instruction} reads {value}, which the stage does not hold there; move it "
                    "after the step that makes or receives it",
                )

    def _write(self, device: int, step: int, instruction: Instruction) -> None:
        for value in instruction.writes:
            if value in self.held[device]:
                raise self._fault(
                    device,
                    step,
                    f"{instruction} writes {value} a second time; remove one of the two",
                )
            self.held[device].add(value)

    def _try_send(self, device: int, send: Send) -> bool:
        queue = self.channels.setdefault((device, send.peer, send.channel), deque())
        if self.capacity == 0:
            return self._rendezvous(device, send, queue)
        if self.capacity is not None and len(queue) >= self.capacity:
            return False
        queue.append(send.value)
        return True

    def _rendezvous(self, device: int, send: Send, queue: deque[Value]) -> bool:
        """Sender and receiver must both stand at the two ends of the transfer."""
        step = self.position[send.peer]
        row = self.program.rows[send.peer]
        receive = row[step] if step < len(row) else None
        if not (isinstance(receive, Receive) and receive.peer == device):
            return False
        if receive.channel != send.channel:
            return False
        queue.append(send.value)
        return self._advance(send.peer)

    def _try_receive(self, device: int, step: int, receive: Receive) -> bool:
        queue = self.channels.get((receive.peer, device, receive.channel))
        if not queue:
            return False
        if queue[0] != receive.value:
            raise self._fault(
                device,
                step,
                f"{receive} expects {receive.value} from stage {receive.peer}, but {queue[0]} was "
                f"sent first on channel {receive.channel}; put the two stages' transfers in the "
                "same order",
            )
        queue.popleft()
        self._write(device, step, receive)
        return True

    def _fault(self, device: int, step: int, what: str) -> ScheduleError:
        named = self.steps[device][step]
        return ScheduleError(f"stage {device} step {named}: {what}", device=device, step=named)

    def _finished(self) -> None:
        rows = self.program.rows
        stuck = [d for d in range(len(rows)) if self.position[d] < len(rows[d])]
        if stuck:
            waits = "; ".join(
                f"stage {d} step {self.steps[d][self.position[d]]} waits at "
                f"{rows[d][self.position[d]]} for stage {_peer(rows[d][self.position[d]])}"
                for d in stuck
            )
            raise self._fault(
                stuck[0],
                self.position[stuck[0]],
                f"deadlock, no stage can go on: {waits}",
            )
        for (source, target, channel), queue in self.channels.items():
            if queue:
                raise ScheduleError(
                    f"stage {target} never receives {queue[0]}, sent by stage {source} on "
                    f"channel {channel}; add the receive or drop the send",
                    device=target,
                )
        for device, values in enumerate(self.program.final):
            for value in values:
                if value not in self.held[device]:
                    raise ScheduleError(
                        f"stage {device} ends without {value}, which it must hold at the end",
                        device=device,
                    )


def _peer(instruction: Instruction) -> int | str:
    return "itself" if isinstance(instruction, Compute) else instruction.peer
