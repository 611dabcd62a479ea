"""A prediction beside the compiled program: what differs, by how much, and why."""

from dataclasses import dataclass

from ringline.aot._compile import Compiled
from ringline.aot.recipes._predict import Prediction
from ringline.aot.recipes._recipe import Recipe, Way

_SCALARS_BYTES = 2**20  # the loss and the like are reduced too


@dataclass(frozen=True, slots=True)
class Row:
    """One number, predicted and read from the program.

    Attributes:
        what: the number.
        unit: its unit: `bytes`, `FLOPs`, `s` or empty for a count.
        predicted: before compiling.
        program: from the compiled program.
        why: what explains a difference of more than a tenth.
    """

    what: str
    unit: str
    predicted: float
    program: float
    why: str = ""

    @property
    def difference(self) -> float:
        """The prediction's, over the program's."""
        if self.predicted == self.program:
            return 0.0
        return self.predicted / self.program - 1 if self.program else float("inf")


def compare(recipe: Recipe, way: Way, expected: Prediction, compiled: Compiled) -> list[Row]:
    """The prediction's numbers beside the program's."""
    memory = compiled.memory
    between = [
        c for c in compiled.in_loops() if c.axis == "stage" and c.kind == "collective-permute"
    ]
    loops = [c for c in compiled.in_loops("ICI") if c.axis == "fsdp"]
    outside = [c for c in compiled.collectives if not c.in_loop and c.axis == "fsdp"]
    # The compiler may gather by an all-reduce, so the place says what it is.
    begins_us = _loop_begins_us(compiled)
    gathers = [c for c in outside if c.starts_us <= begins_us]
    sums = [c for c in outside if c.starts_us > begins_us and c.bytes > _SCALARS_BYTES]
    permutes = list(expected.tick_transfers.values()) if recipe.stages > 1 else []
    wire = 2 if way.scheduled else 1
    rows = [
        Row("matrix products, bubbles included", "FLOPs", expected.flops, compiled.flops),
        Row(
            "temporaries",
            "bytes",
            expected.memory_bytes,
            memory.temporaries_bytes,
        ),
        Row(
            "transfers between stages",
            "",
            sum(times for times, _ in permutes),
            sum(c.times_per_step for c in between),
        ),
        Row(
            "their bytes",
            "bytes",
            sum(times * size for times, size in permutes),
            sum(c.times_per_step * c.bytes for c in between),
        ),
        Row("compute of the loop", "s", *_loop_s(expected, compiled)),
    ]
    if recipe.gather == "step" and recipe.fsdp > 1:
        rows += [
            Row(
                "weights gathered before the loop",
                "bytes",
                expected.gathered_bytes,
                sum(c.bytes for c in gathers),
            ),
            Row(
                "gradients reduced after the loop",
                "bytes",
                wire * expected.gathered_bytes,
                sum(c.bytes for c in sums),
            ),
            Row("FSDP collectives in loops", "", 0, len(loops)),
        ]
    return rows


def _loop_begins_us(compiled: Compiled) -> float:
    """When the first loop begins, from the start of the program."""
    steps = compiled.walk.steps(compiled.module.entry)
    loops = [step.start for step in steps if step.instruction.opcode == "while"]
    return min(loops, default=0) / compiled.target.clock_hz * 1e6


def _loop_s(expected: Prediction, compiled: Compiled) -> tuple[float, float]:
    """A tick's computation times the ticks, predicted and by the compiler's cycles."""
    each = expected.costs_s["F"] + expected.costs_s["B"]
    walk = compiled.walk
    loops = [c for c in walk.contexts() if c.loop and not c.conditional]
    cycles = sum(walk.cycles(c.computation) * c.times for c in loops)
    return expected.loop.ticks * each, cycles / compiled.target.clock_hz
