"""Collectives over two mesh axes whose devices form a grid.

One axis after the other would leave half of the links idle. So the array is cut in two halves: one
goes along the first axis and then the second, the other the other way round, at the same time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._arguments import GridAxis, cut_dim


def grid_gather(
    x: Array,
    dim: int,
    axes: Sequence[GridAxis],
    gather: Callable[..., Array],
    **backend: Any,
) -> Array:
    """Gather `x` along `dim` in row-major order of the two axes.

    Args:
        x: this device's stripe.
        dim: where the stripes are joined.
        axes: first and second mesh axis.
        gather: the all-gather over one axis, with the parameters of the primitive.
        backend: those that are the same for both axes: `implementation` and `assembly`.
    """
    row, column = axes
    cut = cut_dim(x.shape, dim, 2)
    halves = []
    for half, order in zip(_halves(x, cut), ((row, column), (column, row))):
        for axis in order:
            half = gather(half[None], **_params(half[None], axis), **backend)
        halves.append(half.swapaxes(0, 1) if order[0] is row else half)
    whole = lax.concatenate(halves, cut + 2)
    return _merged(whole, dim)


def grid_scatter(
    x: Array,
    dim: int,
    axes: Sequence[GridAxis],
    scatter: Callable[..., Array],
    **backend: Any,
) -> Array:
    """Sum `x` of all devices of the grid and keep this device's stripe: `grid_gather` backwards.

    Args:
        x: this device's term of all stripes.
        dim: the dim that is cut into stripes.
        axes: first and second mesh axis.
        scatter: the reduce-scatter over one axis, with the parameters of the primitive.
        backend: those that are the same for both axes: `implementation` and `assembly`.
    """
    row, column = axes
    whole = _split(x, dim, row.schedule.devices, column.schedule.devices)
    cut = cut_dim(whole.shape[2:], dim, 2)
    halves = []
    for half, order in zip(_halves(whole, cut + 2), ((row, column), (column, row))):
        if order[0] is row:
            half = half.swapaxes(0, 1)
        for axis in reversed(order):
            half = scatter(half, **_params(half, axis), **backend)[0]
        halves.append(half)
    return lax.concatenate(halves, cut)


def _halves(x: Array, dim: int) -> list[Array]:
    middle = x.shape[dim] // 2
    if not middle:
        return [x]
    return [
        lax.slice_in_dim(x, 0, middle, axis=dim),
        lax.slice_in_dim(x, middle, x.shape[dim], axis=dim),
    ]


def _params(x: Array, axis: GridAxis) -> dict[str, Any]:
    """Parameters of a primitive over one axis for stripes along dim 0."""
    return {
        "axis_name": axis.name,
        "axis": 0,
        "cut": cut_dim((1, *x.shape[1:]), 0, axis.schedule.pieces),
        "schedule": axis.schedule,
    }


def _merged(x: Array, dim: int) -> Array:
    """[rows, columns, ...] to stripes joined along `dim` of the rest."""
    rows, columns, *rest = x.shape
    stacked = jnp.moveaxis(x, (0, 1), (dim, dim + 1))
    rest[dim] *= rows * columns
    return stacked.reshape(rest)


def _split(x: Array, dim: int, rows: int, columns: int) -> Array:
    """Stripes joined along `dim` to [rows, columns, ...]."""
    shape = list(x.shape)
    shape[dim : dim + 1] = [rows, columns, shape[dim] // (rows * columns)]
    return jnp.moveaxis(x.reshape(shape), (dim, dim + 1), (0, 1))
