"""Times and sizes as people read them."""

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def time_text(seconds: float) -> str:
    """A duration with four significant digits.

    Example:
        >>> time_text(0.0125), time_text(33.0), time_text(0)
        ('12.5 ms', '33 s', '0 s')
    """
    scale, unit = next(((s, u) for s, u in _TIMES if abs(seconds) >= s * 0.99995), (1.0, "s"))
    if abs(seconds) < _TIMES[-1][0]:
        return "0 s"
    return f"{float(f'{seconds / scale:.4g}'):g} {unit}"


def size_text(size_bytes: int) -> str:
    """A size in binary units.

    Example:
        >>> size_text(3 * 2**20)
        '3 MiB'
    """
    scale, unit = next(((s, u) for s, u in _SIZES if size_bytes >= s), (1, "B"))
    return f"{size_bytes / scale:.4g} {unit}"


def counts_text(counts: tuple[int, ...]) -> str:
    """One count for each stage, shortened when all are equal.

    Example:
        >>> counts_text((8, 8)), counts_text((2, 1))
        ('8 each', '2 1')
    """
    if len(counts) > 1 and len(set(counts)) == 1:
        return f"{counts[0]} each"
    return " ".join(map(str, counts))
