"""Faults that users of other libraries reported, each by its issue, run through the public API.

| fault | test |
|---|---|
| pytorch#172668, pytorch#171312, Megatron#750, DeepSpeed#1522 | schedule/test_pipeline_faults.py |
| Megatron#1304, Megatron#381, pytorch#136380, pytorch#193903 | schedule/test_pipeline_faults.py |
| torchtitan#775 | schedule/test_pipeline_faults.py |
| torchtitan#1733, DeepSpeed#7773, Megatron#844 | pipeline/test_pipeline_loss.py |
| PiPPy#1029 | pipeline/test_what_layers_may_do.py |
| pytorch#162822, maxtext's prefetch | pipeline/test_pipeline_loss.py |
| xla#45222, maxtext's bubbles | pipeline/test_pipeline.py |
| OLMo-core#828, pytorch#139304 | pipeline/test_keys.py |
| PiPPy#1105, torchtitan#318, maxtext#2739 | pipeline/test_compiled_program.py |
| torchtitan#474, marin#8972 | train/test_checkpoint.py |

The others are here.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pipeline_helpers import (
    WIDTH,
    batch_of,
    both,
    compare,
    difference,
    layer,
    make_batch,
    make_mesh,
    make_params,
    pipelined,
    plain,
    square,
    unpipelined,
)

import ringline
from ringline import schedules

# Both split the backward in I and W; the second also has whole ones, and a hop within a stage.
SPLIT = [schedules.zero_bubble_h1(2, 3), schedules.dualpipe_v(2, 4)]
by_name = pytest.mark.parametrize(
    "schedule",
    [SPLIT[0], pytest.param(SPLIT[1], marks=pytest.mark.slow)],
    ids=[schedule.name for schedule in SPLIT],
)
by_name_and_remat = pytest.mark.parametrize(
    ("schedule", "remat"), [(SPLIT[0], False), (SPLIT[1], True)], ids=["keep", "again"]
)


# Shapes and dtypes


def test_pytorch_126600_eight_rows_in_three_microbatches():
    schedule, params, x = schedules.one_f_one_b(2, 3), make_params(2), make_batch(8)
    words = re.escape("3 microbatches must divide the batch, got a batch of 8; change the batch")
    with pytest.raises(ValueError, match=words):
        pipelined(schedule)(params, x, x)
    with pytest.raises(ValueError, match=words):
        ringline.pipeline(layer, params, x, schedule=schedule, mesh=make_mesh(2))


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param([(4, 3), (4, 5), (8, 3), (4, 3)], id="DeepSpeed#5729-shapes-by-turns"),
        pytest.param([(8, 3), (8, 3), (2, 3)], id="DeepSpeedExamples#790-smaller-last-batch"),
        pytest.param([(4, 128), (4, 129)], id="ColossalAI#5940-one-token-more"),
    ],
)
def test_each_batch_meets_its_own_targets_whatever_came_before(shapes):
    schedule, params = schedules.eager_one_f_one_b(2, 2), make_params(2)
    steps = [jax.jit(jax.value_and_grad(f)) for f in (pipelined(schedule), unpipelined())]
    for seed, (rows, length) in enumerate(shapes):
        got, want = (step(params, *batch_of(rows, length, seed)) for step in steps)
        assert difference(got, want) <= 1e-5


def test_deepspeedexamples_790_a_last_batch_that_does_not_divide_takes_its_own_schedule():
    params, (x, targets) = make_params(2), batch_of(3, 3)
    with pytest.raises(ValueError, match="2 microbatches must divide the batch, got a batch of 3"):
        pipelined(schedules.one_f_one_b(2, 2))(params, x, targets)
    run = pipelined(schedules.one_f_one_b(2, 3))
    assert compare(run, unpipelined(), params, x, targets) <= 1e-5


@pytest.mark.parametrize("where", ["layer", "weights"])
def test_pytorch_129732_a_dtype_that_changes_between_stages(where):
    schedule, params, x = schedules.one_f_one_b(2, 2), make_params(2), make_batch(4)
    if where == "layer":
        run = pipelined(schedule, layer=lambda p, x: layer(p, x).astype(jnp.bfloat16))
        words = "the layer changes x from float32[2, 3, 8] to bfloat16[2, 3, 8]"
    else:  # activations of half precision grow by weights of full precision
        run, x = pipelined(schedule), x.astype(jnp.bfloat16)
        words = "the layer changes x from bfloat16[2, 3, 8] to float32[2, 3, 8]"
    with pytest.raises(ValueError, match=re.escape(words)):
        run(params, x, x)


@pytest.mark.slow
def test_deepspeed_3649_3045_evaluation_of_another_batch_between_training_steps():
    run, reference = pipelined(schedules.zero_bubble_h1(2, 4)), unpipelined()
    train, held_out = batch_of(8, 3), batch_of(4, 5, seed=1)

    def curve(loss):
        evaluate, step = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
        params, values = make_params(2), []
        for _ in range(2):
            values += [evaluate(params, *held_out), evaluate(params, *train)]
            value, gradient = step(params, *train)
            params = jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient)
            values += [value, evaluate(params, *held_out)]
        return np.array(values)

    values = curve(run)
    np.testing.assert_allclose(values, curve(reference), rtol=1e-5)
    assert values[-1] < values[0]


# Gradients and their scale


def valid_tokens(_, y, targets):
    """The sum over valid tokens, and how many there are; a target of zero is padding."""
    valid = jnp.any(targets != 0, axis=-1)
    return jnp.sum(jnp.mean((y - targets) ** 2, axis=-1) * valid), jnp.sum(valid).astype(y.dtype)


@pytest.mark.parametrize("fsdp", [1, 2])
def test_megatron_7452_torchtitan_2972_uneven_counts_of_valid_tokens(fsdp):
    x, targets = batch_of(12, 3)
    # Rows 0, 3, 6 and 9 are microbatch 0: it has no valid token at all.
    lengths = jnp.array([0, 3, 1, 0, 2, 3, 0, 1, 1, 0, 0, 2])
    targets = jnp.where(jnp.arange(3)[None, :, None] < lengths[:, None, None], targets, 0)
    run = pipelined(schedules.one_f_one_b(2, 3), loss=valid_tokens, fsdp=fsdp)
    params = make_params(2)
    once, want = both(run, unpipelined(loss=valid_tokens), params, x, targets)
    assert difference(once, want) <= 1e-5
    # The same tokens twice are twice the count and the same mean.
    twice = [jnp.concatenate([a, a]) for a in (x, targets)]
    assert difference(jax.jit(jax.value_and_grad(run, (0,)))(params, *twice), once) <= 1e-5


@pytest.mark.parametrize("microbatches", [1, 4])
def test_areal_1273_no_factor_of_the_microbatches_is_hidden_in_the_gradient(microbatches):
    run = pipelined(schedules.eager_one_f_one_b(2, microbatches))
    assert compare(run, unpipelined(), make_params(2), *batch_of(8, 3)) <= 1e-5


def test_alpa_405_a_loss_that_is_a_sum():
    def summed(_, y, targets):
        return jnp.sum((y - targets) ** 2), jnp.asarray(len(y), y.dtype)

    def total(params, x, targets):
        return len(x) * pipelined(schedules.one_f_one_b(2, 4), loss=summed, fsdp=2)(
            params, x, targets
        )

    reference = unpipelined(loss=lambda *a: summed(*a)[0])
    assert compare(total, reference, make_params(2), *batch_of(8, 3)) <= 1e-5


@by_name_and_remat
def test_pytorch_180952_a_weight_used_twice_counts_twice_and_no_more(schedule, remat):
    def twice(params, x):
        w = params["w"] + params["all"]
        return x + 0.1 * jnp.tanh(jnp.tanh(x @ w) @ w.T)

    layers = schedule.chunks

    def shared(loss):
        # One matrix that all layers use, beside each layer's own.
        def run(params, x, targets):
            everywhere = jnp.broadcast_to(params["all"], (layers, WIDTH, WIDTH))
            return loss({"w": params["w"], "all": everywhere}, x, targets)

        return run

    own = 0.3 * jax.random.normal(jax.random.key(2), (layers + 1, WIDTH, WIDTH))
    params = {"w": own[:-1], "all": own[-1]}
    batch = batch_of(2 * schedule.microbatches, 3)
    run = shared(pipelined(schedule, layer=twice, remat=remat))
    assert compare(run, shared(unpipelined(layer=twice)), params, *batch) <= 1e-5


# Frozen, unused, not differentiable


@by_name
def test_pytorch_145010_whole_chunks_are_frozen(schedule):
    frozen = jnp.array([0, schedule.chunks - 1] if schedule.chunks > 2 else [0])

    def freeze(loss):
        def run(params, x, targets):
            held = jax.tree.map(
                lambda leaf: leaf.at[frozen].set(jax.lax.stop_gradient(leaf[frozen])), params
            )
            return loss(held, x, targets)

        return run

    arguments = make_params(schedule.chunks), *batch_of(2 * schedule.microbatches, 3)
    got, want = both(freeze(pipelined(schedule)), freeze(unpipelined()), *arguments)
    assert difference(got, want) <= 1e-5
    gradient = got[1][0]["up"]
    np.testing.assert_array_equal(gradient[frozen], 0.0)
    assert np.abs(gradient).max() > 0


@by_name
def test_pytorch_145010_only_part_of_every_layer_is_trained(schedule):
    # As an adapter is: the gradient in some leaves alone, integers among the others.
    params = make_params(schedule.chunks)
    frozen = {"w": params, "number": jnp.arange(schedule.chunks)}
    adapter = {"scale": jnp.ones((schedule.chunks, WIDTH))}

    def adapted(params, x):
        bias = jnp.where(params["number"] > 0, 0.1, 0.2)
        return x + params["scale"] * (layer(params["w"], x) - x) + bias

    def trained(loss):
        return lambda adapter, x, targets: loss(frozen | adapter, x, targets)

    run, reference = (
        trained(pipelined(schedule, layer=adapted)),
        trained(unpipelined(layer=adapted)),
    )
    batch = batch_of(2 * schedule.microbatches, 3)
    assert compare(run, reference, adapter, *batch) <= 1e-5


def test_pytorch_145010_only_the_head_or_only_the_input_is_trained():
    schedule, mesh = schedules.zero_bubble_h1(2, 2), make_mesh(2, 2)
    params, (x, targets) = make_params(2), batch_of(4, 3)
    head = {"w": jnp.eye(WIDTH)}

    def loss(head, y, targets):
        return square((), y @ head["w"], targets)

    def run(head, x):
        return ringline.pipeline_loss(
            layer, loss, params, head, x, targets, schedule=schedule, mesh=mesh
        )

    def reference(head, x):
        return loss(head, plain(layer, params, x), targets)

    for argnums in (0, 1):
        assert compare(run, reference, head, x, argnums=argnums) <= 1e-5


@by_name_and_remat
def test_paddle_73459_floats_between_stages_that_want_no_gradient(schedule, remat):
    # A bias made by the embedding travels to every layer; more leaves go out than cotangents
    # that matter come back.
    def biased(params, carried):
        x, bias = carried
        return layer(params, x + jax.lax.stop_gradient(bias)[..., None]), bias

    def loss(_, carried, targets):
        return square((), carried[0], targets)

    def from_x(loss):
        def run(params, x, targets):
            return loss(params, (x, jnp.cumsum(x[..., 0], axis=1)), targets)

        return run

    run = from_x(pipelined(schedule, layer=biased, loss=loss, remat=remat))
    reference = from_x(unpipelined(layer=biased, loss=loss))
    arguments = make_params(schedule.chunks), *batch_of(2 * schedule.microbatches, 3)
    assert compare(run, reference, *arguments, argnums=(0, 1)) <= 1e-5


# Tied weights, and what skips stages


@pytest.mark.slow
def test_megatron_656_the_head_stays_tied_to_the_embedding_while_training():
    tokens = jnp.arange(24).reshape(8, 3) % 11
    optimizer = optax.adamw(1e-2)

    def cross_entropy(table, y, targets):
        logits = y @ table.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def tied(params):
        x = params["table"][tokens]
        return ringline.pipeline_loss(
            layer,
            cross_entropy,
            params["layers"],
            params["table"],
            x,
            (tokens + 1) % 11,
            schedule=schedules.zero_bubble_h1(2, 4),
            mesh=make_mesh(2, 2),
        )

    def reference(params):
        y = plain(layer, params["layers"], params["table"][tokens])
        return cross_entropy(params["table"], y, (tokens + 1) % 11)

    def train(loss):
        params = {"layers": make_params(2), "table": 0.5 * make_batch(11)[:, 0]}
        state = optimizer.init(params)

        @jax.jit
        def step(params, state):
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(4):
            params, state = step(params, state)
        return params

    assert difference(train(tied), train(reference)) <= 1e-4


@by_name
def test_pytorch_127964_skips_from_the_input_to_every_layer(schedule):
    # A table of positions, and the input itself, whose cotangents of all layers add up.
    angles = jnp.outer(jnp.arange(3.0), jnp.arange(WIDTH))

    def skipping(params, carried):
        x, first, cos = carried
        return layer(params, x * cos + 0.1 * first * jnp.sin(angles)), first, cos

    def loss(_, carried, targets):
        return square((), carried[0], targets)

    def from_x(loss):
        def run(params, x, targets):
            cos = jnp.broadcast_to(jnp.cos(angles), x.shape)
            return loss(params, (x, x, cos), targets)

        return run

    run = from_x(pipelined(schedule, layer=skipping, loss=loss))
    reference = from_x(unpipelined(layer=skipping, loss=loss))
    arguments = make_params(schedule.chunks), *batch_of(2 * schedule.microbatches, 3)
    assert compare(run, reference, *arguments, argnums=(0, 1)) <= 1e-5


@by_name
def test_pytorch_130055_later_stages_read_labels_and_positions(schedule):
    def reading(params, carried):
        x, positions, labels = carried
        x = jnp.where((labels > 0)[..., None], x, 0.5 * x)
        return layer(params, x + 0.1 * positions[..., None]), positions, labels

    def loss(_, carried, targets):
        y, positions, labels = carried
        return square((), y * (positions + labels)[..., None], targets)

    rows = 2 * schedule.microbatches
    labels = jax.random.randint(jax.random.key(3), (rows, 3), -1, 2)
    positions = jnp.broadcast_to(jnp.arange(3), (rows, 3))

    def with_ids(loss):
        return lambda params, x, targets: loss(params, (x, positions, labels), targets)

    run = with_ids(pipelined(schedule, layer=reading, loss=loss, fsdp=2))
    reference = with_ids(unpipelined(layer=reading, loss=loss))
    arguments = make_params(schedule.chunks), *batch_of(rows, 3)
    assert compare(run, reference, *arguments, argnums=(0, 1)) <= 1e-5


# A ring of two


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.one_f_one_b(2, 5),
        schedules.interleaved_one_f_one_b(2, 3, 2),
        schedules.zero_bubble_v(2, 5),
    ],
    ids=lambda s: s.name,
)
def test_megatron_750_maxtext_2739_next_and_previous_are_the_same_stage(schedule):
    arguments = make_params(schedule.chunks), *batch_of(schedule.microbatches, 3)
    assert compare(pipelined(schedule), unpipelined(), *arguments, argnums=(0, 1)) <= 1e-5


def test_the_table_above_names_tests_that_exist():
    tests = Path(__file__).parents[1]
    for faults, place in re.findall(r"^\| (.*) \| (\w+/\w+\.py) \|$", __doc__, re.MULTILINE):
        text = (tests / place).read_text(encoding="utf-8").lower().replace("#", "_")
        for fault in faults.lower().replace("#", "_").split(", "):
            assert fault in text, f"{fault} in {place}"
