"""Run one chunk: the layers that a stage holds for one repeat, one after the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ringline.pipeline._layers import Placement

PyTree = Any
Layer = Callable[[PyTree, PyTree], PyTree]
Remat = bool | Callable[..., Any]

MAX_UNROLLED = 8


def rematerialised(layer: Layer, remat: Remat) -> Layer:
    """The layer with what its backward keeps chosen by policy; False keeps all.

    True is not for single layers: a chunk is then run again as a whole, from its input.
    """
    if isinstance(remat, bool):
        return layer
    return jax.checkpoint(layer, policy=remat)


def chunk_runner(layer: Layer, placed: Placement) -> Callable[[list[PyTree], Any, PyTree], PyTree]:
    """A function `(layers, count, x) -> x` that runs a chunk's layers in order.

    `layers` has one entry for each place of the chunk, `count` says how many are real. Places
    that may be padding run under a condition, so padding costs nothing.
    """
    least = int(placed.counts.min())

    def run(layers: list[PyTree], count, x: PyTree) -> PyTree:
        if len(layers) > MAX_UNROLLED and least == len(layers):
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
            return lax.scan(lambda x, params: (layer(params, x), None), x, stacked)[0]
        for place, params in enumerate(layers):
            if place < least:
                x = layer(params, x)
            else:
                x = lax.cond(place < count, layer, lambda _, x: x, params, x)
        return x

    return run


def own_places(places: tuple[PyTree, ...]) -> list[PyTree]:
    """A stage's own weights `[repeats, ...]` for each place, from leaves `[repeats, 1, ...]`."""
    return [jax.tree.map(lambda leaf: leaf[:, 0], params) for params in places]


def of_repeat(places: list[PyTree], repeat) -> list[PyTree]:
    """The weights of one repeat at every place."""

    def pick(leaf):
        if leaf.shape[0] == 1:
            return leaf[0]
        return lax.dynamic_index_in_dim(leaf, repeat, keepdims=False)

    return [jax.tree.map(pick, params) for params in places]


def count_of(placed: Placement, repeat, stage):
    """How many layers the chunk of `repeat` on `stage` has."""
    counts = placed.counts
    if counts.min() == counts.max():
        return int(counts.max())
    return jnp.asarray(np.asarray(counts, np.int32))[repeat, stage]
