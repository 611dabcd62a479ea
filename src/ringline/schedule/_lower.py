"""Lower pipeline rows to a `Program`: add the values, and a send and a receive at each crossing."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value

Action = tuple[int, str, int]

FORWARD_CHANNEL, BACKWARD_CHANNEL = 0, 1


def lower_pipeline(
    rows: Iterable[Iterable[Action]], stage_of: Sequence[int], microbatches: int
) -> Program:
    """The program of a pipeline whose stage `s` runs the (chunk, op, microbatch) of `rows[s]`.

    A result that a neighbouring chunk needs on another stage is sent right after it is made. It
    is received right before the operation that reads it, or earlier where a later transfer of
    the same channel is read first: channels keep their order. Forward and backward transfers
    use channels 0 and 1, so neither waits behind the other.
    """
    table = [list(row) for row in rows]
    computes = [[_compute(action, len(stage_of)) for action in row] for row in table]
    sends = [[_sends(compute, stage_of) for compute in row] for row in computes]
    arriving: dict[tuple[int, int, int], deque[Receive]] = defaultdict(deque)
    for stage, row in enumerate(sends):
        for send in (send for group in row for send in group):
            op = send.op.replace("SEND", "RECV")
            receive = Receive(send.value, stage, send.channel, op)
            arriving[send.peer, send.channel, stage].append(receive)
    lowered = [
        _lower_row(stage, computes[stage], sends[stage], arriving, stage_of)
        for stage in range(len(table))
    ]
    initial: list[tuple[Value, ...]] = [()] * len(table)
    final: list[tuple[Value, ...]] = [()] * len(table)
    initial[stage_of[0]] = tuple(Value("activation", 0, i) for i in range(microbatches))
    if all(op == "F" for row in table for _, op, _ in row):
        outputs = tuple(Value("activation", len(stage_of), i) for i in range(microbatches))
        final[stage_of[-1]] = outputs
    return Program(tuple(lowered), tuple(initial), tuple(final))


def _lower_row(
    stage: int,
    computes: list[Compute],
    sends: list[list[Send]],
    arriving: dict[tuple[int, int, int], deque[Receive]],
    stage_of: Sequence[int],
) -> tuple[Instruction, ...]:
    out: list[Instruction] = []
    received: set[Value] = set()
    for compute, outgoing in zip(computes, sends):
        for value in compute.reads:
            source = _made_on(value, stage_of)
            if source is None or source == stage or value in received:
                continue
            channel = FORWARD_CHANNEL if value.kind == "activation" else BACKWARD_CHANNEL
            queue = arriving[stage, channel, source]
            while queue and value not in received:
                receive = queue.popleft()
                out.append(receive)
                received.add(receive.value)
            if value not in received:  # nobody sends it; the checker will say so
                op = "RECV_F" if channel == FORWARD_CHANNEL else "RECV_B"
                out.append(Receive(value, source, channel, op))
                received.add(value)
        out.append(compute)
        out += outgoing
    return tuple(out)


def _compute(action: Action, chunks: int) -> Compute:
    """What one action reads and writes. A last chunk's backward starts from its own loss."""
    chunk, op, i = action
    residual = Value("residual", chunk, i)
    handover = Value("handover", chunk, i)
    cotangent_in = (Value("cotangent", chunk, i),) if chunk < chunks - 1 else ()
    cotangent_out = (Value("cotangent", chunk - 1, i),) if chunk > 0 else ()
    match op:
        case "F":
            reads = (Value("activation", chunk, i),)
            writes = (Value("activation", chunk + 1, i), residual)
        case "B":
            reads, writes = (residual, *cotangent_in), cotangent_out
        case "I":
            reads, writes = (residual, *cotangent_in), (*cotangent_out, handover)
        case _:
            reads, writes = (residual, handover), ()
    return Compute(op, chunk, i, reads, writes)


def _made_on(value: Value, stage_of: Sequence[int]) -> int | None:
    """The stage whose computation makes an activation or cotangent; None for an input."""
    if value.kind == "activation" and value.index > 0:
        return stage_of[value.index - 1]
    if value.kind == "cotangent":
        return stage_of[value.index + 1]
    return None


def _read_on(value: Value, stage_of: Sequence[int]) -> int | None:
    """The stage whose computation reads an activation or cotangent; None for an output."""
    if value.kind in ("activation", "cotangent") and value.index < len(stage_of):
        return stage_of[value.index]
    return None


def _sends(compute: Compute, stage_of: Sequence[int]) -> list[Send]:
    here = stage_of[compute.index] if 0 <= compute.index < len(stage_of) else None
    sends = []
    for value in compute.writes:
        target = _read_on(value, stage_of)
        if target is None or target == here:
            continue
        if value.kind == "activation":
            sends.append(Send(value, target, FORWARD_CHANNEL, "SEND_F"))
        else:
            sends.append(Send(value, target, BACKWARD_CHANNEL, "SEND_B"))
    return sends
