"""Lower a schedule to tables that one loop over ticks can look up: `[ticks, stages]` of numbers.

A stage's tick reads, for each phase: which repeat's weights, which microbatch, which slots hold
what it reads, and where what it makes and what arrives goes. Slots are given out here, by the
lives of values, before anything is traced; so how much a stage keeps is known and exact.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ringline.schedule import (
    PipelineSchedule,
    Placed,
    Receive,
    Value,
    allocate_slots,
    place_on_ticks,
)

IDLE = -1
FORWARD_PHASES = ("F",)
PHASES = ("F", "BI", "W")

# The order in which one tick reads and writes slots. Each operation reads, then writes; what
# arrives for the backward is stored between the two phases, what arrives for the forward last.
_MOMENTS = 6
_READ = {"F": 0, "B": 2, "I": 2, "W": 4}
_WRITE = {
    "F.makes.residual": 1,
    "F.makes.cotangent": 1,
    "arrives.cotangent": 1,
    "B.makes.handover": 3,
    "B.makes.cotangent": 5,
    "F.makes.activation": 5,
    "arrives.activation": 5,
}


@dataclass(frozen=True)
class TickTables:
    """What each stage does in each tick.

    Attributes:
        rows: by name, a table `[ticks, stages]`:
            `{F,B,W}.repeat`: which of the stage's chunks runs in this phase, `IDLE` for none
            (`B` stands for B and I);
            `{F,B,W}.microbatch`: which microbatch it runs on;
            `B.op`: 1 where the phase runs I, 0 where it runs B;
            `{F,B,W}.reads.{kind}`: the slot of the value of that kind that it reads;
            `{F,B}.makes.{kind}`: the slot for the value of that kind that it makes, when this
            same stage reads it;
            `arrives.{kind}.{offset}`: the slot for what arrives from the stage `offset` before;
            `F.output`: the microbatch whose final output this tick makes;
            `B.output`: the microbatch whose input cotangent this tick makes.
            Where there is nothing to read, the slot is one past the last; for outputs, one past
            the last microbatch. Where there is nothing to keep, what is made all the same goes
            to a slot that nobody needs at that moment, one past the last if all are needed.
        slots: for each kind of value, how many slots the busiest stage needs.
        places: the same, with the one past the last where it is written; at least one.
        senders: for each kind that travels and each offset it travels by, the stages that send.
    """

    rows: dict[str, np.ndarray]
    slots: dict[str, int]
    places: dict[str, int]
    senders: dict[str, dict[int, tuple[int, ...]]]

    @property
    def ticks(self) -> int:
        """How many ticks the run takes."""
        return len(self.rows["F.repeat"])


def tick_tables(
    schedule: PipelineSchedule, *, hop: int = 1, keep_inputs: bool = False
) -> TickTables:
    """The tables of a schedule, forward-only or with its backward.

    Args:
        schedule: validated.
        hop: ticks from making a value to its first use on another stage.
        keep_inputs: the backward reads the chunk's input itself in place of a residual, so
            inputs live until then and residuals need no slots.
    """
    return _Builder(schedule, hop, keep_inputs).tables()


@dataclass(slots=True)
class _Life:
    """A value on one stage: how it gets there, and when it is first stored and last read."""

    source: int
    stored: int
    made: Placed
    read: int = -1


@dataclass
class _Builder:
    schedule: PipelineSchedule
    hop: int
    keep_inputs: bool
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    senders: dict[str, dict[int, set[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )

    def tables(self) -> TickTables:
        program = self.schedule.one_by_one().program()  # a tick runs its phases side by side anyway
        phases = PHASES if self.schedule.has_backward else FORWARD_PHASES
        placed = place_on_ticks(program, phases, self.hop)
        self.ticks = 1 + max(row[-1].tick for row in placed if row)
        received = [
            {i.value: i.peer for i in row if isinstance(i, Receive)} for row in program.rows
        ]
        lives = [self._lives(stage, placed, received[stage]) for stage in range(len(placed))]
        slot_of, self.slots = _allocate(lives)
        for stage, row in enumerate(placed):
            for item in row:
                self._fill_compute(stage, item, slot_of[stage])
            for value, life in lives[stage].items():
                self._fill_storing(stage, value, life, slot_of[stage][value])
        senders = {
            kind: {offset: tuple(sorted(stages)) for offset, stages in by_offset.items()}
            for kind, by_offset in self.senders.items()
        }
        places = {kind: self._redirect(kind, lives, slot_of) for kind in self.slots}
        return TickTables(self.rows, self.slots, places, senders)

    def _lives(
        self, stage: int, placed: tuple[tuple[Placed, ...], ...], received: dict[Value, int]
    ) -> dict[Value, _Life]:
        """The values that the stage stores: those that one of its computations reads later."""
        made = {
            value: (source, item)
            for source in {*received.values(), stage}
            for item in placed[source]
            for value in item.compute.writes
            if (source == stage) != (value in received)
        }
        lives: dict[Value, _Life] = {}
        for item in placed[stage]:
            for read in item.compute.reads:
                value = self._stored_as(read)
                if value not in made:  # the pipeline's own input
                    continue
                source, maker = made[value]
                if value not in lives:
                    lives[value] = _Life(source, self._stored(value, source == stage, maker), maker)
                lives[value].read = item.tick * _MOMENTS + _READ[item.compute.op]
        return lives

    def _stored_as(self, value: Value) -> Value:
        if self.keep_inputs and value.kind == "residual":
            return value._replace(kind="activation")
        return value

    def _stored(self, value: Value, local: bool, maker: Placed) -> int:
        """When the value is in its slot, counted in moments of ticks."""
        if not local:
            late = self.hop - 1 if value.kind == "activation" else self.hop
            return (maker.tick + late) * _MOMENTS + _WRITE[f"arrives.{value.kind}"]
        return maker.tick * _MOMENTS + _WRITE[_made(value, maker)]

    def _fill_compute(self, stage: int, item: Placed, slot_of: dict[Value, int]) -> None:
        compute, place = item.compute, (item.tick, stage)
        phase = "B" if compute.op == "I" else compute.op
        self._table(f"{phase}.repeat", IDLE)[place] = self.schedule.repeat_of[compute.index]
        self._table(f"{phase}.microbatch", 0)[place] = compute.part
        if phase == "B":
            self._table("B.op", 0)[place] = compute.op == "I"
        for read in compute.reads:
            value = self._stored_as(read)
            name = f"{phase}.reads.{value.kind}"
            self._slot_table(name, value.kind)[place] = slot_of.get(value, self.slots[value.kind])
        last = self.schedule.chunks - 1
        if phase in "FB":
            ends = compute.index == (last if phase == "F" else 0)
            table = self._table(f"{phase}.output", self.schedule.microbatches)
            table[place] = compute.part if ends else self.schedule.microbatches

    def _fill_storing(self, stage: int, value: Value, life: _Life, slot: int) -> None:
        if life.source == stage:
            name = _made(value, life.made)
            self._slot_table(name, value.kind)[life.made.tick, stage] = slot
            return
        offset = (stage - life.source) % self.schedule.stages
        name = f"arrives.{value.kind}.{offset}"
        self._slot_table(name, value.kind)[life.stored // _MOMENTS, stage] = slot
        self.senders[value.kind][offset].add(life.source)

    def _redirect(
        self, kind: str, lives: list[dict[Value, _Life]], slot_of: list[dict[Value, int]]
    ) -> int:
        """Send what nobody keeps to slots that are free, and count the places that are written."""
        slots, ticks = self.slots[kind], np.arange(self.ticks)
        spare = 0
        for stage, values in enumerate(lives):
            busy = np.zeros((slots + 1, self.ticks * _MOMENTS + 1), bool)
            for value, life in values.items():
                if value.kind == kind:
                    busy[slot_of[stage][value], life.stored : life.read + 1] = True
            for written, moment in _WRITE.items():
                if not written.endswith(kind):
                    continue
                free = np.argmin(busy[:, ticks * _MOMENTS + moment], axis=0)
                for name in (name for name in self.rows if name.startswith(written)):
                    column = self.rows[name][:, stage]
                    column[:] = np.where(column == slots, free, column)
                    spare = max(spare, int((column == slots).any()))
        return max(1, slots + spare)  # a lookup needs a place, needed or not

    def _slot_table(self, name: str, kind: str) -> np.ndarray:
        return self._table(name, self.slots[kind])

    def _table(self, name: str, fill: int) -> np.ndarray:
        shape = self.ticks, self.schedule.stages
        return self.rows.setdefault(name, np.full(shape, fill, np.int32))


def _made(value: Value, maker: Placed) -> str:
    """The table that says where a stage puts a value it makes for itself."""
    phase = "B" if maker.compute.op == "I" else maker.compute.op
    return f"{phase}.makes.{value.kind}"


def _allocate(lives: list[dict[Value, _Life]]) -> tuple[list[dict[Value, int]], dict[str, int]]:
    """Slots for each stage's values, kind by kind, and the most that a stage needs of a kind."""
    slot_of: list[dict[Value, int]] = [{} for _ in lives]
    most: dict[str, int] = defaultdict(int)
    for stage, values in enumerate(lives):
        by_kind: dict[str, list[Value]] = defaultdict(list)
        for value in values:
            by_kind[value.kind].append(value)
        for kind, group in by_kind.items():
            slots, count = allocate_slots([(values[v].stored, values[v].read) for v in group])
            slot_of[stage] |= dict(zip(group, slots))
            most[kind] = max(most[kind], count)
    return slot_of, most
