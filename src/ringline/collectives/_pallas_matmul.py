"""The fused forms as TPU kernels: matmuls of stripes beside the copies of others."""

from functools import partial
from typing import Any, NamedTuple

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
from ringline.collectives._pallas_multiply import Scratch, Tiles, multiply, scratch_for
from ringline.collectives._pallas_plan import KernelPlan, Lane, Step, Who, runs_in_one_slab


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
    by_device = ByDevice(plan)
    here = tuple(range(plan.devices))
    height = x.shape[0] // plan.pieces

    def body(row, mine, w, result, gathered, sends, receives, *scratch) -> None:
        kernel = Kernel(plan, by_device, row, axis_name)

        def do(step: Step) -> None:
            if step.what == "enter":
                return kernel.enter()
            if step.lane == len(plan.lanes):
                place = result.at[kernel.value(here)]
                return multiply(mine, w, place, tiles, Scratch(*scratch))
            lane = plan.lanes[step.lane]
            rows = _rows(lane.first, lane.stop, height)
            if step.what == "multiply":
                stripe = kernel.value(lane.received)
                product = result.at[stripe, rows]
                return multiply(gathered.at[stripe, rows], w, product, tiles, Scratch(*scratch))
            place = gathered.at[kernel.value(lane.stripe), rows]
            send, receive = sends.at[lane.place], receives.at[lane.place]
            if step.what == "send":
                source = mine.at[rows] if lane.source is None else place
                return start_remote(source, place, send, receive, kernel.device(lane.target))
            return wait_for(place, send if step.what == "sent" else receive)

        kernel.run(do)

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
    )(by_device.row(axis_name), x, w)
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
    by_device = ByDevice(plan)
    height = x.shape[1] // plan.pieces
    slots = (plan.places, plan.largest * height, w.shape[1])

    def body(row, terms, w, total, landed, buffers, sends, receives, credits, *scratch) -> None:
        kernel = Kernel(plan, by_device, row, axis_name)
        memory = _Sums(height, terms, w, total, landed, buffers, sends, receives, credits)
        waiting: list[Step] = []
        for step in filter(runs_in_one_slab, plan.steps):
            if step.what == "arrive":
                # Not waited for until the product that it is added to is there.
                waiting.append(step)
                continue
            arrivals, waiting = (waiting, []) if step.what == "multiply" else ((), waiting)
            action = partial(_do, kernel, step, tuple(arrivals), memory, tiles, Scratch(*scratch))
            kernel.when(step.who, action)

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
    )(by_device.row(axis_name), x, w)
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


def _do(
    kernel: Kernel,
    step: Step,
    arrivals: tuple[Step, ...],
    memory: _Sums,
    tiles: Tiles,
    scratch: Scratch,
) -> None:
    lane = kernel.plan.lanes[step.lane]
    if step.what == "enter":
        return kernel.enter()
    if step.what == "multiply":
        return _product(kernel, lane, arrivals, memory, tiles, scratch)
    if step.what == "credit":
        return signal(memory.credits.at[lane.place], kernel.device(lane.origin))
    if step.what == "allowed":
        return pl.semaphore_wait(memory.credits.at[lane.place], 1)
    buffer = _part(memory.buffers, lane, memory.height)
    send, receive = memory.sends.at[lane.place], memory.receives.at[lane.place]
    if step.what == "send":
        place = _part(memory.landed, lane, memory.height)
        return start_remote(buffer, place, send, receive, kernel.device(lane.target))
    return wait_for(buffer, send)


def _part(places: Any, lane: Lane, height: int) -> Any:
    return places.at[lane.place, _rows(0, lane.stop - lane.first, height)]


def _rows(first: int, stop: int, height: int) -> Any:
    """The rows of some pieces."""
    return pl.ds(first * height, (stop - first) * height)


def _product(
    kernel: Kernel,
    lane: Lane,
    arrivals: tuple[Step, ...],
    memory: _Sums,
    tiles: Tiles,
    scratch: Scratch,
) -> None:
    plan = kernel.plan
    stripe = kernel.value(lane.stripe)

    def land() -> None:
        for step in arrivals:
            came = plan.lanes[step.lane]
            wait = partial(
                wait_for, _part(memory.landed, came, memory.height), memory.receives.at[came.place]
            )
            kernel.when(step.who, wait)

    def add(terms: list[tuple[Who | None, Any]], at: Any) -> None:
        for who, term in terms:
            action = partial(_add_tile, scratch, term.at[at])
            action() if who is None else kernel.when(who, action)

    height = memory.height
    for number, run in enumerate(lane.runs):
        rows = _rows(run.first, run.stop, height)
        terms = []
        for addend in run.addends:
            came = plan.lanes[addend.arrival]
            within = _rows(run.first - came.first, run.stop - came.first, height)
            terms.append((addend.present, memory.landed.at[came.place, within]))
        place = memory.total.at[rows]
        if any(lane.senders):
            within = _rows(run.first - lane.first, run.stop - lane.first, height)
            place = memory.buffers.at[lane.place, within]
        multiply(
            memory.terms.at[stripe, rows],
            memory.w,
            place,
            tiles,
            scratch,
            before=land if arrivals and number == 0 else None,
            add=partial(add, terms) if terms else None,
        )


def _add_tile(scratch: Scratch, term: Any) -> None:
    copy = pltpu.make_async_copy(term, scratch.addend, scratch.addend_copy)
    copy.start()
    copy.wait()
    scratch.total[...] += scratch.addend[...].astype(jnp.float32)
