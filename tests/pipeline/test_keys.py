"""Dropout is that of the plain model for the same key, in every layout, and when run again."""

import jax
import jax.numpy as jnp
import pytest
from pipeline_helpers import WIDTH, difference, layer, make_batch, make_mesh, make_params

import ringline
from ringline import schedules

RNG = jax.random.key(5)


def dropout_layer(params, x, keys):
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.7, x.shape[1:]))(keys)
    return layer(params, jnp.where(keep, x, 0))


def plain(params, x):
    for index in range(params["up"].shape[0]):
        keys = ringline.layer_keys(RNG, index, x.shape[0])
        x = dropout_layer(jax.tree.map(lambda leaf, i=index: leaf[i], params), x, keys)
    return x


def square(_, y, targets):
    return jnp.mean((y - targets) ** 2)


@pytest.mark.parametrize("remat", [True, False])
@pytest.mark.parametrize("stacked", [True, False])
def test_loss_and_gradients_with_dropout(remat, stacked):
    # OLMo-core#828: recomputing with fresh masks. pytorch#139304: one seed for every stage.
    schedule = schedules.interleaved_one_f_one_b(2, 2, 2)
    params, x = make_params(4), make_batch(8)
    targets = jnp.zeros_like(x)

    def run(params, x):
        given = ringline.stack_layers(params, schedule) if stacked else params
        return ringline.pipeline_loss(
            dropout_layer,
            square,
            given,
            (),
            x,
            targets,
            schedule=schedule,
            mesh=make_mesh(2, 2),
            remat=remat,
            rng=RNG,
        )

    got = jax.jit(jax.value_and_grad(run, argnums=(0, 1)))(params, x)
    want = jax.value_and_grad(lambda p, x: square((), plain(p, x), targets), argnums=(0, 1))
    assert difference(got, want(params, x)) <= 1e-5


def test_forward_pipeline_with_dropout():
    schedule = schedules.circular(2, 4, 2)
    params, x = make_params(4), make_batch(8)
    y = ringline.pipeline(
        dropout_layer, params, x, schedule=schedule, mesh=make_mesh(2, 2), rng=RNG
    )
    assert y.shape == (8, 3, WIDTH)
    assert difference(y, plain(params, x)) <= 1e-5


def test_keys_differ_between_layers_and_rows():
    data = [jax.random.key_data(ringline.layer_keys(RNG, index, 4)) for index in range(3)]
    keys = {tuple(map(int, row)) for layer_data in data for row in layer_data}
    assert len(keys) == 12
