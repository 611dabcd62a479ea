"""Walk a compiled program in its scheduled order: what runs when, how often, how long.

A loop costs its trips times its body; of a condition's branches the longest counts, which is the
stage that computes. What takes time is what the compiler gives an estimate for; where its
estimates are missing, FLOPs and bytes at the chip's rates stand in for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringline.aot._flops import fusion_flops
from ringline.aot._hlo import Instruction, Module, shape_bytes
from ringline.aot._in_fusions import parts
from ringline.aot._target import Target
from ringline.aot._trips import trips

# What waits, or only names what is there.
_FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("send", "send-done", "recv", "recv-done", "all-gather", "all-reduce", "reduce-scatter"),
    *("all-to-all", "collective-permute", "copy-start", "copy-done", "async-update"),
    *("async-start", "async-done", "all-gather-start", "all-gather-done", "all-reduce-start"),
    *("all-reduce-done", "collective-permute-start", "collective-permute-done"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction at its place in a computation.

    Attributes:
        instruction: what runs.
        start: cycles from the start of the computation.
        cycles: how many it takes.
    """

    instruction: Instruction
    start: int
    cycles: int

    @property
    def end(self) -> int:
        """Cycles from the computation's start until it is done."""
        return self.start + self.cycles


@dataclass(frozen=True, slots=True)
class Context:
    """A computation as it is run.

    Attributes:
        computation: its name.
        loop: the innermost loop around it, empty outside loops.
        times: how often it runs in a step.
        conditional: whether it is a branch that may be skipped.
        certain: whether every loop's number of trips is known.
    """

    computation: str
    loop: str = ""
    times: int = 1
    conditional: bool = False
    certain: bool = True


class Walk:
    """The program's contexts, steps and costs."""

    def __init__(self, module: Module, target: Target):
        self.module = module
        self._target = target
        self.has_cycles = any(i.cycles for rows in module.computations.values() for i in rows)
        self._cycles: dict[str, int] = {}
        self._flops: dict[str, float] = {}

    def contexts(self) -> Iterator[Context]:
        """Every computation that is scheduled by itself, with how often it runs."""
        waiting = [Context(self.module.entry)]
        while waiting:
            context = waiting.pop(0)
            yield context
            for instruction in self.module.computations[context.computation]:
                waiting += self._inside(context, instruction)

    def steps(self, computation: str) -> list[Step]:
        """A computation's instructions with their times."""
        steps, now = [], 0
        for instruction in self.module.computations[computation]:
            cycles = self.cost(computation, instruction)
            steps.append(Step(instruction, now, cycles))
            now += cycles
        return steps

    def cycles(self, computation: str) -> int:
        """How long a computation takes."""
        if computation not in self._cycles:
            rows = self.module.computations[computation]
            self._cycles[computation] = sum(self.cost(computation, i) for i in rows)
        return self._cycles[computation]

    def cost(self, computation: str, instruction: Instruction) -> int:
        """Cycles of one instruction, with all it calls."""
        if instruction.opcode == "while":
            body = sum(map(self.cycles, instruction.callees("body")))
            return self._trips(computation, instruction) * body
        if instruction.opcode == "conditional":
            return max(map(self.cycles, branches(instruction)), default=0)
        if instruction.opcode == "call":
            return sum(map(self.cycles, instruction.callees("to_apply")))
        if self.has_cycles or instruction.opcode in _FREE:
            return instruction.cycles
        return self._roofline(instruction)

    def _roofline(self, instruction: Instruction) -> int:
        """Cycles by FLOPs or by the result's bytes, whichever takes longer."""
        chip, each = self._target.cluster.chip, self._target.devices_per_chip
        flops = sum(map(self.flops, instruction.callees("calls")))
        compute_s = flops * each / (chip.bf16_flops_per_s * chip.matmul_efficiency)
        # A fusion with a collective waits for the links, which are counted elsewhere.
        moved = 0 if any(parts(self.module, instruction)) else shape_bytes(instruction.shape)
        memory_s = moved * each / chip.hbm_bytes_per_s
        return round(max(compute_s, memory_s) * self._target.clock_hz)

    def flops(self, computation: str) -> float:
        """FLOPs of matrix products and convolutions, by the same rules as cycles."""
        if computation not in self._flops:
            rows = self.module.computations[computation]
            self._flops[computation] = sum(self._flops_of(computation, i) for i in rows)
        return self._flops[computation]

    def _flops_of(self, computation: str, instruction: Instruction) -> float:
        match instruction.opcode:
            case "while":
                body = sum(map(self.flops, instruction.callees("body")))
                return self._trips(computation, instruction) * body
            case "conditional":
                return max(map(self.flops, branches(instruction)), default=0.0)
            case "call":
                return sum(map(self.flops, instruction.callees("to_apply")))
            case "fusion" | "async-start":
                return sum(map(self.flops, instruction.callees("calls")))
        return fusion_flops(self.module, computation, instruction)

    def _trips(self, computation: str, loop: Instruction) -> int:
        """How often a loop's body runs, 1 where the program does not say."""
        known = trips(self.module, computation, loop)
        return 1 if known is None else known

    def _inside(self, context: Context, instruction: Instruction) -> list[Context]:
        if instruction.opcode == "while":
            known = trips(self.module, context.computation, instruction)
            return [
                Context(
                    body,
                    instruction.name,
                    context.times * (1 if known is None else known),
                    context.conditional,
                    context.certain and known is not None,
                )
                for body in instruction.callees("body")
            ]
        names = branches(instruction)
        conditional = bool(names) or context.conditional
        if instruction.opcode == "call":
            names = instruction.callees("to_apply")
        return [
            Context(name, context.loop, context.times, conditional, context.certain)
            for name in names
        ]


def branches(instruction: Instruction) -> tuple[str, ...]:
    """The computations of a condition."""
    if instruction.opcode != "conditional":
        return ()
    return (
        *instruction.callees("branch_computations"),
        *instruction.callees("true_computation"),
        *instruction.callees("false_computation"),
    )
