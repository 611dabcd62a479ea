"""Reports as a Markdown page: an overview, then each check with its test rows and its fit rows."""

import statistics
from collections.abc import Iterable, Sequence

from ringline.plan.validate._figure import Figure, Report

_INTRODUCTION = """\
# Accuracy

What this package predicts beside what others published or measured, as `ringline validate` finds
it. Made by

```
{command}
```

**Test rows** had no part in choosing a parameter; **fit rows** had. An error is predicted minus
published, over published where it has a percent sign. A row *holds* when its error is within the
tolerance; rows without one are reported only.
"""


def markdown(reports: Sequence[Report], *, command: str = "ringline validate") -> str:
    """The page of `reports`.

    Args:
        reports: what the checks found.
        command: what makes the page again.

    Returns:
        Markdown with tables.
    """
    blocks = [_INTRODUCTION.format(command=command), "## Overview", _overview(reports)]
    for report in reports:
        blocks += _section(report)
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _overview(reports: Iterable[Report]) -> str:
    rows = []
    for report in reports:
        if report.skipped:
            rows.append((f"[{report.name}](#{report.name})", "skipped", "", "", ""))
            continue
        judged = [figure for figure in report.figures if figure.passes is not None]
        held = f"{len(judged) - len(report.failures)} of {len(judged)}"
        test, fit = (_mean(report, fit=fit) for fit in (False, True))
        rows.append((f"[{report.name}](#{report.name})", report.title, held, test, fit))
    return _table(("check", "what", "hold", "mean error, test", "mean error, fit"), rows)


def _mean(report: Report, *, fit: bool) -> str:
    """Mean of the absolute errors where they are shares of something published."""
    errors = [abs(f.error) for f in report.figures if f.fit == fit and f.relative]
    return f"{statistics.fmean(errors):.1%} of {len(errors)}" if errors else ""


def _section(report: Report) -> list[str]:
    blocks = [f"## {report.name}", f"{_escaped(report.title)}. Source: {_escaped(report.source)}."]
    if report.skipped:
        return [*blocks, f"Skipped: {report.skipped}."]
    for title, fit in (("Test rows", False), ("Fit rows", True)):
        rows = [figure for figure in report.figures if figure.fit == fit]
        pairs = [figure for figure in rows if not figure.is_difference]
        differences = [figure for figure in rows if figure.is_difference]
        if rows:
            blocks.append(f"### {title}")
        if pairs:
            blocks.append(_pairs(pairs))
        if differences:
            blocks.append(_differences(differences))
    return [*blocks, "\n".join(f"- {_escaped(note)}" for note in report.notes)]


def _pairs(figures: Iterable[Figure]) -> str:
    rows = [
        (
            figure.name,
            f"{figure.predicted:.5g}",
            f"{figure.published:.5g}",
            figure.unit,
            _error(figure),
            _allowed(figure),
            _verdict(figure),
        )
        for figure in figures
    ]
    heads = ("figure", "predicted", "published", "unit", "error", "allowed", "")
    return _table(heads, rows, right={1, 2, 4, 5})


def _differences(figures: Iterable[Figure]) -> str:
    rows = [
        (
            figure.name,
            f"{figure.predicted:.3g}",
            figure.unit,
            _allowed(figure),
            _verdict(figure),
        )
        for figure in figures
    ]
    return _table(("figure", "value", "unit", "at most", ""), rows, right={1, 3})


def _error(figure: Figure) -> str:
    return f"{figure.error:+.2%}" if figure.relative else f"{figure.error:+.2g}"


def _allowed(figure: Figure) -> str:
    parts = []
    if figure.tolerance is not None:
        parts.append(
            f"{figure.tolerance:.3g}" if not figure.relative else f"{100 * figure.tolerance:.3g}%"
        )
    if figure.bounds is not None:
        between = f"{figure.bounds[0]:.4g} to {figure.bounds[1]:.4g}"
        parts.append(between if figure.relative or not figure.note else "")
    return "; ".join(filter(None, (*parts, figure.note)))


def _verdict(figure: Figure) -> str:
    return {True: "holds", False: "**off**", None: ""}[figure.passes]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    rule = ["---:" if column in set(right) else "---" for column in range(len(heads))]
    return "\n".join(_line(cells) for cells in (heads, rule, *rows))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
