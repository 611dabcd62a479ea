"""The `permute` backend of reductions: partial sums travel as `jax.lax.ppermute` payloads."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._bits import carried_as
from ringline.collectives._permute import AxisName
from ringline.collectives._sum_plan import Sum, SumPlan, plan_sums
from ringline.schedule import CollectiveSchedule

Block = Callable[[Array, int, int], Array]
"""(stripe number, first row, last row + 1) to this device's own term of these rows."""


def permute_reduce_scatter(
    x: Array, *, axis_name: AxisName, axis: int, cut: int, schedule: CollectiveSchedule
) -> Array:
    """Sum the devices' `x` and keep this device's stripe, in the order of `schedule`.

    Args:
        x: this device's term of all stripes, one after the other along dim `axis`.
        axis_name: the mesh axis whose devices are the schedule's.
        axis: the dim that the stripes lie along.
        cut: the dim along which a stripe is cut into the schedule's pieces.
        schedule: the sends.
    """
    rows, block = rows_of_stripes(x, axis, cut, schedule.stripes)
    return sum_blocks(block, rows, cut, axis_name, schedule, x.dtype)


def rows_of_stripes(x: Array, axis: int, cut: int, stripes: int) -> tuple[int, Block]:
    """The length of a stripe of `x` along dim `cut`, and what slices rows out of a stripe."""
    width = x.shape[axis] // stripes

    def block(stripe: Array, start: int, stop: int) -> Array:
        # All of one type, also where numbers are of 64 bits by default.
        starts = [jnp.int32(0)] * x.ndim
        sizes = list(x.shape)
        sizes[axis] = width
        starts[axis] = stripe * width
        starts[cut] = starts[cut] + start
        sizes[cut] = stop - start
        return lax.dynamic_slice(x, starts, sizes)

    return (width if cut == axis else x.shape[cut]), block


def sum_blocks(
    block: Block,
    rows: int,
    cut: int,
    axis_name: AxisName,
    schedule: CollectiveSchedule,
    dtype: Any,
) -> Array:
    """The sum of all devices' blocks of this device's stripe; each is asked for when it is needed.

    Additions are in the blocks' own type; sums travel, and end, as `dtype`.

    Args:
        block: makes this device's own term of some rows of a stripe.
        rows: length of a stripe along dim `cut`.
        cut: the dim along which a stripe is cut into the schedule's pieces.
        axis_name: the mesh axis whose devices are the schedule's.
        schedule: the sends.
        dtype: of the result.
    """
    plan = plan_sums(schedule)
    bounds = tuple(rows * piece // plan.pieces for piece in range(plan.pieces + 1))
    sums = _Sums(block, plan, bounds, cut, lax.axis_index(axis_name), dtype, {})
    arrivals: list[Array] = []
    for numbers in plan.steps:
        payloads = [sums.total(plan.sums[number], arrivals) for number in numbers]
        if plan.shares_terms:
            # Both directions start together: else TPU compilers, to hide one behind the term that
            # is computed for the other, run one after the other.
            payloads = lax.optimization_barrier(payloads)
        for number, total in zip(numbers, payloads):
            if total.size:
                to_bits, from_bits = carried_as(total.dtype)
                total = from_bits(lax.ppermute(to_bits(total), axis_name, plan.pairs[number]))
            arrivals.append(total)
    return sums.total(plan.result, arrivals)


class _Sums(NamedTuple):
    block: Block
    plan: SumPlan
    bounds: Sequence[int]
    cut: int
    here: Array
    dtype: Any
    terms: dict[tuple[tuple[int, ...], int, int], Array]
    """Own terms that are there already: a line's payloads in both directions share them."""

    def _term(self, stripes: tuple[int, ...], start: int, stop: int) -> Array:
        key = (stripes, start, stop)
        if key not in self.terms:
            stripe = jnp.array(stripes, jnp.int32)[self.here]
            self.terms[key] = self.block(stripe, start, stop)
        return self.terms[key]

    def total(self, wanted: Sum, arrivals: Sequence[Array]) -> Array:
        parts = []
        for run in wanted.runs:
            start, stop = self.bounds[run.first], self.bounds[run.stop]
            part = self._term(wanted.stripes, start, stop)
            for addend in run.addends:
                base = self.bounds[self.plan.arrivals[addend.arrival].first]
                came = lax.slice_in_dim(
                    arrivals[addend.arrival], start - base, stop - base, axis=self.cut
                )
                added = _rounded(part + came.astype(part.dtype))
                # Not by adding the zeros that came to the others: -0 + 0 is not -0.
                if addend.present is not None:
                    added = jnp.where(jnp.array(addend.present)[self.here], added, part)
                part = added
            parts.append(part.astype(self.dtype))
        return parts[0] if len(parts) == 1 else lax.concatenate(parts, self.cut)


def _rounded(x: Array) -> Array:
    """Keeps the compiler from adding on in float32, so that the order alone decides the bits."""
    if x.dtype not in (jnp.bfloat16, jnp.float16):
        return x
    info = jnp.finfo(x.dtype)
    return lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)
