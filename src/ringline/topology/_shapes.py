"""How the devices of one mesh axis are joined: a ring, or a line without the wraparound link."""

from dataclasses import dataclass
from typing import Literal

TopologyName = Literal["ring", "line"]


@dataclass(frozen=True, slots=True)
class _Chain:
    """Devices 0..devices-1 in order, each joined to the next."""

    devices: int

    def __post_init__(self):
        if self.devices < 1:
            raise ValueError(f"a {self.name} needs at least 1 device, got {self.devices}")

    @property
    def name(self) -> str:
        """What the topology is called: `ring` or `line`."""
        return type(self).__name__.lower()

    @property
    def one_permute(self) -> bool:
        """Whether what goes up and what comes down is one permute: no device sends both ways."""
        return self.devices == 2

    @property
    def moves(self) -> tuple[int, ...]:
        """The directions that a device can send in."""
        return (1, -1)

    def members(self, device: int) -> range:
        """The devices that `device` gathers the stripes of, in the order they are joined."""
        return range(self.devices)

    def wire(self, source: int, target: int) -> tuple[int, int]:
        """The directed link that the hop from `source` to `target` goes over."""
        return (source, target)

    def neighbour(self, device: int, direction: int) -> int | None:
        """The device one hop away, `direction` +1 (up) or -1 (down); None past an end."""
        raise NotImplementedError

    def links(self) -> tuple[tuple[int, int], ...]:
        """Every directed link as (source, target)."""
        return tuple(
            (source, target)
            for direction in (1, -1)
            for source in range(self.devices)
            if (target := self.neighbour(source, direction)) is not None
        )


class Ring(_Chain):
    """Every device has two neighbours; the last is joined to the first.

    Two devices have one link between them, so a ring of two is a line; a ring of one has none.

    Example:
        >>> Ring(4).neighbour(3, 1), Ring(4).diameter
        (0, 2)
    """

    def neighbour(self, device: int, direction: int) -> int | None:
        """The device one hop away; past the ends it wraps around (for 3 devices and more)."""
        target = device + direction
        if 0 <= target < self.devices:
            return target
        return target % self.devices if self.devices > 2 else None

    @property
    def diameter(self) -> int:
        """Hops between the two devices farthest apart."""
        return self.devices // 2


class Line(_Chain):
    """The two end devices have one neighbour only.

    Example:
        >>> Line(4).neighbour(3, 1), Line(4).diameter
        (None, 3)
    """

    def neighbour(self, device: int, direction: int) -> int | None:
        """The device one hop away, or None past an end."""
        target = device + direction
        return target if 0 <= target < self.devices else None

    @property
    def diameter(self) -> int:
        """Hops between the two devices farthest apart."""
        return self.devices - 1


def topology(name: str, devices: int) -> Ring | Line:
    """The topology called `name` over `devices` devices.

    Raises:
        ValueError: for any other name.
    """
    match name:
        case "ring":
            return Ring(devices)
        case "line":
            return Line(devices)
    raise ValueError(f"topology must be 'ring' or 'line', got {name!r}")
