"""The all-gather as a TPU kernel: stripes copied straight into the neighbour's result."""

from collections.abc import Sequence
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
from ringline.collectives._pallas_plan import KernelPlan


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

    def body(row, stripe, result, sends, receives, own) -> None:
        kernel = Kernel(plan, by_device, row, axis_name)
        _run(kernel, window, stripe, result, (sends, receives, own))

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


def _run(kernel: Kernel, window: Window, stripe: Any, result: Any, semaphores: Sequence) -> None:
    plan = kernel.plan
    sends, receives, own = semaphores
    here = kernel.value(tuple(range(plan.devices)))

    def whole() -> tuple[Any, Any]:
        return stripe, window.of_result(result, here, 0, plan.pieces)

    def part(index: int) -> tuple[Any, Any, Any]:
        lane = plan.lanes[index]
        place = window.of_result(result, kernel.value(lane.stripe), lane.first, lane.stop)
        mine = window.of_stripe(stripe, lane.first, lane.stop)
        return lane, (mine if lane.source is None else place), place

    def send(index: int) -> None:
        lane, source, place = part(index)
        start_remote(
            source, place, sends.at[lane.place], receives.at[lane.place], kernel.device(lane.target)
        )

    for step in plan.steps:
        index = step.lane
        actions = {
            "enter": kernel.enter,
            "load": lambda: pltpu.make_async_copy(*whole(), own).start(),
            "loaded": lambda: pltpu.make_async_copy(*whole(), own).wait(),
            "send": lambda index=index: send(index),
            "sent": lambda index=index: wait_for(part(index)[1], sends.at[part(index)[0].place]),
            # Which stripe it is does not matter to the wait, its size does.
            "arrive": lambda index=index: wait_for(
                part(index)[2], receives.at[part(index)[0].place]
            ),
        }
        kernel.when(step.who, actions[step.what])


def _multiple(start: Any, width: int, offset: int) -> Any:
    """Tell the compiler what divides a start that it does not know."""
    return start if isinstance(start, int) else pl.multiple_of(start, gcd(width, offset))
