"""How long each device of a `Program` holds each value, and the slot it can hold it in."""

from collections.abc import Iterable

from ringline.schedule._program import Program, Value
from ringline.schedule._slots import allocate_slots

Lifetimes = dict[Value, tuple[int, int]]


def lifetimes(program: Program) -> tuple[Lifetimes, ...]:
    """Per device, the steps `[start, end)` over which it holds each value.

    A value lives from the instruction that writes it to the last that reads it, both included:
    its slot is free for the next instruction. What a device holds from the start lives from
    step 0, what it must hold at the end until one step after the last, and what nobody reads
    for the one step that writes it.

    Args:
        program: the instructions of every device.

    Returns:
        For each device a dict in the order of writing.

    Example:
        >>> from ringline.schedule import Value, linear
        >>> first, _ = lifetimes(linear(stages=2, microbatches=1).program())
        >>> first[Value("residual", 0, 0)]
        (0, 4)
        >>> print(*(str(i) for i in linear(stages=2, microbatches=1).program().rows[0]))
        0F0 0SEND_F0 0RECV_B0 0B0
    """
    return tuple(_of_device(program, device) for device in range(program.devices))


def value_slots(
    program: Program, kinds: Iterable[str] = ("residual",)
) -> tuple[tuple[dict[Value, int], int], ...]:
    """Per device, the slot of each value of `kinds`, and how many slots that takes.

    Values of the kinds share slots; the number is the least possible, which is the most such
    values held at once.

    Args:
        program: the instructions of every device.
        kinds: of the values to place, such as `residual` or `cotangent`.

    Returns:
        For each device the slot by value, and the number of slots.

    Example:
        >>> from ringline.schedule import one_f_one_b
        >>> program = one_f_one_b(stages=4, microbatches=100).program()
        >>> [count for _, count in value_slots(program)]
        [4, 3, 2, 1]
    """
    wanted = set(kinds)
    placed = []
    for alive in lifetimes(program):
        values = [value for value in alive if value.kind in wanted]
        slots, count = allocate_slots([alive[value] for value in values])
        placed.append((dict(zip(values, slots)), count))
    return tuple(placed)


def _of_device(program: Program, device: int) -> Lifetimes:
    row = program.rows[device]
    start = dict.fromkeys(program.initial[device], 0)
    end = dict.fromkeys(program.initial[device], 1)
    for step, instruction in enumerate(row):
        for value in instruction.writes:
            start[value] = step
            end[value] = step + 1
        for value in instruction.reads:
            end[value] = step + 1
    end |= dict.fromkeys(program.final[device], len(row) + 1)
    return {value: (start[value], end[value]) for value in start}
