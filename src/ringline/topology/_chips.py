"""Chips and clusters of chips as data: `cluster("4x v4-16")`, `cluster("64x h100")`.

The numbers live in `data/*.toml`, each with its source.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ringline.topology._cluster_names import read_cluster_name
from ringline.topology._tables import Table, nearest, read_table

_DATA = Path(__file__).parent / "data"
_QUANTITIES = (
    "bf16_flops_per_s",
    "int8_ops_per_s",
    "hbm_gib",
    "hbm_bytes_per_s",
    "link_bytes_per_s",
    "link_nominal_bytes_per_s",
    "dcn_bytes_per_s",
    "hop_latency_s",
    "matmul_efficiency",
)
_PLAIN = (
    "title",
    "aliases",
    "network",
    "links",
    "cores_per_chip_in_names",
    "largest_slice_chips",
    "wrap_multiple",
    "box_chips",
)
_NETWORKS = ("torus3d", "torus2d", "switch", "mesh")


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator.

    Attributes:
        name: such as `v5p`.
        title: what its vendor calls it.
        network: how chips of a slice or box are joined: `torus3d`, `torus2d`, `mesh`, `switch`.
        bf16_flops_per_s: peak of dense bfloat16 matmuls.
        int8_ops_per_s: peak of int8 or fp8 matmuls.
        hbm_gib: size of its memory; vendors print GB and mean GiB.
        hbm_bytes_per_s: rate of its memory.
        link_bytes_per_s: what one link carries in one direction in practice.
        link_nominal_bytes_per_s: the vendor's figure for the same.
        dcn_bytes_per_s: its share of the network between slices or boxes.
        hop_latency_s: time of an empty message to a neighbour.
        matmul_efficiency: share of the peak that large matmuls reach.
        links: how many links it has.
        cores_per_chip_in_names: what names count: `v4-16` counts 16 cores, 2 a chip.
        largest_slice_chips: chips of the largest slice, 0 where there is no limit.
        wrap_multiple: a slice's axes have wraparound links at multiples of this; 0 for never.
        box_chips: chips that a switch joins; 0 for a torus or mesh.
        sources: where each number comes from.
    """

    name: str
    title: str
    network: str
    bf16_flops_per_s: float
    int8_ops_per_s: float
    hbm_gib: float
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    link_nominal_bytes_per_s: float
    dcn_bytes_per_s: float
    hop_latency_s: float
    matmul_efficiency: float
    links: int = 1
    cores_per_chip_in_names: int = 1
    largest_slice_chips: int = 0
    wrap_multiple: int = 0
    box_chips: int = 0
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def hbm_bytes(self) -> float:
        """Size of its memory in bytes."""
        return self.hbm_gib * 2**30


