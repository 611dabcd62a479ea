"""The `pallas` backend: a schedule as one TPU kernel of remote copies."""

from math import prod
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from ringline.collectives._bits import platform
from ringline.collectives.kernels._gather import gather_kernel
from ringline.collectives.kernels._kernel import AxisName, like
from ringline.collectives.kernels._layout import (
    blocks_of,
    cut_evenly,
    cut_in_place,
    join_pieces,
    packed,
    padded,
    split_pieces,
    stripe_of_blocks,
    terms_in_blocks,
    unpacked,
)
from ringline.collectives.kernels._matmul import gather_matmul_kernel, matmul_scatter_kernel
from ringline.collectives.kernels._matmul_plan import plan_gather_matmul, plan_matmul_scatter
from ringline.collectives.kernels._multiply import tiles_of
from ringline.collectives.kernels._plan import KernelPlan, plan_gather, plan_scatter
from ringline.collectives.kernels._scatter import buffered_pieces, scatter_kernel
from ringline.collectives.kernels._types import (
    check_type,
    from_parts,
    from_terms,
    to_parts,
    to_terms,
)
from ringline.schedule import CollectiveSchedule

# A kernel of a v5p, v5e or v6e gets some more than this.
_MAX_COPY_SEMAPHORES = 400
_PATTERNS = ("gather", "scatter", "gather matmul", "matmul scatter")
_MATMUL_COPIES = 7
_FIRST_COLLECTIVE_ID = 16


def pallas_all_gather(
    x: Array, *, axis_name: AxisName, axis: int, schedule: CollectiveSchedule, **_: Any
) -> Array:
    """Gather the stripes `x` of all devices along dim `axis`, in the order of `schedule`.

    Pieces are cut along any dim that the chip's memory allows: where they lie changes no bit.
    """
    plan = plan_gather(schedule)
    options: dict[str, Any] = {
        "plan": plan,
        "axis_name": axis_name,
        "collective_id": _collective_id(axis_name, "gather"),
    }
    if x.dtype == jnp.bfloat16 and platform() == "tpu":
        cut = cut_in_place(x.shape, axis, plan.pieces, x.dtype)
        if cut is not None:
            # Nothing but copies touches these bits, so they need not pose as integers.
            return gather_kernel(x, axis=axis, cut=cut, **options)
    parts = to_parts(x)
    cut = cut_in_place(parts.shape, axis + 1, plan.pieces, parts.dtype)
    if cut is not None:
        return from_parts(gather_kernel(parts, axis=axis + 1, cut=cut, **options), x.dtype)
    blocks = gather_kernel(packed(parts, plan.pieces), axis=0, cut=1, **options)
    return from_parts(unpacked(blocks, parts.shape, axis + 1), x.dtype)


def pallas_reduce_scatter(
    x: Array, *, axis_name: AxisName, axis: int, cut: int, schedule: CollectiveSchedule, **_: Any
) -> Array:
    """Sum the devices' `x` and keep this device's stripe, in the order of `schedule`."""
    plan = plan_scatter(schedule)
    terms = to_terms(x)
    stripe = list(terms.shape)
    stripe[axis + 1] //= plan.devices
    blocks = blocks_of(
        tuple(stripe), axis + 1, cut + 1, plan.pieces, buffered_pieces(plan), terms.dtype
    )
    summed = scatter_kernel(
        terms_in_blocks(terms, plan.devices, blocks),
        plan=plan,
        axis_name=axis_name,
        blocks=blocks,
        collective_id=_collective_id(axis_name, "scatter"),
    )
    return from_terms(stripe_of_blocks(summed, blocks), x.dtype)


