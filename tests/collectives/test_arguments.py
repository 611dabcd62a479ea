"""Arguments of a wrong type are refused in one line, by each function that takes them."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import on_devices

import ringline


def gather(x, **options):
    return ringline.all_gather(x, options.pop("axis_name", "x"), **options)


def scatter(x, **options):
    options["scatter_dimension"] = options.pop("axis", 0)
    return ringline.reduce_scatter(x, options.pop("axis_name", "x"), **options)


def reduce(x, **options):
    return ringline.all_reduce(x, options.pop("axis_name", "x"), **options)


def gather_matmul(x, **options):
    w = jnp.ones((x.shape[-1], 2), x.dtype)
    return ringline.all_gather_matmul(x, w, options.pop("axis_name", "x"), **options)


def matmul_scatter(x, **options):
    w = jnp.ones((x.shape[-1], 2), x.dtype)
    options["scatter_dimension"] = options.pop("axis", 0)
    return ringline.matmul_reduce_scatter(x, w, options.pop("axis_name", "x"), **options)


PLAIN, FUSED = (gather, scatter, reduce), (gather_matmul, matmul_scatter)
CUTTING = (gather, scatter, gather_matmul, matmul_scatter)


def cases(ways, name, values, message):
    return [
        pytest.param(way, {name: value}, message, id=f"{way.__name__}-{name}-{value}")
        for way in ways
        for value in values
    ]


@pytest.mark.parametrize(
    ("way", "options", "message"),
    [
        *cases(PLAIN, "topology", [None, 3, (), ["ring"]], "topology must be 'ring' or 'line', or"),
        *cases(PLAIN, "topology", [("ring",)], "a grid needs two mesh axes and a topology for"),
        *cases(FUSED, "topology", [None, ("line", "ring")], "topology must be 'ring' or 'line', g"),
        *cases(PLAIN + FUSED, "channels", [1.5, "2", None, 2.0], "channels must be a whole number"),
        *cases(PLAIN + FUSED, "directions", [2.0, True], "directions must be a whole number"),
        *cases(PLAIN + FUSED, "axis_name", [(), ("x", "x")], "axis_name must be a mesh axis or"),
        *cases((gather, gather_matmul), "axis", ["0", None, 1.0], "axis must be a whole number"),
        *cases((scatter, matmul_scatter), "axis", ["0", (0,)], "scatter_dimension must be a whole"),
        *cases((gather, scatter), "tiled", ["no", 2], "tiled must be True or False"),
        *cases((gather, scatter), "sizes", [3, [True] * 4, "four"], "sizes must be 4 lengths"),
        *cases(FUSED, "preferred_element_type", ["foo", 3], "preferred_element_type must be an"),
        *cases((gather,), "out", ["abc", object()], "out must be an array, got"),
    ],
)
def test_a_wrong_type_is_refused(way, options, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        on_devices(lambda x: way(x, **options), 4)(np.zeros((4, 4, 3), np.float32))
    assert "\n" not in str(raised.value)


def test_out_must_have_the_same_leaves():
    with pytest.raises(ValueError, match="out must have an array for each of x") as raised:
        on_devices(lambda x: gather({"a": x}, out=[x]), 4)(np.zeros((4, 4), np.float32))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("way", FUSED)
@pytest.mark.parametrize("implementation", ["xla", "permute", None])
def test_booleans_are_not_multiplied(way, implementation):
    with pytest.raises(ValueError, match="expected numbers to multiply and add, got bool"):
        on_devices(lambda x: way(x, implementation=implementation), 4)(np.ones((4, 4, 3), bool))
