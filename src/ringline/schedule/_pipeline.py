"""`PipelineSchedule`: the order in which every stage of a pipeline runs its work, as data.

The layers of a model are cut, in model order, into `chunks`. A stage (a place on the mesh's
stage axis) holds one chunk for each repeat. Four operations exist, each on one chunk and one
microbatch:

| op | reads | gives |
|---|---|---|
| F | the activation from the chunk before | the activation for the next chunk, a residual |
| B | the residual, the cotangent from the next chunk | the cotangent for the chunk before |
| I | as B, but only the part of B that the chunk before waits for | and a handover for W |
| W | the residual and the handover | the weight gradient |
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ringline.schedule._actions import Action
from ringline.schedule._check import check_program
from ringline.schedule._errors import ScheduleError
from ringline.schedule._grid import draw_grid
from ringline.schedule._lower import lower_pipeline
from ringline.schedule._pipeline_text import parse_table, print_table
from ringline.schedule._program import Compute, Instruction, Program, Send


@dataclass(frozen=True)
class PipelineSchedule:
    """The ordered actions of every stage.

    Attributes:
        name: what people call the order, such as `circular`.
        rows: for each stage, its actions in order.
        microbatches: how many microbatches a step has, m.
        stage_of: for each chunk in model order, the stage that holds it.
        layers_per_stage: layers in each chunk: one number for all, one for each chunk, or None
            to spread the layers of the data evenly.
        joined: for each stage, the steps that run side by side with the step after them, as one:
            `(0F7;7B3)OVERLAP_F_B` in the text form. Empty for none.
        directions: into how many equal parts the chunks are cut, each a pipeline of its own
            with its own input and loss; 2 for DualPipe, which runs two copies of the model.
        written: the program of the text it was read from, where that has sends and receives of
            its own. `validate` checks it too; nothing runs it.

    Example:
        >>> from ringline import schedules
        >>> schedule = schedules.linear(stages=2, microbatches=2)
        >>> schedule.to_csv()
        '0F0,0F1,0B1,0B0\\n1F0,1F1,1B1,1B0\\n'
        >>> schedule.chunks, schedule.repeats, schedule.peak_activations()
        (2, 1, (2, 2))
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]
    microbatches: int
    stage_of: tuple[int, ...]
    layers_per_stage: int | tuple[int, ...] | None = None
    joined: tuple[tuple[int, ...], ...] = ()
    directions: int = 1
    written: Program | None = field(default=None, compare=False, repr=False)

    @property
    def stages(self) -> int:
        """How many stages, p."""
        return len(self.rows)

    @property
    def chunks(self) -> int:
        """How many pieces the layers are cut into, p v."""
        return len(self.stage_of)

    @property
    def repeats(self) -> int:
        """The most chunks that one stage holds, v."""
        return max(self.stage_of.count(stage) for stage in range(self.stages))

    @cached_property
    def repeat_of(self) -> tuple[int, ...]:
        """For each chunk, its index among the chunks of its stage."""
        return tuple(
            self.stage_of[:chunk].count(stage) for chunk, stage in enumerate(self.stage_of)
        )

    @cached_property
    def has_backward(self) -> bool:
        """Whether the rows hold backward work; False for a forward-only schedule."""
        return any(action.op != "F" for row in self.rows for action in row)

    def forward(self) -> "PipelineSchedule":
        """The same schedule with its forward actions only."""
        rows = tuple(tuple(a for a in row if a.op == "F") for row in self.rows)
        return replace(self, rows=rows, joined=(), written=None)

    def one_by_one(self) -> "PipelineSchedule":
        """The same schedule without `joined`: each action begins and ends by itself."""
        return replace(self, joined=(), written=None)

    def program(self) -> Program:
        """Lower to the instructions of each stage, sends and receives included."""
        return self._program

    @cached_property
    def _program(self) -> Program:
        return lower_pipeline(
            self.rows,
            self.stage_of,
            self.microbatches,
            joined=self.joined,
            directions=self.directions,
        )

    def validate(self, *, capacity: int | None = None) -> None:
        """Raise `ScheduleError` at the first fault, naming its stage and step.

        Checks that every chunk runs every microbatch exactly once in each pass, on the stage
        that holds it, after what it reads; and that no run hangs, neither with transfers put in
        where they are needed nor with those that the text it was read from has. A step is the
        place of an action in its row; for a transfer of the text, its place in the line.

        Args:
            capacity: how many values a channel holds before a send waits, see `check_program`:
                None for no limit, 0 for rendezvous. For a text's own transfers only; others are
                placed by what runs the schedule.
        """
        self._validate_rows()
        program = self.program()
        check_program(program, steps=[_steps_of(row) for row in program.rows])
        if self.written:
            check_program(self.written, capacity=capacity)

    def peak_activations(self) -> tuple[int, ...]:
        """For each stage, the most chunk activations in flight: forward done, backward not."""
        peaks = []
        for row in self.rows:
            live = peak = 0
            for action in row:
                live += {"F": 1, "B": -1, "W": -1, "I": 0}[action.op]
                peak = max(peak, live)
            peaks.append(peak)
        return tuple(peaks)

    def layers_of_chunks(self, layers: int) -> tuple[int, ...]:
        """How many of `layers` each chunk holds, in model order.

        Raises:
            ValueError: when `layers` is not what `layers_per_stage` asks for, or leaves a chunk
                without a layer.
        """
        given = self.layers_per_stage
        if given is not None:
            counts = (given,) * self.chunks if isinstance(given, int) else tuple(given)
            if counts and min(counts) < 1:
                raise ValueError(
                    f"schedule {self.name!r} needs at least 1 layer in each chunk, got "
                    f"layers_per_stage={given}; keep what is no layer, such as an embedding, "
                    "outside the pipeline"
                )
            if len(counts) != self.chunks or sum(counts) != layers:
                raise ValueError(
                    f"schedule {self.name!r} with {self.chunks} chunks places layers_per_stage="
                    f"{given} ({sum(counts)} layers), got {layers} layers; change "
                    "layers_per_stage, or leave it out to spread the layers evenly"
                )
            return counts
        if layers < self.chunks:
            raise ValueError(
                f"schedule {self.name!r} needs at least {self.chunks} layers (stages x repeats = "
                f"{self.stages} x {self.repeats}), got {layers}; use fewer stages or repeats, "
                "or more layers"
            )
        base, extra = divmod(layers, self.chunks)
        return tuple(base + (chunk < extra) for chunk in range(self.chunks))

    @classmethod
    def from_csv(cls, source: str | Path, *, name: str = "custom") -> "PipelineSchedule":
        """Read the text form, see `ringline.schedule.parse_pipeline`."""
        return parse_pipeline(source, name=name)

    def to_csv(self) -> str:
        """The text form: one line per stage, its actions separated by commas."""
        return print_table(self.rows, self.joined)

    def __str__(self) -> str:
        title = (
            f"{self.name}: {self.stages} stages, {self.microbatches} microbatches, "
            f"{self.repeats} repeats"
        )
        return draw_grid(title, self.program())

    def _validate_rows(self) -> None:
        backward = self._backward_ops()
        seen: dict[Action, tuple[int, int]] = {}
        for stage, row in enumerate(self.rows):
            for step, action in enumerate(row):
                fault = self._fault(stage, action, seen, backward)
                if fault:
                    raise ScheduleError(
                        f"stage {stage} step {step}: {action} {fault}", device=stage, step=step
                    )
                seen[action] = (stage, step)
        for chunk, stage in enumerate(self.stage_of):
            for microbatch in range(self.microbatches):
                for op in backward[chunk, microbatch]:
                    action = Action(chunk, op, microbatch)
                    if action not in seen:
                        raise ScheduleError(
                            f"stage {stage} step {len(self.rows[stage])}: the row ends without "
                            f"{action}; every chunk needs each of {self.microbatches} microbatches",
                            device=stage,
                            step=len(self.rows[stage]),
                        )

    def _backward_ops(self) -> dict[tuple[int, int], str]:
        """Per chunk and microbatch, the operations it must have: F, FB or FIW."""
        split = {(a.chunk, a.microbatch) for row in self.rows for a in row if a.op in ("I", "W")}
        whole = "FB" if self.has_backward else "F"
        return {
            (chunk, microbatch): "FIW" if (chunk, microbatch) in split else whole
            for chunk in range(self.chunks)
            for microbatch in range(self.microbatches)
        }

    def _fault(
        self,
        stage: int,
        action: Action,
        seen: dict[Action, tuple[int, int]],
        wanted: dict[tuple[int, int], str],
    ) -> str | None:
        """What is wrong with `action` at this place of `stage`, or None."""
        chunk, op, microbatch = action
        if not 0 <= chunk < self.chunks:
            return f"names a chunk that does not exist; expected 0..{self.chunks - 1}"
        if not 0 <= microbatch < self.microbatches:
            return f"names a microbatch that does not exist; expected 0..{self.microbatches - 1}"
        if self.stage_of[chunk] != stage:
            return f"is on the wrong stage; chunk {chunk} is held by stage {self.stage_of[chunk]}"
        if action in seen:
            return f"is here a second time, first at step {seen[action][1]}; remove one"
        if op not in wanted[chunk, microbatch]:
            return f"is a whole backward beside a split one ({chunk}I{microbatch}); keep one form"
        before = {"B": "F", "I": "F", "W": "I"}.get(op)
        if before and Action(chunk, before, microbatch) not in seen:
            return f"comes before {chunk}{before}{microbatch}, which it needs; swap them"
        return None


