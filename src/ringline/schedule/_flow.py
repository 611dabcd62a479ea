"""The moves of packets on one ring of queues, as a transition system with exact slots.

Queue i of the ring goes from its device to the next. Two groups of slots belong to it: those of its
forwarding sender, F, where traffic from queue i - 1 waits for the wire, and those of its
receiver, R. A packet is known by how many more queues it crosses. Two moves compete for a
receiver's slot, and only there does the order of events matter:

* *inject*: the device puts in the next packet of its own;
* *forward*: the oldest packet of the forwarding sender takes the wire.

Packets that have arrived leave to memory, and a receiver's oldest packet goes on to a free slot
of the next forwarding sender. Both only make room and take it from no one, so doing them at once
leaves every stuck state reachable (a persistent set of one move).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ringline.schedule._hops import Hops, Injection, Queue
from ringline.schedule._program import Value


class Node(NamedTuple):
    """One queue with its slots, oldest packet first; numbers are queues still to cross.

    `injected` counts the packets that the device has put in, `seen` those that reached it.
    """

    sender: tuple[int, ...]
    receiver: tuple[int, ...]
    injected: int
    seen: int


State = tuple[Node, ...]


class Move(NamedTuple):
    """`queue` of the ring takes a packet: the device's own (`inject`) or one on its way."""

    queue: int
    inject: bool


class Packets(NamedTuple):
    """Packets of one value that a device puts in one after the other."""

    value: Value
    queues: int
    count: int


