"""`pipeline_loss` gives the plain model's loss and gradients, whatever schedule makes them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pipeline_helpers import (
    WIDTH,
    difference,
    layer,
    make_batch,
    make_mesh,
    make_params,
    plain,
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


def compare(schedule, *, fsdp=1, depth=1, dtype=jnp.float32, head=head, layer=layer, **options):
    """The largest difference of the value and the gradients in all three arguments."""
    mesh = make_mesh(schedule.stages, fsdp)
    *arguments, targets = problem(schedule, depth=depth, dtype=dtype)

    def run(params, loss_params, x):
        return ringline.pipeline_loss(
            layer, head, params, loss_params, x, targets, schedule=schedule, mesh=mesh, **options
        )

    got = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2)))(*arguments)

    def reference(params, loss_params, x):
        return plain_loss(params, loss_params, x, targets, head, layer)

    want = jax.jit(jax.value_and_grad(reference, argnums=(0, 1, 2)))(*arguments)
    return difference(got, want)


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.name)
def test_every_schedule_equals_plain(schedule):
    assert compare(schedule, fsdp=2) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, DOTS], ids=["keep", "dots"])
@pytest.mark.parametrize("schedule", ALL[3:], ids=lambda s: s.name)
def test_every_schedule_equals_plain_from_residuals(schedule, remat):
    assert compare(schedule, fsdp=2, remat=remat) <= 1e-5


@pytest.mark.parametrize("gather", ["repeat", "use"])
def test_gather_changes_no_value(gather):
    assert compare(schedules.interleaved_one_f_one_b(2, 5, 2), fsdp=2, gather=gather) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["repeat", "use"])
@pytest.mark.parametrize("make", [schedules.zero_bubble_v, schedules.interleaved_one_f_one_b])
def test_gather_over_more_than_two_stages(make, gather):
    # Maxtext's prefetch of a repeat's weights is wrong beyond the second stage.
    assert compare(make(4, 8, 2), fsdp=2, depth=2, gather=gather) <= 1e-5


@pytest.mark.parametrize("remat", [True, False])
def test_float64(remat):
    with jax.enable_x64(True):
        schedule = schedules.interleaved_one_f_one_b(2, 3, 2)
        assert compare(schedule, fsdp=2, dtype=jnp.float64, remat=remat) <= 1e-12


def test_bfloat16_is_near():
    assert compare(schedules.eager_one_f_one_b(2, 4), fsdp=2, dtype=jnp.bfloat16) <= 0.1


def test_mean_loss_of_a_single_stage_and_microbatch():
    assert compare(schedules.one_f_one_b(1, 1), fsdp=2, head=mean_head) <= 1e-5
    assert compare(schedules.eager_one_f_one_b(4, 1), head=mean_head) <= 1e-5


def test_fewer_microbatches_than_stages():
    # torchtitan#775: a hang when m < p.
    assert compare(schedules.interleaved_one_f_one_b(4, 2, 2)) <= 1e-5


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

    assert compare(schedules.interleaved_one_f_one_b(4, 3, 2), fsdp=2, layer=fragile) <= 1e-5


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


def test_leaves_without_gradient_in_weights_and_activations():
    # PiPPy#1029 (ids and masks between stages), pytorch#145010 (unused parameters).
    schedule = schedules.zero_bubble_h1(2, 2)
    mesh = make_mesh(2, 2)
    layers, loss_params, x, targets = problem(schedule)
    params = {"w": layers, "id": jnp.arange(2), "unused": jnp.ones((2, 3))}
    mask = jnp.arange(12).reshape(4, 3) % 3 > 0

    def masked(params, carried):
        x, mask = carried
        scale = 1.0 + params["id"].astype(x.dtype)
        return jnp.where(mask[..., None], scale * layer(params["w"], x), x), mask

    def masked_head(params, carried, targets):
        return head(params, carried[0], targets)

    for remat in (True, False):

        def run(w, x, remat=remat):
            return ringline.pipeline_loss(
                masked,
                masked_head,
                params | {"w": w},
                loss_params,
                (x, mask),
                targets,
                schedule=schedule,
                mesh=mesh,
                remat=remat,
            )

        def reference(w, x):
            y = plain(masked, params | {"w": w}, (x, mask))
            result = masked_head(loss_params, y, targets)
            return result[0] / result[1]

        got = jax.jit(jax.value_and_grad(run, argnums=(0, 1)))(layers, x)
        want = jax.value_and_grad(reference, argnums=(0, 1))(layers, x)
        assert difference(got, want) <= 1e-5


def test_gradient_of_an_unused_parameter_is_zero():
    schedule = schedules.eager_one_f_one_b(2, 2)
    layers, loss_params, x, targets = problem(schedule)

    def run(params):
        return ringline.pipeline_loss(
            lambda p, x: layer(p["w"], x),
            head,
            params,
            loss_params,
            x,
            targets,
            schedule=schedule,
            mesh=make_mesh(2),
        )

    gradient = jax.grad(run)({"w": layers, "unused": jnp.ones((2, 3))})["unused"]
    np.testing.assert_array_equal(gradient, 0.0)


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


def test_stacked_params_and_explicit_axes():
    mesh = jax.make_mesh((2, 2), ("stage", "fsdp"), axis_types=(AxisType.Explicit,) * 2)
    schedule = schedules.interleaved_one_f_one_b(2, 2, 2)
    params, loss_params, x, targets = problem(schedule)
    specs = {"up": P("fsdp"), "down": P(None, "fsdp"), "bias": P()}
    stacked = ringline.stack_layers(params, schedule, mesh, specs=specs)
    rows = NamedSharding(mesh, P("fsdp"))

    def run(stacked, x, targets):
        return ringline.pipeline_loss(
            layer,
            head,
            stacked,
            loss_params,
            x,
            targets,
            schedule=schedule,
            mesh=mesh,
            specs=specs,
        )

    placed = jax.device_put((x, targets), rows)
    got = jax.jit(jax.value_and_grad(run))(stacked, *placed)
    want = jax.value_and_grad(plain_loss)(params, loss_params, x, targets)
    gradients = ringline.unstack_layers(jax.device_get(got[1]), schedule)
    assert difference((got[0], gradients), want) <= 1e-5


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
    assert compare(schedules.dualpipe_v(2, 2), fsdp=2, gather="repeat") <= 1e-5


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


def test_a_layer_with_a_shard_map_of_its_own():
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("stage", "tensor"))
    schedule = schedules.eager_one_f_one_b(2, 2)
    params, loss_params, x, targets = problem(schedule)

    def mapped(params, x):
        inner = jax.shard_map(
            lambda params, x: layer(params, x),
            in_specs=(P(), P(None, None, None)),
            out_specs=P(),
            axis_names={"tensor"},
            check_vma=False,
        )
        return inner(params, x)

    def run(params):
        return ringline.pipeline_loss(
            mapped, mean_head, params, loss_params, x, targets, schedule=schedule, mesh=mesh
        )

    got = jax.jit(jax.value_and_grad(run))(params)
    want = jax.value_and_grad(plain_loss)(params, loss_params, x, targets, mean_head)
    assert difference(got, want) <= 1e-5


def test_complex_activations():
    schedule = schedules.eager_one_f_one_b(2, 2)
    weights = make_params(2)["up"][:, :, :WIDTH]
    x = make_batch(4) + 1j * make_batch(4)[::-1]

    def turn(w, x):
        return x + 0.1 * (x @ w.astype(x.dtype))

    def energy(_, y, targets):
        return jnp.mean(jnp.abs(y - targets) ** 2)

    def run(w):
        return ringline.pipeline_loss(
            turn, energy, w, (), x, jnp.zeros_like(x), schedule=schedule, mesh=make_mesh(2)
        )

    def reference(w):
        return energy((), plain(turn, w, x), 0.0)

    got = jax.jit(jax.value_and_grad(run))(weights)
    assert got[0].dtype == jnp.float32
    assert difference(got, jax.value_and_grad(reference)(weights)) <= 1e-5


@pytest.mark.parametrize("remat", [True, False])
def test_leaves_without_gradient_may_change_from_layer_to_layer(remat):
    schedule = schedules.zero_bubble_h1(2, 2)
    params, loss_params, x, targets = problem(schedule)

    def counted(params, carried):
        x, depth = carried
        y = layer(params, x * (1.0 + 0.1 * depth[:, None, None]))
        return y, depth + 1 + (y[:, 0, 0] > 0)

    def of_both(params, carried, targets):
        y, depth = carried
        return head(params, y * (1.0 + depth[:, None, None]), targets)

    start = x, jnp.zeros(4, int)

    def run(params, loss_params):
        return ringline.pipeline_loss(
            counted,
            of_both,
            params,
            loss_params,
            start,
            targets,
            schedule=schedule,
            mesh=make_mesh(2, 2),
            remat=remat,
        )

    def reference(params, loss_params):
        result = of_both(loss_params, plain(counted, params, start), targets)
        return result[0] / result[1]

    got = jax.jit(jax.value_and_grad(run, (0, 1)))(params, loss_params)
    want = jax.value_and_grad(reference, (0, 1))(params, loss_params)
    assert difference(got, want) <= 1e-5


def test_arrays_from_before_an_explicit_mesh_was_set():
    mesh = jax.make_mesh((2, 2), ("stage", "fsdp"), axis_types=(AxisType.Explicit,) * 2)
    schedule = schedules.eager_one_f_one_b(2, 2)
    params, loss_params, x, targets = problem(schedule)

    def run(params):
        return ringline.pipeline_loss(
            layer, mean_head, params, loss_params, x, targets, schedule=schedule, mesh=mesh
        )

    with jax.set_mesh(mesh):
        got = jax.jit(jax.value_and_grad(run))(params)
    want = jax.value_and_grad(plain_loss)(params, loss_params, x, targets, mean_head)
    assert difference(got, want) <= 1e-5
