"""Which axes of the mesh a collective runs along, from the devices it names."""

import re
from collections.abc import Sequence
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
        return self._named(
            replica_groups(instruction.attribute("replica_groups") or ""), self._local
        )

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


def replica_groups(text: str) -> Groups:
    """The groups of devices in a `replica_groups` attribute, listed or generated.

    Example:
        >>> replica_groups("{{0,1},{2,3}}"), replica_groups("[2,2]<=[2,2]T(1,0)")
        ([(0, 1), (2, 3)], [(0, 2), (1, 3)])
    """
    made = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if made is None:
        return [tuple(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", text)]
    shape, source = _numbers(made[1]), _numbers(made[2])
    order: Sequence[int] = _numbers(made[3]) if made[3] else range(len(source))
    grid = np.arange(int(np.prod(source))).reshape(source).transpose(order).reshape(shape)
    return [tuple(row) for row in grid.reshape(shape[0], -1).tolist()]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
