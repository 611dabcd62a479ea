"""Types of optional flags, whose help says what they take and not that they are None at first."""

from pathlib import Path
from typing import Annotated, Any, Final

import tyro

WRITTEN: Final = "a file that the command writes at its end"


def takes(metavar: str) -> Any:
    """What to annotate a flag with that is unset by default: its help shows `metavar` alone."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Whole = Annotated[int | None, takes("INT")]
InputFile = Annotated[Path | None, takes("FILE")]
File = Annotated[Path | None, takes("FILE"), WRITTEN]
FileOrOutput = Annotated[str | None, takes("FILE|-"), WRITTEN]
