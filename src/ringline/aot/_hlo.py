"""Read a compiled program's text: computations, instructions in scheduled order, shapes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_ESTIMATE = 2**63 - 1
_NAMES = re.compile(r"%([\w.\-]+)")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: its name, unique in its computation.
        shape: the text of its shape, with layout.
        opcode: such as `fusion` or `recv-done`.
        operands: names of what it reads.
        text: the rest of the line, with attributes.
        operand_text: what stands between its parentheses.
        root: whether it makes what its computation gives back.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str = field(repr=False)
    operand_text: str = field(default="", repr=False)
    root: bool = False

    @cached_property
    def cycles(self) -> int:
        """The compiler's estimate of its cycles, 0 where it gives none."""
        match = _CYCLES.search(self.text)
        cycles = int(match[1]) if match else 0
        return cycles if cycles < _NO_ESTIMATE else 0

    def attribute(self, name: str) -> str | None:
        """The value of `name=`: balanced braces, or quoted, or up to the next comma."""
        at = re.search(rf"(?<![\w.]){re.escape(name)}=", self.text)
        if at is None:
            return None
        start = at.end()
        if self.text[start : start + 1] == '"':
            return self.text[start + 1 : self.text.index('"', start + 1)]
        end, depth = start, 0
        while end < len(self.text):
            letter = self.text[end]
            depth += (letter in "{[(") - (letter in "}])")
            if depth < 0 or (depth == 0 and letter in ", "):
                break
            end += 1
        return self.text[start:end]

    def callees(self, attribute: str) -> tuple[str, ...]:
        """Names of the computations that an attribute lists."""
        return tuple(_NAMES.findall(self.attribute(attribute) or ""))


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        computations: instructions in order, by computation.
        entry: the name of the computation that runs first.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    def find(self, computation: str, name: str) -> Instruction | None:
        """The instruction called `name` in a computation."""
        return self._by_name(computation).get(name)

    def root(self, computation: str) -> Instruction | None:
        """The instruction that makes what a computation gives back."""
        return next((i for i in self.computations[computation] if i.root), None)

    def _by_name(self, computation: str) -> dict[str, Instruction]:
        cache = self.__dict__.setdefault("_index", {})
        if computation not in cache:
            cache[computation] = {i.name: i for i in self.computations[computation]}
        return cache[computation]


def parse(text: str) -> Module:
    """Parse the text of a compiled program."""
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    entry = ""
    for line in text.splitlines():
        if line.startswith("}"):
            current = None
        elif current is None:
            if match := _COMPUTATION.match(line):
                current = computations.setdefault(match[2], [])
                entry = match[2] if match[1] else entry
        elif match := _INSTRUCTION.match(line):
            current.append(_instruction(match[2], line[match.end() :], bool(match[1])))
    if not entry:
        raise ValueError("the text has no ENTRY computation; expected a compiled program's text")
    return Module({name: tuple(rows) for name, rows in computations.items()}, entry)


def _instruction(name: str, rest: str, root: bool) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    closing = _closing(rest, opening)
    operands = rest[opening + 1 : closing]
    return Instruction(
        name=name,
        shape=rest[:end],
        opcode=rest[end:opening].strip(),
        operands=tuple(_NAMES.findall(operands)),
        text=rest[closing + 1 :],
        operand_text=operands,
        root=root,
    )


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at `opening` closes."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"unbalanced parentheses in {text[:80]!r}")


def arrays(shape: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Element type and dimensions of every array in a shape's text."""
    bare = re.sub(r"\{[^{}]*\}", "", shape)
    for dtype, dims in _ARRAY.findall(bare):
        yield dtype, tuple(int(d) for d in re.findall(r"\d+", dims))


def shape_bytes(shape: str) -> float:
    """Bytes of the arrays in a shape's text, without padding.

    Example:
        >>> shape_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)}, f32[])")
        16.0
    """
    total = 0.0
    for dtype, dims in arrays(shape):
        count = 1
        for length in dims:
            count *= length
        total += count * _bits(dtype) / 8
    return total


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+(\d+)", dtype)
    if digits is None:
        return 0
    return int(digits[1])
