"""The pipeline compiled for slices: what hides its transfers, what leaves its loop, its memory.

A layer of one wide MLP compiles in a quarter of a minute and has the described ratio of
computation to transfer.
"""

from dataclasses import replace
from functools import cache

import pytest

from ringline.aot import compile_for
from ringline.recipes import compare, gather_of, predict, program, read_recipe, way_of

pytestmark = [pytest.mark.usefixtures("libtpu"), pytest.mark.slow]

LAYOUTS = [
    ("4x-v4-16", "eager-1f1b", 8),
    ("4x-v4-16", "interleaved", 8),
    ("4x-v4-16", "interleaved", 32),
    ("4x-v4-16", "1f1b", 32),
    ("3x-v4-128", "eager-1f1b", 6),
    ("3x-v4-128", "interleaved", 6),
]


@cache
def run(name, way_name, microbatches, gather="step"):
    recipe = replace(
        read_recipe(name),
        microbatches=microbatches,
        layers_per_chunk=1,
        repeats=2 if way_name == "interleaved" else 1,
        d_model=512,
        mlp=57344,
        length=512,
        gather=gather_of(gather),
    )
    way = way_of(recipe, way_name)
    mesh = recipe.target.mesh(stage=recipe.stages, fsdp=recipe.fsdp)
    fn, args = program(recipe, way, mesh)
    return recipe, way, compile_for(recipe.target, fn, *args, mesh=mesh)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_transfer_between_slices_spans_the_stages_compute(layout):
    _, _, compiled = run(*layout)
    cotangent, activation = compiled.in_loops("DCN")
    body = compiled.module.computations[cotangent.computation]
    place = {instruction.name: at for at, instruction in enumerate(body)}
    forward, backward = (at for at, i in enumerate(body) if i.opcode == "conditional")
    for moved, compute in ((cotangent, forward), (activation, backward)):
        assert (moved.kind, moved.axis) == ("collective-permute", "stage")
        assert len(moved.posted) == len(moved.ended) == 2  # a send and a receive
        assert all(place[name] < compute for name in moved.posted)
        assert all(place[name] > compute for name in moved.ended)
        assert moved.spans_compute_us > moved.transfer_us
        assert not moved.exposed


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_weights_are_gathered_and_gradients_reduced_outside_the_loop(layout):
    recipe, way, compiled = run(*layout)
    assert compiled.in_loops("ICI") == ()
    rows = {row.what: row for row in compare(recipe, way, predict(recipe, way), compiled)}
    assert rows["gathered before the loop"].difference == 0
    assert abs(rows["reduced after the loop"].difference) < 1e-3  # the loss goes along
    assert rows["transfers between stages"].difference == 0
    assert rows["their bytes"].difference == 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_prediction_holds(layout):
    recipe, way, compiled = run(*layout)
    expected = predict(recipe, way)
    assert expected.flops == pytest.approx(compiled.flops, rel=0.03)
    assert expected.memory_bytes == pytest.approx(compiled.memory.temporaries_bytes, rel=0.15)


def test_memory_does_not_grow_with_microbatches():
    few = run("4x-v4-16", "interleaved", 8)[2].memory
    many = run("4x-v4-16", "interleaved", 32)[2].memory
    assert many.temporaries_bytes == pytest.approx(few.temporaries_bytes, rel=0.1)
    assert run("4x-v4-16", "1f1b", 32)[2].memory.temporaries_bytes == pytest.approx(
        run("4x-v4-16", "eager-1f1b", 8)[2].memory.temporaries_bytes, rel=0.1
    )


def test_gathering_for_each_use_is_seen_in_the_loop():
    _, _, compiled = run("4x-v4-16", "eager-1f1b", 8, "use")
    whole = run("4x-v4-16", "eager-1f1b", 8)[2].memory
    assert {c.axis for c in compiled.in_loops("ICI")} == {"fsdp"}
    assert compiled.memory.temporaries_bytes < whole.temporaries_bytes
