"""The passes of one chunk: F, B, and B's two halves I and W, with what is kept between them.

All four come from one traced function, the forward with its vector-Jacobian product,

    (w, x, g) -> (y, dw, dx),

whose equations fall apart by what they depend on: on weights alone, on the activation x, or on
the cotangent g. F runs what y needs. What F computed from x and the backward reads is the
residual; what depends on weights alone is computed again where it is needed, never kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var

from ringline.pipeline._cut import (
    CALLS_AND_REMAT,
    Piece,
    depends_on,
    effects,
    ordered,
    piece,
    trace_flat,
    used,
    variables,
)


@dataclass(frozen=True)
class Passes:
    """A chunk's operations on flat lists of leaves.

    `w` and `x` are the leaves of the weights and of the activation that have gradients, `fixed`
    and `rest` their other leaves.

    Attributes:
        forward: `(w, fixed, x, rest) -> (y, residual)`; y has the leaves of x, then of rest.
        backward: `(w, fixed, kept, g) -> (dw, dx)`; `kept` is the residual, or the leaves of x
            and rest where inputs are kept.
        input_gradient: `(w, fixed, kept, g) -> (dx, handover)`.
        weight_gradient: `(w, fixed, kept, handover) -> dw`.
        residual: shapes of the residual's leaves; empty where inputs are kept.
        handover: shapes of the handover's leaves.
    """

    forward: Callable[..., tuple[list[Any], list[Any]]]
    backward: Callable[..., tuple[list[Any], list[Any]]]
    input_gradient: Callable[..., tuple[list[Any], list[Any]]]
    weight_gradient: Callable[..., list[Any]]
    residual: tuple[jax.ShapeDtypeStruct, ...]
    handover: tuple[jax.ShapeDtypeStruct, ...]


def make_passes(
    run: Callable[[list[Any], list[Any], list[Any], list[Any]], tuple[list[Any], list[Any]]],
    w: list[Any],
    fixed: list[Any],
    x: list[Any],
    rest: list[Any],
    *,
    keep_inputs: bool,
    split: bool,
) -> Passes:
    """Derive the passes of `run(w, fixed, x, rest) -> (y, rest)` at the arguments' shapes.

    Args:
        run: the chunk's forward on flat lists of leaves.
        w: shapes of the weights' leaves with gradients.
        fixed: shapes of their other leaves.
        x: shapes of the activation's leaves with gradients; y has the same.
        rest: shapes of its other leaves.
        keep_inputs: the backward starts from x and rest and runs the forward again; else from
            residuals.
        split: whether I and W are wanted; without, their functions must not be called.
    """

    def whole(w, fixed, x, rest, g):
        y, pull, rest = jax.vjp(lambda w, x: run(w, fixed, x, rest), w, x, has_aux=True)
        dw, dx = pull(g)
        return [*y, *rest, *dw, *dx]

    closed = trace_flat(whole, w, fixed, x, rest, x)
    given, vx, vg = _take(closed.jaxpr.invars, len(w) + len(fixed), len(x) + len(rest), len(x))
    oy, results = _take(closed.jaxpr.outvars, len(x) + len(rest), len(w) + len(x))
    kept = tuple(vx) if keep_inputs else _residual(closed, vx, vg, results)
    # A callback in a layer runs with the forward, and again where the forward does.
    early = effects(closed, without=depends_on(closed, vg))
    late = effects(closed) if keep_inputs else set(effects(closed)) - set(early)
    forward = piece(closed, (*given, *vx), (*oy, *(() if keep_inputs else kept)), early)
    backward = piece(closed, (*given, *kept, *vg), results, late)
    shapes = _shapes(kept)
    if split:
        first, second, handover = _halves(backward, [*w, *fixed], [*shapes, *x], len(w))
    else:
        first, second, handover = backward, backward, ()
    return Passes(
        forward=_call(forward, len(oy)),
        backward=_call(backward, len(w)),
        input_gradient=_call(first, len(x)),
        weight_gradient=lambda *groups: second([v for group in groups for v in group]),
        residual=() if keep_inputs else shapes,
        handover=_shapes(handover),
    )


def _residual(
    closed: ClosedJaxpr, vx: list[Var], vg: list[Var], results: list[Any]
) -> tuple[Var, ...]:
    """What depends on x but not on g, and the equations that depend on g (or results) read."""
    on_g = depends_on(closed, vg)
    on_x = depends_on(closed, vx) - on_g
    needed = piece(closed, closed.jaxpr.invars, results).equations
    late = [e for i, e in enumerate(closed.jaxpr.eqns) if i in needed and e.outvars[0] in on_g]
    reads = {v for eqn in late for v in variables(eqn.invars)} | set(variables(results))
    return ordered(closed, reads & on_x)


def _halves(
    backward: Piece, fixed: list[Any], moving: list[Any], weights: int
) -> tuple[Piece, Piece, tuple[Var, ...]]:
    """Cut the backward `(fixed, moving) -> (dw, dx)` in I, W and what crosses between them."""
    closed = trace_flat(lambda *v: backward(v), *fixed, *moving, calls=CALLS_AND_REMAT)
    given, moves = _take(closed.jaxpr.invars, len(fixed), len(moving))
    odw, odx = closed.jaxpr.outvars[:weights], closed.jaxpr.outvars[weights:]
    kept = moves[: len(moving) - len(odx)]
    first = piece(closed, (*given, *moves), odx, effects(closed))
    # What I computed need not be computed again, unless weights alone give it.
    at_hand = (first.made | set(moves)) & depends_on(closed, moves) - set(kept)
    second = piece(closed, (*given, *kept, *ordered(closed, at_hand)), odw)
    handover = ordered(closed, used(closed, second) & at_hand)
    second = piece(closed, (*given, *kept, *handover), odw)
    return piece(closed, first.inputs, (*odx, *handover), effects(closed)), second, handover


def _call(part: Piece, first: int) -> Callable[..., tuple[list[Any], list[Any]]]:
    """The piece as a function of groups of leaves, its results in two groups."""

    def call(*groups):
        results = part([value for group in groups for value in group])
        return results[:first], results[first:]

    return call


def _take(items: list[Any], *counts: int) -> list[list[Any]]:
    groups, start = [], 0
    for count in counts:
        groups.append(list(items[start : start + count]))
        start += count
    return groups


def _shapes(kept: tuple[Var, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    avals: list[Any] = [v.aval for v in kept]
    return tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
