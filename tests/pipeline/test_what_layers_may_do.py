"""What layers and their arrays may be: leaves without gradient, complex numbers, explicit axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pipeline_helpers import (
    WIDTH,
    difference,
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
