"""Can the threads of a program stop for good? One run decides.

Where one thread a device runs its list, a send blocks on full slots and a receive on empty ones,
no device ever chooses: a Kahn network. If one run stops, all do.
"""

from collections.abc import Callable

from ringline.schedule._check import check_program
from ringline.schedule._errors import ScheduleError
from ringline.schedule._hang import Hang, HangAnswer
from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value


def run_threads(program: Program, *, packets: Callable[[Value], int], slots: int) -> HangAnswer:
    """Whether blocking threads reach their end when values are several packets.

    Args:
        program: the instructions of every device.
        packets: of each value, sent and received one after the other.
        slots: packets that a channel holds before a send blocks.
    """
    how = "decided by one run: devices that never choose all stop, or none does"
    # More packets than slots keep a send waiting for its receive, however many more.
    split = _in_packets(program, lambda value: min(packets(value), slots + 1))
    try:
        check_program(split, capacity=slots)
    except ScheduleError as error:
        text = str(error).partition("deadlock, no stage can go on: ")[2]
        if not text:
            raise
        text = text.replace("stage", "device")
        return HangAnswer(Hang((), (), True, text), True, how, 1)
    return HangAnswer(None, True, how, 1)


def _in_packets(program: Program, packets: Callable[[Value], int]) -> Program:
    most = max((packets(v) for held in program.initial for v in held), default=1)

    def split(value: Value) -> list[Value]:
        # Numbers of different pieces must differ, however many packets each has.
        return [value._replace(part=value.part * most + i) for i in range(packets(value))]

    def row(instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        out: list[Instruction] = []
        for instruction in instructions:
            match instruction:
                case Send() | Receive():
                    kind = type(instruction)
                    out += [
                        kind(v, instruction.peer, instruction.channel, instruction.op)
                        for v in split(instruction.value)
                    ]
                case Compute():
                    reads, writes = (
                        tuple(p for v in values for p in split(v))
                        for values in (instruction.reads, instruction.writes)
                    )
                    out.append(
                        Compute(instruction.op, instruction.index, instruction.part, reads, writes)
                    )
        return tuple(out)

    initial = tuple(tuple(p for v in held for p in split(v)) for held in program.initial)
    return Program(tuple(row(r) for r in program.rows), initial)
