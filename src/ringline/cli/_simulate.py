"""`ringline simulate`: the time of a training step, and pictures of it."""

import json
import sys
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from ringline import trace
from ringline.cli._files import write_text
from ringline.cli._flag_types import File, FileOrOutput, Whole, takes
from ringline.schedule import PipelineSchedule, named_schedule
from ringline.simulate import Timeline, simulate


@dataclass(frozen=True, slots=True)
class Simulate:
    """Time one training step through a pipeline schedule, and draw it."""

    schedule: tyro.conf.Positional[str]
    """Name of a schedule (linear, circular, 1f1b, ...), or a CSV file of one."""
    stages: int = 4
    """p, stages of the pipeline."""
    microbatches: int = 8
    """m, microbatches of a step."""
    repeats: Whole = None
    """v, chunks of a stage, for schedules that have several; the schedule's own default if not
    given."""
    forward: tuple[float, ...] = (1.0,)
    """Seconds of one microbatch's forward through a whole stage; one number, or one a stage."""
    backward: tuple[float, ...] = (2.0,)
    """The same for the backward. Schedules that split it take half for each part."""
    input_gradient: Annotated[tuple[float, ...], takes("[FLOAT [FLOAT ...]]")] = ()
    """The backward's first part, which the stage before waits for; with --weight-gradient."""
    weight_gradient: Annotated[tuple[float, ...], takes("[FLOAT [FLOAT ...]]")] = ()
    """The backward's second part."""
    transfer: float = 0.0
    """Seconds from stage to stage."""
    overlap: bool = True
    """Whether transfers run beside computations."""
    gather: tuple[float, ...] = (0.0,)
    """Seconds to gather a stage's weights over the chips that share them (FSDP); one number, or
    one a stage."""
    gather_every: Literal["step", "use"] = "step"
    """step: weights are gathered once; use: for each forward and backward, one ahead."""
    reduce: tuple[float, ...] = (0.0,)
    """Seconds to reduce a stage's gradients, each chunk's behind its last backward."""
    compare: Annotated[
        tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="SCHEDULE")
    ] = ()
    """Further schedules to show beside the first; may be given several times."""
    trace: File = None
    """Write a Chrome trace, which ui.perfetto.dev opens."""
    html: File = None
    """Write a page to zoom and look around in."""
    svg: File = None
    """Write a picture."""
    json: FileOrOutput = None
    """Write the numbers; `-` for standard output, which then holds nothing else."""


def run(flags: Simulate) -> int:
    """Simulate, print and write what the flags ask for; gives the exit status."""
    timelines = [
        _simulate(schedule, flags)
        for schedule in _schedules([flags.schedule, *chain(*flags.compare)], flags)
    ]
    title = f"Step time: {', '.join(timeline.name for timeline in timelines)}"
    numbers = json.dumps([_numbers(timeline) for timeline in timelines], indent=2) + "\n"
    if flags.trace:
        write_text(flags.trace, trace.chrome(timelines))
    if flags.html:
        write_text(flags.html, trace.html(timelines, title=title))
    if flags.svg:
        write_text(flags.svg, trace.svg(timelines))
    if flags.json:
        write_text(flags.json, numbers)
    if flags.json == "-":
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=140)
    trace.terminal(timelines, console=console)
    console.print()
    console.print(trace.summary(timelines))
    return 0


def _schedules(names: list[str], flags: Simulate) -> list[PipelineSchedule]:
    """The schedules called `names`. `--repeats` goes to those that can have several."""
    made = []
    for name in names:
        try:
            made.append(named_schedule(name, stages=flags.stages, microbatches=flags.microbatches))
        except OSError as error:
            raise ValueError(f"cannot read {name!r}: {error.strerror}; check the path") from error
    if flags.repeats is not None:
        several = [schedule.repeats > 1 for schedule in made]
        for i, name in enumerate(names):
            if several[i] or not any(several):
                made[i] = named_schedule(
                    name,
                    stages=flags.stages,
                    microbatches=flags.microbatches,
                    repeats=flags.repeats,
                )
    for schedule in made:
        schedule.validate()
    return made


def _simulate(schedule: PipelineSchedule, flags: Simulate) -> Timeline:
    costs = {"forward_s": flags.forward}
    split = {action.op for row in schedule.rows for action in row} & {"I", "W"}
    if flags.input_gradient or flags.weight_gradient:
        parts = {
            "input_gradient_s": flags.input_gradient,
            "weight_gradient_s": flags.weight_gradient,
        }
        costs |= {name: part for name, part in parts.items() if part}
    elif split:
        half = tuple(cost / 2 for cost in flags.backward)
        costs |= {"input_gradient_s": half, "weight_gradient_s": half}
    else:
        costs["backward_s"] = flags.backward
    costs |= {"gather_s": flags.gather, "reduce_s": flags.reduce}
    given = {name: cost[0] if len(cost) == 1 else cost for name, cost in costs.items()}
    return simulate(
        schedule,
        transfer_s=flags.transfer,
        overlap=flags.overlap,
        gather_every=flags.gather_every,
        **given,
    )


def _numbers(timeline: Timeline) -> dict[str, Any]:
    return {
        "schedule": timeline.name,
        "stages": timeline.devices,
        "makespan_s": timeline.makespan_s,
        "bubble_s": timeline.bubble_s,
        "bubble_rate": timeline.bubble_rate,
        "makespan_bubble_s": timeline.makespan_bubble_s,
        "makespan_bubble_rate": timeline.makespan_bubble_rate,
        "exposed_transfer_s": timeline.exposed_transfer_s,
        "exposed_transfer_per_stage_s": timeline.exposed_transfer_per_stage_s,
        "work_per_stage_s": timeline.work_per_stage_s,
        "peak_activations": timeline.peak_activations,
    }
