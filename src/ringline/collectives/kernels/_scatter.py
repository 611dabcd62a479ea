"""The reduce-scatter as a TPU kernel: sums travel through slots on the chips, with credits.

Blocks are summed slab by slab, so that everything under way fits on the chip: of each place a
slot, in which a neighbour's sum lands, and a buffer, in which the sum that goes on is formed.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringline.collectives.kernels._instructions import Copy, Instruction, Sum
from ringline.collectives.kernels._kernel import (
    AxisName,
    Kernel,
    code_of,
    in_hbm,
    in_smem,
    like,
    signal,
    start_remote,
    wait_for,
)
from ringline.collectives.kernels._layout import Blocks, tile_rows
from ringline.collectives.kernels._plan import KernelPlan

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
    code = code_of(plan)
    slabs, height, lanes = blocks.slabs, blocks.rows, blocks.lanes

    def body(numbers, terms, total, *scratch) -> None:
        slab: Any = pl.program_id(0) if slabs > 1 else 0
        kernel = Kernel(code, numbers, axis_name, slab, slabs)
        start = pl.multiple_of(slab * height, height) if slabs > 1 else 0
        view = _View(blocks, plan.pieces, terms, total, pl.ds(start, height))
        memory = _Memory(*scratch)
        kernel.run(partial(_do, view=view, memory=memory))

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
    )(code.row(axis_name), x)


class _View(NamedTuple):
    """Where a slab's pieces lie in the terms and in the result."""

    blocks: Blocks
    pieces: int
    terms: Any
    total: Any
    window: Any

    def own(self, stripe: Any, first: Any, pieces: int) -> list[tuple[Any, Any]]:
        """The own term: which pieces of a buffer are filled from which slices."""
        if not self.blocks.columns:
            return [(slice(None), self.terms.at[stripe, pl.ds(first, pieces), self.window])]
        return [
            (piece, self.terms.at[self.window, self._column(stripe, first + piece)])
            for piece in range(pieces)
        ]

    def result(self) -> list[tuple[Any, Any]]:
        """The result: which slices are filled from which pieces of the buffer."""
        if not self.blocks.columns:
            return [(slice(None), self.total.at[:, self.window])]
        return [
            (piece, self.total.at[self.window, self._column(0, piece)])
            for piece in range(self.pieces)
        ]

    def _column(self, stripe: Any, piece: Any) -> Any:
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


def _do(kernel: Kernel, instruction: Instruction, view: _View, memory: _Memory) -> None:
    what, copy = instruction.what, instruction.copy
    if what == "enter":
        return kernel.enter()
    place = kernel.value(copy.place)
    buffer = _part(memory.buffers, place, copy) if copy.remote else memory.result
    match what:
        case "load" | "loaded":
            own = view.own(kernel.value(copy.stripe), kernel.value(copy.first), copy.pieces)
            for pieces, term in own:
                load = pltpu.make_async_copy(term, buffer.at[pieces], memory.loads.at[place])
                load.start() if what == "load" else load.wait()
        case "send":
            start_remote(
                buffer,
                _part(memory.slots, place, copy),
                memory.sends.at[place],
                memory.receives.at[place],
                kernel.device(copy.target),
            )
        case "sent":
            wait_for(buffer, memory.sends.at[place])
        case "arrive":
            wait_for(_part(memory.slots, place, copy), memory.receives.at[place])
        case "add":
            for made in instruction.sums:
                _add_addend(kernel, made, buffer, memory.slots)
        case "credit":
            signal(memory.credits.at[place], kernel.device(copy.origin))
        case "allowed":
            pl.semaphore_wait(memory.credits.at[place], 1)
        case "store":
            copies = [
                pltpu.make_async_copy(buffer.at[pieces], where, memory.loads.at[place])
                for pieces, where in view.result()
            ]
            for store in copies:
                store.start()
            for store in copies:
                store.wait()
        case _:
            raise AssertionError(instruction)


def _part(places: Any, place: Any, copy: Copy) -> Any:
    return places.at[place, pl.ds(0, copy.pieces)]


def _add_addend(kernel: Kernel, made: Sum, buffer: Any, slots: Any) -> None:
    at = kernel.value(made.at)
    for addend in made.addends:
        place, start = kernel.value(addend.place), kernel.value(addend.at)
        for piece in range(made.pieces):
            _add(buffer.at[at + piece], slots.at[place, start + piece])


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
