"""Packets on links: when each value of a `Program` arrives, with slots, credits and arbitration.

Every packet takes the same way over a link from u to v:

    worker of u -> slot of the local sender \
                                             > wire u>v -> slot of the receiver -> memory of v
    receiver's slot of the link before -> slot of the forwarding sender /         or onwards

The wire takes turns between senders and channels, and sends only what the receiver has a free
slot for. An acknowledgement frees the sender's slot, a completion the receiver's.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ringline.schedule import Compute, Program, Value
from ringline.schedule._hops import Hop, Hops, Injection, Queue, free_slots_to_inject
from ringline.topology import Mover

Packet = tuple["_Travel", int]  # the value's hop, and the packet's bytes


@dataclass(frozen=True, slots=True)
class Crossing:
    """One value over one queue: first packet on the wire, last packet in memory or a slot."""

    hop: Hop
    bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Computed:
    """One computation of a device."""

    device: int
    compute: Compute
    start_s: float
    end_s: float


class PacketRun:
    """One run of a program's packets, from `start_s` until nothing moves.

    Attributes:
        crossings: what crossed which queue when, in the order the crossings end.
        computed: the computations, in the order they end.
        busy_s: per directed link, how long its wire carried packets.
        payload_bytes: per directed link, the payload it carried.
    """

    def __init__(
        self,
        hops: Hops,
        mover: Mover,
        size_bytes: Callable[[Value], int],
        compute_s: Callable[[int, Compute], float],
        injection: Injection,
        start_s: float,
        wire_of: Callable[[int, int], tuple[int, int]] = lambda source, target: (source, target),
    ):
        self.mover = mover
        self.size_bytes = size_bytes
        self.compute_s = compute_s
        self.crossings: list[Crossing] = []
        self.computed: list[Computed] = []
        self.links: dict[tuple[int, int], _Wire] = {}
        self.ports: dict[Queue, _Port] = {}
        self._heap: list[tuple] = []
        self._order = 0
        self._packet_s: dict[int, float] = {}
        self._join(hops, injection, wire_of)
        self.held: list[set[Value]] = [set(values) for values in hops.program.initial]
        self.waiting: dict[tuple[int, Value], list[Callable[[float], None]]] = {}
        for device in range(hops.program.devices):
            _Worker(self, device, hops.program).go_on(start_s)
        for port in self.ports.values():
            self._inject(start_s, port)
        while self._heap:
            now, _, action, *arguments = heapq.heappop(self._heap)
            action(now, *arguments)

    @property
    def stuck(self) -> list["_Port"]:
        """Ports that still hold packets or have some to put in, empty after a full run."""
        return [port for port in self.ports.values() if port.unfinished]

    def _join(
        self, hops: Hops, injection: Injection, wire_of: Callable[[int, int], tuple[int, int]]
    ) -> None:
        for queue in hops.by_queue:
            wire = self.links.setdefault(wire_of(queue.source, queue.target), _Wire())
            least_free = free_slots_to_inject(hops, queue, injection)
            self.ports[queue] = port = _Port(queue, self.mover, wire, least_free)
            wire.senders += [(port, port.local), (port, port.forwarding)]
        for queue, port in self.ports.items():
            travels = {hop.value: _Travel(hop, port) for hop in hops.by_queue[queue].values()}
            port.travels = travels
            port.to_inject = deque(travels[hop.value] for hop in hops.injected[queue])
        for port in self.ports.values():
            for value, travel in port.travels.items():
                if travel.hop.onward is not None:
                    ahead = self.ports[travel.hop.onward]
                    travel.onward = ahead.travels[value]
                    if port not in ahead.behind:
                        ahead.behind.append(port)

    def at(self, time_s: float, action: Callable, *arguments: object) -> None:
        """Do `action(time_s, *arguments)` when time has come."""
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, action, *arguments))

    def when_held(self, device: int, value: Value, action: Callable[[float], None]) -> bool:
        """Whether `device` holds `value`; if not, `action` is called when it does."""
        if value in self.held[device]:
            return True
        self.waiting.setdefault((device, value), []).append(action)
        return False

    def hold(self, now: float, device: int, value: Value) -> None:
        """`device` has `value` from now on."""
        self.held[device].add(value)
        for action in self.waiting.pop((device, value), ()):
            action(now)

    def _inject(self, now: float, port: "_Port") -> None:
        """The worker fills the next free slot of the local sender."""
        if port.injecting or not port.local_free or not port.to_inject:
            return
        travel = port.to_inject[0]
        if travel.left < 0:
            if not self.when_held(
                port.queue.source, travel.hop.value, lambda now: self._inject(now, port)
            ):
                return
            travel.begin(self.size_bytes(travel.hop.value), now)
        size = min(travel.left, self.mover.packet_bytes)
        travel.left -= size
        if travel.left == 0:
            port.to_inject.popleft()
        port.injecting = True
        port.local_free -= 1
        self.at(now + size / self.mover.inject_bytes_per_s, self._injected, port, (travel, size))

    def _injected(self, now: float, port: "_Port", packet: Packet) -> None:
        port.injecting = False
        port.local.append(packet)
        self._arbitrate(now, port.wire)
        self._inject(now, port)

    def _arbitrate(self, now: float, wire: "_Wire") -> None:
        """A free wire takes the next packet, senders in turn."""
        if now < wire.free_s:
            return
        senders = wire.senders
        for i in range(wire.turn, wire.turn + len(senders)):
            port, sender = senders[i % len(senders)]
            least_free = port.least_free if sender is port.local else 1
            if sender and port.credits >= least_free:
                break
        else:
            return
        wire.turn = (i + 1) % len(senders)
        port.credits -= 1
        travel, size = packet = sender.popleft()
        if travel.start_s < 0:
            travel.start_s = now
        busy_s = self._wire_s(size)
        wire.busy_s += busy_s
        wire.payload_bytes += size
        wire.free_s = now + busy_s
        self.at(wire.free_s, self._arbitrate, wire)
        arrival_s = wire.free_s + self.mover.hop_latency_s
        self.at(arrival_s, self._arrive, port, packet, sender is port.local)

    def _wire_s(self, size: int) -> float:
        seconds = self._packet_s.get(size)
        if seconds is None:
            seconds = self._packet_s[size] = self.mover.packet_s(size)
        return seconds

    def _arrive(self, now: float, port: "_Port", packet: Packet, local: bool) -> None:
        port.receiver.append(packet)
        self.at(now + self.mover.hop_latency_s, self._acknowledged, port, local)
        self._drain(now, port)

    def _acknowledged(self, now: float, port: "_Port", local: bool) -> None:
        if local:
            port.local_free += 1
            self._inject(now, port)
        else:
            port.forwarding_free += 1
            for behind in port.behind:
                self._drain(now, behind)

    def _drain(self, now: float, port: "_Port") -> None:
        """Take packets out of the receiver in order: to memory, and onwards where they go on."""
        while port.receiver:
            travel, size = port.receiver[0]
            onward = travel.onward
            if onward is not None:
                ahead = onward.port
                if not ahead.forwarding_free:
                    return
                ahead.forwarding_free -= 1
                if onward.left < 0:
                    onward.begin(travel.bytes, now)
                ahead.forwarding.append((onward, size))
                self._arbitrate(now, ahead.wire)
            port.receiver.popleft()
            travel.arrived += size
            if travel.arrived == travel.bytes:
                self._landed(now, travel)
            self.at(now + self.mover.hop_latency_s, self._completed, port)

    def _landed(self, now: float, travel: "_Travel") -> None:
        hop = travel.hop
        self.crossings.append(Crossing(hop, travel.bytes, travel.ready_s, travel.start_s, now))
        self.hold(now, hop.queue.target, hop.value)

    def _completed(self, now: float, port: "_Port") -> None:
        port.credits += 1
        self._arbitrate(now, port.wire)


class _Worker:
    """The computations of a device, one after the other."""

    def __init__(self, run: PacketRun, device: int, program: Program):
        self.run = run
        self.device = device
        self.computes = deque(i for i in program.rows[device] if isinstance(i, Compute))

    def go_on(self, now: float) -> None:
        """Start the next computation, or come back when it has what it reads."""
        if not self.computes:
            return
        for value in self.computes[0].reads:
            if not self.run.when_held(self.device, value, self.go_on):
                return
        compute = self.computes.popleft()
        end_s = now + self.run.compute_s(self.device, compute)
        self.run.at(end_s, self._finish, compute, now)

    def _finish(self, now: float, compute: Compute, start_s: float) -> None:
        self.run.computed.append(Computed(self.device, compute, start_s, now))
        for value in compute.writes:
            self.run.hold(now, self.device, value)
        self.go_on(now)


class _Travel:
    """Progress of one value over one queue."""

    __slots__ = ("arrived", "bytes", "hop", "left", "onward", "port", "ready_s", "start_s")

    def __init__(self, hop: Hop, port: "_Port"):
        self.hop = hop
        self.port = port
        self.bytes = self.arrived = 0
        self.left = -1
        self.start_s = self.ready_s = -1.0
        self.onward: _Travel | None = None

    def begin(self, size_bytes: int, now: float) -> None:
        self.bytes = self.left = size_bytes
        self.ready_s = now


class _Wire:
    """One direction of a link."""

    __slots__ = ("busy_s", "free_s", "payload_bytes", "senders", "turn")

    def __init__(self):
        self.free_s = self.busy_s = 0.0
        self.payload_bytes = self.turn = 0
        self.senders: list[tuple[_Port, deque[Packet]]] = []


class _Port:
    """Both ends of one queue: two senders, a receiver, and the credits between them."""

    def __init__(self, queue: Queue, mover: Mover, wire: _Wire, least_free: int):
        self.queue = queue
        self.wire = wire
        self.least_free = least_free
        self.local: deque[Packet] = deque()
        self.forwarding: deque[Packet] = deque()
        self.receiver: deque[Packet] = deque()
        self.local_free = self.forwarding_free = mover.sender_slots
        self.credits = mover.receiver_slots
        self.injecting = False
        self.to_inject: deque[_Travel] = deque()
        self.travels: dict[Value, _Travel] = {}
        self.behind: list[_Port] = []

    @property
    def waits_for(self) -> Queue | None:
        """The queue that the oldest packet of the receiver goes on to."""
        onward = self.receiver[0][0].onward if self.receiver else None
        return None if onward is None else onward.port.queue

    @property
    def unfinished(self) -> bool:
        return bool(self.to_inject or self.local or self.forwarding or self.receiver)
