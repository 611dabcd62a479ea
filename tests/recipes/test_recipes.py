"""Recipes as data: every way to run them, and the prediction beside the simulator."""

from dataclasses import replace

import pytest

from ringline.aot import target
from ringline.recipes import (
    WAYS,
    by_hand,
    predict,
    read_recipe,
    recipe_for,
    recipe_names,
    way_of,
)
from ringline.simulate import simulate

SMALL = replace(read_recipe("4x-v4-16"), d_model=256, mlp=1024, length=128)


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_predicted(name, way):
    recipe = read_recipe(name)
    expected = predict(recipe, way_of(recipe, way))
    assert 1 < expected.relative < 2.1
    assert 0 < expected.mfu < 0.6
    assert expected.step_s > expected.ideal_s


def test_the_described_slowdowns_by_hand():
    counted = [round(value, 2) for value in by_hand(read_recipe("4x-v4-16")).values()]
    assert counted == [2.75, 2.29, 3.21, 2.06, 2.75]
    larger = by_hand(read_recipe("3x-v4-128"))["forward, one permute"]
    assert larger == pytest.approx(1.37, rel=0.02)


def test_what_transfers_add_is_apart_from_the_bubble():
    recipe = read_recipe("4x-v4-16")
    expected = predict(recipe, way_of(recipe, "interleaved"))
    bubble_s = expected.loop.loop_s - expected.exposed_s - expected.loop.busy_s
    assert bubble_s / expected.loop.busy_s == pytest.approx(3 / 8)


@pytest.mark.parametrize("way", ["linear", "1f1b", "eager-1f1b", "interleaved"])
def test_the_loop_takes_what_the_simulator_says(way):
    recipe = read_recipe("4x-v4-16")
    found = way_of(recipe, way)
    expected = predict(recipe, found)
    v = found.schedule.repeats
    step = simulate(
        found.schedule,
        forward_s=expected.costs_s["F"] * v,
        backward_s=expected.costs_s["B"] * v,
        transfer_s=expected.transfer_s,
    )
    assert expected.loop.loop_s == pytest.approx(step.makespan_s, rel=1e-6)


def test_late_send_hides_what_the_plain_circular_pipeline_waits_for():
    recipe = replace(read_recipe("4x-v4-16"), microbatches=32)
    plain = predict(recipe, way_of(recipe, "circular"))
    late = predict(recipe, way_of(recipe, "circular-late-send"))
    each = plain.costs_s["F"] + plain.costs_s["B"]
    assert plain.loop.loop_s == pytest.approx(
        plain.loop.ticks * (each + 2 * plain.transfer_s), rel=0.02
    )
    assert late.loop.loop_s == pytest.approx(late.loop.ticks * each, rel=0.15)


def test_memory_does_not_grow_with_microbatches():
    few, many = (replace(SMALL, microbatches=m) for m in (8, 32))
    for way in ("eager-1f1b", "interleaved"):
        assert predict(few, way_of(few, way)).memory_bytes == pytest.approx(
            predict(many, way_of(many, way)).memory_bytes
        )


def test_any_target_has_a_recipe():
    assert recipe_for("4 x v4-16").title == read_recipe("4x-v4-16").title
    other = recipe_for("v5e-64")
    assert (other.stages, other.fsdp, other.target.name) == (4, 16, "v5e-64")
    assert recipe_for("2x v5p-128").stages == 2
    assert recipe_for("v5e-1").stages == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[recipe]\n", "line 1, key 'stages'"),
        ("title = 1\n", "expected a table [recipe]"),
        ("[recipe]\nstagse = 3\n", "stages"),
    ],
)
def test_faults_in_a_file(tmp_path, text, says):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r".") as error:
        read_recipe(path)
    assert says in str(error.value)


def test_names_that_are_no_recipe():
    with pytest.raises(ValueError, match="did you mean '4x-v4-16'"):
        read_recipe("4x-v4")
    with pytest.raises(ValueError, match="no schedule is called"):
        way_of(SMALL, "foo")
    assert target("4x v4-16").name == "4x v4-16"
