"""`Mover`: what sends packets over the link between two chips, as cited data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ringline.topology._tables import Table, nearest, read_table

_DATA = Path(__file__).parent / "data" / "movers.toml"
_WHOLE = ("packet_bytes", "sender_slots", "receiver_slots", "frame_bytes")
_COUNTS = ("header_bytes", "frame_overhead_bytes")
_RATES = ("bytes_per_s", "inject_bytes_per_s")
_TIMES = (
    "hop_latency_s",
    "packet_gap_s",
    "least_packet_s",
    "start_s",
    "start_per_pair_s",
)


@dataclass(frozen=True, slots=True)
class Mover:
    r"""A router that moves packets to the neighbour, and the slots it keeps them in.

    A packet with P bytes of payload keeps the wire of its direction busy for

        max(least_packet_s, (P + H + O ceil((P + H) / F)) / bytes_per_s) + packet_gap_s

    with H header bytes, frames of F bytes and O bytes of overhead for each frame. It arrives
    `hop_latency_s` later, in a slot of the receiver.

    Attributes:
        name: of the data file's table.
        title: what it is.
        packet_bytes: the largest payload of a packet, P.
        header_bytes: H.
        frame_bytes: F.
        frame_overhead_bytes: O.
        sender_slots: packets that one sender holds: local traffic and forwarded traffic have a
            sender each, for every channel of a directed link.
        receiver_slots: packets that the receiver of a channel holds.
        bytes_per_s: rate of the wire, one direction.
        hop_latency_s: from the wire to the next chip's slot; credits take as long to come back.
        packet_gap_s: between two packets of a wire.
        least_packet_s: the router's own time for a packet, however short.
        inject_bytes_per_s: rate at which a chip's worker fills the slots of one channel.
        start_s: fixed time before the first packet.
        start_per_pair_s: what each pair of devices adds to that: all meet before they start.
        sources: where each value comes from.

    Example:
        >>> from ringline.topology import mover
        >>> round(mover("wormhole-ethernet").payload_share(4096), 3)
        0.954
    """

    name: str
    title: str = ""
    packet_bytes: int = 4096
    header_bytes: int = 0
    frame_bytes: int = 1 << 30
    frame_overhead_bytes: int = 0
    sender_slots: int = 8
    receiver_slots: int = 16
    bytes_per_s: float = math.inf
    hop_latency_s: float = 0.0
    packet_gap_s: float = 0.0
    least_packet_s: float = 0.0
    inject_bytes_per_s: float = math.inf
    start_s: float = 0.0
    start_per_pair_s: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self):
        for names, least in ((_WHOLE, 1), (_COUNTS, 0)):
            for name in names:
                value = getattr(self, name)
                if not (isinstance(value, int) and value >= least):
                    raise ValueError(
                        f"{name} must be a whole number of at least {least}, got {value!r}; "
                        f"change {name}"
                    )
        for name in _RATES:
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} must be > 0, got {getattr(self, name)!r}; use math.inf for no limit"
                )
        for name in _TIMES:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a finite time >= 0, got {getattr(self, name)!r}; change {name}"
                )

    def wire_bytes(self, payload_bytes: int) -> int:
        """Bytes on the wire of a packet with `payload_bytes`."""
        packet = payload_bytes + self.header_bytes
        return packet + self.frame_overhead_bytes * math.ceil(packet / self.frame_bytes)

    def payload_share(self, payload_bytes: int) -> float:
        """Payload over bytes on the wire."""
        return payload_bytes / self.wire_bytes(payload_bytes)

    def packet_s(self, payload_bytes: int) -> float:
        """How long a packet keeps the wire, the gap behind it included."""
        wire_s = self.wire_bytes(payload_bytes) / self.bytes_per_s
        return max(self.least_packet_s, wire_s) + self.packet_gap_s

    def launch_s(self, devices: int) -> float:
        """Time before the first packet of a collective on `devices` devices."""
        return self.start_s + self.start_per_pair_s * devices * (devices - 1) / 2

    def with_packet(self, packet_bytes: int) -> "Mover":
        """The same mover with other packets: its slots share the same memory.

        Example:
            >>> from ringline.topology import mover
            >>> one = mover("wormhole-ethernet")
            >>> one.packet_bytes, one.receiver_slots, one.with_packet(6144).receiver_slots
            (4352, 16, 11)
        """
        if packet_bytes < 1:
            raise ValueError(f"packet_bytes must be at least 1, got {packet_bytes}; change it")
        return replace(
            self,
            packet_bytes=packet_bytes,
            sender_slots=max(1, self.sender_slots * self.packet_bytes // packet_bytes),
            receiver_slots=max(1, self.receiver_slots * self.packet_bytes // packet_bytes),
        )

    @property
    def payload_bytes_per_s(self) -> float:
        """Payload that one direction of a link carries with packets of `packet_bytes`."""
        seconds = self.packet_s(self.packet_bytes)
        return self.packet_bytes / seconds if seconds else math.inf


def mover(name: str) -> Mover:
    """The data mover called `name`, or the only one of a TOML file.

    Args:
        name: a name or alias from data/movers.toml, or the path of a .toml file with one table
            of the same keys.

    Raises:
        ValueError: for an unknown name, with the nearest ones, or for a fault in the file, with
            its line and key.
    """
    if name.endswith(".toml"):
        (table,) = _only(read_table(name))
        return _read(table)
    known = movers()
    for one in known.values():
        if name.lower() in (one.name, *_aliases()[one.name]):
            return one
    every = [*known, *(alias for aliases in _aliases().values() for alias in aliases)]
    raise ValueError(f"unknown data mover {name!r}{nearest(name, every)}")


@cache
def movers() -> dict[str, Mover]:
    """All data movers of the package's data file, by name."""
    return {table.name: _read(table) for table in read_table(_DATA).tables()}


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    return {table.name: table.texts("aliases") for table in read_table(_DATA).tables()}


def _only(top: Table) -> list[Table]:
    tables = list(top.tables())
    if len(tables) != 1:
        raise ValueError(
            f"{top.path} must hold one table such as [my-mover], got {len(tables)}; keep one"
        )
    return tables


def _read(table: Table) -> Mover:
    names = (*_WHOLE, *_COUNTS, *_RATES, *_TIMES)
    table.require_known(("title", "aliases", *names))
    values, sources = {}, {}
    for name in names:
        if name not in table:
            continue
        # Times and overheads may be 0, and `quantity` wants a number above its bound.
        above = 0.0 if name in (*_WHOLE, *_RATES) else -math.ulp(0.0)
        quantity = table.quantity(name, above=above, infinite=name in _RATES)
        whole = name in (*_WHOLE, *_COUNTS)
        if whole and quantity.value != int(quantity.value):
            raise table.error(name, f"expected a whole number, got {quantity.value:g}")
        values[name] = int(quantity.value) if whole else quantity.value
        sources[name] = quantity.source
    return Mover(table.name, table.text("title", table.name), **values, sources=sources)
