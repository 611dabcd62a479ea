"""`pipeline` gives the values and gradients of the plain loop, for any shape of schedule."""

import contextlib
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pipeline_helpers import (
    WIDTH,
    difference,
    layer,
    loss_of,
    make_batch,
    make_mesh,
    make_params,
    place,
    plain,
)

import ringline
from ringline import schedules

# Each of the 648 shapes below is fair game; a fixed sample runs in every test run.
SHAPES = list(itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3), range(1, 10), (1, 2)))
SAMPLE = random.Random(7).sample(SHAPES, 40)


def make_schedule(stages, microbatches, repeats):
    if repeats == 1:
        return schedules.linear(stages, microbatches)
    return schedules.circular(stages, microbatches, repeats)


def check(stages, repeats, depth, microbatches, fsdp, *, overlap, dtype=jnp.float32, **options):
    schedule = make_schedule(stages, microbatches, repeats)
    mesh = make_mesh(stages, fsdp)
    layers = stages * repeats * depth
    params, x = place(mesh, make_params(layers, dtype), make_batch(2 * microbatches, dtype))

    def run(params, x):
        return ringline.pipeline(
            layer, params, x, schedule=schedule, mesh=mesh, overlap=overlap, **options
        )

    got = loss_of(run)(params, x)
    want = loss_of(lambda params, x: plain(layer, params, x))(params, x)
    return difference(got, want)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(4, 1, 1, 8, 2), (4, 2, 1, 8, 2), (3, 2, 2, 2, 1), (2, 3, 1, 5, 2), (1, 2, 1, 3, 2)],
    ids=str,
)
def test_equals_plain_loop(shape, overlap):
    assert check(*shape, overlap=overlap) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("shape", SAMPLE, ids=str)
def test_equals_plain_loop_sampled(shape):
    assert check(*shape, overlap=sum(shape) % 2 == 0) <= 1e-5


@pytest.mark.parametrize("overlap", [False, True])
def test_equals_plain_loop_float64(overlap):
    with jax.enable_x64(True):
        assert check(4, 2, 1, 3, 2, overlap=overlap, dtype=jnp.float64) <= 1e-12


def test_bfloat16_runs_and_is_near():
    assert check(4, 2, 1, 4, 2, overlap=False, dtype=jnp.bfloat16) <= 0.1


@pytest.mark.parametrize(
    "remat", [False, True, jax.checkpoint_policies.dots_with_no_batch_dims_saveable]
)
def test_remat_changes_no_value(remat):
    assert check(2, 2, 2, 3, 2, overlap=False, remat=remat) <= 1e-5


@pytest.mark.parametrize(("layers", "depths"), [(11, None), (9, (1, 2, 1, 2, 1, 2))])
def test_layers_that_do_not_divide(layers, depths):
    # Megatron#1304: 30 layers on 4 stages silently became 28. Megatron#381: uneven on purpose.
    schedule = schedules.circular(3, 4, 2, layers_per_stage=depths)
    mesh = make_mesh(3, 2)
    params, x = make_params(layers), make_batch(8)

    def run(params, x):
        return ringline.pipeline(layer, params, x, schedule=schedule, mesh=mesh)

    got = loss_of(run)(params, x)
    assert difference(got, loss_of(lambda p, x: plain(layer, p, x))(params, x)) <= 1e-5


def test_many_layers_per_stage_are_scanned():
    assert check(2, 1, 10, 2, 1, overlap=False) <= 1e-5


def test_stacked_params_in_and_out():
    schedule = schedules.circular(2, 4, 2)
    mesh = make_mesh(2, 2)
    params, x = make_params(8), make_batch(8)
    specs = {"up": P("fsdp"), "down": P(None, "fsdp"), "bias": P()}
    stacked = ringline.stack_layers(params, schedule, mesh, specs=specs)
    assert stacked.places[1]["up"].sharding.spec == P(None, "stage", "fsdp")

    def run(params, x):
        return ringline.pipeline(layer, params, x, schedule=schedule, mesh=mesh)

    value, (grads, _) = loss_of(run)(stacked, x)
    want_value, (want, _) = loss_of(lambda p, x: plain(layer, p, x))(params, x)
    assert abs(value - want_value) <= 1e-6
    assert difference(ringline.unstack_layers(grads, schedule), want) <= 1e-5


def test_stacking_round_trip_with_padding():
    schedule = schedules.circular(2, 1, 2, layers_per_stage=(1, 2, 3, 1))
    params = make_params(7)
    stacked = ringline.stack_layers(params, schedule)
    assert [place["up"].shape[:2] for place in stacked.places] == [(2, 2)] * 3
    back = ringline.unstack_layers(stacked, schedule)
    np.testing.assert_array_equal(back["up"], params["up"])


