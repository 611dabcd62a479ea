"""A prediction beside the compiled program: what differs, by how much, and why."""

from dataclasses import dataclass

from ringline.aot import Collective, Compiled
from ringline.pipeline import MAX_UNROLLED
from ringline.recipes._predict import Prediction
from ringline.recipes._recipe import Recipe, Way

_SCALARS_BYTES = 2**20  # the loss and the like are reduced too


_TOLERANCE = 0.10  # differences above are explained
_WHY = {
    "temporaries": "copies of the compiler's own are not predicted",
    "compute of the loop": "the compiler's cycles count fusions that wait for memory",
    "FSDP's bytes in loops": "weights gathered for each repeat move in few of the ticks",
    "matrix products, bubbles included": "the compiler runs a product again or drops one",
    "gathered before the loop": "the compiler moves gathers into the loop or out of it",
    "reduced after the loop": "the compiler moves reductions into the loop or out of it",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One number, predicted and read from the program.

    Attributes:
        what: the number.
        unit: its unit: `bytes`, `FLOPs`, `s` or empty for a count.
        predicted: before compiling.
        program: from the compiled program.
        reason: what would explain a large difference of this way, beyond what usually does.
    """

    what: str
    unit: str
    predicted: float
    program: float
    reason: str = ""

    @property
    def difference(self) -> float:
        """The prediction's, over the program's."""
        if self.predicted == self.program:
            return 0.0
        return self.predicted / self.program - 1 if self.program else float("inf")

    @property
    def why(self) -> str:
        """What explains a difference of more than a tenth, else nothing."""
        large = abs(self.difference) > _TOLERANCE
        return (self.reason or _WHY.get(self.what, "not explained")) if large else ""


def compare(recipe: Recipe, way: Way, expected: Prediction, compiled: Compiled) -> list[Row]:
    """The prediction's numbers beside the program's."""
    memory = compiled.memory
    between = [
        c for c in compiled.in_loops() if c.axis == "stage" and c.kind == "collective-permute"
    ]
    in_loops = [c for c in compiled.in_loops("ICI") if c.axis == "fsdp"]
    outside = [c for c in compiled.collectives if not c.in_loop and c.axis == "fsdp"]
    # The compiler may gather by an all-reduce, so the place says what it is.
    begins_us = _loop_begins_us(compiled)
    gathers = [c for c in outside if c.starts_us <= begins_us]
    sums = [c for c in outside if c.starts_us > begins_us and c.bytes > _SCALARS_BYTES]
    permutes = list(expected.tick_transfers.values()) if recipe.stages > 1 else []
    rows = [
        Row("matrix products, bubbles included", "FLOPs", expected.flops, compiled.flops),
        Row("temporaries", "bytes", expected.memory_bytes, memory.temporaries_bytes),
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
            _sum(between),
        ),
        Row("compute of the loop", "s", *_loop_s(expected, compiled), _slow(recipe, way)),
    ]
    if recipe.fsdp > 1:
        rows += [
            Row("gathered before the loop", "bytes", expected.gathered_bytes, _sum(gathers)),
            Row("reduced after the loop", "bytes", expected.reduced_bytes, _sum(sums)),
            Row("FSDP's bytes in loops", "bytes", expected.in_loop_bytes, _sum(in_loops)),
        ]
    return rows


def _slow(recipe: Recipe, way: Way) -> str:
    """Why a way's loop waits for memory, where it does."""
    if way.depth(recipe) > MAX_UNROLLED:
        return "a chunk that loops over its layers slices weights and stacks gradients in memory"
    if not way.scheduled:
        return "autodiff adds a whole stage's gradients in every tick, and that waits for memory"
    return ""


def _sum(collectives: list[Collective]) -> float:
    return sum(c.bytes * c.times_per_step for c in collectives)


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
