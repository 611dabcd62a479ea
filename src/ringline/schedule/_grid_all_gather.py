"""The all-gather on a grid of chips, from the all-gathers of its two axes, and rings through it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringline.schedule._all_gather import all_gather
from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value
from ringline.topology import Line, Ring

Move = tuple[int, int, int, Value]  # source, target, channel, value


def grid_all_gather(
    down: Ring | Line, across: Ring | Line, *, directions: int = 2, halves: bool = True
) -> Program:
    """Each device's stripe travels to all others of a grid, along one axis and then the other.

    Device r * columns + c stands in row r and column c. Along one axis at a time half of the
    links have nothing to do. With `halves`, each stripe is cut in two: one half goes across and
    then down, the other down and then across, at the same time. Each half and axis has a channel
    of its own, so no packet turns a corner inside the slots: it starts anew from memory, as an
    own packet of that device, and rings of queues stay within one axis.

    Args:
        down: how the devices of a column are joined, one for each row.
        across: how the devices of a row are joined, one for each column.
        directions: 1 or 2, how many directions of a link work at the same time.
        halves: whether both axes work at the same time.

    Example:
        >>> from ringline.schedule import check_program, grid_all_gather
        >>> from ringline.topology import Line
        >>> program = grid_all_gather(Line(2), Line(4))
        >>> check_program(program, capacity=1)
        >>> program.devices
        8
    """
    count = down.devices * across.devices
    axes = [all_gather(axis, directions=directions) for axis in (across, down)]
    pieces = max(schedule.pieces for schedule in axes)
    orders = ((0, 1), (1, 0)) if halves else ((0, 1),)
    steps: dict[int, list[Move]] = defaultdict(list)
    for half, order in enumerate(orders):
        at = 0
        for place, axis in enumerate(order):
            schedule = axes[axis]
            scale = pieces // schedule.pieces
            for transfer in schedule.transfers:
                parts = range(
                    half * pieces + transfer.first * scale,
                    half * pieces + transfer.stop * scale,
                )
                for line in range(count // schedule.devices):
                    ends = (transfer.source, schedule.target(transfer))
                    source, target = (_device(axis, line, end, across.devices) for end in ends)
                    # Along the second axis go the stripes of the whole first axis.
                    owners = (
                        [_device(axis, line, transfer.stripe, across.devices)]
                        if place == 0
                        else [
                            _device(axis, other, transfer.stripe, across.devices)
                            for other in range(count // schedule.devices)
                        ]
                    )
                    steps[at + transfer.step] += [
                        (source, target, 2 * half + place, Value("stripe", owner, part))
                        for owner in owners
                        for part in parts
                    ]
            at += schedule.steps
    total = pieces * len(orders)
    initial = tuple(tuple(Value("stripe", d, p) for p in range(total)) for d in range(count))
    everything = tuple(value for held in initial for value in held)
    rows = _rows(count, (steps[step] for step in sorted(steps)))
    return Program(rows, initial, (everything,) * count)


def snake_order(rows: int, columns: int) -> tuple[int, ...]:
    """A ring through all chips of a grid without wraparound links, as devices in ring order.

    Down the first column, then back and forth through the rest of the rows. Two rows or columns
    at least, and an even number of one of them.

    Raises:
        ValueError: when the grid has no such ring.

    Example:
        >>> snake_order(2, 4)
        (0, 1, 2, 3, 7, 6, 5, 4)
    """
    if min(rows, columns) < 2 or rows * columns % 2:
        raise ValueError(
            f"a ring through a grid needs two rows and columns and one even side, got {rows} x "
            f"{columns}; use the grid's own all-gather or another shape"
        )
    if rows % 2:
        turned = snake_order(columns, rows)
        return tuple((d % rows) * columns + d // rows for d in turned)
    order = []
    for row in range(rows):
        inner = range(1, columns) if row % 2 == 0 else range(columns - 1, 0, -1)
        order += [row * columns + column for column in inner]
    home = [row * columns for row in range(rows - 1, -1, -1)]
    ring = order + home
    start = ring.index(0)
    return tuple(ring[start:] + ring[:start])


def relabel(program: Program, order: Sequence[int]) -> Program:
    """`program` with its device i run by device `order[i]`, stripes named after the new owners.

    Args:
        program: the instructions of every device.
        order: a permutation, such as `snake_order` for an all-gather on a ring.
    """
    if sorted(order) != list(range(program.devices)):
        raise ValueError(
            f"order must name each of {program.devices} devices once, got {tuple(order)}"
        )

    def named(value: Value) -> Value:
        return value._replace(index=order[value.index])

    def moved(instruction: Instruction) -> Instruction:
        match instruction:
            case Compute():
                return replace(
                    instruction,
                    index=order[instruction.index],
                    reads=tuple(map(named, instruction.reads)),
                    writes=tuple(map(named, instruction.writes)),
                )
            case _:
                return replace(
                    instruction, value=named(instruction.value), peer=order[instruction.peer]
                )

    at = sorted(range(len(order)), key=lambda place: order[place])
    return Program(
        tuple(tuple(map(moved, program.rows[place])) for place in at),
        tuple(tuple(map(named, program.initial[place])) for place in at),
        tuple(tuple(map(named, program.final[place])) for place in at),
    )


def _device(axis: int, line: int, place: int, columns: int) -> int:
    """Device at `place` of the row (axis 0) or column (axis 1) number `line`."""
    return line * columns + place if axis == 0 else place * columns + line


def _rows(count: int, steps: Iterable[list[Move]]) -> tuple[tuple[Instruction, ...], ...]:
    """In each step a device sends one value of every queue, then receives one, and so on."""
    rows: list[list[Instruction]] = [[] for _ in range(count)]
    for step, moves in enumerate(steps):
        queues: dict[tuple[int, int, int], list[Value]] = defaultdict(list)
        for source, target, channel, value in moves:
            queues[source, target, channel].append(value)
        for number in range(max(map(len, queues.values()), default=0)):
            moving = [(q, values[number]) for q, values in queues.items() if number < len(values)]
            for (source, target, channel), value in moving:
                rows[source].append(Send(value, target, channel, step=step))
            for (source, target, channel), value in moving:
                rows[target].append(Receive(value, source, channel, step=step))
    return tuple(map(tuple, rows))
