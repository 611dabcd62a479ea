"""Round numbers for a time axis."""

import math


def ticks(start_s: float, end_s: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `start_s` to `end_s`, at most about `most`.

    Example:
        >>> ticks(0.0, 33.0, 8)
        [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    """
    span = end_s - start_s
    if span <= 0:
        return [start_s]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= span / most * (1 - 1e-9))
    first, last = math.ceil(start_s / step - 1e-9), math.floor(end_s / step + 1e-9)
    return [k * step for k in range(first, last + 1)]
