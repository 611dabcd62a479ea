"""Bring a user's layer to the one form that the loops run, `(layer_params, x) -> x`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, use_abstract_mesh

from ringline.pipeline._auxiliary import with_auxiliary
from ringline.pipeline._chunk import Remat
from ringline.pipeline._explicit import automatic
from ringline.pipeline._inputs import check_layer, one_microbatch
from ringline.pipeline._keys import layer_keys, with_keys
from ringline.pipeline._layers import Placement, StackedLayers, one_layer, placement_of
from ringline.schedule import PipelineSchedule

PyTree = Any


@dataclass(frozen=True)
class Prepared:
    """A checked layer with all that it needs travelling along in x.

    Attributes:
        layer: `(layer_params, x) -> x`.
        params: its parameters for all layers, plain or stacked.
        x: the pipeline's input.
        placed: which layer stands where.
        apart: from the `x` that the last layer gives to the user's own, and the sums of
            auxiliary values, every leaf `[batch, ...]`; `()` without those.
    """

    layer: Callable[[PyTree, PyTree], PyTree]
    params: PyTree | StackedLayers
    x: PyTree
    placed: Placement
    apart: Callable[[PyTree], tuple[PyTree, PyTree]]


def prepare(
    layer: Callable[..., PyTree],
    params: PyTree | StackedLayers,
    x: PyTree,
    schedule: PipelineSchedule,
    mesh: Mesh,
    remat: Remat,
    rng: jax.Array | None,
    layer_aux: bool,
) -> Prepared:
    """Check a layer and let row numbers (with `rng`) and auxiliary values travel beside x.

    Raises:
        ValueError: when the schedule cannot place the layers, the layer does not give back what
            it takes, or an option is none.
    """
    if not isinstance(remat, bool) and not callable(remat):
        raise ValueError(
            f"remat must be True, False or a policy of jax.checkpoint_policies, got {remat!r}"
        )
    if rng is not None and not jnp.issubdtype(jnp.result_type(rng), jax.dtypes.prng_key):
        raise ValueError(f"rng must be a key, such as jax.random.key(0), got {rng!r}")
    placed = placement_of(params, schedule)
    microbatch = one_microbatch(x, schedule.microbatches)
    keys = ()
    if rng is not None:
        rows = jax.tree.leaves(microbatch)[0].shape[0]
        keys = (jax.eval_shape(lambda: layer_keys(rng, 0, rows)),)
    # A layer may use the mesh, in a `jax.shard_map` of its own say.
    with use_abstract_mesh(automatic(mesh).abstract_mesh):
        auxiliary = check_layer(layer, one_layer(params), microbatch, *keys, layer_aux=layer_aux)
    apart = _alone
    if layer_aux:
        layer, x = with_auxiliary(layer, auxiliary, x)
        apart = _pair
    if rng is not None:
        layer, params, x = with_keys(layer, params, x, rng, schedule)
        inner = apart
        apart = lambda carried: inner(carried[0])  # noqa: E731
    return Prepared(layer, params, x, placed, apart)


def _alone(y: PyTree) -> tuple[PyTree, PyTree]:
    return y, ()


def _pair(carried: PyTree) -> tuple[PyTree, PyTree]:
    return carried
