"""What `ringline check` and `ringline simulate` make of the flags of a collective."""

from typing import Literal

from ringline.schedule import CollectiveSchedule, Program, all_gather, grid_all_gather
from ringline.topology import Line, Ring, topology

Layout = Literal["ring", "line", "grid", "torus"]


def axes_of(layout: Layout, devices: int, rows: int | None) -> tuple[Ring | Line, ...]:
    """The axes of the devices: one of a ring or a line, two of a grid or a torus.

    Raises:
        ValueError: where `rows` is missing, not wanted, or does not divide the devices.
    """
    if layout in ("ring", "line"):
        if rows is not None:
            raise ValueError(f"--rows is for a grid or a torus, got a {layout}; drop --rows")
        return (topology(layout, devices),)
    if rows is None or rows < 1 or devices < 1 or devices % rows:
        raise ValueError(
            f"a {layout} needs --rows that divide its {devices} devices, got {rows}; "
            "change --rows or --devices"
        )
    kind = Line if layout == "grid" else Ring
    return (kind(rows), kind(devices // rows))


def all_gather_for(
    axes: tuple[Ring | Line, ...], directions: int, channels: int
) -> CollectiveSchedule | Program:
    """The all-gather over those axes."""
    if len(axes) == 1:
        return all_gather(axes[0], directions=directions, channels=channels)
    if channels != 1:
        raise ValueError(
            f"--channels must be 1 on a grid or a torus, which takes one for each half and axis; "
            f"got {channels}"
        )
    return grid_all_gather(*axes, directions=directions)
