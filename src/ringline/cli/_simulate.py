"""`ringline simulate`: the time of a training step, and pictures of it."""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from ringline import schedules, trace
from ringline.schedule import PipelineSchedule, parse_pipeline
from ringline.simulate import Timeline, simulate

File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, slots=True)
class Simulate:
    """Time one training step through a pipeline schedule, and draw it."""

    schedule: tyro.conf.Positional[str]
    """Name of a schedule (linear, circular, one-f-one-b, ...), or a CSV file of one."""
    stages: int = 4
    """p, stages of the pipeline."""
    microbatches: int = 8
    """m, microbatches of a step."""
    repeats: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """v, chunks of a stage, for schedules that have several; the schedule's own default if not
    given."""
    forward: tuple[float, ...] = (1.0,)
    """Seconds of one microbatch's forward through a whole stage; one number, or one a stage."""
    backward: tuple[float, ...] = (2.0,)
    """The same for the backward. Schedules that split it take half for each part."""
    input_gradient: tuple[float, ...] = ()
    """The backward's first part, which the stage before waits for; with --weight-gradient."""
    weight_gradient: tuple[float, ...] = ()
    """The backward's second part."""
    transfer: float = 0.0
    """Seconds from stage to stage."""
    overlap: bool = True
    """Whether transfers run beside computations."""
    compare: tuple[str, ...] = ()
    """Further schedules to show beside the first."""
    trace: File = None
    """Write a Chrome trace, which ui.perfetto.dev opens."""
    html: File = None
    """Write a page to zoom and look around in."""
    svg: File = None
    """Write a picture."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE|-")] = None
    """Write the numbers; `-` for standard output, which then holds nothing else."""


def run(flags: Simulate) -> int:
    """Simulate, print and write what the flags ask for; gives the exit status."""
    names = [flags.schedule, *flags.compare]
    timelines = [_simulate(schedule, flags) for schedule in _schedules(names, flags)]
    if flags.json != "-":
        console = Console() if sys.stdout.isatty() else Console(width=140)
        trace.terminal(timelines, console=console)
        console.print()
        console.print(trace.summary(timelines))
    if flags.trace:
        trace.chrome(timelines, flags.trace)
    if flags.html:
        trace.html(
            timelines, flags.html, title=f"Step time: {', '.join(t.name for t in timelines)}"
        )
    if flags.svg:
        trace.svg(timelines, flags.svg)
    if flags.json:
        text = json.dumps([_numbers(timeline) for timeline in timelines], indent=2) + "\n"
        if flags.json == "-":
            sys.stdout.write(text)
        else:
            Path(flags.json).write_text(text)
    return 0


def _schedules(names: list[str], flags: Simulate) -> list[PipelineSchedule]:
    """The schedules called `names`. `--repeats` goes to those that can have several."""
    tables = [name for name in names if name.endswith(".csv")]
    makers = {name: _maker(name) for name in names if name not in tables}
    several = {n for n, make in makers.items() if _parameters(make)["repeats"].default > 1}
    made = []
    for name in names:
        if name in tables:
            made.append(parse_pipeline(Path(name), name=Path(name).stem))
            made[-1].validate()
            continue
        sizes = {"stages": flags.stages, "microbatches": flags.microbatches}
        if flags.repeats is not None and (name in several or not several):
            sizes["repeats"] = flags.repeats
        made.append(makers[name](**sizes))
    return made


def _maker(name: str) -> Callable[..., PipelineSchedule]:
    known = {n.replace("_", "-") for n in vars(schedules) if not n.startswith("_")}
    plain = name.replace("_", "-")
    if plain not in known:
        near = get_close_matches(plain, known, n=2) or sorted(known)
        raise ValueError(
            f"no schedule is called {name!r}; expected {' or '.join(near)}, or a .csv file"
        )
    return getattr(schedules, plain.replace("-", "_"))


def _parameters(make: Callable[..., PipelineSchedule]) -> Any:
    return inspect.signature(make).parameters


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
    given = {name: cost[0] if len(cost) == 1 else cost for name, cost in costs.items()}
    return simulate(schedule, transfer_s=flags.transfer, overlap=flags.overlap, **given)


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
