"""Lower a schedule to tables that one loop over ticks can look up: `[ticks, stages]` of numbers.

A stage's tick reads: which repeat's weights, which microbatch, which slot holds the input, and
where what arrives from each neighbour goes. Slots are given out here, before anything is traced.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ringline.schedule import (
    PipelineSchedule,
    Placed,
    Program,
    Receive,
    Value,
    allocate_slots,
    place_on_ticks,
)

IDLE = -1


@dataclass(frozen=True)
class ForwardTables:
    """What each stage does in each tick of a forward-only run; every table `[ticks, stages]`.

    Attributes:
        repeat: which of the stage's chunks runs, `IDLE` in a bubble.
        microbatch: which microbatch it runs on.
        read_slot: the inbox slot with its input; `slots` where the input is the pipeline's own.
        keep_slot: the inbox slot for the tick's own result, when the next chunk is on this
            stage too; `slots` to drop it.
        arrive_slot: for each hop offset, the inbox slot for what arrives; `slots` to drop it.
        output: the microbatch whose final output this tick makes; `microbatches` for none.
        slots: how many inbox slots the busiest stage needs.
        senders: for each hop offset, the stages that ever send that far.
    """

    repeat: np.ndarray
    microbatch: np.ndarray
    read_slot: np.ndarray
    keep_slot: np.ndarray
    arrive_slot: dict[int, np.ndarray]
    output: np.ndarray
    slots: int
    senders: dict[int, tuple[int, ...]]

    @property
    def ticks(self) -> int:
        """How many ticks the run takes."""
        return len(self.repeat)

    def rows(self) -> dict[str, np.ndarray]:
        """The tables that the loop scans over, by name."""
        arrivals = {f"arrive{offset}": table for offset, table in self.arrive_slot.items()}
        return {
            "repeat": self.repeat,
            "microbatch": self.microbatch,
            "read_slot": self.read_slot,
            "keep_slot": self.keep_slot,
            "output": self.output,
            **arrivals,
        }


def forward_tables(schedule: PipelineSchedule, *, hop: int) -> ForwardTables:
    """The tables of the schedule's forward actions; a result is usable `hop` ticks later."""
    program = schedule.forward().program()
    placed = place_on_ticks(program, phases=("F",), hop=hop)
    ticks = 1 + max(row[-1].tick for row in placed if row)
    lives = [_lives(program, placed, stage, hop) for stage in range(schedule.stages)]
    slot_of, slots = _allocate(lives)

    def table(fill: int) -> np.ndarray:
        return np.full((ticks, schedule.stages), fill, np.int32)

    repeat, microbatch, output = table(IDLE), table(0), table(schedule.microbatches)
    read_slot, keep_slot = table(slots), table(slots)
    arrive_slot: dict[int, np.ndarray] = {}
    senders: dict[int, set[int]] = defaultdict(set)
    for stage, row in enumerate(placed):
        for item in row:
            place = item.tick, stage
            repeat[place] = schedule.repeat_of[item.compute.index]
            microbatch[place] = item.compute.part
            read_slot[place] = slot_of[stage].get(item.compute.reads[0], slots)
            if item.compute.index == schedule.chunks - 1:
                output[place] = item.compute.part
        for value, life in lives[stage].items():
            target = keep_slot
            if life.source != stage:
                offset = (stage - life.source) % schedule.stages
                target = arrive_slot.setdefault(offset, table(slots))
                senders[offset].add(life.source)
            target[life.stored, stage] = slot_of[stage][value]
    return ForwardTables(
        repeat,
        microbatch,
        read_slot,
        keep_slot,
        arrive_slot,
        output,
        slots,
        {offset: tuple(sorted(stages)) for offset, stages in senders.items()},
    )


@dataclass(frozen=True, slots=True)
class _Life:
    """A value in a stage's inbox: made on `source`, stored and last read in these ticks."""

    source: int
    stored: int
    read: int


def _lives(
    program: Program, placed: tuple[tuple[Placed, ...], ...], stage: int, hop: int
) -> dict[Value, _Life]:
    received = {i.value: i.peer for i in program.rows[stage] if isinstance(i, Receive)}
    made = {
        value: (source, item.tick)
        for source in {*received.values(), stage}
        for item in placed[source]
        for value in item.compute.writes
    }
    lives = {}
    for item in placed[stage]:
        (value,) = item.compute.reads
        if value in made:
            source, tick = made[value]
            stored = tick if source == stage else tick + hop - 1
            lives[value] = _Life(source, stored, item.tick)
    return lives


def _allocate(lives: list[dict[Value, _Life]]) -> tuple[list[dict[Value, int]], int]:
    """Slots for each stage's values. A tick reads before it stores, so a slot is free again in
    the tick of its last read."""
    slot_of: list[dict[Value, int]] = []
    most = 0
    for values in lives:
        slots, count = allocate_slots([(life.stored, life.read) for life in values.values()])
        slot_of.append(dict(zip(values, slots)))
        most = max(most, count)
    return slot_of, most
