"""The all-gather as a TPU kernel: stripes copied straight into the neighbour's result."""

from math import gcd
from typing import Any, NamedTuple

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
    start_remote,
    wait_for,
)
from ringline.collectives._pallas_plan import KernelPlan, Step


class Window(NamedTuple):
    """Where the pieces of a stripe lie in the stripe and in the result.

    Attributes:
        ndim: rank of both.
        axis: the dim along which stripes are joined.
        width: length of a stripe along it.
        cut: the dim along which a stripe is cut into pieces.
        rows: length of a piece along it.
    """

    ndim: int
    axis: int
    width: int
    cut: int
    rows: int

    def of_stripe(self, ref: Any, first: int, stop: int) -> Any:
        """Pieces of this device's stripe."""
        index: list[Any] = [slice(None)] * self.ndim
        index[self.cut] = pl.ds(first * self.rows, (stop - first) * self.rows)
        return ref.at[tuple(index)]

    def of_result(self, ref: Any, stripe: Any, first: int, stop: int) -> Any:
        """Pieces of any stripe in the result."""
        index: list[Any] = [slice(None)] * self.ndim
        start, size = stripe * self.width, self.width
        if self.cut == self.axis:
            start, size = start + first * self.rows, (stop - first) * self.rows
        else:
            index[self.cut] = pl.ds(first * self.rows, (stop - first) * self.rows)
        index[self.axis] = pl.ds(_multiple(start, self.width, first * self.rows), size)
        return ref.at[tuple(index)]


def gather_kernel(
    x: Array, *, plan: KernelPlan, axis_name: AxisName, axis: int, cut: int, collective_id: int
) -> Array:
    """Gather the stripes `x` along dim `axis`.

    Args:
        x: this device's stripe, in which slices of pieces along `cut` can be copied.
        plan: the kernel's steps.
        axis_name: the mesh axis whose devices are the plan's.
        axis: the dim along which stripes are joined.
        cut: the dim along which a stripe is cut into equal pieces.
        collective_id: of the entry barrier.
    """
    by_device = ByDevice(plan)
    window = Window(x.ndim, axis, x.shape[axis], cut, x.shape[cut] // plan.pieces)
    shape = list(x.shape)
    shape[axis] *= plan.devices

    def body(row, stripe, result, *semaphores) -> None:
        kernel = Kernel(plan, by_device, row, axis_name)
        kernel.run(lambda step: _do(kernel, step, window, stripe, result, _Semaphores(*semaphores)))

    semaphores = pltpu.SemaphoreType.DMA((plan.places,))
    return pl.pallas_call(
        body,
        out_shape=like(x, tuple(shape)),
        in_specs=[in_smem(), in_hbm()],
        out_specs=in_hbm(),
        scratch_shapes=[semaphores, semaphores, pltpu.SemaphoreType.DMA(())],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, has_side_effects=True),
        name="ringline_all_gather",
    )(by_device.row(axis_name), x)


class _Semaphores(NamedTuple):
    """Of the copies to and from neighbours, and of the own stripe's."""

    sends: Any
    receives: Any
    own: Any


def _do(
    kernel: Kernel, step: Step, window: Window, stripe: Any, result: Any, semaphores: _Semaphores
) -> None:
    plan = kernel.plan
    if step.what == "enter":
        return kernel.enter()
    if step.what in ("load", "loaded"):
        here = kernel.value(tuple(range(plan.devices)))
        place = window.of_result(result, here, 0, plan.pieces)
        copy = pltpu.make_async_copy(stripe, place, semaphores.own)
        return copy.start() if step.what == "load" else copy.wait()
    lane = plan.lanes[step.lane]
    place = window.of_result(result, kernel.value(lane.stripe), lane.first, lane.stop)
    send, receive = semaphores.sends.at[lane.place], semaphores.receives.at[lane.place]
    if step.what == "send":
        own = lane.source is None
        source = window.of_stripe(stripe, lane.first, lane.stop) if own else place
        return start_remote(source, place, send, receive, kernel.device(lane.target))
    # Which stripe it is does not matter to a wait, its size does.
    return wait_for(place, send if step.what == "sent" else receive)


def _multiple(start: Any, width: int, offset: int) -> Any:
    """Tell the compiler what divides a start that it does not know."""
    return start if isinstance(start, int) else pl.multiple_of(start, gcd(width, offset))
