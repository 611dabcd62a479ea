"""Read a `Program` as packets see it: which queue each value crosses, and where it goes on.

A *queue* is one channel of one directed link. Two kinds of traffic merge into it: what the
sending device puts in itself, and what came in on the same channel from the device behind and
goes on without leaving the routers (cut-through). The checker and the packet simulator read
both from here, so neither derives an order of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from ringline.schedule._program import Compute, Program, Receive, Send, Value

Injection = Literal["greedy", "bubble"]


class Queue(NamedTuple):
    """One channel of the link from `source` to `target`."""

    source: int
    target: int
    channel: int

    def __str__(self) -> str:
        return f"link {self.source}>{self.target} channel {self.channel}"


@dataclass(frozen=True, slots=True)
class Hop:
    """One value on its way over one queue.

    Attributes:
        queue: what it crosses.
        value: what moves.
        forwarded: whether it comes out of the slots of the hop before it; if not, the device
            puts it in from memory once it holds the value.
        onward: the queue it goes on to from the receiver's slots, None where it ends.
    """

    queue: Queue
    value: Value
    forwarded: bool
    onward: Queue | None


@dataclass(frozen=True)
class Hops:
    """All hops of a program.

    Attributes:
        program: where they come from.
        all: every hop, in the order of the devices' lists.
    """

    program: Program
    all: tuple[Hop, ...] = field(repr=False)

    @cached_property
    def by_queue(self) -> dict[Queue, dict[Value, Hop]]:
        """Per queue, the hop of each value that crosses it."""
        queues: dict[Queue, dict[Value, Hop]] = {}
        for hop in self.all:
            queues.setdefault(hop.queue, {})[hop.value] = hop
        return queues

    @cached_property
    def injected(self) -> dict[Queue, tuple[Hop, ...]]:
        """Per queue, what its source puts in itself, in order."""
        return {
            queue: tuple(hop for hop in hops.values() if not hop.forwarded)
            for queue, hops in self.by_queue.items()
        }

    @cached_property
    def cycles(self) -> tuple[tuple[Queue, ...], ...]:
        """Rings of queues, each of which traffic goes on from to the next.

        Only here can packets wait for each other in a circle. A queue belongs to one ring at
        most, as each goes on to one queue of its channel.
        """
        onward = {hop.queue: hop.onward for hop in self.all if hop.onward is not None}
        found: list[tuple[Queue, ...]] = []
        seen: set[Queue] = set()
        for start in self.by_queue:
            path: dict[Queue, None] = {}
            at: Queue | None = start
            while at is not None and at not in seen:
                seen.add(at)
                path[at] = None
                at = onward.get(at)
            if at in path:
                order = list(path)
                found.append(tuple(order[order.index(at) :]))
        return tuple(found)

    def length(self, hop: Hop) -> int:
        """How many queues a value crosses from `hop` on without leaving the slots."""
        count, at = 1, hop
        while at.onward is not None:
            at = self.by_queue[at.onward][hop.value]
            count += 1
        return count


def hops_of(program: Program, *, cut_through: bool = True) -> Hops:
    """Every hop of `program`.

    Args:
        program: the instructions of every device.
        cut_through: whether a value that a device sends on, over the channel it came in on and
            away from where it came from, goes from slot to slot. If not, each device takes a
            value to memory and sends it from there (store and forward).
    """
    onward: dict[tuple[Queue, Value], Queue] = {}
    for device, row in enumerate(program.rows):
        came: dict[Value, Queue] = {}
        for instruction in row:
            match instruction:
                case Receive():
                    queue = Queue(instruction.peer, device, instruction.channel)
                    came[instruction.value] = queue
                case Send() if cut_through and instruction.value in came:
                    queue = came[instruction.value]
                    straight = queue.channel == instruction.channel
                    if straight and queue.source != instruction.peer:
                        came.pop(instruction.value)  # the slot goes on once
                        onward[queue, instruction.value] = Queue(
                            device, instruction.peer, instruction.channel
                        )
                case Send() | Compute():
                    pass
    targets = {(queue, value) for (_, value), queue in onward.items()}
    hops = []
    for device, _, instruction in program:
        if isinstance(instruction, Send):
            queue = Queue(device, instruction.peer, instruction.channel)
            key = (queue, instruction.value)
            hops.append(Hop(queue, instruction.value, key in targets, onward.get(key)))
    return Hops(program, tuple(hops))


def free_slots_to_inject(hops: Hops, queue: Queue, injection: Injection) -> int:
    """Slots that must be free in the next receiver before a device puts in a packet of its own.

    Bubble flow control asks for two on a ring of queues, so that one stays free for the traffic
    that is on its way; traffic that goes on asks for one.
    """
    closed = any(queue in cycle for cycle in hops.cycles)
    return 2 if injection == "bubble" and closed else 1


def pieces_of(program: Program) -> int:
    """Pieces that each stripe is cut into."""
    return 1 + max((value.part for held in program.initial for value in held), default=0)


def piece_bytes(program: Program, gathered_bytes: int) -> Callable[[Value], int]:
    """Sizes of the pieces when all stripes together are `gathered_bytes`.

    They differ by one byte where it does not divide.
    """
    pieces = pieces_of(program)
    count = program.devices * pieces

    def size_bytes(value: Value) -> int:
        at = value.index * pieces + value.part
        return (at + 1) * gathered_bytes // count - at * gathered_bytes // count

    return size_bytes
