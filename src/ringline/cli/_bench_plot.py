"""The picture of a bench: bandwidth against size, beside the built-in and what the link allows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringline.collectives.measure import Row

# What each curve would have taken, and how it looks.
_CURVES = (
    ("as fast as one permute", "microbenchmark_us", "#8a8a8a", "--", ""),
    ("the built-in", "builtin_us", "#c1440e", "-", "s"),
    ("ringline", "time_us", "#1f4e8c", "-", "o"),
)


def plot_bandwidth(rows: Sequence["Row"], path: Path, title: str) -> None:
    """Draw the bus bandwidth of every measured row against its size.

    Args:
        rows: of one sweep.
        path: the picture's.
        title: one line.

    Raises:
        ModuleNotFoundError: without matplotlib, which the extra `plot` brings.
        ValueError: when no row was measured.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    from ringline.train._figure import figure

    measured = sorted((row for row in rows if row.time_us), key=lambda row: row.size_bytes)
    if not measured:
        raise ValueError(
            "nothing was measured that could be drawn; change the sweep, or --max-bytes"
        )
    fig, axes = figure(8, 4.6)
    for label, field, color, style, marker in _CURVES:
        points = [
            (row.size_bytes, row.busbw_gb_s * row.time_us / time_us)
            for row in measured
            if row.busbw_gb_s and row.time_us and (time_us := getattr(row, field))
        ]
        if points:
            axes.plot(
                *zip(*points),
                label=label,
                color=color,
                linestyle=style,
                marker=marker,
                markersize=4,
                linewidth=1.6,
            )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=16 if len(measured) > 12 else 4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _binary(size)))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    axes.set_xlabel("size of the array")
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.legend(loc="upper left", frameon=False)
    axes.set_title(title, loc="left", fontsize=11)
    fig.savefig(path, dpi=150)


def _binary(size: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"
