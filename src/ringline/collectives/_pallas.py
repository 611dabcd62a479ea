"""The `pallas` backend: a schedule as one TPU kernel of remote copies."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from ringline.collectives._pallas_gather import gather_kernel
from ringline.collectives._pallas_kernel import AxisName, like
from ringline.collectives._pallas_layout import (
    blocks_of,
    cut_in_place,
    packed,
    stripe_of_blocks,
    terms_in_blocks,
    unpacked,
)
from ringline.collectives._pallas_plan import KernelPlan, plan_gather, plan_scatter
from ringline.collectives._pallas_scatter import buffered_pieces, scatter_kernel
from ringline.collectives._pallas_types import (
    check_adds,
    from_parts,
    from_terms,
    to_parts,
    to_terms,
)
from ringline.collectives._permute import platform
from ringline.schedule import CollectiveSchedule

# A kernel of a v5p, v5e or v6e gets some more than this.
_MAX_COPY_SEMAPHORES = 400
_PATTERNS = ("gather", "scatter")
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


def check_pallas(schedule: CollectiveSchedule, dtype: Any, *, adds: bool, grid: bool) -> None:
    """Refuse what no kernel can serve here.

    Args:
        schedule: the sends.
        dtype: of the array.
        adds: whether it is summed.
        grid: whether the call is over a grid of two mesh axes.

    Raises:
        ValueError: without TPUs or interpret mode; inside an automatic mesh axis; for a grid; for a
            type that cannot be added; for more copies than a kernel has semaphores.
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
            "jax.experimental.pallas.tpu.force_tpu_interpret_mode()"
        )
    if adds:
        check_adds(dtype)
    else:
        jax.eval_shape(to_parts, jax.ShapeDtypeStruct((), dtype))
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
    count = 3 * plan.places + 1 if plan.sums else 2 * plan.places + 1
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
