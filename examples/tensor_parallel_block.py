"""A tensor-parallel feed-forward block: gather rows, matmul, matmul, scatter rows.

Each device holds a share of the rows of x, of the columns of w_in and of the rows of w_out:

    h = gelu(all_gather(x) @ w_in)      the rows travel while the first of them are multiplied
    y = reduce_scatter(h @ w_out)       the sums travel while the next terms are computed

Run it on emulated devices, on a ring and on a line:

    python examples/tensor_parallel_block.py --devices 4

It prints, for each topology and backend, how far the block and its gradients are from the same
block on one device.
"""

import argparse
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringline


def block(x, w_in, w_out, **form):
    """One device's part.

    Args:
        x: `[rows / n, model]`.
        w_in: `[model, hidden / n]`.
        w_out: `[hidden / n, model]`.
        form: topology, directions, channels and implementation of both collectives.
    """
    hidden = jax.nn.gelu(ringline.all_gather_matmul(x, w_in, "tensor", **form))
    return ringline.matmul_reduce_scatter(hidden, w_out, "tensor", **form)


def plain(x, w_in, w_out):
    """The same block on one device."""
    return jax.nn.gelu(x @ w_in) @ w_out


def largest_error(devices: int, **form) -> float:
    """How far values and gradients of the block are from the plain one's, at most."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tensor",))
    spread = jax.shard_map(
        partial(block, **form),
        mesh=mesh,
        in_specs=(P("tensor"), P(None, "tensor"), P("tensor")),
        out_specs=P("tensor"),
    )
    random = np.random.default_rng(0)
    shapes = [(4 * devices, 16), (16, 8 * devices), (8 * devices, 16)]
    operands = [jnp.asarray(random.normal(size=s) / 4, jnp.float32) for s in shapes]

    def run(way):
        def loss(*operands):
            y = way(*operands)
            return (y**2).sum(), y

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*operands)

    got, want = run(spread), run(plain)
    errors = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), got, want)
    return float(max(jax.tree.leaves(errors)))


def main() -> None:
    """Print a line for each topology and backend."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--devices", type=int, default=4)
    devices = flags.parse_args().devices
    # Before JAX counts its devices: emulate the devices where there is no accelerator.
    emulate = f"--xla_force_host_platform_device_count={devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {emulate}".strip()
    for topology in ("ring", "line"):
        for implementation in ("permute", "xla"):
            error = largest_error(devices, topology=topology, implementation=implementation)
            print(f"{topology:<4}  {implementation:<7}  largest error {error:.1e}")


if __name__ == "__main__":
    main()
