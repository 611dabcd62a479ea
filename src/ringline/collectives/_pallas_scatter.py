"""The reduce-scatter as a TPU kernel: sums travel through slots on the chips, with credits.

Blocks are summed slab by slab, so that everything under way fits on the chip: of each place a
slot, in which a neighbour's sum lands, and a buffer, in which the sum that goes on is formed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringline.collectives._pallas_kernel import (
    AxisName,
    ByDevice,
    Kernel,
    in_hbm,
    in_smem,
    like,
    signal,
    start_remote,
    wait_for,
)
from ringline.collectives._pallas_layout import Blocks, tile_rows
from ringline.collectives._pallas_plan import KernelPlan, Lane, Step

# What an addition holds in registers.
_ADDED_BYTES = 2**16


def buffered_pieces(plan: KernelPlan) -> int:
    """How many pieces' slabs the kernel holds on the chip."""
    return 2 * plan.places * plan.largest + plan.pieces


def scatter_kernel(
    x: Array, *, plan: KernelPlan, axis_name: AxisName, blocks: Blocks, collective_id: int
) -> Array:
    """Sum up the terms of this device's stripe.

    Args:
        x: this device's terms, laid out as `blocks` says.
        plan: the kernel's steps.
        axis_name: the mesh axis whose devices are the plan's.
        blocks: the layout.
        collective_id: of the entry barrier.

    Returns:
        The sum, `[pieces, slabs * rows, lanes]`, or `[slabs * rows, pieces * lanes]` for columns.
    """
    by_device = ByDevice(plan)
    slabs, height, lanes = blocks.slabs, blocks.rows, blocks.lanes

    def body(row, terms, total, *scratch) -> None:
        slab: Any = pl.program_id(0) if slabs > 1 else 0
        kernel = Kernel(plan, by_device, row, axis_name, slab, slabs)
        start = pl.multiple_of(slab * height, height) if slabs > 1 else 0
        view = _View(blocks, plan.pieces, terms, total, pl.ds(start, height))
        memory = _Memory(*scratch)
        kernel.run(lambda step: _do(kernel, step, view, memory))

    slots = pltpu.VMEM((plan.places, plan.largest, height, lanes), x.dtype)
    counters = pltpu.SemaphoreType.DMA((plan.places,))
    whole = slabs * height
    shape = (whole, plan.pieces * lanes) if blocks.columns else (plan.pieces, whole, lanes)
    return pl.pallas_call(
        body,
        grid=(slabs,),
        out_shape=like(x, shape),
        in_specs=[in_smem(), in_hbm()],
        out_specs=in_hbm(),
        scratch_shapes=[
            slots,
            slots,
            pltpu.VMEM((plan.pieces, height, lanes), x.dtype),
            counters,
            counters,
            pltpu.SemaphoreType.DMA((plan.places + 1,)),
            pltpu.SemaphoreType.REGULAR((plan.places,)),
        ],
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id,
            has_side_effects=True,
            dimension_semantics=(pltpu.ARBITRARY,),
        ),
        name="ringline_reduce_scatter",
    )(by_device.row(axis_name), x)


class _View(NamedTuple):
    """Where a slab's pieces lie in the terms and in the result."""

    blocks: Blocks
    pieces: int
    terms: Any
    total: Any
    window: Any

    def own(self, stripe: Any, lane: Lane) -> list[tuple[Any, Any]]:
        """The own term: which pieces of a buffer are filled from which slices."""
        if not self.blocks.columns:
            run = pl.ds(lane.first, lane.stop - lane.first)
            return [(slice(None), self.terms.at[stripe, run, self.window])]
        return [
            (piece - lane.first, self.terms.at[self.window, self._column(stripe, piece)])
            for piece in range(lane.first, lane.stop)
        ]

    def result(self) -> list[tuple[Any, Any]]:
        """The result: which slices are filled from which pieces of the buffer."""
        if not self.blocks.columns:
            return [(slice(None), self.total.at[:, self.window])]
        return [
            (piece, self.total.at[self.window, self._column(0, piece)])
            for piece in range(self.pieces)
        ]

    def _column(self, stripe: Any, piece: int) -> Any:
        lanes = self.blocks.lanes
        start = (stripe * self.pieces + piece) * lanes
        return pl.ds(start if isinstance(start, int) else pl.multiple_of(start, lanes), lanes)


class _Memory(NamedTuple):
    """Slots and buffers of each place, the result's buffer, and semaphores."""

    slots: Any
    buffers: Any
    result: Any
    sends: Any
    receives: Any
    loads: Any
    credits: Any


def _do(kernel: Kernel, step: Step, view: _View, memory: _Memory) -> None:
    lane = kernel.plan.lanes[step.lane]
    sends = any(lane.senders)
    buffer = _part(memory.buffers, lane) if sends else memory.result
    match step.what:
        case "enter":
            kernel.enter()
        case "load" | "loaded":
            for pieces, own in view.own(kernel.value(lane.stripe), lane):
                copy = pltpu.make_async_copy(own, buffer.at[pieces], memory.loads.at[lane.place])
                copy.start() if step.what == "load" else copy.wait()
        case "send":
            start_remote(
                buffer,
                _part(memory.slots, lane),
                memory.sends.at[lane.place],
                memory.receives.at[lane.place],
                kernel.device(lane.target),
            )
        case "sent":
            wait_for(buffer, memory.sends.at[lane.place])
        case "arrive":
            wait_for(_part(memory.slots, lane), memory.receives.at[lane.place])
        case "add":
            _add_addend(kernel.plan, lane, step, buffer, memory.slots)
        case "credit":
            signal(memory.credits.at[lane.place], kernel.device(lane.origin))
        case "allowed":
            pl.semaphore_wait(memory.credits.at[lane.place], 1)
        case "store":
            copies = [
                pltpu.make_async_copy(buffer.at[pieces], place, memory.loads.at[lane.place])
                for pieces, place in view.result()
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
        case _:
            raise AssertionError(step)


def _part(places: Any, lane: Lane) -> Any:
    return places.at[lane.place, pl.ds(0, lane.stop - lane.first)]


def _add_addend(plan: KernelPlan, lane: Lane, step: Step, buffer: Any, slots: Any) -> None:
    run = lane.runs[step.run]
    arrival = plan.lanes[run.addends[step.addend].arrival]
    for piece in range(run.first, run.stop):
        _add(buffer.at[piece - lane.first], slots.at[arrival.place, piece - arrival.first])


def _add(total: Any, term: Any) -> None:
    """`total += term`, as many rows at a time as registers hold."""
    height, lanes = total.shape
    tile = tile_rows(total.dtype)
    rows = max(tile, _ADDED_BYTES // (lanes * 4) // tile * tile)
    rows = max(count for count in range(tile, min(rows, height) + 1, tile) if height % count == 0)

    def add(number: Any, _: Any = None) -> None:
        at = pl.ds(pl.multiple_of(number * rows, rows), rows) if height > rows else slice(None)
        total[at] = _sum(total[at], term[at])

    if height == rows:
        add(0)
    else:
        jax.lax.fori_loop(0, height // rows, lambda number, _: add(number), None)


def _sum(a: Array, b: Array) -> Array:
    """The sum, rounded once; not all chips add 16-bit floats."""
    if a.dtype == jnp.bfloat16:
        return (a.astype(jnp.float32) + b.astype(jnp.float32)).astype(a.dtype)
    return a + b
