"""Pipeline your own layers: a stack of Flax NNX layers and a stack of Equinox layers.

A stack is made by one `vmap` over keys, so that every parameter is `[layers, ...]`. What the
pipeline needs is the arrays of the stack, and a function that runs one layer from its own:

    graph, params = flax.nnx.split(stack)               layer = merge(graph, params)
    params, static = equinox.partition(stack, is_array)  layer = combine(params, static)

Run both over four emulated devices:

    python examples/own_layers.py --stages 4

It trains each for a few steps by 1F1B, and prints how far the losses are from the plain loop's.
"""

import argparse
import os
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

import ringline
from ringline import schedules

WIDTH, LAYERS, BATCH, STEPS = 16, 4, 16, 5


class NnxLayer(nnx.Module):
    """A residual layer in Flax NNX."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        """Rows `[batch, width]` to the same."""
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class EquinoxLayer(eqx.Module):
    """The same in Equinox."""

    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        up, down = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=up)
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=down)

    def __call__(self, x):
        """One row `[width]` to the same."""
        return x + self.down(jax.nn.gelu(self.up(self.norm(x))))


def nnx_stack():
    """Parameters `[layers, ...]`, and a function that runs one layer."""
    stack = nnx.vmap(lambda rngs: NnxLayer(rngs=rngs))(nnx.Rngs(0).split(LAYERS))
    graph, params = nnx.split(stack)
    return params, lambda params, x: nnx.merge(graph, params)(x)


def equinox_stack():
    """Parameters `[layers, ...]`, and a function that runs one layer."""
    stack = eqx.filter_vmap(EquinoxLayer)(jax.random.split(jax.random.key(0), LAYERS))
    params, static = eqx.partition(stack, eqx.is_array)
    return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)


def square(_, y, targets):
    """The mean loss of a microbatch."""
    return jnp.mean((y - targets) ** 2)


def pipelined(mesh, layer, params, x, targets):
    """The loss with the layers spread over the mesh's stages."""
    schedule = schedules.one_f_one_b(stages=mesh.shape["stage"], microbatches=8)
    return ringline.pipeline_loss(
        layer, square, params, (), x, targets, schedule=schedule, mesh=mesh
    )


def plain(layer, params, x, targets):
    """The same loss by a loop over layers on one device."""
    y, _ = jax.lax.scan(lambda x, params: (layer(params, x), None), x, params)
    return square((), y, targets)


def losses(loss, params) -> np.ndarray:
    """The losses of a few steps of gradient descent on made-up rows."""
    x, targets = jax.random.normal(jax.random.key(1), (2, BATCH, WIDTH))
    step = jax.jit(jax.value_and_grad(loss))
    values = []
    for _ in range(STEPS):
        value, gradients = step(params, x, targets)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        values.append(float(value))
    return np.array(values)


def main() -> None:
    """Print a line for each library."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--stages", type=int, default=4)
    stages = flags.parse_args().stages
    # Before JAX counts its devices: emulate the devices where there is no accelerator.
    emulate = f"--xla_force_host_platform_device_count={stages}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {emulate}".strip()
    mesh = Mesh(np.array(jax.devices()[:stages]), ("stage",))
    for name, make in {"Flax NNX": nnx_stack, "Equinox": equinox_stack}.items():
        params, layer = make()
        got = losses(partial(pipelined, mesh, layer), params)
        error = np.abs(got - losses(partial(plain, layer), params)).max()
        print(f"{name:<8}  loss {got[0]:.3f} to {got[-1]:.3f}  largest error {error:.1e}")


if __name__ == "__main__":
    main()
