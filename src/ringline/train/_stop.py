"""Ctrl-C and SIGTERM as a wish that the loop looks at, so that a step is never cut short."""

import signal
import threading
from types import TracebackType


class StopRequest:
    """Within the block the first signal sets `wanted`; a second one acts as usual."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.wanted = False
        self._before = {}

    def __enter__(self) -> "StopRequest":
        # Only the main thread may set handlers; elsewhere the caller's rules hold.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in self.SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame) -> None:
        self.wanted = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
