"""What a user can get wrong gives one line: expected, got, and what to change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pipeline_helpers import layer, make_batch, make_mesh, make_params

import ringline
from ringline import schedules


def run(layer=layer, params=None, x=None, *, schedule=None, mesh=None, **options):
    params = make_params(4) if params is None else params
    x = make_batch(4) if x is None else x
    schedule = schedule or schedules.linear(2, 2)
    return ringline.pipeline(
        layer, params, x, schedule=schedule, mesh=mesh or make_mesh(2), **options
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mesh": lambda: make_mesh(2).abstract_mesh}, ["mesh must be", "jax.make_mesh((2,)"]),
        ({"axis": "stages"}, ["no axis 'stages'", "stage", "axis="]),
        ({"mesh": lambda: make_mesh(4)}, ["2 stages", "has 4 devices"]),
        ({"params": lambda: make_params(1)}, ["at least 2 layers", "got 1"]),
        (
            {"schedule": schedules.linear(2, 2, layers_per_stage=3)},
            ["6 layers", "got 4", "layers_per_stage"],
        ),
        ({"x": lambda: make_batch(5)}, ["2 microbatches must divide", "got a batch of 5"]),
        ({"x": lambda: (jnp.ones((4, 2)), jnp.ones((6, 2)))}, ["same leading batch axis", "(6,)"]),
        ({"x": {}}, ["x has no array"]),
        ({"params": {}}, ["params has no array"]),
        ({"params": {"a": jnp.ones((4, 2)), "b": jnp.ones((3, 2))}}, ["['a'] (4, 2)", "['b']"]),
        ({"layer": lambda p, x: x[:, :2]}, ["float32[2, 3, 8]", "[2, 2, 8]"]),
        ({"layer": lambda p, x: x.astype(jnp.bfloat16)}, ["float32", "bfloat16"]),
        ({"layer": lambda p, x: (x, x)}, ["must return the structure"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line(arguments, words):
    made = {
        name: value() if callable(value) and name != "layer" else value
        for name, value in arguments.items()
    }
    with pytest.raises(ValueError, match=r".") as caught:
        run(**made)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_stacked_for_another_schedule():
    stacked = ringline.stack_layers(make_params(4), schedules.circular(2, 2, 2))
    with pytest.raises(ValueError, match="stack them with this schedule"):
        run(params=stacked)


def test_an_illegal_schedule_is_refused_before_compiling():
    schedule = ringline.PipelineSchedule.from_csv("0F0,0F1\n1F1,1F1\n")
    with pytest.raises(ringline.ScheduleError, match="stage 1 step 1: 1F1 is here a second time"):
        run(schedule=schedule)


def test_repeats_of_zero():
    with pytest.raises(ValueError, match="repeats must be a whole number of at least 1, got 0"):
        schedules.circular(2, 2, 0)


def test_mesh_without_other_axes_works():
    mesh = jax.make_mesh((2,), ("stage",))
    assert run(mesh=mesh).shape == (4, 3, 8)


def test_numpy_arrays_are_what_jax_makes_of_them():
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), make_params(4))
    x = np.asarray(make_batch(4), np.float64)
    assert run(params=params, x=x).dtype == jnp.float32
