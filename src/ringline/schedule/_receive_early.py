"""Move the receives of a `Program` to where their senders send."""

from ringline.schedule._errors import ScheduleError
from ringline.schedule._program import Compute, Instruction, Program, Receive, Send

Work = tuple[list[Compute], list[Send]]


def receive_early(program: Program) -> Program:
    """The same computations and sends, with each receive posted as soon as its send is.

    The devices are run in rounds, one computation with its sends each, and a receive takes its
    place among what its device has done by then. So there is one order of all instructions in
    which each send stands beside its receive, and no run can hang: not even by rendezvous,
    where a send waits for its receive. A lowered pipeline schedule receives late instead, right
    before the value is read.

    Args:
        program: every value sent must be received by the device it is sent to.

    Raises:
        ScheduleError: when no device can go on.

    Example:
        >>> from ringline.schedule import check_program, one_f_one_b
        >>> program = one_f_one_b(stages=2, microbatches=2).program()
        >>> print(receive_early(program))
        0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
        1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1
        >>> check_program(receive_early(program), capacity=0)
    """
    work = [_work(row) for row in program.rows]
    held = [set(values) for values in program.initial]
    position = [0] * program.devices
    out: list[list[Instruction]] = [[] for _ in work]
    while any(at < len(items) for at, items in zip(position, work)):
        moved = False
        for device, items in enumerate(work):
            if position[device] == len(items):
                continue
            computes, sends = items[position[device]]
            if not held[device].issuperset(computes[0].reads):
                continue
            out[device] += computes
            held[device].update(value for compute in computes for value in compute.writes)
            for send in sends:
                out[device].append(send)
                op = send.op.replace("SEND", "RECV")
                out[send.peer].append(Receive(send.value, device, send.channel, op, send.step))
                held[send.peer].add(send.value)
            position[device] += 1
            moved = True
        if not moved:
            device = next(d for d, items in enumerate(work) if position[d] < len(items))
            stuck = work[device][position[device]][0][0]
            raise ScheduleError(
                f"stage {device} step {position[device]}: {stuck} never finds what it reads; "
                "the order deadlocks",
                device=device,
                step=position[device],
            )
    return Program(tuple(map(tuple, out)), program.initial, program.final)


def _work(row: tuple[Instruction, ...]) -> list[Work]:
    """The computations of a device with the sends after each; joined ones stay together."""
    items: list[Work] = []
    for instruction in row:
        match instruction:
            case Compute():
                last = items[-1][0][-1] if items and not items[-1][1] else None
                if last and set(instruction.reads) <= set(last.reads):
                    items[-1][0].append(instruction)
                else:
                    items.append(([instruction], []))
            case Send():
                items[-1][1].append(instruction)
            case Receive():
                pass
    return items
