"""`Program`: the one form that collective and pipeline schedules both lower to.

A program is, for each device, one ordered list of instructions on named values:

| instruction | meaning |
|---|---|
| `Compute`  | reads values that the device holds, writes new ones |
| `Send`     | gives a held value to a neighbour, over one channel |
| `Receive`  | takes the next value from a neighbour's channel |

Everything that needs the order reads it from here: the checker (`run`), slot allocation
(`allocate_slots`), the simulator, the drawings and the executors.

Instructions of one device share `queue`s. Two readings of the list exist, and both are used:

* *blocking*: the device does one instruction after the other (one thread);
* *asynchronous*: instructions of one queue stay in order, and an instruction also waits for the
  values it reads; queues run beside each other. This is what hardware with separate compute and
  data movers does, and what "transfers overlap compute" means.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Value(NamedTuple):
    """The name of something that a device can hold in a slot.

    Pipelines use the kinds `activation`, `residual`, `cotangent` and `handover` with `index` the
    chunk and `part` the microbatch. Collectives use `stripe` (and `partial` sums) with `index`
    the device that owns the stripe and `part` the piece of it.
    """

    kind: str
    index: int
    part: int

    def __str__(self) -> str:
        return f"{self.kind}[{self.index},{self.part}]"


@dataclass(frozen=True, slots=True)
class Compute:
    """One computation: operation `op` of chunk or stripe `index`, microbatch or piece `part`."""

    op: str
    index: int
    part: int
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()

    @property
    def queue(self) -> tuple[str, int, int]:
        """Computations of a device run one after the other."""
        return ("compute", -1, 0)

    def __str__(self) -> str:
        return f"{self.index}{self.op}{self.part}"


@dataclass(frozen=True, slots=True)
class Send:
    """Give `value` to device `peer` on `channel`. `op` is the text form: SEND_F, SEND_B, SEND."""

    value: Value
    peer: int
    channel: int = 0
    op: str = "SEND"
    step: int = 0

    @property
    def queue(self) -> tuple[str, int, int]:
        """Sends to one peer over one channel stay in order."""
        return ("send", self.peer, self.channel)

    @property
    def reads(self) -> tuple[Value, ...]:
        """The value sent."""
        return (self.value,)

    @property
    def writes(self) -> tuple[Value, ...]:
        """Nothing."""
        return ()

    def __str__(self) -> str:
        return f"{_text_index(self)}{self.op}{self.value.part}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Take `value` from device `peer` on `channel`. `op` is RECV_F, RECV_B or RECV."""

    value: Value
    peer: int
    channel: int = 0
    op: str = "RECV"
    step: int = 0

    @property
    def queue(self) -> tuple[str, int, int]:
        """Receives from one peer over one channel stay in order."""
        return ("receive", self.peer, self.channel)

    @property
    def reads(self) -> tuple[Value, ...]:
        """Nothing that the device holds."""
        return ()

    @property
    def writes(self) -> tuple[Value, ...]:
        """The value received."""
        return (self.value,)

    def __str__(self) -> str:
        return f"{_text_index(self)}{self.op}{self.value.part}"


Instruction = Compute | Send | Receive


def _text_index(transfer: Send | Receive) -> int:
    """The chunk a transfer belongs to in the text form: the one that runs on this device.

    A value is named after the chunk that reads it (activations) or whose output it is the
    cotangent of, so a sender names its own chunk, one off the value's index.
    """
    if transfer.op == "SEND_F":
        return transfer.value.index - 1
    if transfer.op == "SEND_B":
        return transfer.value.index + 1
    return transfer.value.index


@dataclass(frozen=True, slots=True)
class Program:
    """Ordered instructions per device, with what each holds before and must hold after.

    Attributes:
        rows: per device, its instructions in order.
        initial: per device, the values it holds before the first instruction.
        final: per device, the values it must hold after the last one.
    """

    rows: tuple[tuple[Instruction, ...], ...]
    initial: tuple[tuple[Value, ...], ...] = field(default=())
    final: tuple[tuple[Value, ...], ...] = field(default=())

    def __post_init__(self):
        empty = ((),) * len(self.rows)
        object.__setattr__(self, "initial", self.initial or empty)
        object.__setattr__(self, "final", self.final or empty)
        assert len(self.initial) == len(self.final) == len(self.rows)

    @property
    def devices(self) -> int:
        """How many devices take part."""
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, int, Instruction]]:
        """Yield (device, step, instruction) in device order."""
        for device, row in enumerate(self.rows):
            for step, instruction in enumerate(row):
                yield device, step, instruction

    def __str__(self) -> str:
        return "\n".join(",".join(str(i) for i in row) for row in self.rows)
