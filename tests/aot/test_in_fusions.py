"""Collectives that the compiler puts into fusions are found, with what runs beside them."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ringline.aot import compile_for, target
from ringline.aot._collectives import find_collectives
from ringline.aot._hlo import parse
from ringline.aot._walk import Walk

TARGET = target("v5e-4")
GROUPS = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
# A gather started, gone on with beside a product, and ended; and a sum cut to a device's part.
PROGRAM = f"""HloModule jit_step, is_scheduled=true

%starts (p.1: bf16[64,128]) -> (bf16[64,128], bf16[256,128]) {{
  %p.1 = bf16[64,128]{{1,0}} parameter(0)
  %all-gather.1 = bf16[256,128]{{1,0}} all-gather(%p.1), channel_id=9, {GROUPS}, dimensions={{0}}
  ROOT %call.1 = (bf16[64,128]{{1,0}}, bf16[256,128]{{1,0}}) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}}

%inner (p.2: bf16[64,128]) -> bf16[256,128] {{
  %p.2 = bf16[64,128]{{1,0}} parameter(0)
  ROOT %all-gather.2 = bf16[256,128]{{1,0}} all-gather(%p.2), channel_id=9, {GROUPS}, \
dimensions={{0}}
}}

%beside (p.3: bf16[64,128], q.3: bf16[128,128]) -> bf16[64,128] {{
  %p.3 = bf16[64,128]{{1,0}} parameter(0)
  %q.3 = bf16[128,128]{{1,0}} parameter(1)
  %fusion.3 = bf16[256,128]{{1,0}} fusion(%p.3), kind=kLoop, calls=%inner
  ROOT %convolution.3 = bf16[64,128]{{1,0}} convolution(%p.3, %q.3), dim_labels=bf_io->bf
}}

%ends (p.4: bf16[64,128]) -> bf16[256,128] {{
  %p.4 = bf16[64,128]{{1,0}} parameter(0)
  %all-gather.4 = bf16[256,128]{{1,0}} all-gather(%p.4), channel_id=9, {GROUPS}, dimensions={{0}}
  ROOT %call.4 = bf16[256,128]{{1,0}} custom-call(%p.4, %all-gather.4), \
custom_call_target="AsyncCollectiveDone"
}}

%scatters (p.5: bf16[256,128]) -> bf16[64,128] {{
  %p.5 = bf16[256,128]{{1,0}} parameter(0)
  %zero = s32[] constant(0)
  %all-reduce.5 = bf16[256,128]{{1,0}} all-reduce(%p.5), channel_id=4, {GROUPS}, to_apply=%add
  %bitcast.5 = bf16[256,128]{{1,0}} bitcast(%all-reduce.5)
  ROOT %slice.5 = bf16[64,128]{{1,0}} dynamic-slice(%bitcast.5, %zero, %zero), \
dynamic_slice_sizes={{64,128}}
}}

ENTRY %main (w: bf16[64,128], v: bf16[128,128]) -> bf16[64,128] {{
  %w = bf16[64,128]{{1,0}} parameter(0)
  %v = bf16[128,128]{{1,0}} parameter(1)
  %start = (bf16[64,128]{{1,0}}, bf16[256,128]{{1,0}}) fusion(%w), kind=kCustom, calls=%starts
  %product = bf16[64,128]{{1,0}} fusion(%w, %v), kind=kOutput, calls=%beside, \
backend_config={{"estimated_cycles":"3000"}}
  %done = bf16[256,128]{{1,0}} fusion(%w), kind=kCustom, calls=%ends
  ROOT %scatter = bf16[64,128]{{1,0}} fusion(%done), kind=kCustom, calls=%scatters
}}
"""


def found(text):
    module = parse(text)
    four = np.array([SimpleNamespace(id=i, slice_index=0) for i in range(4)], dtype=object)
    mesh: Any = SimpleNamespace(devices=four, axis_names=("fsdp",))
    return find_collectives(module, Walk(module, TARGET), TARGET, mesh)


def test_a_gather_over_several_fusions_is_one_collective():
    gather, _ = found(PROGRAM)
    assert (gather.name, gather.kind, gather.link) == ("start", "all-gather", "ICI")
    assert (gather.axis, gather.bytes) == ("fsdp", 256 * 128 * 2)
    assert (gather.posted, gather.ended) == (("start",), ("done",))
    assert gather.asynchronous
    assert gather.spans_compute_us == pytest.approx(3000 / TARGET.clock_hz * 1e6)


def test_a_sum_of_which_each_device_keeps_its_part_is_a_reduce_scatter():
    _, scatter = found(PROGRAM)
    assert (scatter.name, scatter.kind) == ("scatter", "reduce-scatter")
    assert (scatter.axis, scatter.bytes) == ("fsdp", 256 * 128 * 2)
    assert not scatter.asynchronous


def test_a_sum_that_is_kept_whole_beside_the_part_stays_an_all_reduce():
    whole = PROGRAM.replace(
        "  ROOT %slice.5", "  %twice = bf16[256,128]{1,0} add(%all-reduce.5, %p.5)\n  ROOT %slice.5"
    )
    assert [c.kind for c in found(whole)] == ["all-gather", "all-reduce"]


def test_the_same_channel_again_is_another_collective():
    start = PROGRAM.index("  %start =")
    part = PROGRAM[start : PROGRAM.index("  ROOT %scatter")]
    again = part.replace("%start =", "%start.2 =").replace("%done =", "%done.2 =")
    twice = found(PROGRAM[:start] + part + again + PROGRAM[start + len(part) :])
    assert [(c.name, c.ended) for c in twice[:2]] == [
        ("start", ("done",)),
        ("start.2", ("done.2",)),
    ]


def test_without_the_compilers_cycles_a_fusion_that_waits_costs_nothing():
    module = parse(PROGRAM.replace("estimated_cycles", "no"))
    walk = Walk(module, TARGET)
    costs = {step.instruction.name: step.cycles for step in walk.steps("main")}
    assert costs["start"] == costs["done"] == costs["scatter"] == 0
    assert costs["product"] > 0


PRODUCTS = [
    ("v5e-16", 1024, 512, ["all-gather", "all-gather", "all-reduce"]),
    ("v6e-8", 4096, 8192, ["all-gather", "all-gather", "reduce-scatter"]),
    ("v5p:2x2x2", 4096, 8192, None),  # products cut into rings of permutes
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width", "rows", "kinds"), PRODUCTS, ids=str)
def test_every_weight_is_gathered_and_every_gradient_reduced(libtpu, name, width, rows, kinds):
    layers, there = 6, target(name)
    mesh = there.mesh(fsdp=-1)

    def loss(w, x):
        h, _ = jax.lax.scan(lambda h, wl: (jnp.tanh(h @ wl), None), x, w)
        return jnp.mean(h.astype(jnp.float32) ** 2)

    def step(w, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        return value, w - 1e-3 * gradient

    args = (
        jax.ShapeDtypeStruct(
            (layers, width, width), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, "fsdp"))
        ),
        jax.ShapeDtypeStruct((rows, width), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp"))),
    )
    compiled = compile_for(there, step, *args, mesh=mesh)
    inside = compiled.in_loops("ICI")
    assert {c.axis for c in inside} == {"fsdp"}
    assert sorted(c.kind for c in inside) == (kinds or ["collective-permute"] * len(inside))
    if kinds:
        assert [(c.times_per_step, c.bytes) for c in inside] == [(layers, width * width * 2)] * 3
    assert compiled.flops == 3 * 2 * layers * rows * width**2 / there.device_count
