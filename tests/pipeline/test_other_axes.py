"""Mesh axes beside stage and fsdp: automatic inside a layer, or manual where a layer says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pipeline_helpers import batch_of, difference, make_params, plain, square

import ringline
from ringline import schedules

SCHEDULE = schedules.zero_bubble_h1(2, 2)


def make_mesh():
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), ("stage", "fsdp", "tensor"))


def block(params, x):
    """The layer on one device."""
    return x + 0.1 * jax.nn.gelu(x @ params["up"]) @ params["down"] + params["bias"]


def compare(layer, mesh, params, **options):
    """How far the loss and gradients of the layer are from the block's on one device."""
    x, targets = batch_of(8, 2)

    def run(params, x):
        return ringline.pipeline_loss(
            layer, square, params, (), x, targets, schedule=SCHEDULE, mesh=mesh, **options
        )

    def reference(params, x):
        return square((), plain(block, params, x), targets)

    got = jax.jit(jax.value_and_grad(run, (0, 1)))(params, x)
    return difference(got, jax.value_and_grad(reference, (0, 1))(jax.device_get(params), x))


@pytest.mark.parametrize("gather", ["step", "use"])
def test_weights_and_activations_over_a_tensor_axis(gather):
    mesh = make_mesh()
    specs = {"up": P("fsdp", "tensor"), "down": P("tensor", "fsdp"), "bias": P()}
    params = {
        name: jax.device_put(leaf, NamedSharding(mesh, P(None, *specs[name])))
        for name, leaf in make_params(2).items()
    }

    def layer(params, x):
        columns = NamedSharding(mesh, P(None, None, "tensor"))
        h = lax.with_sharding_constraint(jax.nn.gelu(x @ params["up"]), columns)
        return x + 0.1 * h @ params["down"] + params["bias"]

    assert compare(layer, mesh, params, specs=specs, gather=gather) <= 1e-5


def test_a_layer_with_collectives_of_its_own():
    def rows(x, w_in, w_out):
        h = jax.nn.gelu(ringline.all_gather_matmul(x, w_in, "tensor"))
        return ringline.matmul_reduce_scatter(h, w_out, "tensor")

    def layer(params, x):
        parallel = jax.shard_map(
            rows,
            in_specs=(P("tensor"), P(None, "tensor"), P("tensor")),
            out_specs=P("tensor"),
            axis_names={"tensor"},
            check_vma=False,
        )
        flat = jnp.reshape(x, (-1, x.shape[-1]))
        moved = parallel(flat, params["up"], params["down"])
        return x + 0.1 * jnp.reshape(moved, x.shape) + params["bias"]

    mesh = make_mesh()
    with jax.set_mesh(mesh):
        assert compare(layer, mesh, make_params(2)) <= 1e-5
