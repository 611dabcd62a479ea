"""Lower pipeline rows to a `Program`: add the values, and a send and a receive at each crossing."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringline.schedule._actions import Action
from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value

FORWARD_CHANNEL, BACKWARD_CHANNEL = 0, 1


def lower_pipeline(
    rows: Iterable[Iterable[Action]],
    stage_of: Sequence[int],
    microbatches: int,
    *,
    joined: Sequence[Sequence[int]] = (),
    directions: int = 1,
) -> Program:
    """The program of a pipeline whose stage `s` runs the (chunk, op, microbatch) of `rows[s]`.

    A result that a neighbouring chunk needs on another stage is sent right after it is made. It
    is received right before the operation that reads it, or earlier where a later transfer of
    the same channel is read first: channels keep their order. Forward and backward transfers
    use channels 0 and 1, so neither waits behind the other. `joined` and `directions` are those
    of `PipelineSchedule`.
    """
    table = [list(row) for row in rows]
    span = len(stage_of) // directions
    forward_only = all(op == "F" for row in table for _, op, _ in row)
    computes = [
        [compute_of(action, len(stage_of), span, forward_only) for action in row] for row in table
    ]
    for row, steps in zip(computes, joined):
        for step in steps:
            row[step : step + 2] = join(row[step], row[step + 1])
    sends = [[_sends(compute, stage_of) for compute in row] for row in computes]
    arriving: dict[tuple[int, int, int], deque[Receive]] = defaultdict(deque)
    for stage, row in enumerate(sends):
        for send in (send for group in row for send in group):
            op = send.op.replace("SEND", "RECV")
            receive = Receive(send.value, stage, send.channel, op)
            arriving[send.peer, send.channel, stage].append(receive)
    lowered = [
        _lower_row(stage, computes[stage], sends[stage], arriving, stage_of, span)
        for stage in range(len(table))
    ]
    initial: list[tuple[Value, ...]] = [()] * len(table)
    final: list[tuple[Value, ...]] = [()] * len(table)
    for first in range(0, len(stage_of), span):
        inputs = tuple(Value("activation", first, i) for i in range(microbatches))
        initial[stage_of[first]] += inputs
    if forward_only:
        outputs = tuple(Value("activation", len(stage_of), i) for i in range(microbatches))
        final[stage_of[-1]] = outputs
    return Program(tuple(lowered), tuple(initial), tuple(final))


def join(one: Compute, two: Compute) -> tuple[Compute, Compute]:
    """The two as one: both begin when both can, both give their results when both are done."""
    kept = tuple(value for value in one.writes if value.kind in ("residual", "handover"))
    given = tuple(value for value in one.writes if value not in kept)
    return (
        replace(one, reads=(*one.reads, *two.reads), writes=kept),
        replace(two, writes=(*given, *two.writes)),
    )


def _lower_row(
    stage: int,
    computes: list[Compute],
    sends: list[list[Send]],
    arriving: dict[tuple[int, int, int], deque[Receive]],
    stage_of: Sequence[int],
    span: int,
) -> tuple[Instruction, ...]:
    out: list[Instruction] = []
    received: set[Value] = set()
    for compute, outgoing in zip(computes, sends):
        for value in compute.reads:
            source = made_on(value, stage_of, span)
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


def compute_of(action: Action, chunks: int, span: int, forward_only: bool = False) -> Compute:
    """What one action reads and writes; each `span` chunks are a pipeline of their own.

    A last chunk's forward includes the loss, so it also makes the cotangent that the same
    chunk's backward starts from.
    """
    chunk, op, i = action
    first, last = chunk % span == 0, chunk % span == span - 1
    residual = Value("residual", chunk, i)
    handover = Value("handover", chunk, i)
    cotangent_in = Value("cotangent", chunk, i)
    cotangent_out = () if first else (Value("cotangent", chunk - 1, i),)
    match op:
        case "F":
            reads = (Value("activation", chunk, i),)
            output = Value("activation", chunk + 1, i)
            # The end of one pipeline is no input of the next.
            writes = (residual,) if last and chunk < chunks - 1 else (output, residual)
            if last and not forward_only:
                writes = (*writes, cotangent_in)
        case "B":
            reads, writes = (residual, cotangent_in), cotangent_out
        case "I":
            reads, writes = (residual, cotangent_in), (*cotangent_out, handover)
        case _:
            reads, writes = (residual, handover), ()
    return Compute(op, chunk, i, reads, writes)


def made_on(value: Value, stage_of: Sequence[int], span: int) -> int | None:
    """The stage whose computation makes an activation or cotangent; None for an input."""
    if value.kind == "activation" and value.index % span:
        return stage_of[value.index - 1]
    if value.kind == "cotangent":
        last = value.index % span == span - 1
        return stage_of[value.index if last else value.index + 1]
    return None


def read_on(value: Value, stage_of: Sequence[int]) -> int | None:
    """The stage whose computation reads an activation or cotangent; None for an output."""
    if value.kind in ("activation", "cotangent") and value.index < len(stage_of):
        return stage_of[value.index]
    return None


def _sends(compute: Compute, stage_of: Sequence[int]) -> list[Send]:
    here = stage_of[compute.index] if 0 <= compute.index < len(stage_of) else None
    sends = []
    for value in compute.writes:
        target = read_on(value, stage_of)
        if target is None or target == here:
            continue
        if value.kind == "activation":
            sends.append(Send(value, target, FORWARD_CHANNEL, "SEND_F"))
        else:
            sends.append(Send(value, target, BACKWARD_CHANNEL, "SEND_B"))
    return sends
