"""The all-gather as a TPU kernel: stripes copied straight into the neighbour's result."""

from functools import partial
from math import gcd
from typing import Any, NamedTuple

from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringline.collectives.kernels._instructions import Instruction
from ringline.collectives.kernels._kernel import (
    AxisName,
    Kernel,
    code_of,
    in_hbm,
    in_smem,
    like,
    rows_of,
    start_remote,
    wait_for,
)
from ringline.collectives.kernels._plan import KernelPlan


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

    def of_stripe(self, ref: Any, first: Any, pieces: int) -> Any:
        """Pieces of this device's stripe."""
        index: list[Any] = [slice(None)] * self.ndim
        index[self.cut] = rows_of(first, pieces, self.rows)
        return ref.at[tuple(index)]

    def of_result(self, ref: Any, stripe: Any, first: Any, pieces: int) -> Any:
        """Pieces of any stripe in the result."""
        index: list[Any] = [slice(None)] * self.ndim
        start, size, offset = stripe * self.width, self.width, 0
        if self.cut == self.axis:
            start, size = start + first * self.rows, pieces * self.rows
            offset = first * self.rows if isinstance(first, int) else self.rows
        else:
            index[self.cut] = rows_of(first, pieces, self.rows)
        index[self.axis] = pl.ds(_multiple(start, self.width, offset), size)
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
    code = code_of(plan)
    window = Window(x.ndim, axis, x.shape[axis], cut, x.shape[cut] // plan.pieces)
    shape = list(x.shape)
    shape[axis] *= plan.devices

    def body(numbers, stripe, result, *semaphores) -> None:
        place = _Place(window, stripe, result, *semaphores)
        Kernel(code, numbers, axis_name).run(partial(_do, place=place))

    semaphores = pltpu.SemaphoreType.DMA((plan.places,))
    return pl.pallas_call(
        body,
        out_shape=like(x, tuple(shape)),
        in_specs=[in_smem(), in_hbm()],
        out_specs=in_hbm(),
        scratch_shapes=[semaphores, semaphores, pltpu.SemaphoreType.DMA(())],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id, has_side_effects=True),
        name="ringline_all_gather",
    )(code.row(axis_name), x)


class _Place(NamedTuple):
    """Where the stripes lie; semaphores of the copies to and from neighbours, and of the own."""

    window: Window
    stripe: Any
    result: Any
    sends: Any
    receives: Any
    own: Any


def _do(kernel: Kernel, instruction: Instruction, place: _Place) -> None:
    what, copy = instruction.what, instruction.copy
    if what == "enter":
        return kernel.enter()
    first = kernel.value(copy.first)
    lands = place.window.of_result(place.result, kernel.value(copy.stripe), first, copy.pieces)
    if what in ("load", "loaded"):
        own = pltpu.make_async_copy(place.stripe, lands, place.own)
        return own.start() if what == "load" else own.wait()
    semaphore = kernel.value(copy.place)
    send, receive = place.sends.at[semaphore], place.receives.at[semaphore]
    if what == "send":
        own = place.window.of_stripe(place.stripe, first, copy.pieces)
        source = lands if copy.passes_on else own
        return start_remote(source, lands, send, receive, kernel.device(copy.target))
    # Which stripe it is does not matter to a wait, its size does.
    return wait_for(lands, send if what == "sent" else receive)


def _multiple(start: Any, width: int, offset: int) -> Any:
    """Tell the compiler what divides a start that it does not know."""
    return start if isinstance(start, int) else pl.multiple_of(start, gcd(width, offset))
