"""What a person sees: a progress bar on a terminal, plain lines anywhere else."""

from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ringline.train._metrics import StepRecord

WIDE = 90  # columns that the bar with all its numbers needs


class Reporter:
    """Prints the course of a run.

    Args:
        stream: where to, or None to say nothing.
        every: steps between two plain lines.
    """

    def __init__(self, stream: TextIO | None, every: int):
        self.stream = stream
        self.every = every
        self.terminal = stream is not None and stream.isatty()
        self._bar: Progress | None = None
        self._task = None
        self._wide = True

    def say(self, text: str) -> None:
        """One line, as it is."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self.stream is not None:
            print(text, file=self.stream, flush=True)

    def start(self, name: str, done: int, steps: int) -> None:
        """Training begins, with `done` of `steps` behind it."""
        if not self.terminal:
            return
        console = Console(file=self.stream)
        self._wide = console.width >= WIDE
        first = [TextColumn("{task.description}"), BarColumn()] if self._wide else []
        self._bar = Progress(
            *first,
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(name, total=steps, completed=done, numbers="")
        self._bar.start()

    def step(self, record: StepRecord, last: bool) -> None:
        """A step is done."""
        if self._bar is not None and self._task is not None:
            numbers = f"loss {record.loss:.3f}"
            if self._wide:
                numbers += (
                    f"  {record.tokens_per_s:,.0f} tokens/s  "
                    f"mfu {record.mfu:.2f}  bubble {record.bubble:.2f}"
                )
            self._bar.update(self._task, completed=record.step, numbers=numbers)
        elif record.step % self.every == 0 or record.step == 1 or last:
            self.say(record.line())

    def stop(self) -> None:
        """Training ended."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
