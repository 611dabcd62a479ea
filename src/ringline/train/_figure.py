"""The look that the trainer's plots share."""

from typing import Any


def figure(width: float, height: float, rows: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, drawn without a display; `rows` axes share the x axis.

    Raises:
        ModuleNotFoundError: without matplotlib, which the extra `plot` brings.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, 1, sharex=True)
    for one in axes if rows > 1 else (axes,):
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        one.set_axisbelow(True)
        one.margins(x=0.01)
    return fig, axes