def parse_pipeline(
    source: str | Path, *, name: str = "custom", microbatches: int | None = None
) -> PipelineSchedule:
    """The schedule written in `source`: a path, or the text itself.

    The stage of each chunk follows from the text, and so does a table of two directions: row s
    is row p - 1 - s with each chunk c called c + p (modulo 2p).

    Args:
        source: a path to a .csv file, or its text.
        name: of the schedule.
        microbatches: how many there must be; None for as many as the text names.

    Raises:
        ScheduleError: for a cell that is not of the grammar, a chunk that two stages run, or one
            that none runs, naming stage and step. `validate()` checks the rest.
        OSError: for a path that cannot be read.

    Example:
        >>> from ringline.schedule import linear, parse_pipeline
        >>> schedule = parse_pipeline("0F0,0F1,0B0,0B1\\n1F0,1B0,1F1,1B1")
        >>> schedule.stages, schedule.microbatches, schedule.peak_activations()
        (2, 2, (2, 1))
        >>> original = linear(stages=3, microbatches=5)
        >>> parse_pipeline(original.to_csv(), name="linear") == original
        True
    """
    return PipelineSchedule(name, **parse_table(source, microbatches)._asdict())


def _steps_of(row: Iterable[Instruction]) -> list[int]:
    """For each instruction, the action it belongs to: its own, or that it sends or reads for."""
    steps = []
    before = 0
    for instruction in row:
        steps.append(before - isinstance(instruction, Send))
        before += isinstance(instruction, Compute)
    return steps
