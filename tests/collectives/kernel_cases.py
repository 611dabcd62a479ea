"""What the tests of the TPU kernels share: emulated chips that report races, and the forms."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax.experimental.pallas import tpu as pltpu

KERNELS: tuple[dict[str, Any], ...] = (
    {"implementation": "pallas", "topology": "ring", "directions": 1},
    {"implementation": "pallas", "topology": "ring", "directions": 2},
    {"implementation": "pallas", "topology": "line", "directions": 1},
    {"implementation": "pallas", "topology": "line", "directions": 2},
)
"""The kernels' schedules."""


@contextmanager
def emulated(seed: int = 0) -> Generator[None]:
    """Run kernels as on TPUs: copies as late as their waits allow, and races are printed."""
    np.random.seed(seed)  # noqa: NPY002, which copies count as side by side
    with pltpu.force_tpu_interpret_mode(
        pltpu.InterpretParams(dma_execution_mode="on_wait", detect_races=True, random_seed=seed)
    ):
        yield


def assert_clean(printed: str) -> None:
    """No race was found, and every semaphore was zero at the end of its kernel."""
    assert "RACE DETECTED" not in printed
    assert "non-zero count" not in printed


def fault_seen(run: Callable[[], Any], expected: np.ndarray, printed: Callable[[], str]) -> bool:
    """Whether a race is reported, or the values are wrong."""
    try:
        wrong = not np.array_equal(run(), expected)
    except RuntimeError as error:
        # Newer versions of JAX stop at the first race.
        pltpu.reset_tpu_interpret_mode_state()
        return "RACE DETECTED" in str(error)
    return wrong or "RACE DETECTED" in printed()
