"""`ringline schedule`: check a pipeline schedule and draw its grid."""

from dataclasses import dataclass

import tyro

from ringline.cli._flag_types import Whole
from ringline.schedule import named_schedule


@dataclass(frozen=True, slots=True)
class Schedule:
    """Check a pipeline schedule and draw it: rows are stages, columns units of time."""

    name: tyro.conf.Positional[str]
    """Name of a schedule (linear, circular, 1f1b, ...), or a CSV file of one."""
    stages: int = 4
    """p, stages of the pipeline."""
    microbatches: int = 8
    """m, microbatches of a step."""
    repeats: Whole = None
    """v, chunks of a stage; the schedule's own default if not given."""
    forward_only: bool = False
    """Leave the backward out."""
    csv: bool = False
    """Print the text form, which PipelineSchedule.from_csv reads, in place of the grid."""


def run(flags: Schedule) -> int:
    """Print the grid or the text form; gives the exit status."""
    schedule = named_schedule(
        flags.name,
        stages=flags.stages,
        microbatches=flags.microbatches,
        repeats=flags.repeats,
    )
    if flags.forward_only:
        schedule = schedule.forward()
    schedule.validate()
    if flags.csv:
        print(schedule.to_csv(), end="")
        return 0
    print(schedule)
    peaks = ", ".join(map(str, schedule.peak_activations()))
    print(f"activations kept per stage: {peaks}")
    return 0
