"""`ringline validate`: predictions beside published and measured numbers."""

import json as json_format
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ringline.cli._files import write_text
from ringline.cli._flag_types import File, FileOrOutput, InputFile
from ringline.plan.validate import CHECKS, Figure, Options, Report, markdown
from ringline.plan.validate._vtrain import read_runs
from ringline.topology._tables import nearest


@dataclass(frozen=True)
class ValidateFlags:
    """Compare what the package predicts with what others published or measured."""

    only: Annotated[
        tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="CHECK")
    ] = ()
    """Checks to run, such as korthikanti; all if left out; may be given several times."""
    vtrain: InputFile = None
    """vTrain's single-node ground truth, a CSV file; without it that check is skipped."""
    failures: bool = False
    """Show only the figures that fail."""
    markdown: File = None
    """Write the report as a page with a table for each check, fit rows apart from test rows."""
    json: FileOrOutput = None
    """Write JSON to this file; `-` for standard output, which then holds nothing else."""


def run(flags: ValidateFlags) -> int:
    """Run the checks, print, and return 0, or 1 when a figure is out of its tolerance."""
    only = tuple(chain(*flags.only))
    for name in only:
        if name not in CHECKS:
            raise ValueError(f"unknown check {name!r}{nearest(name, CHECKS)}")
    names = only or tuple(CHECKS)
    if flags.vtrain and "vtrain" in names:
        read_runs(flags.vtrain)  # now, so that a bad file is not found out after other checks
    reports = []
    console = Console() if sys.stdout.isatty() else Console(width=140)
    for number, name in enumerate(names, start=1):
        reports.append(_checked(name, f"{number} of {len(names)}: {name}", flags.vtrain))
        if flags.json != "-":
            _print(console, reports[-1], flags.failures)
    if flags.markdown:
        command = f"ringline validate --markdown {flags.markdown.name}"
        if flags.vtrain:
            command += f" --vtrain {flags.vtrain.name}"
        write_text(flags.markdown, markdown(reports, command=command))
    if flags.json:
        found = [report.as_json() for report in reports]
        write_text(flags.json, json_format.dumps(found, indent=1) + "\n")
    return 1 if any(report.failures for report in reports) else 0


def _checked(name: str, title: str, vtrain: Path | None) -> Report:
    """Run one check and say on standard error which, as a line or as a moving status."""
    start_s = time.monotonic()
    if not sys.stderr.isatty():
        print(f"check {title}", file=sys.stderr, flush=True)
        report = CHECKS[name](
            Options(vtrain, lambda doing: print(f"  {doing}", file=sys.stderr, flush=True))
        )
        print(f"  took {time.monotonic() - start_s:.1f} s", file=sys.stderr, flush=True)
        return report
    with Console(stderr=True).status(f"check {title}") as status:
        return CHECKS[name](Options(vtrain, lambda doing: status.update(f"check {title}, {doing}")))


def _print(console: Console, report: Report, only_failures: bool) -> None:
    if report.skipped:
        console.print(f"{report.name}: skipped, {report.skipped}\n", highlight=False)
        return
    shown = report.failures if only_failures else report.figures
    if not shown:
        console.print(f"{report.name}: {report.title}. {_summary(report)}\n", highlight=False)
        return
    table = Table(
        title=f"{report.name}: {report.title}",
        caption=f"{report.source}. {_summary(report)}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("figure", overflow="fold")
    for name in ("predicted", "published", "error"):
        table.add_column(name, justify="right")
    table.add_column("")
    for figure in shown:
        table.add_row(
            figure.name + (" (fit)" if figure.fit else ""),
            f"{figure.predicted:.5g} {figure.unit}",
            f"{figure.published:.5g}",
            _error(figure),
            {True: "ok", False: "[bold red]off[/]", None: ""}[figure.passes],
        )
    console.print(table)
    for note in report.notes:
        console.print(f"  {note}", highlight=False, markup=False)
    console.print()


def _error(figure: Figure) -> str:
    error = f"{figure.error:+.2%}" if figure.relative else f"{figure.error:+.2g}"
    if figure.bounds and figure.relative:
        return f"{error} (bounds {figure.bounds[0]:.4g} to {figure.bounds[1]:.4g})"
    return error


def _summary(report: Report) -> str:
    checked = sum(figure.passes is not None for figure in report.figures)
    return f"{checked - len(report.failures)} of {checked} figures within their tolerance."