def test_bubbles_run_nothing():
    # Maxtext's bubbles compute junk: a layer that is 0/0 on zero input spoils its gradients.
    schedule = schedules.circular(4, 3, 2)
    mesh = make_mesh(4, 2)

    def fragile(params, x):
        return layer(params, x) * (jnp.sum(x * x) / jnp.sum(x * x))

    params, x = make_params(8), make_batch(6)
    assert not np.isfinite(np.asarray(fragile(jax.tree.map(lambda a: a[0], params), 0 * x))).all()

    def run(params, x):
        return ringline.pipeline(fragile, params, x, schedule=schedule, mesh=mesh)

    got = loss_of(run)(params, x)
    assert difference(got, loss_of(lambda p, x: plain(fragile, p, x))(params, x)) <= 1e-5


@pytest.mark.parametrize("overlap", [False, True])
def test_every_layer_runs_once_for_each_microbatch(overlap):
    schedule = schedules.circular(2, 3, 2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("stage",))
    calls = []

    def counted(params, x):
        jax.debug.callback(lambda i: calls.append(int(i)), params["id"])
        return layer(params["w"], x)

    params = {"w": make_params(4), "id": jnp.arange(4)}
    y = ringline.pipeline(
        counted, params, make_batch(6), schedule=schedule, mesh=mesh, overlap=overlap
    )
    jax.block_until_ready(y)
    jax.effects_barrier()
    assert sorted(calls) == sorted(list(range(4)) * 3)


def test_leaves_without_gradient_travel_along():
    # PiPPy#1029: ids, masks and positions between stages.
    schedule = schedules.linear(2, 2)
    mesh = make_mesh(2, 2)

    def masked(params, carried):
        x, mask, step = carried
        return jnp.where(mask[..., None], layer(params, x), x), mask, step + 1

    params, x = make_params(2), make_batch(4)
    mask = jnp.arange(12).reshape(4, 3) % 2 == 0
    steps = jnp.zeros((4,), jnp.int32)

    def run(params, x):
        carried = x, mask, steps
        return ringline.pipeline(masked, params, carried, schedule=schedule, mesh=mesh)

    got = loss_of(lambda p, x: run(p, x)[0])(params, x)
    want = loss_of(lambda p, x: plain(masked, p, (x, mask, steps))[0])(params, x)
    assert difference(got, want) <= 1e-5
    _, same_mask, count = run(params, x)
    np.testing.assert_array_equal(same_mask, mask)
    np.testing.assert_array_equal(count, 2)


@pytest.mark.parametrize("context", [False, True])
def test_explicit_mesh_axes(context):
    # What jax.make_mesh gives by default: shardings are part of the arrays' types.
    mesh = jax.make_mesh((2, 2), ("stage", "fsdp"), axis_types=(AxisType.Explicit,) * 2)
    schedule = schedules.circular(2, 2, 2)
    params = jax.device_put(make_params(4), NamedSharding(mesh, P(None, "fsdp")))
    x = jax.device_put(make_batch(4), NamedSharding(mesh, P("fsdp")))

    def run(params, x):
        return ringline.pipeline(layer, params, x, schedule=schedule, mesh=mesh)

    with jax.set_mesh(mesh) if context else contextlib.nullcontext():
        y = jax.jit(run)(params, x)
        assert jax.typeof(y).sharding == jax.typeof(x).sharding
        got = jax.jit(jax.grad(lambda p, x: jnp.mean(run(p, x) ** 2)))(params, x)
    params, x = jax.device_get((params, x))
    want = jax.grad(lambda p, x: jnp.mean(plain(layer, p, x) ** 2))(params, x)
    assert difference(got, want) <= 1e-5


def test_second_call_eager_and_jitted_agree():
    schedule = schedules.linear(2, 2)
    mesh = make_mesh(2)
    params, x = make_params(4), make_batch(4)

    def run(params, x):
        return ringline.pipeline(layer, params, x, schedule=schedule, mesh=mesh)

    first = run(params, x)
    np.testing.assert_array_equal(first, run(params, x))
    np.testing.assert_allclose(jax.jit(run)(params, x), first, rtol=1e-6)


def test_ring_of_permutes_beside_an_fsdp_axis():
    # xla#45222: a permute with more than one cycle (circular x FSDP) became zeros elsewhere.
    y = ringline.pipeline(
        lambda w, x: x + w,
        jnp.ones((8, WIDTH)),
        jnp.zeros((8, WIDTH)),
        schedule=schedules.circular(4, 4, 2),
        mesh=make_mesh(4, 2),
    )
    np.testing.assert_array_equal(y, 8.0)
