"""What the TPU kernels share: how instructions are run, the entry barrier, and waits for copies."""

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringline.collectives._sections import Number, Rows, Section, read
from ringline.collectives._steps import AxisName
from ringline.collectives.kernels._instructions import (
    Entry,
    Instruction,
    entry_of,
    instructions_of,
    loops_of,
)
from ringline.collectives.kernels._plan import KernelPlan, Slabs


class Code(NamedTuple):
    """A kernel's sections, how it begins, and the table of numbers `[devices, numbers]`."""

    sections: tuple[Section[Instruction], ...]
    entry: Entry
    table: np.ndarray

    def row(self, axis_name: AxisName) -> Array:
        """This device's numbers."""
        return jnp.asarray(self.table)[lax.axis_index(axis_name)]


def code_of(plan: KernelPlan, instructions: Sequence[Instruction] | None = None) -> Code:
    """What a kernel runs: the steps of `plan`, or other instructions of its lanes."""
    rows = Rows(plan.devices)
    entry = entry_of(plan, rows)
    given = instructions_of(plan) if instructions is None else instructions
    sections = loops_of(given, rows)
    return Code(sections, entry, rows.table())


class Kernel(NamedTuple):
    """The state of one kernel while it is written down.

    Attributes:
        code: what it runs.
        numbers: this device's row.
        axis_name: the mesh axis whose devices take part.
        slab: the slab that is worked on.
        slabs: how many there are.
        repeat: of the section that is run.
    """

    code: Code
    numbers: Any
    axis_name: AxisName
    slab: Any = 0
    slabs: int = 1
    repeat: Any = 0

    def value(self, number: Any) -> Any:
        """This device's number."""
        return read(self.numbers, number, self.repeat)

    def device(self, number: Any) -> dict[AxisName, Any]:
        """A device, as an address."""
        return {self.axis_name: self.value(number)}

    def run(self, do: Callable[["Kernel", Instruction], None]) -> None:
        """Do all sections in order."""
        for body, repeats in self.code.sections:
            if repeats == 1:
                self._run_once(body, do)
            else:
                jax.lax.fori_loop(0, repeats, partial(self._run_again, body, do), None)

    def _run_again(self, body: Sequence[Instruction], do: Callable, repeat: Any, _: None) -> None:
        self._replace(repeat=repeat)._run_once(body, do)

    def _run_once(self, body: Sequence[Instruction], do: Callable) -> None:
        """Instructions of the same devices and slabs share one condition."""
        here = [one for one in body if self.slabs > 1 or one.in_one_slab]
        for (who, slabs), group in groupby(here, key=lambda one: (one.who, one.slabs)):
            self.when(who, partial(self._each, do, tuple(group)), slabs)

    def _each(self, do: Callable, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            do(self, instruction)

    def when(self, who: Any, action: Callable[[], None], slabs: Slabs = "all") -> None:
        """Do `action` on the devices of `who` in some slabs."""
        conditions = [self.value(who) != 0] if isinstance(who, Number) else []
        if self.slabs > 1 and slabs != "all":
            holds = {
                "first": self.slab == 0,
                "not first": self.slab > 0,
                "not last": self.slab < self.slabs - 1,
            }
            conditions.append(holds[slabs])
        if conditions:
            pl.when(reduce(operator.and_, conditions))(action)
        elif isinstance(who, Number) or who:
            action()

    def enter(self) -> None:
        """Tell those who send here that this kernel has begun; wait for the targets' word."""
        barrier = pltpu.get_barrier_semaphore()
        for who, source in self.code.entry.sources:
            self.when(who, lambda source=source: signal(barrier, self.device(source)))
        pl.semaphore_wait(barrier, self.value(self.code.entry.targets))


def rows_of(first: Any, pieces: int, height: int) -> Any:
    """The rows of some pieces, each of `height`."""
    start = first * height
    return pl.ds(
        start if isinstance(start, int) else pl.multiple_of(start, height), pieces * height
    )


def signal(semaphore: Any, device: dict[AxisName, Any]) -> None:
    """Count up a semaphore of another device."""
    pl.semaphore_signal(semaphore, device_id=device)


def start_remote(source: Any, place: Any, send: Any, receive: Any, device: dict) -> None:
    """Start the copy of `source` to `place` of another device, whose semaphore it counts up."""
    pltpu.make_async_remote_copy(source, place, send, receive, device_id=device).start()


def wait_for(what: Any, semaphore: Any) -> None:
    """Wait until a copy of the size of `what` has counted on the semaphore."""
    pltpu.make_async_copy(what, what, semaphore).wait()


def like(x: Array, shape: tuple[int, ...], dtype: Any = None) -> jax.ShapeDtypeStruct:
    """A result of `shape`, varying over the same mesh axes as `x`, of its type by default."""
    varying = jax.typeof(x).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype or x.dtype, manual_axis_type=varying)


def in_hbm() -> pl.BlockSpec:
    """An operand that stays where it is."""
    return pl.BlockSpec(memory_space=pltpu.MemorySpace.HBM)


def in_smem() -> pl.BlockSpec:
    """Scalars."""
    return pl.BlockSpec(memory_space=pltpu.MemorySpace.SMEM)
