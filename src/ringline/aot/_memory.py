"""Memory of one device, as the compiler assigns it, and the buffers that take most of it."""

import re
from dataclasses import dataclass
from pathlib import Path

from ringline.aot._hlo import Module

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), .*$")
_PARAMETER = re.compile(r"parameter (\d+)")
_VALUE = re.compile(
    r"^ value: <\d+ ([\w.\-]+?)(?:\{[\d,]*\})? @\d+> \(size=(\d+),offset=(\d+)\): (.*)$"
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of device memory.

    Attributes:
        name: what it holds: an argument by its name in the call, else what makes it.
        shape: element type and dimensions.
        bytes: its size.
        use: `argument`, `output` or `temporary`.
    """

    name: str
    shape: str
    bytes: int
    use: str

    def __str__(self) -> str:
        return f"{gib(self.bytes)} {self.use} {self.shape} {self.name}"


@dataclass(frozen=True, slots=True)
class Memory:
    """The compiler's estimate of one device's memory.

    Attributes:
        arguments_bytes: what is handed in.
        temporaries_bytes: what the program needs while it runs.
        outputs_bytes: what it hands back, beyond arguments it may overwrite.
        limit_bytes: what a program can use.
        largest: the largest buffers.
    """

    arguments_bytes: float
    temporaries_bytes: float
    outputs_bytes: float
    limit_bytes: float
    largest: tuple[Buffer, ...] = ()

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.arguments_bytes + self.temporaries_bytes + self.outputs_bytes

    @property
    def fits(self) -> bool:
        """Whether the device holds it."""
        return self.total_bytes <= self.limit_bytes


class DoesNotFitError(ValueError):
    """A program that needs more memory than a device has.

    Attributes:
        memory: what it needs.
    """

    def __init__(self, name: str, memory: Memory):
        over = memory.total_bytes - memory.limit_bytes
        largest = "; ".join(map(str, memory.largest[:3]))
        super().__init__(
            f"the program needs {gib(memory.total_bytes)} of a device of {name}, "
            f"{gib(over)} more than the {gib(memory.limit_bytes)} it has; largest: {largest}; "
            "use more devices, smaller microbatches, or gather weights for each use"
        )
        self.memory = memory


def read_buffers(path: Path, module: Module) -> list[Buffer]:
    """The buffers of a buffer assignment that the compiler wrote, largest first."""
    parameters, makers = _names(module)
    found: dict[tuple[int, int], Buffer] = {}
    use, name, allocation = "", "", 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if _ALLOCATION.match(line):
            allocation = number
            parameter = _PARAMETER.search(line)
            name = parameters.get(int(parameter[1]), "") if parameter else ""
            use = "argument" if parameter else "output" if "maybe-live-out" in line else "temporary"
            # Other memories have a colour; the rest is small.
            use = "" if re.search(r"color|thread-local|constant", line) else use
        elif use and (value := _VALUE.match(line)):
            shape = re.sub(r"\{[^{}]*\}", "", value[4])
            size, at = int(value[2]), (allocation, int(value[3]))
            if "(" not in shape and (at not in found or found[at].bytes < size):
                label = name or makers.get(value[1], value[1])
                found[at] = Buffer(label, shape, size, use)
    return sorted(found.values(), key=lambda buffer: -buffer.bytes)


def sum_of(buffers: list[Buffer], use: str) -> float:
    """Bytes of all buffers of one use."""
    return float(sum(buffer.bytes for buffer in buffers if buffer.use == use))


def gib(size_bytes: float) -> str:
    """`1.25 GiB`, or smaller units."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def _names(module: Module) -> tuple[dict[int, str], dict[str, str]]:
    """Names of the entry's parameters by number, and for any instruction what made it."""
    parameters, makers = {}, {}
    for computation, rows in module.computations.items():
        for instruction in rows:
            op_name = _OP_NAME.search(instruction.text)
            label = op_name[1].replace("\\'", "'") if op_name else instruction.name
            if instruction.opcode == "parameter" and computation == module.entry:
                parameters[int(instruction.operand_text)] = label
            makers[instruction.name] = "/".join(label.split("/")[-2:])
    return parameters, makers
