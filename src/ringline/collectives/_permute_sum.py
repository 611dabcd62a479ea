"""The `permute` backend of reductions: partial sums travel as `jax.lax.ppermute` payloads."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._bits import carried_as
from ringline.collectives._permute import AxisName, rows_at
from ringline.collectives._steps import SumStep, Term, Value, sum_steps
from ringline.collectives._sum_plan import Run
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
    steps = sum_steps(schedule)
    sums = _Sums(rows_at(rows, schedule.pieces), cut, dtype, lax.axis_index(axis_name))
    made: dict[Term, Array] = {}

    def own(term: Term, value: Value) -> Array:
        if term in made:
            return made[term]
        stripe = jnp.int32(value(term.stripe))
        found = block(stripe, sums.rows[term.first], sums.rows[term.stop])
        if steps.shares_terms:
            made[term] = found
        return found

    def step(one: SumStep, state: tuple[list[Array], list[list[Array]]], value: Value) -> Any:
        arrivals, terms = state
        totals = [
            sums.total(payload.runs, parts, arrivals) for payload, parts in zip(one.payloads, terms)
        ]
        if steps.shares_terms and len(totals) > 1:
            # Both directions start together: else TPU compilers, to hide one behind the term that
            # is computed for the other, run one after the other.
            totals = lax.optimization_barrier(totals)
        came = [
            _sent(total, payload.pairs, axis_name) for total, payload in zip(totals, one.payloads)
        ]
        # While they travel, what is added to them is made.
        made_next = [[own(term, value) for term in parts] for parts in one.terms]
        return [*arrivals, *came][-steps.held :], made_next

    arrivals, _ = steps.run(step, ([], []), axis_name)
    return arrivals[-1]


def _sent(total: Array, pairs: Sequence[tuple[int, int]], axis_name: AxisName) -> Array:
    if not (pairs and total.size):
        return total
    to_bits, from_bits = carried_as(total.dtype)
    return from_bits(lax.ppermute(to_bits(total), axis_name, pairs))


class _Sums(NamedTuple):
    """The rows at which pieces begin along dim `cut`, the type in which sums travel, the device."""

    rows: Sequence[int]
    cut: int
    dtype: Any
    here: Array

    def total(
        self, runs: Sequence[Run], terms: Sequence[Array], arrivals: Sequence[Array]
    ) -> Array:
        """The own terms, run by run, with the arrivals added."""
        parts = []
        for run, part in zip(runs, terms):
            start, stop = self.rows[run.first], self.rows[run.stop]
            for addend in run.addends:
                base = self.rows[addend.start]
                came = lax.slice_in_dim(
                    arrivals[-addend.arrival], start - base, stop - base, axis=self.cut
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
