"""The error that every rejected schedule raises."""


class ScheduleError(ValueError):
    """A schedule that cannot be executed.

    The message names the stage (or device) and the step of the first fault, says what was
    expected and what was found, and ends with what to change.

    Attributes:
        device: index of the stage or device of the first fault, or None for a fault of the whole.
        step: index into that device's ordered list, or None.
    """

    def __init__(self, message: str, *, device: int | None = None, step: int | None = None):
        super().__init__(message)
        self.device = device
        self.step = step
