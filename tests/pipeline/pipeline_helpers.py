"""A small well-conditioned stack of layers, its plain loop, and how far two results differ."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ringline

WIDTH = 8


def layer(params, x):
    """A residual layer with a norm and a small step, so that depth does not blow rounding up."""
    h = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x + 0.1 * jnp.tanh(h @ params["up"]) @ params["down"] + params["bias"]


def make_params(layers: int, dtype=jnp.float32) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "bias": (WIDTH,)}
    return {
        name: (0.3 * jax.random.normal(key, (layers, *shape))).astype(dtype)
        for key, (name, shape) in zip(keys, shapes.items())
    }


def make_batch(batch: int, dtype=jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (batch, 3, WIDTH)).astype(dtype)


def plain(layer, params, x):
    """The plain loop over layers."""
    for index in range(jax.tree.leaves(params)[0].shape[0]):
        x = layer(jax.tree.map(lambda leaf, i=index: leaf[i], params), x)
    return x


def make_mesh(stages: int, fsdp: int = 1) -> Mesh:
    devices = np.array(jax.devices()[: stages * fsdp]).reshape(stages, fsdp)
    return Mesh(devices, ("stage", "fsdp"))


def place(mesh: Mesh, params, x):
    """Weights partitioned over fsdp on their first dimension, the batch over fsdp."""
    params = jax.device_put(params, NamedSharding(mesh, P(None, "fsdp")))
    return params, jax.device_put(x, NamedSharding(mesh, P("fsdp")))


def loss_of(run):
    """A scalar of what `run(params, x)` gives, and its gradients in both."""

    def loss(params, x) -> Any:
        y = run(params, x)
        return jnp.mean(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def difference(got, want) -> float:
    """The largest difference over all leaves, each relative to its leaf's largest value."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        assert np.isfinite(a).all()
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst


def square(_, y, targets):
    """A mean loss without parameters."""
    return jnp.mean((y - targets) ** 2)


def pipelined(schedule, layer=layer, loss=square, fsdp=1, **options):
    """`(params, x, targets) -> loss`, by a schedule."""
    mesh = make_mesh(schedule.stages, fsdp)

    def run(params, x, targets):
        return ringline.pipeline_loss(
            layer, loss, params, (), x, targets, schedule=schedule, mesh=mesh, **options
        )

    return run


def unpipelined(layer=layer, loss=square):
    """The same by the plain loop."""

    def run(params, x, targets):
        result = loss((), plain(layer, params, x), targets)
        return result[0] / result[1] if isinstance(result, tuple) else result

    return run


def both(run, reference, *arguments, argnums=(0,)):
    """The values and the gradients in `argnums` of the one and the other."""
    return [jax.jit(jax.value_and_grad(f, argnums))(*arguments) for f in (run, reference)]


def compare(run, reference, *arguments, argnums=(0,)):
    """How far the one and the other are apart."""
    return difference(*both(run, reference, *arguments, argnums=argnums))


def batch_of(rows, length, seed=0):
    """Rows of the input and of what the loss compares with."""
    x, targets = jax.random.normal(jax.random.key(seed), (2, rows, length, WIDTH))
    return x, targets


def head(params, y, targets):
    """A weighted mean: rows whose target starts below zero do not count."""
    weight = jnp.broadcast_to(targets[..., :1] > 0, targets.shape).astype(y.dtype)
    return jnp.sum(weight * (y @ params["w"] - targets) ** 2), jnp.sum(weight)


def mean_head(params, y, targets):
    return jnp.mean((y @ params["w"] - targets) ** 2)


def problem(schedule, *, depth=1, dtype=jnp.float32, rows=2):
    batch = rows * schedule.microbatches
    params = make_params(schedule.chunks * depth, dtype)
    loss_params = {"w": 1.1 * jnp.eye(WIDTH, dtype=dtype)}
    return params, loss_params, make_batch(batch, dtype), 0.5 * make_batch(batch, dtype)[::-1]


def plain_loss(params, loss_params, x, targets, head=head, layer=layer):
    result = head(loss_params, plain(layer, params, x), targets)
    return result[0] / result[1] if isinstance(result, tuple) else result


def difference_from_plain(
    schedule, *, fsdp=1, depth=1, dtype=jnp.float32, head=head, layer=layer, **options
):
    """The largest difference of the value and the gradients in all three arguments."""
    mesh = make_mesh(schedule.stages, fsdp)
    *arguments, targets = problem(schedule, depth=depth, dtype=dtype)

    def run(params, loss_params, x):
        return ringline.pipeline_loss(
            layer, head, params, loss_params, x, targets, schedule=schedule, mesh=mesh, **options
        )

    def reference(params, loss_params, x):
        return plain_loss(params, loss_params, x, targets, head, layer)

    return compare(run, reference, *arguments, argnums=(0, 1, 2))
