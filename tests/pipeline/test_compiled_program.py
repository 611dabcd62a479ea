"""What the compiled step does: which collectives stand in its loop, what it keeps, what it runs."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pipeline_helpers import WIDTH, layer, make_batch, make_mesh, make_params, square

import ringline
from ringline import schedules
from ringline.aot import compile_for
from ringline.aot._collectives import KINDS
from ringline.aot._hlo import parse
from ringline.aot._target import target
from ringline.aot._walk import Walk

ORDERS = [
    schedules.eager_one_f_one_b(2, 4),
    schedules.interleaved_one_f_one_b(2, 4, 2),
    schedules.zero_bubble_h1(2, 4),
    schedules.dualpipe_v(2, 4),
]
by_name = pytest.mark.parametrize("schedule", ORDERS, ids=lambda s: s.name)
SPECS = {"up": P(None, "fsdp"), "down": P("fsdp"), "bias": P("fsdp")}


def compiled_step(schedule, *, fsdp=2, length=3, train=True, **options):
    """The step with weights and rows where they belong, compiled."""
    mesh = make_mesh(schedule.stages, fsdp)

    def run(params, x, targets):
        return ringline.pipeline_loss(
            layer,
            square,
            params,
            (),
            x,
            targets,
            schedule=schedule,
            mesh=mesh,
            specs=SPECS,
            **options,
        )

    params = ringline.stack_layers(make_params(schedule.chunks), schedule, mesh, specs=SPECS)
    rows = jax.ShapeDtypeStruct(
        (2 * schedule.microbatches, length, WIDTH),
        jnp.float32,
        sharding=NamedSharding(mesh, P("fsdp")),
    )
    return jax.jit(jax.value_and_grad(run) if train else run).lower(params, rows, rows).compile()


def collectives(compiled):
    """How many collectives of each kind stand outside and inside of loops."""
    walk = Walk(parse(compiled.as_text()), target("v5e-4"))
    outside, inside = Counter(), Counter()
    for context in walk.contexts():
        for instruction in walk.module.computations[context.computation]:
            kind = instruction.opcode.removesuffix("-start")
            if kind in KINDS:
                (inside if context.loop else outside)[kind] += 1
    return outside, inside


@by_name
def test_gathered_once_a_step_the_loop_moves_activations_alone(schedule):
    # PiPPy#1105, torchtitan#318: weights gathered, or gradients reduced, once a microbatch.
    # praxis: microbatches of consecutive rows cost an all-to-all; strided rows cost none.
    outside, inside = collectives(compiled_step(schedule))
    assert set(inside) == {"collective-permute"}
    assert 1 <= outside["all-gather"] <= len(SPECS)
    assert "all-to-all" not in outside


def test_an_evaluation_gathers_once_too():
    outside, inside = collectives(compiled_step(ORDERS[1], train=False))
    assert set(inside) == {"collective-permute"}
    assert not {"reduce-scatter", "all-to-all"} & set(outside)


@pytest.mark.parametrize("gather", ["repeat", "use"])
def test_gathered_by_repeat_or_use_the_weights_move_in_the_loop(gather):
    outside, inside = collectives(compiled_step(ORDERS[1], gather=gather))
    assert inside["all-gather"] > 0
    assert inside["reduce-scatter"] + inside["all-reduce"] > 0
    assert outside["all-gather"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize(
    ("slices", "schedule"),
    [("2x v5e-4", schedules.eager_one_f_one_b(2, 3)), ("v5e-8", schedules.zero_bubble_v(2, 3))],
    ids=["between-slices", "inside-a-slice"],
)
def test_maxtext_2739_two_stages_compile_for_a_tpu(slices, schedule):
    # Both directions join the same two devices, which a compiler took for a cycle.
    def step(params, x, targets, mesh):
        def loss(params):
            return ringline.pipeline_loss(
                layer, square, params, (), x, targets, schedule=schedule, mesh=mesh
            )

        return jax.value_and_grad(loss)(params)

    params = jax.eval_shape(lambda: make_params(schedule.chunks))
    rows = jax.ShapeDtypeStruct((4 * schedule.microbatches, 3, WIDTH), jnp.float32)
    compiled = compile_for(slices, step, params, rows, rows, mesh={"stage": 2, "fsdp": 4})
    moved = [(c.kind, c.axis) for c in compiled.in_loops()]
    assert moved == [("collective-permute", "stage")] * 2


@pytest.mark.parametrize("name", ["eager_one_f_one_b", "interleaved_one_f_one_b", "zero_bubble_h1"])
def test_memory_does_not_grow_with_microbatches(name):
    # pytorch#136380, pytorch#193903: a buffer for each microbatch until the step's end.
    def temp_bytes(microbatches):
        schedule = getattr(schedules, name)(stages=2, microbatches=microbatches)
        compiled = compiled_step(schedule, fsdp=1, length=64)
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert temp_bytes(64) <= 1.1 * temp_bytes(16)


@pytest.mark.parametrize(
    ("schedule", "remat"),
    list(zip(ORDERS, (True, False, False, True))),
    ids=[schedule.name for schedule in ORDERS],
)
def test_every_layer_runs_and_is_run_back_once_for_each_microbatch(schedule, remat):
    ran = Counter()

    def count(op, number, _):
        ran[op, int(number)] += 1

    @jax.custom_vjp
    def counted(params, number, x):
        jax.debug.callback(count, "F", number, x[0, 0, 0])
        return layer(params, x)

    def forward(params, number, x):
        return counted(params, number, x), (params, x)

    def backward(kept, g):
        params, x = kept
        jax.debug.callback(count, "B", params["number"], g[0, 0, 0])
        return (*jax.vjp(layer, params, x)[1](g), None)

    counted.defvjp(forward, backward)
    layers, m = schedule.chunks + 1, schedule.microbatches
    params = make_params(layers) | {"number": jnp.arange(layers)}
    x = make_batch(2 * m)

    def run(params):
        return ringline.pipeline_loss(
            lambda p, x: counted(p, p["number"], x),
            square,
            params,
            (),
            x,
            0.5 * x,
            schedule=schedule,
            mesh=Mesh(jax.devices()[: schedule.stages], ("stage",)),
            remat=remat,
        )

    jax.block_until_ready(jax.jit(jax.value_and_grad(run, allow_int=True))(params))
    jax.effects_barrier()
    again = 2 if remat else 1
    assert ran == {
        (op, number): m * (again if op == "F" else 1) for op in "FB" for number in range(layers)
    }
