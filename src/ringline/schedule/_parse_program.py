"""Read a `Program` from the text form with its transfers written out.

Cells are those of `ringline.schedule.parse_pipeline`, and transfers stay where they are:
`0SEND_F1` gives what chunk 0 made of microbatch 1 to the stage of chunk 1, `1RECV_F1` takes it
there, `1SEND_B1` and `0RECV_B1` do the same with the cotangent on its way back.
"""

import re
from pathlib import Path
from typing import NamedTuple

from ringline.schedule._actions import Action
from ringline.schedule._errors import ScheduleError
from ringline.schedule._lower import BACKWARD_CHANNEL, FORWARD_CHANNEL, compute_of, join
from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value
from ringline.schedule._table import COMPOUND, read_lines, stages_of_chunks, unreadable

_CELL = re.compile(r"(\d+)(?:(SEND|RECV)_(?=[FB]))?([FBIW])(\d+)")
_UPKEEP = re.compile(r"\d+(?:UNSHARD|RESHARD|REDUCE_GRAD)")
_SPLIT = re.compile(r"\s*,\s*|\s+")


def parse_program(source: str | Path, *, fragment: bool = False) -> Program:
    """The program of a table that has its sends and receives written out.

    One line per stage, cells separated by commas or blanks. Empty cells and upkeep (UNSHARD,
    RESHARD, REDUCE_GRAD) are left out; a compound is its two operations, joined.

    Args:
        source: a path to a .csv file, or its text.
        fragment: the text is a piece cut out of a longer run. What a stage reads without ever
            making or receiving it, it then held from the start; and the missing other end of a
            transfer is done at once: before the piece for a receive, after it for a send.

    Raises:
        ScheduleError: for a cell that is not of the grammar, or a chunk on two stages.
        OSError: for a path that cannot be read.

    Example:
        >>> from ringline.schedule import check_program
        >>> text = "0F0,0SEND_F0,0RECV_B0,0B0\\n1RECV_F0,1F0,1B0,1SEND_B0"
        >>> program = parse_program(text)
        >>> str(program) == text
        True
        >>> check_program(program, capacity=0)
        >>> cut = parse_program("0SEND_F1 2RECV_F0\\n1SEND_F0 1RECV_F1", fragment=True)
        >>> check_program(cut)
        >>> check_program(cut, capacity=0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ringline.schedule._errors.ScheduleError: stage 0 step 0: deadlock, no stage can go on: ...
    """
    rows = [_cells(line, stage) for stage, line in enumerate(read_lines(source))]
    held = stages_of_chunks([[cell.chunk for cell in row] for row in rows])
    chunks = 1 + max((max(cell.chunk, cell.peer) for row in rows for cell in row), default=-1)
    forward_only = all(cell.op not in "BIW" for row in rows for cell in row)

    def instruction(cell: "_Cell", stage: int, step: int) -> Instruction:
        if cell.kind == "":
            action = Action(cell.chunk, cell.op, cell.microbatch)
            return compute_of(action, chunks, chunks, forward_only)
        if cell.peer not in held:
            raise ScheduleError(
                f"stage {stage} step {step}: {cell} is with chunk {cell.peer}, which no stage of "
                "the text holds",
                device=stage,
                step=step,
            )
        return cell.transfer(held[cell.peer])

    table = [
        [instruction(cell, stage, step) for step, cell in enumerate(row)]
        for stage, row in enumerate(rows)
    ]
    for row, cells in zip(table, rows):
        for step, cell in enumerate(cells):
            one, two = row[step : step + 2] if cell.joined else (None, None)
            if isinstance(one, Compute) and isinstance(two, Compute):
                row[step : step + 2] = join(one, two)
    if fragment:
        return _closed(table)
    microbatches = 1 + max((cell.microbatch for row in rows for cell in row), default=-1)
    inputs = tuple(Value("activation", 0, i) for i in range(microbatches))
    initial = [inputs if held.get(0) == stage else () for stage in range(len(rows))]
    return Program(tuple(map(tuple, table)), tuple(initial))


class _Cell(NamedTuple):
    """An operation F, B, I, W, or the transfer `kind` (SEND or RECV) of an F or B."""

    chunk: int
    kind: str
    op: str
    microbatch: int
    joined: bool = False  # with the next cell

    @property
    def peer(self) -> int:
        """The chunk at the other end of a transfer; the cell's own for an operation."""
        if not self.kind:
            return self.chunk
        return self.chunk + (1 if (self.kind == "SEND") == (self.op == "F") else -1)

    def transfer(self, peer: int) -> Send | Receive:
        forward = self.op == "F"
        reader = self.peer if self.kind == "SEND" else self.chunk
        value = Value("activation" if forward else "cotangent", reader, self.microbatch)
        channel = FORWARD_CHANNEL if forward else BACKWARD_CHANNEL
        make = Send if self.kind == "SEND" else Receive
        return make(value, peer, channel, f"{self.kind}_{self.op}")

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind}{'_' if self.kind else ''}{self.op}{self.microbatch}"


def _cells(line: str, stage: int) -> list[_Cell]:
    cells = []
    for step, text in enumerate(_SPLIT.split(line.strip())):
        if not text or _UPKEEP.fullmatch(text):
            continue
        compound = COMPOUND.fullmatch(text)
        parts = [_CELL.fullmatch(part) for part in (compound.groups() if compound else (text,))]
        for number, match in enumerate(parts):
            if match is None or (compound and match[2]):
                raise unreadable(text, stage, step, "2F0, 2SEND_F0 or 2RECV_B0")
            chunk, kind, op, microbatch = match.groups()
            joined = number + 1 < len(parts)
            cells.append(_Cell(int(chunk), kind or "", op, int(microbatch), joined))
    return cells


def _closed(table: list[list[Instruction]]) -> Program:
    """The program of a piece: the other ends of its transfers and what it held put in."""
    ends = {
        (stage, i.peer, i.value, type(i))
        for stage, row in enumerate(table)
        for i in row
        if not isinstance(i, Compute)
    }
    rows = [
        [i for i in row if not isinstance(i, Receive) or (i.peer, stage, i.value, Send) in ends]
        for stage, row in enumerate(table)
    ]
    for stage, row in enumerate(table):
        for i in row:
            if isinstance(i, Send) and (i.peer, stage, i.value, Receive) not in ends:
                op = i.op.replace("SEND", "RECV")
                rows[i.peer].append(Receive(i.value, stage, i.channel, op))
    initial = []
    for row in rows:
        written = {value for i in row for value in i.writes}
        initial.append(tuple({v: None for i in row for v in i.reads if v not in written}))
    return Program(tuple(map(tuple, rows)), tuple(initial))