@dataclass(frozen=True)
class Flow:
    """One ring of queues, what each device puts in, and the rules.

    Attributes:
        queues: the ring, in order.
        own: per queue, what its device puts in during one call.
        slots: of each receiver.
        sender_slots: of each forwarding sender.
        injection: `greedy` asks for one free slot ahead, `bubble` for two.
        calls: how often the collective runs. A device starts a call when all packets of the one
            before have reached it.
    """

    queues: tuple[Queue, ...]
    own: tuple[tuple[Packets, ...], ...]
    slots: int
    sender_slots: int
    injection: Injection = "greedy"
    calls: int = 1

    @cached_property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Per queue, how many queues each of the device's own packets crosses, in order."""
        return tuple(tuple(p.queues for p in row for _ in range(p.count)) for row in self.own)

    @cached_property
    def crossing(self) -> tuple[int, ...]:
        """Per queue, the packets that cross it in one call."""
        count = [0] * len(self.queues)
        for at, row in enumerate(self.lengths):
            for length in row:
                for further in range(length):
                    count[(at + further) % len(count)] += 1
        return tuple(count)

    @cached_property
    def _onward_left(self) -> tuple[tuple[int, ...], ...]:
        """Per queue and number of packets put in, how many of the rest cross several queues."""
        left = []
        for mine in self.lengths:
            counts = [0]
            for length in reversed(mine * self.calls):
                counts.append(counts[-1] + (length > 1))
            left.append(tuple(reversed(counts)))
        return tuple(left)

    @cached_property
    def _first_onward(self) -> tuple[int, ...]:
        """Per queue, what its device puts in before the first packet that crosses several.

        Empty where every device starts with such a packet.
        """
        first = tuple(
            next((at for at, length in enumerate(row) if length > 1), len(row) * self.calls)
            for row in self.lengths
        )
        return first if any(first) else ()

    @cached_property
    def _longest(self) -> int:
        return max((length for row in self.lengths for length in row), default=1)

    @cached_property
    def capacity(self) -> int:
        """Packets that the whole ring holds."""
        return len(self.queues) * (self.slots + self.sender_slots)

    @property
    def start(self) -> State:
        """Nothing is under way."""
        return (Node((), (), 0, 0),) * len(self.queues)

    def moves(self, state: State) -> Iterator[Move]:
        """Every move that slots and credits allow."""
        least_free = 2 if self.injection == "bubble" else 1
        for queue, node in enumerate(state):
            free = self.slots - len(node.receiver)
            if node.sender and free:
                yield Move(queue, False)
            if free >= least_free and self.may_inject(state, queue):
                yield Move(queue, True)

    def may_inject(self, state: State, queue: int) -> bool:
        """Whether the device has a packet of its own left in a call that it has started."""
        mine, injected = len(self.lengths[queue]), state[queue].injected
        if injected >= mine * self.calls:
            return False
        call = injected // mine
        return call == 0 or state[queue].seen >= call * self.crossing[queue - 1]

    def after(self, state: State, move: Move) -> State:
        """The state after `move`, with arrivals and onward moves done."""
        nodes = list(state)
        sender, receiver, injected, seen = nodes[move.queue]
        if move.inject:
            mine = self.lengths[move.queue]
            packet = mine[injected % len(mine)] - 1
            nodes[move.queue] = Node(sender, (*receiver, packet), injected + 1, seen)
            self._settle(nodes, move.queue)
        else:
            nodes[move.queue] = Node(sender[1:], (*receiver, sender[0] - 1), injected, seen)
            self._settle(nodes, move.queue)
            self._settle(nodes, (move.queue - 1) % len(nodes))
        return tuple(nodes)

    def _settle(self, nodes: list[Node], queue: int) -> None:
        """Empty the receiver of `queue` as far as memory and the next sender's slots allow."""
        ahead = (queue + 1) % len(nodes)
        receiver, sender = nodes[queue].receiver, nodes[ahead].sender
        taken = 0
        while taken < len(receiver) and (receiver[taken] == 0 or len(sender) < self.sender_slots):
            if receiver[taken]:
                sender = (*sender, receiver[taken])
            taken += 1
        if taken:
            nodes[queue] = nodes[queue]._replace(receiver=receiver[taken:])
            nodes[ahead] = nodes[ahead]._replace(sender=sender, seen=nodes[ahead].seen + taken)

    def finished(self, state: State) -> bool:
        """Whether everything has been put in and has arrived."""
        return all(
            not node.sender and not node.receiver and node.injected == len(mine) * self.calls
            for node, mine in zip(state, self.lengths)
        )

    def least_moves_to_stop(self, state: State) -> int | None:
        """A lower bound on the moves to a state where nothing moves; None if there is none.

        With greedy injection all slots of the ring are full there: a free slot lets the queue
        behind send, or that queue is empty and has free slots too, and so on around the ring.
        Each injection fills one slot. Moreover every slot of the senders, and the oldest of each
        receiver, holds a packet that goes on.

        A packet that crosses up to L queues is the oldest, with more to cross, in the receivers of
        L - 1 queues at most, so of L - 1 neighbours one has put in such a packet. What it puts in
        before, that crosses one queue only, has to be gone by then: it fills no slot.
        """
        if self.injection == "bubble":
            return 0
        held = left = onward = 0
        for (sender, receiver, injected, _), ahead in zip(state, self._onward_left):
            held += len(sender) + len(receiver)
            left += len(ahead) - 1 - injected
            onward += len(sender) + len(receiver) - receiver.count(0) + ahead[injected]
        gone = 0
        if self._first_onward:
            first = sorted(
                max(0, first - node.injected) for node, first in zip(state, self._first_onward)
            )
            gone = sum(first[: -(-len(state) // max(1, self._longest - 1))])
        if held + left - gone < self.capacity or onward < len(state) * (self.sender_slots + 1):
            return None
        return self.capacity - held + gone

    def named(self, moves: tuple[Move, ...]) -> "Replay":
        """Replay `moves` with packets known by value and number."""
        return Replay(self, moves)


class Replay:
    """A run with every packet known: what moved, and what the slots hold at the end.

    Attributes:
        steps: (queue, value, number of the packet, inject) for each move.
        receivers: per queue, the (value, number) its receiver holds, oldest first.
        senders: the same for the forwarding senders.
    """

    def __init__(self, flow: Flow, moves: tuple[Move, ...]):
        count = len(flow.queues)
        to_put_in = [
            deque(
                (p.queues, p.value, number)
                for _ in range(flow.calls)
                for p in row
                for number in range(p.count)
            )
            for row in flow.own
        ]
        senders: list[deque] = [deque() for _ in range(count)]
        receivers: list[deque] = [deque() for _ in range(count)]
        self.steps: list[tuple[Queue, Value, int, bool]] = []
        for at, inject in moves:
            left, value, number = to_put_in[at].popleft() if inject else senders[at].popleft()
            self.steps.append((flow.queues[at], value, number, inject))
            receivers[at].append((left - 1, value, number))
            for queue in (at, (at - 1) % count):
                receiver, ahead = receivers[queue], senders[(queue + 1) % count]
                while receiver and (receiver[0][0] == 0 or len(ahead) < flow.sender_slots):
                    packet = receiver.popleft()
                    if packet[0]:
                        ahead.append(packet)
        self.receivers = [tuple(p[1:] for p in receiver) for receiver in receivers]
        self.senders = [tuple(p[1:] for p in sender) for sender in senders]


def flows_of(
    hops: Hops,
    *,
    packets: Callable[[Value], int],
    slots: int,
    sender_slots: int,
    injection: Injection,
    calls: int = 1,
) -> tuple[Flow, ...]:
    """The rings of queues of a schedule, without those that repeat another's traffic.

    A value that its device first receives over another queue counts as ready from the start.

    Args:
        hops: the schedule, as packets see it.
        packets: of each value.
        slots: of each receiver.
        sender_slots: of each forwarding sender.
        injection: the rule for a device's own packets.
        calls: how often the collective runs.
    """
    flows: dict[tuple, Flow] = {}
    for cycle in hops.cycles:
        own = tuple(
            tuple(
                Packets(hop.value, hops.length(hop), packets(hop.value))
                for hop in hops.injected[queue]
            )
            for queue in cycle
        )
        traffic = tuple(tuple(p[1:] for p in row) for row in own)
        if traffic not in flows:
            flows[traffic] = Flow(cycle, own, slots, sender_slots, injection, calls)
    return tuple(flows.values())
