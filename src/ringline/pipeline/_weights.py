"""Weights partitioned over the FSDP axis: when they are gathered, where gradients are reduced.

| gather | weights are gathered | gradients are reduced | whole on a stage |
|---|---|---|---|
| step   | once, before the first tick | once, after the last tick | all its repeats |
| repeat | when a phase turns to another repeat | when a backward leaves one | one for each phase |
| use    | by every operation | by every backward | one, while it runs |
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Gather = Literal["step", "repeat", "use"]
# [place][leaf]: a leaf is [repeats, ...] in storage, [...] once a repeat is picked.
Places = list[list[Any]]


@dataclass(frozen=True)
class Partition:
    """How each leaf of a layer's weights lies on the FSDP axis.

    Attributes:
        axis: the manual FSDP axis, None where there is none.
        dims: for each leaf, the dimension that is partitioned, None for whole leaves.
    """

    axis: str | None
    dims: tuple[int | None, ...]

    def gather(self, places: Places, leading: int = 0) -> Places:
        """Whole weights from partitioned ones; `leading` dimensions stand before a leaf's own."""
        if self.axis is None:
            return places
        axis = self.axis

        def one(leaf, dim):
            if dim is None:
                return leaf
            return lax.all_gather(leaf, axis, axis=dim + leading, tiled=True)

        return [[one(leaf, dim) for leaf, dim in zip(place, self.dims)] for place in places]

    def reduce(self, places: Places, leading: int = 0) -> Places:
        """The sum over the axis of whole gradients, partitioned like the weights."""
        if self.axis is None:
            return places
        axis = self.axis

        def one(leaf, dim):
            if dim is None:
                return lax.psum(leaf, axis)
            return lax.psum_scatter(leaf, axis, scatter_dimension=dim + leading, tiled=True)

        return [[one(leaf, dim) for leaf, dim in zip(place, self.dims)] for place in places]


def flat(places: Places) -> list[Any]:
    """All leaves of all places."""
    return [leaf for place in places for leaf in place]


def pick(places: Places, repeat) -> Places:
    """One repeat's leaves from `[repeats, ...]` ones."""

    def one(leaf):
        if leaf.shape[0] == 1:
            return leaf[0]
        return lax.dynamic_index_in_dim(leaf, repeat, keepdims=False)

    return [[one(leaf) for leaf in place] for place in places]


def add_at(sums: Places, repeat, gradients: Places) -> Places:
    """Add one repeat's gradients to the sums `[repeats, ...]`."""

    def one(total, gradient):
        gradient = gradient.astype(total.dtype)
        if total.shape[0] == 1:
            return total + gradient[None]
        old = lax.dynamic_index_in_dim(total, repeat, keepdims=False)
        return lax.dynamic_update_index_in_dim(total, old + gradient, repeat, 0)

    return [[one(t, g) for t, g in zip(*pair)] for pair in zip(sums, gradients)]


def zeros(places: Places, grow: Callable[[Any], tuple[int, ...]] = jnp.shape) -> Places:
    """Gradient sums for the leaves, at least float32."""
    return [[jnp.zeros(grow(leaf), sum_dtype(leaf.dtype)) for leaf in place] for place in places]


def sum_dtype(dtype: Any) -> Any:
    """The type in which values of `dtype` are summed: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def turns(repeat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a phase turns to another repeat, and where it leaves one for good or for another.

    Args:
        repeat: `[ticks, stages]`, negative where nothing runs.

    Returns:
        Two tables of 0 and 1: the first tick of each run of one repeat, and the last.
    """
    first, last = np.zeros_like(repeat), np.zeros_like(repeat)
    for stage in range(repeat.shape[1]):
        ticks = np.flatnonzero(repeat[:, stage] >= 0)
        if not len(ticks):
            continue
        values = repeat[ticks, stage]
        changes = np.flatnonzero(np.diff(values))
        first[ticks[np.r_[0, changes + 1]], stage] = 1
        last[ticks[np.r_[changes, len(ticks) - 1]], stage] = 1
    return first, last


class GatheredOnce:
    """gather="step": all weights whole before the loop, one reduction after it."""

    def __init__(self, partition: Partition, stored: Places, rows: dict[str, np.ndarray]):
        self.partition = partition
        self.stored = stored
        self.whole = partition.gather(stored, leading=1)
        self.rows: dict[str, np.ndarray] = {}

    def start(self) -> Any:
        """What the loop carries: the sums of gradients, whole."""
        return zeros(self.whole)

    def turn(self, state: Any, phase: str, row: dict[str, Any]) -> Any:
        """Before a phase: nothing to do."""
        return state

    def weights(self, state: Any, phase: str, repeat) -> Places:
        """One repeat's whole weights."""
        return pick(self.whole, repeat)

    def add(self, state: Any, phase: str, repeat, gradients: Places) -> Any:
        """Add whole gradients."""
        return add_at(state, repeat, gradients)

    def leave(self, state: Any, phase: str, row: dict[str, Any]) -> Any:
        """After a phase: nothing to do."""
        return state

    def finish(self, state: Any) -> Places:
        """The gradients `[repeats, ...]`, partitioned."""
        return self.partition.reduce(state, leading=1)


