"""Stacks of layers from Flax NNX and Equinox, pipelined the way their users would."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import pytest
from pipeline_helpers import WIDTH, batch_of, both, difference, make_mesh, square

import ringline
from ringline import schedules

eqx = pytest.importorskip("equinox")
nnx = pytest.importorskip("flax.nnx")

LAYERS = 4
SCHEDULE = schedules.interleaved_one_f_one_b(2, 2, 2)
RNG = jax.random.key(5)


class NnxBlock(nnx.Module):
    """A residual block of a batch of rows."""

    def __init__(self, *, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.3)

    def __call__(self, x, key=None):
        x = x + self.down(nnx.gelu(self.up(self.norm(x))))
        return x if key is None else self.dropout(x, rngs=key)


class EqxBlock(eqx.Module):
    """A residual block of one vector; its activation is a leaf that is no array."""

    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    activation: Callable

    def __init__(self, key):
        up, down = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=up)
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=down)
        self.dropout = eqx.nn.Dropout(0.3)
        self.activation = jax.nn.gelu

    def __call__(self, x, key=None):
        x = x + self.down(self.activation(self.up(self.norm(x))))
        return x if key is None else self.dropout(x, key=key)


@nnx.split_rngs(splits=LAYERS)
@nnx.vmap
def nnx_blocks(rngs):
    return NnxBlock(rngs=rngs)


def nnx_stack():
    """The parameters of a stack, `layer` of one, and its layers one by one."""

    graph, params = nnx.split(nnx_blocks(nnx.Rngs(0)))

    def layer(params, x, keys=None):
        block = nnx.merge(graph, params)
        return block(x) if keys is None else jax.vmap(block)(x, keys)

    return params, layer


def eqx_stack():
    stack = eqx.filter_vmap(EqxBlock)(jax.random.split(jax.random.key(0), LAYERS))
    params, static = eqx.partition(stack, eqx.is_array)

    def layer(params, x, keys=None):
        block = eqx.combine(params, static)
        if keys is None:
            return jax.vmap(jax.vmap(block))(x)
        return jax.vmap(lambda row, key: jax.vmap(block)(row, jax.random.split(key, 3)))(x, keys)

    return params, layer


def loop(layer, params, x, rng):
    """The plain loop, over layers as their users take them from a stack."""
    for index in range(LAYERS):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], params)
        keys = () if rng is None else (ringline.layer_keys(rng, index, len(x)),)
        x = layer(one, x, *keys)
    return x


@pytest.mark.parametrize("make", [nnx_stack, eqx_stack])
def test_a_stack_with_dropout_equals_the_plain_loop(make):
    params, layer = make()
    x, targets = batch_of(4, 3)

    def run(params, x):
        return ringline.pipeline_loss(
            layer,
            square,
            params,
            (),
            x,
            targets,
            schedule=SCHEDULE,
            mesh=make_mesh(2, 2),
            rng=RNG,
        )

    def reference(params, x):
        return square((), loop(layer, params, x, RNG), targets)

    got, want = both(run, reference, params, x, argnums=(0, 1))
    assert difference(got, want) <= 1e-5
    assert jax.tree.structure(got[1][0]) == jax.tree.structure(params)


def test_a_module_of_nnx_is_parameters_as_it_is():
    params, layer = nnx_stack()
    x, _ = batch_of(4, 3)
    y = ringline.pipeline(
        lambda block, x: block(x),
        nnx_blocks(nnx.Rngs(0)),
        x,
        schedule=SCHEDULE,
        mesh=make_mesh(2),
    )
    assert difference(y, loop(layer, params, x, None)) <= 1e-5


@pytest.mark.parametrize("function", [ringline.pipeline, ringline.pipeline_loss])
def test_leaves_that_are_no_arrays_are_named(function):
    stack = eqx.filter_vmap(EqxBlock)(jax.random.split(jax.random.key(0), LAYERS))
    x, targets = batch_of(4, 3)
    one = (lambda b, x: x, stack, x)
    arguments = one if function is ringline.pipeline else (one[0], square, stack, (), x, targets)
    with pytest.raises(ValueError, match=r"params.*\.p is a float, .*equinox.partition") as caught:
        function(*arguments, schedule=SCHEDULE, mesh=make_mesh(2, 2))
    assert "\n" not in str(caught.value)


class NnxModel(nnx.Module):
    """A whole model: an embedding, a stack of blocks, a head."""

    def __init__(self, *, rngs):
        self.embed = nnx.Embed(11, WIDTH, rngs=rngs)
        self.blocks = nnx_blocks(rngs)
        self.head = nnx.Linear(WIDTH, 11, rngs=rngs)


class EqxModel(eqx.Module):
    """A whole model: an embedding, a stack of blocks, a head."""

    embed: eqx.nn.Embedding
    blocks: EqxBlock
    head: eqx.nn.Linear

    def __init__(self, key):
        embed, blocks, head = jax.random.split(key, 3)
        self.embed = eqx.nn.Embedding(11, WIDTH, key=embed)
        self.blocks = eqx.filter_vmap(EqxBlock)(jax.random.split(blocks, LAYERS))
        self.head = eqx.nn.Linear(WIDTH, 11, key=head)


def cross_entropy(head, y, targets):
    return optax.softmax_cross_entropy_with_integer_labels(head(y), targets).mean()


def pipelined_loss(layer, loss, params, loss_params, x, targets):
    return ringline.pipeline_loss(
        layer,
        loss,
        params,
        loss_params,
        x,
        targets,
        schedule=SCHEDULE,
        mesh=make_mesh(2, 2),
    )


def plain_loss(layer, loss, params, loss_params, x, targets):
    return loss(loss_params, loop(layer, params, x, None), targets)


def nnx_training(loss_of):
    """Losses of a few steps of a whole NNX model."""
    tokens = jnp.arange(12).reshape(4, 3) % 11
    model = NnxModel(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            blocks, params = nnx.split(model.blocks)
            head, head_params = nnx.split(model.head)
            return loss_of(
                lambda params, x: nnx.merge(blocks, params)(x),
                lambda params, y, t: cross_entropy(nnx.merge(head, params), y, t),
                params,
                head_params,
                model.embed(tokens),
                (tokens + 1) % 11,
            )

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return [float(step(model, optimizer)) for _ in range(3)]


def eqx_training(loss_of):
    """Losses of a few steps of a whole Equinox model."""
    tokens = jnp.arange(12).reshape(4, 3) % 11
    model = EqxModel(jax.random.key(0))
    optimizer = optax.adamw(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state):
        def loss(model):
            params, static = eqx.partition(model.blocks, eqx.is_array)
            rows = lambda function: jax.vmap(jax.vmap(function))  # noqa: E731
            return loss_of(
                lambda params, x: rows(eqx.combine(params, static))(x),
                lambda head, y, t: cross_entropy(rows(head), y, t),
                params,
                model.head,
                rows(model.embed)(tokens),
                (tokens + 1) % 11,
            )

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, value

    values = []
    for _ in range(3):
        model, state, value = step(model, state)
        values.append(float(value))
    return values


@pytest.mark.slow
@pytest.mark.parametrize("train", [nnx_training, eqx_training])
def test_a_whole_model_trains_like_the_plain_one(train):
    got, want = train(pipelined_loss), train(plain_loss)
    assert got == pytest.approx(want, rel=1e-5)
    assert got[-1] < got[0]
