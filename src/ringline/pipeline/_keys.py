"""Random keys for layers: one for each layer and row, whatever the pipeline's layout.

A key that depended on the stage, the microbatch or the device would make a run with other
numbers of those another run. So every row of the batch has a key of its own in every layer: the
plain loop, any pipeline and the recomputation in a backward all draw the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ringline.pipeline._layers import StackedLayers, layer_count, stack_layers
from ringline.schedule import PipelineSchedule

PyTree = Any


def layer_keys(rng: jax.Array, layer: int | jax.Array, batch: int) -> jax.Array:
    r"""The keys that a layer gets for a batch, for the plain loop over layers.

    Row r of layer l has the key $\mathrm{fold}(\mathrm{fold}(\mathrm{rng}, l), r)$.

    Draws under `jax.vmap` over the keys are each row's own for threefry keys. For `rbg` keys JAX
    draws a whole batch from its first key, so there they depend on the layout.

    Args:
        rng: the step's key, from `jax.random.key`.
        layer: which layer, from 0.
        batch: how many rows.

    Returns:
        Keys `[batch]`.

    Example:
        >>> import jax
        >>> layer_keys(jax.random.key(0), 3, batch=8).shape
        (8,)
    """
    return _of_rows(jax.random.fold_in(rng, layer), jnp.arange(batch))


def with_keys(
    layer: Callable[..., PyTree],
    params: PyTree | StackedLayers,
    x: PyTree,
    rng: jax.Array,
    schedule: PipelineSchedule,
) -> tuple[Callable[[PyTree, PyTree], PyTree], PyTree, PyTree]:
    """Make a layer `(params, x, keys) -> x` one of two arguments; keys and rows travel along.

    Returns:
        The layer, its parameters with each layer's key, the activation with each row's number.
    """
    kind = jax.random.key_impl(rng)
    stacked = isinstance(params, StackedLayers)
    layers = params.layers if stacked else layer_count(params)
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(rng, i)))(jnp.arange(layers))
    if stacked:
        own = stack_layers(keys, schedule).places
        with_own = StackedLayers(tuple(zip(params.places, own)), layers)
    else:
        with_own = params, keys
    batch = jax.tree.leaves(x)[0].shape[0]

    def keyed(params_and_key, carried):
        params, data = params_and_key
        x, rows = carried
        key = jax.random.wrap_key_data(data, impl=kind)
        return layer(params, x, _of_rows(key, rows)), rows

    return keyed, with_own, (x, jnp.arange(batch))


def _of_rows(key: jax.Array, rows: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
