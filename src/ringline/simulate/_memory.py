"""How many values of a kind the devices of a program hold at once."""

from ringline.schedule import Program


def peak_live(program: Program, kind: str) -> tuple[int, ...]:
    """Per device, the most values of `kind` held at once.

    A value lives from the instruction that writes it to the last one that reads it. The count
    follows the device's list, so no cost changes it.

    Args:
        program: the instructions of every device.
        kind: of the values to count, such as `residual`.

    Returns:
        One count for each device.
    """
    return tuple(_peak(program, device, kind) for device in range(program.devices))


def _peak(program: Program, device: int, kind: str) -> int:
    row = program.rows[device]
    last_read = {
        value: step
        for step, instruction in enumerate(row)
        for value in instruction.reads
        if value.kind == kind
    }
    live = peak = sum(value.kind == kind for value in program.initial[device])
    for step, instruction in enumerate(row):
        for value in instruction.writes:
            live += value.kind == kind
        peak = max(peak, live)
        for value in instruction.reads:
            live -= last_read.get(value) == step
    return peak
