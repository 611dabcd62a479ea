"""A recipe as a step that JAX can trace: loss and gradients of its layers, on a mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringline.pipeline import pipeline, pipeline_loss, stack_layers
from ringline.recipes._recipe import Recipe, Way

_DIMS = {"gate_DF": ("d", "f"), "up_DF": ("d", "f"), "down_FD": ("f", "d")}


def program(recipe: Recipe, way: Way, mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step `(weights, x, targets) -> (loss, gradients)` and its arguments' shapes and places.

    Args:
        recipe: sizes.
        way: the order.
        mesh: with the axes `stage` and `fsdp`.
    """
    schedule = way.schedule
    wide = {"d": recipe.d_model, "f": recipe.mlp}
    plain = {
        name: jax.ShapeDtypeStruct((recipe.layers, *(wide[n] for n in dims)), jnp.bfloat16)
        for name, dims in _DIMS.items()
    }

    def place(path, leaf):
        dims = _DIMS[path[-1].key]
        lead = (None, "stage", *(None,) * (leaf.ndim - len(dims) - 2))
        own = ("fsdp" if name == "f" else None for name in dims)  # f is the larger
        sharding = NamedSharding(mesh, PartitionSpec(*lead, *own))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    stacked = jax.eval_shape(lambda plain: stack_layers(plain, schedule), plain)
    weights = jax.tree_util.tree_map_with_path(place, stacked)
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    x = jax.ShapeDtypeStruct(
        (recipe.batch, recipe.length, recipe.d_model), jnp.bfloat16, sharding=rows
    )

    def scheduled(weights, x, targets):
        return pipeline_loss(
            layer, loss, weights, (), x, targets, schedule=schedule, mesh=mesh, gather=recipe.gather
        )

    def by_autodiff(weights, x, targets):
        if recipe.gather == "step":  # else the loop would gather in every tick
            whole = NamedSharding(mesh, PartitionSpec(None, "stage"))
            weights = lax.with_sharding_constraint(weights, whole)
        y = pipeline(layer, weights, x, schedule=schedule, mesh=mesh, overlap=way.late_send)
        return loss((), lax.with_sharding_constraint(y, rows), targets)

    return jax.value_and_grad(scheduled if way.scheduled else by_autodiff), (weights, x, x)


def layer(weights: dict[str, jax.Array], x_BLD: jax.Array) -> jax.Array:
    """A norm and a SwiGLU MLP with a residual."""
    mean_square = jnp.mean(jnp.square(x_BLD.astype(jnp.float32)), axis=-1, keepdims=True)
    normed_BLD = x_BLD * lax.rsqrt(mean_square + 1e-6).astype(x_BLD.dtype)
    gate_BLF = jax.nn.silu(normed_BLD @ weights["gate_DF"])
    return x_BLD + (gate_BLF * (normed_BLD @ weights["up_DF"])) @ weights["down_FD"]


def loss(_: Any, y_BLD: jax.Array, targets_BLD: jax.Array) -> jax.Array:
    """Mean squared difference."""
    return jnp.mean(jnp.square((y_BLD - targets_BLD).astype(jnp.float32)))
