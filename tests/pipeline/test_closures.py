"""Values that a layer or a loss closes over, under every transformation that traces them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pipeline_helpers import (
    batch_of,
    difference,
    layer,
    make_batch,
    make_mesh,
    make_params,
    plain,
    square,
)

import ringline
from ringline import schedules

SCHEDULE = schedules.zero_bubble_h1(2, 2)


def model(params, scale, x, targets, pipelined=True):
    """A loss whose layer reads a table made on the spot, and whose loss reads a parameter."""
    table = jnp.sin(jnp.arange(x.shape[-1], dtype=x.dtype))

    def turned(params, x):
        return layer(params, x) + 0.1 * table

    def scaled(_, y, targets):
        return scale * square((), y, targets)

    if not pipelined:
        return scaled((), plain(turned, params, x), targets)
    mesh = make_mesh(2, 2)
    return ringline.pipeline_loss(
        turned, scaled, params, (), x, targets, schedule=SCHEDULE, mesh=mesh
    )


def accumulated(params, scale, x, targets, **options):
    """Two batches, by a scan inside of the function that is differentiated."""

    def step(total, factor):
        return total + model(params, scale, factor * x, targets, **options), None

    return lax.scan(step, jnp.zeros(()), jnp.array([1.0, 0.5]))[0]


@pytest.mark.parametrize(
    "around", [jax.jit, jax.checkpoint, lambda f: f], ids=["jit", "checkpoint", "nothing"]
)
@pytest.mark.parametrize("loss", [model, accumulated])
def test_traced_inside_of_what_is_differentiated(loss, around):
    params, (x, targets) = make_params(2), batch_of(4, 2)
    got = jax.jit(jax.value_and_grad(around(loss), (0, 1, 2)))(params, 2.0, x, targets)

    def reference(*arguments):
        return loss(*arguments, pipelined=False)

    want = jax.value_and_grad(reference, (0, 1, 2))(params, 2.0, x, targets)
    assert difference(got, want) <= 1e-5


def shared_in_layers(shared, run):
    params, x = make_params(2), make_batch(4)
    return run(lambda params, x: layer(params, x) + shared, params, x)


def test_a_gradient_in_what_a_layer_closes_over_is_refused():
    def run(layer, params, x):
        return ringline.pipeline_loss(
            layer, square, params, (), x, x, schedule=SCHEDULE, mesh=make_mesh(2)
        )

    with pytest.raises(ValueError, match=r"closes over a float32\[8\].*params") as caught:
        jax.grad(shared_in_layers)(jnp.ones(8), run)
    assert "\n" not in str(caught.value)
    stopped = jax.grad(lambda shared: shared_in_layers(lax.stop_gradient(shared), run))
    np.testing.assert_array_equal(stopped(jnp.ones(8)), 0)


def test_the_forward_pipeline_has_the_gradient_of_a_closure():
    def run(layer, params, x):
        y = ringline.pipeline(layer, params, x, schedule=schedules.linear(2, 2), mesh=make_mesh(2))
        return jnp.mean(y**2)

    def reference(layer, params, x):
        return jnp.mean(plain(layer, params, x) ** 2)

    got, want = (jax.grad(jax.jit(lambda s, r=r: shared_in_layers(s, r))) for r in (run, reference))
    assert difference(got(jnp.ones(8)), want(jnp.ones(8))) <= 1e-5
