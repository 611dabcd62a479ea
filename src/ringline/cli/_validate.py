"""`ringline validate`: predictions beside published and measured numbers."""

import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ringline.plan.validate import CHECKS, Figure, Options, Report
from ringline.topology._tables import nearest


@dataclass(frozen=True)
class ValidateFlags:
    """Compare what the package predicts with what others published or measured."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CHECK")] = ()
    """Checks to run, such as korthikanti; all if left out."""
    vtrain: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """vTrain's single-node ground truth, a CSV file; without it that check is skipped."""
    failures: bool = False
    """Show only the figures that fail."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE|-")] = None
    """Write JSON to this file; `-` for standard output, which then holds nothing else."""


def run(flags: ValidateFlags) -> int:
    """Run the checks, print, and return 0, or 1 when a figure is out of its tolerance."""
    for name in flags.only:
        if name not in CHECKS:
            raise ValueError(f"unknown check {name!r}{nearest(name, CHECKS)}")
    names = flags.only or tuple(CHECKS)
    reports = []
    console = Console()
    waiting = Console(stderr=True)
    for name in names:
        if sys.stderr.isatty():
            with waiting.status(f"checking {name}"):
                reports.append(CHECKS[name](Options(flags.vtrain)))
        else:
            reports.append(CHECKS[name](Options(flags.vtrain)))
        if flags.json != "-":
            _print(console, reports[-1], flags.failures)
    if flags.json:
        text = json_format.dumps([report.as_json() for report in reports], indent=1)
        if flags.json == "-":
            print(text)
        else:
            Path(flags.json).write_text(text + "\n", encoding="utf-8")
    return 1 if any(report.failures for report in reports) else 0


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