@dataclass(frozen=True, slots=True)
class Cluster:
    """Slices (or boxes) of chips: fast links inside, the data centre network between them.

    Attributes:
        name: as the user wrote it.
        chip: which chip it is made of.
        slices: how many slices or boxes.
        shape: chips along each axis of a slice.
        wraps: for each axis, whether its ends are joined.
        links_per_edge: links between two neighbours.

    Example:
        >>> four = cluster("4x v4-16")
        >>> four.slices, four.shape, four.chips
        (4, (2, 2, 2), 32)
    """

    name: str
    chip: Chip
    slices: int
    shape: tuple[int, ...]
    wraps: tuple[bool, ...]
    links_per_edge: int = 1

    @property
    def chips_per_slice(self) -> int:
        """Chips of one slice."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        """All chips."""
        return self.slices * self.chips_per_slice

    def slice_bytes_per_s(self, group: int) -> float:
        r"""Rate at which each of `group` neighbouring chips of a slice gathers from the others.

        An axis of k chips that is closed into a ring brings data from both sides, an open one
        counts once, because its busiest link carries $(k - 1)/k$ of the data; axes add up.
        The group takes the longest axes first.

        Args:
            group: chips that take part, at least 2.

        Returns:
            Bytes per second into each chip.
        """
        if self.chip.network == "switch":
            return self.chip.link_bytes_per_s
        ways = sum(2 if wrap else 1 for _, wrap in self._axes(group))
        return self.chip.link_bytes_per_s * self.links_per_edge * max(1, ways)

    def mean_hops(self, group: int) -> float:
        """Mean way between two of `group` neighbouring chips: k/4 on a ring, k/3 on a line."""
        if self.chip.network == "switch":
            return 1.0
        return max(1.0, sum(length / (4 if wrap else 3) for length, wrap in self._axes(group)))

    def _axes(self, group: int) -> Iterator[tuple[int, bool]]:
        """The axes that `group` chips lie along, longest first: length, and whether it wraps."""
        left = group
        for length, wrap in sorted(zip(self.shape, self.wraps), key=lambda axis: -axis[0]):
            if left > 1 and length > 1:
                yield min(left, length), wrap and left >= length
                left = -(-left // length)


@cache
def chips() -> dict[str, Chip]:
    """Every chip of the data file, by name."""
    return {table.name: _chip_of(table) for table in read_table(_DATA / "chips.toml").tables()}


@cache
def boxes() -> dict[str, Table]:
    """Every named box of the data file, by name."""
    return {table.name: table for table in read_table(_DATA / "boxes.toml").tables()}


def chip(name: str) -> Chip:
    """The chip called `name`, by its name or an alias.

    Raises:
        ValueError: for an unknown name, with the nearest ones.

    Example:
        >>> chip("trillium").name
        'v6e'
    """
    wanted = _aliases().get(name.strip().lower())
    if wanted not in chips():
        raise ValueError(f"unknown chip {name!r}{nearest(name, _aliases())}")
    return chips()[wanted]


def cluster(name: str) -> Cluster:
    """The cluster called `name`, or described by the TOML file at that path.

    Names are those people use: `4x v4-16` (four slices of 16 TensorCores, 8 chips each),
    `v5e-64`, `2x v5p:4x4x8` (by topology), `64x h100` (boxes of 8), `t3000`, `2x galaxy`. The
    number after the dash counts TensorCores for v4, v5p and tpu7x (2 a chip), chips for v5e,
    v6e and GPUs.

    Raises:
        ValueError: for an unknown name (with the nearest ones), a count that is no slice of
            that chip, or a fault in the file (with file, line and key).

    Example:
        >>> cluster("v5p-128").shape, cluster("64x h100").slices
        ((4, 4, 4), 8)
    """
    text = name.strip()
    if text.lower().endswith(".toml"):
        return _cluster_of(read_table(text))
    aliases = _aliases()
    sliced = [name for name, kind in aliases.items() if not _has_fixed_slices(kind)]
    wanted, count, size = read_cluster_name(text, aliases, sliced)
    kind = aliases.get(wanted)
    if kind is None:
        raise ValueError(
            f"unknown cluster {name!r}{nearest(wanted, aliases)} (forms: '4x v4-16', "
            "'v5p:4x4x4', '64x h100', or a .toml file)"
        )
    if count < 1:
        raise ValueError(f"cluster {name!r}: expected at least 1 slice, got {count}")
    if kind in boxes():
        if size:
            raise ValueError(f"cluster {name!r}: a box has a fixed size; write '{count}x {kind}'")
        return _box_of(text, boxes()[kind], count)
    if _has_fixed_slices(kind):
        return _switched(text, chips()[kind], count, size)
    return _sliced(text, chips()[kind], count, size)


def slice_shape(chip: Chip, chips: int) -> tuple[int, ...]:
    """The most cubic arrangement of `chips` chips that a slice of `chip` has.

    Raises:
        ValueError: when no such slice exists.

    Example:
        >>> slice_shape(chip("v4"), 64), slice_shape(chip("v5e"), 32)
        ((4, 4, 4), (4, 8))
    """
    axes = 3 if chip.network == "torus3d" else 2
    found = [shape for shape in _factors(chips, axes) if _is_slice(chip, shape)]
    if not found:
        sizes = [
            size
            for size in range(1, chips * 4)
            if any(_is_slice(chip, shape) for shape in _factors(size, axes))
        ]
        near = sorted(sorted(sizes, key=lambda n: abs(n - chips))[:3])
        cores = chip.cores_per_chip_in_names
        raise ValueError(
            f"no slice of {chip.name} has {chips} chips; nearest: "
            + ", ".join(f"{chip.name}-{n * cores} ({n} chips)" for n in near)
        )
    return min(found, key=lambda shape: (sum(shape), shape))


def _is_slice(chip: Chip, shape: tuple[int, ...]) -> bool:
    """Axes of 1, 2 and 4 chips inside a cube, multiples of 4 beyond; powers of two on 2D chips."""
    count = math.prod(shape)
    if chip.largest_slice_chips and count > chip.largest_slice_chips:
        return False
    if chip.network == "torus3d" and count >= 64:
        return all(length % 4 == 0 for length in shape)
    powers = all(length & (length - 1) == 0 for length in shape)
    longest = 4 if chip.network == "torus3d" else 16
    return powers and max(shape) <= max(longest, 1) and max(shape) <= 4 * min(shape)


def _factors(count: int, axes: int, least: int = 1) -> list[tuple[int, ...]]:
    """Every way to write `count` as `axes` factors in rising order."""
    if axes == 1:
        return [(count,)] if count >= least else []
    return [
        (first, *rest)
        for first in range(least, int(count ** (1 / axes) + 1e-9) + 1)
        if count % first == 0
        for rest in _factors(count // first, axes - 1, first)
    ]


def _wraps(chip: Chip, shape: tuple[int, ...]) -> tuple[bool, ...]:
    """Which axes are closed. A 3D slice is closed only when whole 4x4x4 cubes make it up."""
    multiple = chip.wrap_multiple
    closed = [bool(multiple) and length % multiple == 0 for length in shape]
    if chip.network == "torus3d":
        closed = [all(closed)] * len(shape)
    return tuple(closed)


def _sliced(name: str, chip: Chip, slices: int, size: str | None) -> Cluster:
    if size is None:
        example = 8 * chip.cores_per_chip_in_names
        raise ValueError(
            f"cluster {name!r} says no size; write for example "
            f"'{slices}x {chip.name}-{example}' or "
            f"'{chip.name}:{'x'.join(map(str, slice_shape(chip, 8)))}'"
        )
    if "x" in size:
        shape = tuple(int(length) for length in size.split("x"))
        axes = 3 if chip.network == "torus3d" else 2
        if len(shape) != axes or not _is_slice(chip, tuple(sorted(shape))):
            raise ValueError(
                f"cluster {name!r}: {size} is no topology of {chip.name}; expected {axes} axes, "
                f"such as {'x'.join(map(str, slice_shape(chip, 8)))}"
            )
    else:
        chips, rest = divmod(int(size), chip.cores_per_chip_in_names)
        if rest or chips < 1:
            raise ValueError(
                f"cluster {name!r}: {chip.name}-N counts TensorCores, "
                f"{chip.cores_per_chip_in_names} a chip; expected a multiple of that, got {size}"
            )
        shape = slice_shape(chip, chips)
    return Cluster(name, chip, slices, shape, _wraps(chip, shape))


def _switched(name: str, chip: Chip, count: int, size: str | None) -> Cluster:
    total = count * int(size) if size and "x" not in size else count
    if size and ("x" in size or int(size) < 1):
        raise ValueError(f"cluster {name!r}: expected a number of chips, got {size!r}")
    box = min(chip.box_chips, total)
    if total % box:
        raise ValueError(
            f"cluster {name!r}: {total} chips are not whole boxes of {box}; "
            f"use {total // box * box} or {(total // box + 1) * box}"
        )
    return Cluster(name, chip, total // box, (box,), (True,))


def _box_of(name: str, table: Table, count: int) -> Cluster:
    shape = tuple(int(length) for length in table.values["shape"])
    wraps = tuple(bool(wrap) for wrap in table.values["wraps"])
    return Cluster(
        name, chip(table.text("chip")), count, shape, wraps, table.whole("links_per_edge")
    )


def _cluster_of(top: Table) -> Cluster:
    """The cluster that a TOML file describes in its tables [cluster] and, if new, [chip]."""
    top.require_known(("cluster", "chip"))
    table = top.table("cluster")
    table.require_known(("name", "chip", "slices", "shape", "wraps", "links_per_edge"))
    made_of = _chip_of(top.table("chip")) if "chip" in top else None
    if made_of is None:
        try:
            made_of = chip(table.text("chip"))
        except ValueError as error:
            raise table.error("chip", str(error)) from error
    shape = table.values.get("shape")
    if (
        not isinstance(shape, list)
        or not shape
        or not all(isinstance(n, int) and n > 0 for n in shape)
    ):
        raise table.error("shape", f"expected chips along each axis such as [4, 4], got {shape!r}")
    wraps = table.values.get("wraps", [False] * len(shape))
    if not isinstance(wraps, list) or [type(w) for w in wraps] != [bool] * len(shape):
        raise table.error("wraps", f"expected {len(shape)} times true or false, got {wraps!r}")
    return Cluster(
        table.text("name", top.path.stem),
        made_of,
        table.whole("slices", 1),
        tuple(shape),
        tuple(wraps),
        table.whole("links_per_edge", 1),
    )


def _chip_of(table: Table) -> Chip:
    table.require_known(("name", *_PLAIN, *_QUANTITIES))
    network = table.text("network")
    if network not in _NETWORKS:
        raise table.error("network", f"expected one of {', '.join(_NETWORKS)}, got {network!r}")
    numbers = {name: table.quantity(name) for name in _QUANTITIES}
    if numbers["matmul_efficiency"].value > 1:
        raise table.error("matmul_efficiency", "expected a share of at most 1")
    return Chip(
        name=table.text("name", table.name),
        title=table.text("title", table.name),
        network=network,
        links=table.whole("links", 1),
        cores_per_chip_in_names=table.whole("cores_per_chip_in_names", 1),
        largest_slice_chips=table.whole("largest_slice_chips", 0, least=0),
        wrap_multiple=table.whole("wrap_multiple", 0, least=0),
        box_chips=table.whole("box_chips", 8) if network == "switch" else 0,
        sources={name: number.source for name, number in numbers.items()},
        **{name: number.value for name, number in numbers.items()},
    )


def _has_fixed_slices(kind: str) -> bool:
    """Whether a number counts chips or boxes of `kind`, and not the chips of a slice."""
    return kind in boxes() or chips()[kind].network == "switch"


@cache
def _aliases() -> dict[str, str]:
    """Every accepted name of a chip or box, with the name it stands for."""
    tables = [*read_table(_DATA / "chips.toml").tables(), *boxes().values()]
    return {
        alias: table.name for table in tables for alias in (table.name, *table.texts("aliases"))
    }
