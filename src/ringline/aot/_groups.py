"""Which axes of the mesh a collective runs along, from the devices it names."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ringline.aot._hlo import Instruction

if TYPE_CHECKING:
    from jax.sharding import Mesh

Groups = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Group:
    """The axes of a collective and how many devices take part in one group."""

    axis: str
    size: int


class Axes:
    """The mesh's axes, looked up by the numbers that a compiled program uses.

    Inside a slice these count the slice's devices in the mesh's order; between slices they are
    the devices' ids, or slices.
    """

    def __init__(self, mesh: "Mesh | None"):
        self.mesh = mesh

    def group(self, instruction: Instruction) -> Group:
        """The axes and the group's size of one collective."""
        if target := instruction.attribute("_xla_megascale_target"):
            return self._between(target)
        pairs = instruction.attribute("source_target_pairs")
        if pairs is not None:
            found = [tuple(map(int, p)) for p in re.findall(r"\{(\d+),(\d+)\}", pairs)]
            return self._named(found, self._local, chain=True)
        return self._named(replica_groups(instruction.text), self._local)

    def _between(self, target: str) -> Group:
        pairs = [tuple(map(int, p)) for p in re.findall(r"(\d+)->(\d+)", target)]
        if pairs:
            return self._named(pairs, self._by_id, chain=True)
        slices = [tuple(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", target)]
        return self._named(slices, self._by_slice)

    def _named(self, groups: Groups, places: dict[int, tuple[int, ...]], *, chain=False) -> Group:
        """The smallest set of axes along which every group lies."""
        if self.mesh is None or not groups or any(n not in places for g in groups for n in g):
            size = (
                len({n for g in groups for n in g}) if chain else max(map(len, groups), default=0)
            )
            return Group("?", size)
        varies = {
            axis
            for group in groups
            for axis, values in enumerate(zip(*(places[n] for n in group)))
            if len(set(values)) > 1
        }
        names = [self.mesh.axis_names[axis] for axis in sorted(varies)]
        whole = int(np.prod([self.mesh.devices.shape[axis] for axis in varies], initial=1))
        size = whole if chain else max(map(len, groups))
        return Group(",".join(names) or "-", size)

    @cached_property
    def _slices(self) -> np.ndarray:
        assert self.mesh is not None
        of = np.vectorize(lambda d: getattr(d, "slice_index", None) or 0, otypes=[int])
        return of(self.mesh.devices)

    @cached_property
    def _by_slice(self) -> dict[int, tuple[int, ...]]:
        """A place in each slice, the same within all; a program counts slices from 1."""
        if self.mesh is None:
            return {}
        return {
            int(n) + 1: tuple(np.argwhere(self._slices == n)[0]) for n in set(self._slices.flat)
        }

    @cached_property
    def _by_id(self) -> dict[int, tuple[int, ...]]:
        if self.mesh is None:
            return {}
        return {self.mesh.devices[at].id: at for at in np.ndindex(self.mesh.devices.shape)}

    @cached_property
    def _local(self) -> dict[int, tuple[int, ...]]:
        if self.mesh is None:
            return {}
        first = self._slices.min()
        places = [at for at in np.ndindex(self._slices.shape) if self._slices[at] == first]
        return dict(enumerate(places))


_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_MADE = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_ON_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, ?device_ids=\(([^{]*)\))? ?\{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def replica_groups(text: str) -> Groups:
    """The groups of devices that an instruction's attributes name.

    They are listed, or rows of numbers in some order, or axes of a mesh of the compiler's own.

    Example:
        >>> replica_groups("replica_groups={{0,1},{2,3}}")
        [(0, 1), (2, 3)]
        >>> replica_groups("replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}")
        [(0, 2), (1, 3)]
        >>> replica_groups("replica_groups=mesh['a'=2,'b'=2] {'a'}, dimensions={0}")
        [(0, 2), (1, 3)]
    """
    if made := _MADE.search(text):
        grid = _ordered(made[2], made[3]).reshape(_numbers(made[1]))
        return [tuple(row) for row in grid.reshape(len(grid), -1).tolist()]
    if found := _ON_MESH.search(text):
        return _along(found[1], found[2], found[3])
    listed = _LISTED.search(text)
    return [tuple(_numbers(g)) for g in re.findall(r"\{([\d,]+)\}", listed[1])] if listed else []


def _along(mesh: str, order: str | None, axes: str) -> Groups:
    """The groups along axes `'a','b':(2)4` (the part of b after its first 2) of a mesh."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    wanted = {
        name: (int(pre or 1), int(part or sizes[name])) for name, pre, part in _AXIS.findall(axes)
    }
    shape, taken = [], []
    for name, size in sizes.items():
        pre, part = wanted.get(name, (size, 1))
        shape += [pre, part, size // (pre * part)]
        taken.append(len(shape) - 2)
    count = int(np.prod(list(sizes.values())))
    numbers = np.array(_numbers(order)) if order and "<" not in order else np.arange(count)
    grid = np.moveaxis(numbers.reshape(shape), taken, range(-len(taken), 0))
    size = int(np.prod([shape[axis] for axis in taken]))
    return [tuple(row) for row in grid.reshape(-1, size).tolist()]


def _ordered(shape: str, order: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    grid = np.arange(int(np.prod(sizes))).reshape(sizes)
    return grid.transpose(_numbers(order)) if order else grid


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
