"""What the TPU kernels share: what differs by device, the entry barrier, and waits for copies."""

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

from ringline.collectives._pallas_plan import KernelPlan, Slabs, Step, Who, runs_in_one_slab

AxisName = str | tuple[str, ...]


class ByDevice:
    """Numbers of a plan that differ from device to device, as one row of scalars for each.

    A kernel is one program for all devices; it reads its own row. What is the same for all is a
    constant of the program instead.
    """

    def __init__(self, plan: KernelPlan):
        self.partners = [plan.partners(device) for device in range(plan.devices)]
        found = [step.who for step in plan.steps]
        for lane in plan.lanes:
            found += [lane.stripe, lane.received]
            found += [self.filled(lane.target), self.filled(lane.origin)]
            found += [a.present for run in lane.runs for a in run.addends if a.present]
        found += [column for _, column in self.sources()]
        found += [who for who, _ in self.sources()]
        found += [self.targets(), tuple(range(plan.devices))]
        differing = [column for column in dict.fromkeys(found) if len(set(column)) > 1]
        self.columns = {column: number for number, column in enumerate(differing)}
        self.devices = plan.devices

    @staticmethod
    def filled(values: Sequence[int | None]) -> tuple[int, ...]:
        """Devices, with 0 for none."""
        return tuple(value or 0 for value in values)

    def sources(self) -> list[tuple[Who, tuple[int, ...]]]:
        """The first, second ... device that sends to each device, and which devices have one."""
        most = max(len(sources) for sources, _ in self.partners)
        return [
            (
                tuple(len(sources) > k for sources, _ in self.partners),
                tuple(sources[k] if len(sources) > k else 0 for sources, _ in self.partners),
            )
            for k in range(most)
        ]

    def targets(self) -> tuple[int, ...]:
        """How many devices each sends to."""
        return tuple(len(targets) for _, targets in self.partners)

    def row(self, axis_name: AxisName) -> Array:
        """This device's row."""
        table = np.array(list(self.columns) or [(0,) * self.devices], np.int32).T
        return jnp.asarray(table)[lax.axis_index(axis_name)]


class Kernel(NamedTuple):
    """The state of one kernel while it is written down.

    Attributes:
        plan: its steps.
        by_device: what differs.
        row: this device's scalars.
        axis_name: the mesh axis whose devices take part.
        slab: the slab that is worked on.
        slabs: how many there are.
    """

    plan: KernelPlan
    by_device: ByDevice
    row: Any
    axis_name: AxisName
    slab: Any = 0
    slabs: int = 1

    def value(self, column: Sequence[int]) -> Any:
        """This device's number of a column."""
        if len(set(column)) == 1:
            return column[0]
        return self.row[self.by_device.columns[tuple(column)]]

    def device(self, column: Sequence[int | None]) -> dict[AxisName, Any]:
        """This device's partner of a column, as an address."""
        return {self.axis_name: self.value(ByDevice.filled(column))}

    def run(self, do: Callable[[Step], None]) -> None:
        """Do all steps in order; those of the same devices and slabs share one condition."""
        steps = [step for step in self.plan.steps if self.slabs > 1 or runs_in_one_slab(step)]
        for (who, slabs), group in groupby(steps, key=lambda step: (step.who, step.slabs)):
            self.when(who, partial(_each, do, tuple(group)), slabs)

    def when(self, who: Who, action: Callable[[], None], slabs: Slabs = "all") -> None:
        """Do `action` on the devices of `who` in some slabs."""
        conditions = [] if all(who) else [self.value(who) != 0]
        if self.slabs > 1 and slabs != "all":
            holds = {
                "first": self.slab == 0,
                "not first": self.slab > 0,
                "not last": self.slab < self.slabs - 1,
            }
            conditions.append(holds[slabs])
        if conditions:
            pl.when(reduce(operator.and_, conditions))(action)
        else:
            action()

    def enter(self) -> None:
        """Tell those who send here that this kernel has begun; wait for the targets' word."""
        barrier = pltpu.get_barrier_semaphore()
        for who, source in self.by_device.sources():
            self.when(who, lambda source=source: signal(barrier, self.device(source)))
        pl.semaphore_wait(barrier, self.value(self.by_device.targets()))


def _each(do: Callable[[Step], None], steps: Sequence[Step]) -> None:
    for step in steps:
        do(step)


def signal(semaphore: Any, device: dict[AxisName, Any]) -> None:
    """Count up a semaphore of another device."""
    pl.semaphore_signal(semaphore, device_id=device, device_id_type=pl.DeviceIdType.MESH)


def start_remote(source: Any, place: Any, send: Any, receive: Any, device: dict) -> None:
    """Start the copy of `source` to `place` of another device, whose semaphore it counts up."""
    pltpu.make_async_remote_copy(
        source, place, send, receive, device_id=device, device_id_type=pl.DeviceIdType.MESH
    ).start()


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
