"""What the processes of a measurement have to agree on; nothing to do where there is one."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def wait_for_all() -> None:
    """Go on when every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("ringline.measure")


def largest(values: np.ndarray) -> np.ndarray:
    """Per element the largest of all processes' `values`, to 32-bit precision."""
    return _gathered(values).max(axis=0)


def total(count: int) -> int:
    """The sum of all processes' `count`."""
    return int(_gathered(np.array(min(count, 2**31 - 1), np.int32)).astype(np.int64).sum())


def any_text(text: str | None) -> str | None:
    """`text` of this process, or that another one has some; every process must ask."""
    if not total(int(text is not None)):
        return None
    return text or "another process cannot run it"


def _gathered(values: np.ndarray) -> np.ndarray:
    if jax.process_count() == 1:
        return values[None]
    return np.asarray(multihost_utils.process_allgather(values))