class GatheredPerUse:
    """gather="use": whole weights exist only inside the operation that uses them."""

    def __init__(self, partition: Partition, stored: Places, rows: dict[str, np.ndarray]):
        self.partition = partition
        self.stored = stored
        self.rows: dict[str, np.ndarray] = {}

    def start(self) -> Any:
        """What the loop carries: the sums of gradients, partitioned."""
        return zeros(self.stored)

    def turn(self, state: Any, phase: str, row: dict[str, Any]) -> Any:
        """Before a phase: nothing to do."""
        return state

    def weights(self, state: Any, phase: str, repeat) -> Places:
        """One repeat's weights, gathered here."""
        return self.partition.gather(pick(self.stored, repeat))

    def add(self, state: Any, phase: str, repeat, gradients: Places) -> Any:
        """Reduce the gradients and add them."""
        summed = [[g.astype(sum_dtype(g.dtype)) for g in place] for place in gradients]
        return add_at(state, repeat, self.partition.reduce(summed))

    def leave(self, state: Any, phase: str, row: dict[str, Any]) -> Any:
        """After a phase: nothing to do."""
        return state

    def finish(self, state: Any) -> Places:
        """The gradients `[repeats, ...]`, partitioned."""
        return state


class GatheredPerRepeat:
    """gather="repeat": each phase holds one repeat's whole weights and changes them in turns."""

    def __init__(self, partition: Partition, stored: Places, rows: dict[str, np.ndarray]):
        self.partition = partition
        self.stored = stored
        self.phases = [name[0] for name in rows if name.endswith(".repeat")]
        self.rows = {}
        for phase in self.phases:
            first, last = turns(rows[f"{phase}.repeat"])
            self.rows |= {f"{phase}.first": first, f"{phase}.last": last}

    def start(self) -> Any:
        """What the loop carries: each phase's whole weights, whole and partitioned sums."""
        shapes = jax.eval_shape(self._gathered, 0)
        blank = [[jnp.zeros(leaf.shape, leaf.dtype) for leaf in place] for place in shapes]
        held = dict.fromkeys(self.phases, blank)
        sums = {phase: zeros(shapes, lambda leaf: leaf.shape) for phase in self.phases[1:]}
        return held, sums, zeros(self.stored)

    def turn(self, state: Any, phase: str, row: dict[str, Any]) -> Any:
        """Before a phase: gather the repeat that it turns to."""
        held, sums, total = state
        repeat = jnp.maximum(row[f"{phase}.repeat"], 0)
        new = lax.cond(
            row[f"{phase}.first"] > 0, lambda: self._gathered(repeat), lambda: held[phase]
        )
        return held | {phase: new}, sums, total

    def weights(self, state: Any, phase: str, repeat) -> Places:
        """The repeat's whole weights, which the phase holds."""
        return state[0][phase]

    def add(self, state: Any, phase: str, repeat, gradients: Places) -> Any:
        """Add whole gradients to the phase's own sums."""
        held, sums, total = state
        mine = [
            [s + g.astype(s.dtype) for s, g in zip(*pair)] for pair in zip(sums[phase], gradients)
        ]
        return held, sums | {phase: mine}, total

    def leave(self, state: Any, phase: str, row: dict[str, Any]) -> Any:
        """After a phase: reduce the sums of the repeat that it leaves."""
        held, sums, total = state
        if phase not in sums:
            return state
        repeat = jnp.maximum(row[f"{phase}.repeat"], 0)

        def reduced():
            done = add_at(total, repeat, self.partition.reduce(sums[phase]))
            return jax.tree.map(jnp.zeros_like, sums[phase]), done

        mine, total = lax.cond(row[f"{phase}.last"] > 0, reduced, lambda: (sums[phase], total))
        return held, sums | {phase: mine}, total

    def finish(self, state: Any) -> Places:
        """The gradients `[repeats, ...]`, partitioned."""
        return state[2]

    def _gathered(self, repeat) -> Places:
        return self.partition.gather(pick(self.stored, repeat))


GATHERS = {"step": GatheredOnce, "repeat": GatheredPerRepeat, "use": GatheredPerUse}