def pallas_all_gather_matmul(
    x: Array,
    w: Array,
    *,
    axis_name: AxisName,
    axis: int,
    schedule: CollectiveSchedule,
    dtype: Any,
    **unused: Any,
) -> Array:
    """`gather(x) @ w` in `dtype`, each stripe multiplied as it lands."""
    plan = plan_gather_matmul(schedule)
    x, w = _promoted(x, w)
    *lead, inner = x.shape
    rows = -(-prod(lead) // plan.pieces)
    tiles = tiles_of(rows, inner, w.shape[1], x.dtype)
    height, depth, _ = tiles.padded
    flat = padded(x.reshape(-1, inner), plan.pieces * rows, 0)
    y = gather_matmul_kernel(
        _fitted(flat.reshape(plan.pieces, rows, inner), tiles.padded[:2]).reshape(-1, depth),
        _fitted(w, tiles.padded[1:]),
        plan=plan,
        axis_name=axis_name,
        tiles=tiles,
        dtype=dtype,
        collective_id=_collective_id(axis_name, "gather matmul"),
    )
    blocks = y.reshape(plan.devices, plan.pieces, height, -1)[:, :, :rows, : w.shape[1]]
    return unpacked(blocks, (*lead, w.shape[1]), axis)


def pallas_matmul_reduce_scatter(
    x: Array,
    w: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    dtype: Any,
    **unused: Any,
) -> Array:
    """`scatter(sum(x @ w))` in `dtype`, each product formed when its sum is about to leave."""
    plan = plan_matmul_scatter(schedule)
    x, w = _promoted(x, w)
    stripe = [*x.shape]
    stripe[axis] //= plan.devices
    bounds = cut_evenly(stripe[cut], plan.pieces)
    pieces = split_pieces(x, plan.devices, axis, cut, bounds)
    *lead, inner = pieces.shape[2:]
    tiles = tiles_of(prod(lead), inner, w.shape[1], x.dtype)
    height, depth, _ = tiles.padded
    rows = _fitted(pieces.reshape(plan.devices, plan.pieces, -1, inner), (height, depth))
    total = matmul_scatter_kernel(
        rows.reshape(plan.devices, -1, depth),
        _fitted(w, tiles.padded[1:]),
        plan=plan,
        axis_name=axis_name,
        tiles=tiles,
        dtype=dtype,
        collective_id=_collective_id(axis_name, "matmul scatter"),
    )
    kept = total.reshape(plan.pieces, height, -1)[:, : prod(lead), : w.shape[1]]
    return join_pieces(kept.reshape(plan.pieces, *lead, w.shape[1]), cut, bounds)


def _promoted(x: Array, w: Array) -> tuple[Array, Array]:
    common = jnp.promote_types(x.dtype, w.dtype)
    return x.astype(common), w.astype(common)


def _fitted(x: Array, sizes: tuple[int, ...]) -> Array:
    """`x` with zeros up to `sizes` of its last two dims."""
    return padded(padded(x, sizes[0], x.ndim - 2), sizes[1], x.ndim - 1)


def check_pallas(
    schedule: CollectiveSchedule,
    does: Literal["carry", "add", "multiply"],
    *types: Any,
    grid: bool = False,
) -> None:
    """Refuse what no kernel can serve here.

    Args:
        schedule: the sends.
        does: what happens to the arrays.
        types: of the arrays.
        grid: whether the call is over a grid of two mesh axes.

    Raises:
        ValueError: without TPUs or interpret mode; inside an automatic mesh axis; for a grid; for a
            type that kernels cannot serve; for more copies than a kernel has semaphores.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = [
        name for name in mesh.axis_names if name not in mesh.manual_axes and mesh.shape[name] > 1
    ]
    if automatic:
        raise ValueError(
            f"implementation 'pallas' needs all mesh axes to be manual, got {automatic[0]!r} "
            "left to the compiler; add it to jax.shard_map's axis_names or use "
            "implementation='permute'"
        )
    if grid:
        raise ValueError(
            "implementation 'pallas' runs one kernel at a time, so the halves of a grid would "
            "not go side by side; use implementation='permute' or a single topology"
        )
    if platform() != "tpu" and not interpret_effects():
        raise ValueError(
            f"implementation 'pallas' needs TPU devices, got {platform()}; use "
            "implementation='permute', or emulate the kernels, slowly, inside "
            "jax.experimental.pallas.tpu.force_tpu_interpret_mode() with the environment variable "
            "PJRT_NPROC at least twice the devices"
        )
    for dtype in types:
        check_type(does, dtype)
    for plan in _plans(schedule):
        _check_semaphores(plan)


def interpret_effects() -> frozenset[Any]:
    """The effects of a kernel that is interpreted here; none where kernels are compiled."""

    def copy(x, y):
        y[...] = x[...]

    def run():
        given = jnp.zeros((8, 128), jnp.int32)
        return pl.pallas_call(copy, out_shape=like(given, given.shape))(given)

    return frozenset(jax.make_jaxpr(run)().effects)


def _plans(schedule: CollectiveSchedule) -> list[KernelPlan]:
    plans = {
        "all-gather": [plan_gather],
        "reduce-scatter": [plan_scatter],
        "all-reduce": [plan_scatter, plan_gather],
    }
    return [plan(schedule) for plan in plans[schedule.name]]


def _check_semaphores(plan: KernelPlan) -> None:
    # A pair for each place, and what the loads or the tiles of a matmul need besides.
    count = 2 * plan.places + max(_MATMUL_COPIES, plan.places * plan.sums)
    if count > _MAX_COPY_SEMAPHORES:
        raise ValueError(
            f"implementation 'pallas' has {_MAX_COPY_SEMAPHORES} copy semaphores, got a schedule "
            f"that needs {count}; use fewer channels or implementation='permute'"
        )


def _collective_id(axis_name: AxisName, pattern: str) -> int:
    """One entry barrier for each set of mesh axes and pattern, the same on every device.

    Kernels that share a barrier must not be under way at the same time. Two calls of one pattern
    over the same devices are not: none of them ends before all have entered.
    """
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    axes = jax.sharding.get_abstract_mesh().axis_names
    which = sum(2 ** axes.index(name) for name in names)
    return _FIRST_COLLECTIVE_ID + which * len(_PATTERNS) + _PATTERNS.index(pattern)
