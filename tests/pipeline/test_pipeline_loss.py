"""`pipeline_loss` gives the plain model's loss and gradients, whatever schedule makes them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from pipeline_helpers import (
    difference,
    difference_from_plain,
    head,
    layer,
    make_batch,
    make_mesh,
    make_params,
    mean_head,
    plain,
    plain_loss,
    problem,
)

import ringline
from ringline import schedules

ALL = [
    schedules.linear(2, 3),
    schedules.circular(2, 3, 2),
    schedules.one_f_one_b(3, 5),
    schedules.eager_one_f_one_b(4, 8),
    schedules.interleaved_one_f_one_b(2, 5, 3),
    schedules.zero_bubble_h1(3, 4),
    schedules.zero_bubble_h2(2, 7),
    schedules.zero_bubble_v(3, 5),
    schedules.dualpipe_v(2, 4),
    schedules.zero_bubble(2, 4),
]
DOTS = jax.checkpoint_policies.dots_saveable


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.name)
def test_every_schedule_equals_plain(schedule):
    assert difference_from_plain(schedule, fsdp=2) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, DOTS], ids=["keep", "dots"])
@pytest.mark.parametrize("schedule", ALL[3:], ids=lambda s: s.name)
def test_every_schedule_equals_plain_from_residuals(schedule, remat):
    assert difference_from_plain(schedule, fsdp=2, remat=remat) <= 1e-5


@pytest.mark.parametrize("gather", ["repeat", "use"])
def test_gather_changes_no_value(gather):
    assert (
        difference_from_plain(schedules.interleaved_one_f_one_b(2, 5, 2), fsdp=2, gather=gather)
        <= 1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["repeat", "use"])
@pytest.mark.parametrize("make", [schedules.zero_bubble_v, schedules.interleaved_one_f_one_b])
def test_gather_over_more_than_two_stages(make, gather):
    # Maxtext's prefetch of a repeat's weights is wrong beyond the second stage.
    assert difference_from_plain(make(4, 8, 2), fsdp=2, depth=2, gather=gather) <= 1e-5


@pytest.mark.parametrize("remat", [True, False])
def test_float64(remat):
    with jax.enable_x64(True):
        schedule = schedules.interleaved_one_f_one_b(2, 3, 2)
        assert difference_from_plain(schedule, fsdp=2, dtype=jnp.float64, remat=remat) <= 1e-12


def test_bfloat16_is_near():
    assert (
        difference_from_plain(schedules.eager_one_f_one_b(2, 4), fsdp=2, dtype=jnp.bfloat16) <= 0.1
    )


def test_mean_loss_of_a_single_stage_and_microbatch():
    assert difference_from_plain(schedules.one_f_one_b(1, 1), fsdp=2, head=mean_head) <= 1e-5
    assert difference_from_plain(schedules.eager_one_f_one_b(4, 1), head=mean_head) <= 1e-5


def test_fewer_microbatches_than_stages():
    # torchtitan#775: a hang when m < p.
    assert difference_from_plain(schedules.interleaved_one_f_one_b(4, 2, 2)) <= 1e-5


def test_chunks_of_unequal_layers():
    schedule = schedules.zero_bubble_h1(3, 3, layers_per_stage=(1, 3, 2))
    mesh = make_mesh(3, 2)
    _, *rest, targets = problem(schedule)
    params = make_params(6)

    def run(params, loss_params, x):
        return ringline.pipeline_loss(
            layer, head, params, loss_params, x, targets, schedule=schedule, mesh=mesh
        )

    got = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2)))(params, *rest)
    want = jax.value_and_grad(plain_loss, argnums=(0, 1, 2))(params, *rest, targets)
    assert difference(got, want) <= 1e-5


def test_value_alone_runs_no_backward():
    # pytorch#162822, DeepSpeed#3649: evaluation before and between training steps.
    schedule = schedules.eager_one_f_one_b(2, 4)
    mesh = Mesh(np.array(jax.devices()[:2]), ("stage",))
    params, loss_params, x, targets = problem(schedule)
    calls = []

    def counted(params, x):
        jax.debug.callback(lambda: calls.append(1))
        return layer(params, x)

    def run(params):
        return ringline.pipeline_loss(
            counted, head, params, loss_params, x, targets, schedule=schedule, mesh=mesh
        )

    def count(function):
        calls.clear()
        result = jax.block_until_ready(jax.jit(function)(params))
        jax.effects_barrier()
        return result, len(calls)

    layer_runs = 2 * 4
    before, forwards = count(run)
    assert forwards == layer_runs
    (value, _), both = count(jax.value_and_grad(run))
    assert both == 2 * layer_runs  # each forward, and once more where remat asks
    after, _ = count(run)
    np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(value, before, rtol=1e-6)


def test_bubbles_run_nothing():
    # The layer is 0/0 on zeros, which is what an idle stage holds.
    def fragile(params, x):
        return layer(params, x) * (jnp.sum(x * x) / jnp.sum(x * x))

    assert (
        difference_from_plain(schedules.interleaved_one_f_one_b(4, 3, 2), fsdp=2, layer=fragile)
        <= 1e-5
    )


def test_tied_embedding_inside_a_whole_model():
    # Megatron#844: the gradients of a weight used in the embedding and in the head.
    schedule = schedules.eager_one_f_one_b(2, 2)
    mesh = make_mesh(2, 2)
    tokens = jnp.arange(24).reshape(8, 3) % 11
    params = {"layers": make_params(2), "table": 0.5 * make_batch(11)[:, 0]}

    def cross_entropy(table, y, targets):
        logits = jax.nn.log_softmax(y @ table.T)
        return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], axis=-1))

    def pipelined(params):
        x = params["table"][tokens]
        return ringline.pipeline_loss(
            layer,
            cross_entropy,
            params["layers"],
            params["table"],
            x,
            (tokens + 1) % 11,
            schedule=schedule,
            mesh=mesh,
        )

    def reference(params):
        y = plain(layer, params["layers"], params["table"][tokens])
        return cross_entropy(params["table"], y, (tokens + 1) % 11)

    got = jax.jit(jax.value_and_grad(pipelined))(params)
    assert difference(got, jax.value_and_grad(reference)(params)) <= 1e-5


def test_accumulation_outside_donation_and_optimizer():
    # torchtitan#1733, DeepSpeed#7773: sums where averages belong, and rescaled running sums.
    schedule = schedules.eager_one_f_one_b(2, 2)
    mesh = make_mesh(2, 2)
    params, loss_params, x, targets = problem(schedule, rows=4)
    optimizer = optax.adamw(1e-2)

    def step(loss, params, state):
        def mean(params):
            halves = [loss(params, loss_params, x[i::2], targets[i::2]) for i in range(2)]
            return sum(halves) / 2

        value, gradients = jax.value_and_grad(mean)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def pipelined(params, loss_params, x, targets):
        return ringline.pipeline_loss(
            layer, mean_head, params, loss_params, x, targets, schedule=schedule, mesh=mesh
        )

    def reference(params, loss_params, x, targets):
        return plain_loss(params, loss_params, x, targets, mean_head)

    results = []
    for loss in (pipelined, reference):
        jitted = jax.jit(lambda p, s, loss=loss: step(loss, p, s), donate_argnums=(0, 1))
        mine = jax.tree.map(jnp.copy, params)
        state = optimizer.init(mine)
        values = []
        for _ in range(3):
            mine, state, value = jitted(mine, state)
            values.append(float(value))
        results.append(values)
    np.testing.assert_allclose(*results, rtol=1e-5)
    assert results[0][2] < results[0][0]


@pytest.mark.parametrize("schedule", [schedules.eager_one_f_one_b(4, 8), ALL[4]])
def test_compiled_size_does_not_grow_with_microbatches(schedule):
    def lines(microbatches):
        again = getattr(schedules, schedule.name)(schedule.stages, microbatches, schedule.repeats)
        params, loss_params, x, targets = problem(again)

        def run(params):
            return ringline.pipeline_loss(
                layer,
                head,
                params,
                loss_params,
                x,
                targets,
                schedule=again,
                mesh=make_mesh(again.stages),
            )

        text = jax.jit(jax.value_and_grad(run)).lower(params).as_text()
        return text.count("stablehlo.dot_general")

    assert lines(8) == lines(64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": lambda p, y, t: y}, ["must return a scalar", "float32[2, 3, 8]"]),
        ({"loss": lambda p, y, t: jnp.sum(t).astype(int)}, ["floating-point", "int32"]),
        ({"targets": jnp.ones((3, 2))}, ["batch of x, 4", "[3, 2]"]),
        ({"gather": "once"}, ["step, repeat, use", "'once'"]),
        ({"remat": "full"}, ["True, False or a policy", "'full'"]),
        ({"rng": 3}, ["jax.random.key(0)", "got 3"]),
        ({"loss_params": {"w": jnp.tanh}}, ["loss_params['w']", "every leaf must be an array"]),
        ({"schedule": schedules.linear(2, 2).forward()}, ["has no backward"]),
        ({"schedule": schedules.linear(2, 4)}, ["2 devices", "must divide", "got 1"]),
        ({"specs": P("fsdp", "stage")}, ["bias", "multiple of the 2"]),
        ({"specs": "fsdp"}, ["one PartitionSpec, or a tree", "got fsdp"]),
        ({"specs": {"up": P("fsdp")}}, ["one PartitionSpec, or a tree", "'bias'"]),
        ({"fsdp_axis": "data"}, ["no axis 'data'", "stage", "fsdp_axis="]),
        ({"fsdp_axis": "stage"}, ["both 'stage'"]),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_line(change, words):
    schedule = schedules.linear(2, 2)
    params, loss_params, x, targets = problem(schedule)
    params["bias"] = jnp.ones((2, 3))
    options = {"loss": head, "targets": targets, "schedule": schedule} | change
    loss, loss_params = options.pop("loss"), options.pop("loss_params", loss_params)
    with pytest.raises(ValueError, match=r".") as caught:
        ringline.pipeline_loss(
            lambda p, x: x,
            loss,
            params,
            loss_params,
            x,
            options.pop("targets"),
            mesh=make_mesh(2, 2),
            **options,
        )
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_gather_by_repeat_where_a_stage_never_splits_its_backward():
    assert difference_from_plain(schedules.dualpipe_v(2, 2), fsdp=2, gather="repeat") <= 1e-5


def test_targets_have_no_gradient_even_where_they_follow_from_parameters():
    schedule = schedules.eager_one_f_one_b(2, 2)
    params, loss_params, x, _ = problem(schedule)

    def run(scale, pipelined):
        targets = scale * jax.lax.stop_gradient(x) if not pipelined else scale * x
        if not pipelined:
            return plain_loss(params, loss_params, x, jax.lax.stop_gradient(targets), mean_head)
        return ringline.pipeline_loss(
            layer,
            mean_head,
            params,
            loss_params,
            x,
            targets,
            schedule=schedule,
            mesh=make_mesh(2),
        )

    value, gradient = jax.value_and_grad(run)(0.5, True)
    np.testing.assert_allclose(value, run(0.5, False), rtol=1e-5)
    assert gradient == 0
