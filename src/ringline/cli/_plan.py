"""`ringline plan`: the best layouts of a training step, before it runs."""

import json as json_format
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ringline.cli import BAD_INPUT
from ringline.cli._files import write_text
from ringline.cli._flag_types import FileOrOutput
from ringline.plan._layout import parse_constraints
from ringline.plan._model import model
from ringline.plan._report import considered_line, found_json, memory_line, plan_table
from ringline.plan._search import Found, search
from ringline.plan._search import Progress as Report
from ringline.plan._step import Work
from ringline.plan._why import Why, verdict, why
from ringline.topology import cluster


@dataclass(frozen=True)
class PlanFlags:
    """Find the best layouts of a training step, and say why others lost."""

    model: str = "llama3-70b"
    """A preset such as llama3-70b or mixtral-8x7b, or the path of a model's .toml file."""
    cluster: str = "4x v5p-128"
    """Such as '4x v5p-128', 'v6e-256', '64x h100', or the path of a cluster's .toml file."""
    batch: int = 256
    """Sequences of a step, over all chips."""
    length: int = 4096
    """Tokens of a sequence."""
    top: int = 10
    """How many layouts to show."""
    why: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="LAYOUT")] = ()
    """A layout to explain, such as 'stages=4,schedule=1f1b', with what is left out chosen best;
    may be given several times."""
    json: FileOrOutput = None
    """Write JSON to this file; `-` for standard output, which then holds nothing else."""


def run(flags: PlanFlags) -> int:
    """Search, print, and return the exit status: 0, or 2 where a layout asked about cannot run.

    Raises:
        ValueError: when nothing fits, with the layout that misses by least.
    """
    for name in ("batch", "length", "top"):
        if getattr(flags, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(flags, name)}")
    for asked in flags.why:
        parse_constraints(asked)
    work = Work(model(flags.model), cluster(flags.cluster), flags.batch, flags.length)
    with _progress() as report:
        found = search(work, top=flags.top, progress=report)
        answers = [why(work, found, asked) for asked in flags.why]
    if flags.json:
        write_text(flags.json, json_format.dumps(found_json(found, answers), indent=1) + "\n")
    if not found.plans:
        raise ValueError(verdict(found))
    if flags.json != "-":
        _print(found, answers)
    return BAD_INPUT if any(answer.plan is None for answer in answers) else 0


def _print(found: Found, answers: list[Why]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(plan_table(found))
    lines = [memory_line(found.plans[0]), verdict(found), considered_line(found)]
    for line in (*lines, *(f"why: {answer.sentence}" for answer in answers)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _progress():
    """A bar on the terminal; nothing where standard error is not one."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        SpinnerColumn(),
        *Progress.get_default_columns()[1:2],
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("", total=1.0)

        def report(share: float, doing: str) -> None:
            bar.update(task, completed=share, description=doing)

        shown: Report = report
        yield shown
