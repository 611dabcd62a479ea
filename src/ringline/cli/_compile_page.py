"""One trip of a compiled program's busiest loop as a timeline to draw."""

from ringline.aot import Compiled
from ringline.aot._walk import Context, Step
from ringline.aot.recipes import Recipe, Way, predict
from ringline.simulate import Event, Timeline, simulate

_SMALLEST_SHARE = 0.005  # of the loop's body: what is shorter is not drawn


def loop_timeline(compiled: Compiled) -> Timeline | None:
    """The computations and transfers of one trip of the loop that computes longest, or None.

    Transfers last as long as the target's links need, from when they are posted; what of them
    reaches beyond the wait for them is exposed, and is said in their label.
    """
    walk = compiled.walk
    bodies = [c for c in walk.contexts() if c.loop and not c.conditional]
    if not bodies:
        return None
    body = max(bodies, key=lambda c: walk.cycles(c.computation) * c.times)
    per_s = compiled.target.clock_hz
    events = [*_computes(body, walk.steps(body.computation), per_s), *_transfers(compiled, body)]
    name = f"one of {body.times} trips of loop {body.loop}"
    return Timeline(name, tuple(sorted(events, key=lambda e: e.start_s)), devices=2)


def predicted_timeline(recipe: Recipe, way: Way) -> Timeline:
    """The whole step of a recipe, simulated with the predicted costs."""
    expected = predict(recipe, way)
    v, costs = way.schedule.repeats, expected.costs_s
    parts = {"forward_s": costs["F"] * v}
    if {action.op for row in way.schedule.rows for action in row} & {"I", "W"}:
        parts |= {"input_gradient_s": costs["I"] * v, "weight_gradient_s": costs["W"] * v}
    else:
        parts["backward_s"] = costs["B"] * v
    overlap = way.scheduled or way.late_send
    return simulate(way.schedule, transfer_s=expected.transfer_s, overlap=overlap, **parts)


def _computes(body: Context, steps: list[Step], per_s: float) -> list[Event]:
    total = max(1, sum(step.cycles for step in steps))
    phases = iter("FBW")
    events = []
    for step in steps:
        if step.cycles < _SMALLEST_SHARE * total:
            continue
        branch = step.instruction.opcode == "conditional"
        kind = next(phases, "F") if branch else step.instruction.opcode
        label = step.instruction.name
        events.append(
            Event(
                step.start / per_s, step.cycles / per_s, 0, "compute", kind, label, 0, len(events)
            )
        )
    return events


def _transfers(compiled: Compiled, body: Context) -> list[Event]:
    found = [c for c in compiled.collectives if c.computation == body.computation]
    events = []
    for number, c in enumerate(found):
        exposed = f", {c.exposed_us:.0f} us exposed" if c.exposed else ", hidden"
        events.append(
            Event(
                c.starts_us / 1e6,
                c.transfer_us / 1e6,
                0,
                "transfer",
                f"{c.kind} over {c.link}",
                f"{c.name} along {c.axis}{exposed}",
                0,
                number,
                peer=1,
                channel=number,
                bytes=int(c.bytes),
            )
        )
    return events
