"""What a user's function closes over, made an argument: a rotary table computed under `jit`, say.

The rule of a custom gradient runs after the trace that called it has ended (`jax.jit`,
`jax.checkpoint`, a `lax.scan` over gradients), so what belongs to that trace must reach the rule
as an argument.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, use_abstract_mesh

PyTree = Any
Given = Callable[[list[Any]], Callable[..., PyTree]]


def hoist(
    function: Callable[..., PyTree], mesh: Mesh, manual: tuple[str, ...], *shapes: PyTree
) -> tuple[Given, list[Any]]:
    """Take traced values out of a function's closure.

    Args:
        function: it will be called inside the loop, where the axes `manual` of `mesh` are.
        mesh: the pipeline's.
        manual: the axes that the loop handles itself.
        shapes: of the arguments that it will be called with.

    Returns:
        From such values to the function that uses them, and the values of now. Without any it
        is the function as it came.
    """
    types = tuple(AxisType.Manual if a in manual else AxisType.Auto for a in mesh.axis_names)
    inside = Mesh(mesh.devices, mesh.axis_names, axis_types=types).abstract_mesh
    with use_abstract_mesh(inside) if manual else nullcontext():
        closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
    traced = [isinstance(value, Tracer) for value in closed.consts]
    if not any(traced):
        return (lambda values: function), []

    def given(values: list[Any]) -> Callable[..., PyTree]:
        source = iter(values)
        consts = [next(source) if t else v for t, v in zip(traced, closed.consts)]
        flat = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))

        def call(*arguments):
            out = flat(*jax.tree.leaves(arguments))
            return jax.tree.unflatten(jax.tree.structure(result), out)

        return call

    return given, [value for t, value in zip(traced, closed.consts) if t]


def refuse_gradients(values: list[Any]) -> None:
    """Raise ValueError where a gradient is asked for in what a layer closes over.

    Args:
        values: as a rule with symbolic zeros gets them.
    """
    for value in values:
        if value.perturbed:
            raise ValueError(
                f"the layer closes over a {value.value.dtype}{list(value.value.shape)} that a "
                "gradient is asked for; give it to every layer in params or let it travel in x, "
                "or wrap it in jax.lax.stop_gradient"
            )
