"""Rings and lines of hosts that have two devices each, so that both directions run at once.

Where a device runs its transfers one after the other (XLA on CPUs does), it never sends both ways
at the same time, and half of a full-duplex link idles. Two devices a host take one way each:

    rail 0    0 --> 2 --> 4 --> 6 -->
              |     |     |     |         | : rungs, inside a host
    rail 1    1 <-- 3 <-- 5 <-- 7 <--

Device 2h + r stands on host h and rail r.
"""

from dataclasses import dataclass

from ringline.topology._shapes import Line, Ring, topology

PER_HOST = 2


@dataclass(frozen=True, slots=True)
class Rails:
    """Hosts joined as a ring or a line, each device to its counterpart on the next host.

    The two rails share the links between the hosts and nothing else: a device gathers the stripes
    of its own rail.

    Example:
        >>> rails = Rails(Ring(4))
        >>> rails.devices, rails.neighbour(1, -1), list(rails.members(1))
        (8, 7, [1, 3, 5, 7])
    """

    hosts: Ring | Line

    @property
    def name(self) -> str:
        """What the topology is called: `ring-rails` or `line-rails`."""
        return f"{self.hosts.name}-{type(self).__name__.lower()}"

    @property
    def devices(self) -> int:
        """Two for each host."""
        return PER_HOST * self.hosts.devices

    @property
    def one_permute(self) -> bool:
        """What goes up and what comes down is one permute: the rails never go the same way."""
        return True

    @property
    def moves(self) -> tuple[int, ...]:
        """The directions that a device can send in."""
        return (1, -1)

    @property
    def diameter(self) -> int:
        """Hops between the two hosts farthest apart."""
        return self.hosts.diameter

    def members(self, device: int) -> range:
        """The devices of the same rail."""
        return range(device % PER_HOST, self.devices, PER_HOST)

    def neighbour(self, device: int, direction: int) -> int | None:
        """The counterpart on the next host (`direction` +1) or the one before (-1)."""
        host = self.hosts.neighbour(device // PER_HOST, direction)
        return None if host is None else PER_HOST * host + device % PER_HOST

    def wire(self, source: int, target: int) -> tuple[int, int]:
        """The directed link that the hop from `source` to `target` goes over.

        That between two hosts is both rails'; it is named after the devices of rail 0.
        """
        ends = (source - source % PER_HOST, target - target % PER_HOST)
        return (source, target) if ends[0] == ends[1] else ends

    def links(self) -> tuple[tuple[int, int], ...]:
        """Every directed link between hosts, named after their devices of rail 0."""
        return tuple((PER_HOST * a, PER_HOST * b) for a, b in self.hosts.links())


class Ladder(Rails):
    """Rails whose two devices of a host are joined too: a device gathers all stripes.

    Example:
        >>> Ladder(Ring(4)).neighbour(3, 0)
        2
    """

    @property
    def moves(self) -> tuple[int, ...]:
        """The directions that a device can send in; 0 is across, to the other one of its host."""
        return (1, -1, 0)

    def members(self, device: int) -> range:
        """All devices."""
        return range(self.devices)

    def neighbour(self, device: int, direction: int) -> int | None:
        """The counterpart on the next host (`direction` +1) or the one before (-1), or across."""
        return device ^ 1 if direction == 0 else Rails.neighbour(self, device, direction)


Topology = Ring | Line | Rails


def named(name: str, devices: int) -> Topology:
    """The topology of that `name`, over `devices` devices.

    Raises:
        ValueError: for any other name, and for an odd number of devices on rails.
    """
    hosts, _, kind = name.partition("-")
    shape = {"rails": Rails, "ladder": Ladder}.get(kind)
    if shape is None:
        return topology(name, devices)
    if devices % PER_HOST:
        raise ValueError(
            f"{name} has {PER_HOST} devices a host, got {devices} devices; use an even number"
        )
    return shape(topology(hosts, devices // PER_HOST))
