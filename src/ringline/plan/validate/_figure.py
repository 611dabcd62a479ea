"""`Figure` and `Report`: what was predicted, what was published, and how far apart they are."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One predicted number beside the published one.

    Attributes:
        name: what it is.
        predicted: by this package.
        published: by its source.
        unit: of both.
        tolerance: largest error that passes, None where the error is only reported.
        relative: whether the error is a share of the published number.
        fit: whether the number was used to choose parameters.
        bounds: lower and upper bound of the prediction, to hold the published number.
        note: what there is to say.
    """

    name: str
    predicted: float
    published: float
    unit: str = ""
    tolerance: float | None = None
    relative: bool = True
    fit: bool = False
    bounds: tuple[float, float] | None = None
    note: str = ""

    @property
    def error(self) -> float:
        """Predicted minus published, over published where `relative`."""
        difference = self.predicted - self.published
        return difference / self.published if self.relative else difference

    @property
    def is_difference(self) -> bool:
        """Whether it is an error or a difference itself, and not a pair of numbers."""
        return self.published == 0 and not self.relative

    @property
    def passes(self) -> bool | None:
        """Whether it is within its tolerance and bounds; None where it has neither."""
        verdicts = []
        if self.tolerance is not None:
            verdicts.append(abs(self.error) <= self.tolerance)
        if self.bounds is not None:
            verdicts.append(self.bounds[0] <= self.published <= self.bounds[1])
        return all(verdicts) if verdicts else None


@dataclass(frozen=True, slots=True)
class Report:
    """What one check found.

    Attributes:
        name: of the check.
        title: what it compares.
        source: where the published numbers come from.
        figures: one by one.
        notes: what is open, and why a figure resists.
        skipped: why it did not run, or an empty text.
    """

    name: str
    title: str
    source: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def failures(self) -> tuple[Figure, ...]:
        """Figures that are out of their tolerance or bounds."""
        return tuple(figure for figure in self.figures if figure.passes is False)

    def errors(self, *, fit: bool) -> list[float]:
        """Absolute errors of the fit rows, or of the test rows."""
        pairs = (figure for figure in self.figures if not figure.is_difference)
        return [abs(figure.error) for figure in pairs if figure.fit == fit]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "skipped": self.skipped or None,
            "passed": not self.failures and not self.skipped,
            "figures": [
                {
                    "name": figure.name,
                    "predicted": figure.predicted,
                    "published": figure.published,
                    "unit": figure.unit,
                    "error": figure.error,
                    "error_is": "relative" if figure.relative else "absolute",
                    "tolerance": figure.tolerance,
                    "bounds": list(figure.bounds) if figure.bounds else None,
                    "used_to_fit": figure.fit,
                    "passes": figure.passes,
                    "note": figure.note,
                }
                for figure in self.figures
            ],
            "summary": {
                kind: _summary(self.errors(fit=fit))
                for kind, fit in (("test", False), ("fit", True))
                if self.errors(fit=fit)
            },
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Options:
    """What checks need from outside.

    Attributes:
        vtrain: path of vTrain's single-node ground truth, or None.
        progress: called with what a slow check is doing.
    """

    vtrain: Path | None = None
    progress: Callable[[str], None] = lambda doing: None


Check = Callable[[Options], Report]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register a check under `name`."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def _summary(errors: list[float]) -> dict[str, float]:
    return {
        "figures": len(errors),
        "median_error": statistics.median(errors),
        "mean_error": statistics.fmean(errors),
        "largest_error": max(errors),
    }
