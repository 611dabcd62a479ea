"""The fused forms as TPU kernels: matmuls of stripes beside the copies of others."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringline.collectives.kernels._instructions import Copy, Instruction, Sum, instructions_of
from ringline.collectives.kernels._kernel import (
    AxisName,
    Kernel,
    code_of,
    in_hbm,
    in_smem,
    like,
    rows_of,
    signal,
    start_remote,
    wait_for,
)
from ringline.collectives.kernels._multiply import Scratch, Tiles, multiply, scratch_for
from ringline.collectives.kernels._plan import KernelPlan


def gather_matmul_kernel(
    x: Array,
    w: Array,
    *,
    plan: KernelPlan,
    axis_name: AxisName,
    tiles: Tiles,
    dtype: Any,
    collective_id: int,
) -> Array:
    """Multiply all devices' rows with `w`, as they land.

    Args:
        x: this device's rows, `[pieces * rows, inner]`.
        w: `[inner, columns]`.
        plan: the kernel's steps.
        axis_name: the mesh axis whose devices are the plan's.
        tiles: of one piece's product.
        dtype: of the result.
        collective_id: of the entry barrier.

    Returns:
        `[devices, pieces * rows, columns]`.
    """
    code = code_of(plan)
    height = x.shape[0] // plan.pieces

    def body(numbers, mine, w, result, gathered, sends, receives, *scratch) -> None:
        def do(kernel: Kernel, instruction: Instruction) -> None:
            what, copy = instruction.what, instruction.copy
            if what == "enter":
                return kernel.enter()
            rows = rows_of(kernel.value(copy.first), copy.pieces, height)
            if what == "multiply":
                stripe = kernel.value(copy.received)
                left = gathered.at[stripe, rows] if copy.remote else mine
                return multiply(left, w, result.at[stripe, rows], tiles, Scratch(*scratch))
            place = gathered.at[kernel.value(copy.stripe), rows]
            semaphore = kernel.value(copy.place)
            send, receive = sends.at[semaphore], receives.at[semaphore]
            if what == "send":
                source = place if copy.passes_on else mine.at[rows]
                return start_remote(source, place, send, receive, kernel.device(copy.target))
            return wait_for(place, send if what == "sent" else receive)

        Kernel(code, numbers, axis_name).run(do)

    semaphores = pltpu.SemaphoreType.DMA((plan.places,))
    result, _ = pl.pallas_call(
        body,
        out_shape=[
            like(x, (plan.devices, x.shape[0], w.shape[1]), dtype),
            like(x, (plan.devices, *x.shape)),
        ],
        in_specs=[in_smem(), in_hbm(), in_hbm()],
        out_specs=[in_hbm(), in_hbm()],
        scratch_shapes=[semaphores, semaphores, *scratch_for(tiles, x.dtype, dtype)],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, has_side_effects=True),
        name="ringline_all_gather_matmul",
    )(code.row(axis_name), x, w)
    return result


def matmul_scatter_kernel(
    x: Array,
    w: Array,
    *,
    plan: KernelPlan,
    axis_name: AxisName,
    tiles: Tiles,
    dtype: Any,
    collective_id: int,
) -> Array:
    """Sum up this device's stripe of all devices' products, each formed when its sum leaves.

    Args:
        x: this device's rows of all stripes, `[devices, pieces * rows, inner]`.
        w: `[inner, columns]`.
        plan: the kernel's steps.
        axis_name: the mesh axis whose devices are the plan's.
        tiles: of one piece's product.
        dtype: of the sums on their way, and of the result.
        collective_id: of the entry barrier.

    Returns:
        `[pieces * rows, columns]`.
    """
    code = code_of(plan, _with_arrivals(plan))
    height = x.shape[1] // plan.pieces
    slots = (plan.places, plan.largest * height, w.shape[1])

    def body(numbers, terms, w, total, landed, buffers, sends, receives, credits, *scratch) -> None:
        memory = _Sums(height, terms, w, total, landed, buffers, sends, receives, credits)
        do = partial(_do, memory=memory, tiles=tiles, scratch=Scratch(*scratch))
        Kernel(code, numbers, axis_name).run(do)

    counters = pltpu.SemaphoreType.DMA((plan.places,))
    total, *_ = pl.pallas_call(
        body,
        out_shape=[
            like(x, (x.shape[1], w.shape[1]), dtype),
            like(x, slots, dtype),
            like(x, slots, dtype),
        ],
        in_specs=[in_smem(), in_hbm(), in_hbm()],
        out_specs=[in_hbm()] * 3,
        scratch_shapes=[
            counters,
            counters,
            pltpu.SemaphoreType.REGULAR((plan.places,)),
            *scratch_for(tiles, x.dtype, dtype),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, has_side_effects=True),
        name="ringline_matmul_reduce_scatter",
    )(code.row(axis_name), x, w)
    return total


class _Sums(NamedTuple):
    """Rows of a piece; operands, result, slots and buffers in memory; and semaphores."""

    height: int
    terms: Any
    w: Any
    total: Any
    landed: Any
    buffers: Any
    sends: Any
    receives: Any
    credits: Any


def _with_arrivals(plan: KernelPlan) -> list[Instruction]:
    """Each arrival is waited for when the product that it is added to is there, not before."""
    found: list[Instruction] = []
    waiting: tuple[Instruction, ...] = ()
    for instruction in instructions_of(plan):
        if not instruction.in_one_slab:
            continue
        if instruction.what == "arrive":
            waiting += (instruction,)
        elif instruction.what == "multiply":
            found.append(replace(instruction, awaited=waiting))
            waiting = ()
        else:
            found.append(instruction)
    return found


def _do(
    kernel: Kernel, instruction: Instruction, memory: _Sums, tiles: Tiles, scratch: Scratch
) -> None:
    what, copy = instruction.what, instruction.copy
    if what == "enter":
        return kernel.enter()
    if what == "multiply":
        return _product(kernel, instruction, memory, tiles, scratch)
    place = kernel.value(copy.place)
    if what == "credit":
        return signal(memory.credits.at[place], kernel.device(copy.origin))
    if what == "allowed":
        return pl.semaphore_wait(memory.credits.at[place], 1)
    buffer = _part(memory.buffers, place, copy, memory.height)
    send, receive = memory.sends.at[place], memory.receives.at[place]
    if what == "send":
        slot = _part(memory.landed, place, copy, memory.height)
        return start_remote(buffer, slot, send, receive, kernel.device(copy.target))
    return wait_for(buffer, send)


def _part(places: Any, place: Any, copy: Copy, height: int) -> Any:
    return places.at[place, rows_of(0, copy.pieces, height)]


def _product(
    kernel: Kernel, instruction: Instruction, memory: _Sums, tiles: Tiles, scratch: Scratch
) -> None:
    copy, height = instruction.copy, memory.height
    stripe = kernel.value(copy.stripe)

    def land() -> None:
        for arrival in instruction.awaited:
            place = kernel.value(arrival.copy.place)
            slot = _part(memory.landed, place, arrival.copy, height)
            kernel.when(arrival.who, partial(wait_for, slot, memory.receives.at[place]))

    def add(made: Sum, at: Any) -> None:
        for addend in made.addends:
            rows = rows_of(kernel.value(addend.at), made.pieces, height)
            term = memory.landed.at[kernel.value(addend.place), rows]
            kernel.when(addend.present, partial(_add_tile, scratch, term.at[at]))

    for number, made in enumerate(instruction.sums):
        rows = rows_of(kernel.value(made.first), made.pieces, height)
        place = memory.total.at[rows]
        if copy.remote:
            within = rows_of(kernel.value(made.at), made.pieces, height)
            place = memory.buffers.at[kernel.value(copy.place), within]
        multiply(
            memory.terms.at[stripe, rows],
            memory.w,
            place,
            tiles,
            scratch,
            before=land if instruction.awaited and number == 0 else None,
            add=partial(add, made) if made.addends else None,
        )


def _add_tile(scratch: Scratch, term: Any) -> None:
    copy = pltpu.make_async_copy(term, scratch.addend, scratch.addend_copy)
    copy.start()
    copy.wait()
    scratch.total[...] += scratch.addend[...].astype(jnp.float32)
