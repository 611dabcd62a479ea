"""What `ringline check` and `ringline simulate` make of the flags of a collective."""

from pathlib import Path
from typing import Literal, get_args

from ringline.schedule import (
    CollectiveSchedule,
    Program,
    all_gather,
    all_reduce,
    grid_all_gather,
    reduce_scatter,
)
from ringline.topology import Line, Ring, topology
from ringline.topology._tables import nearest

Collective = Literal["all-gather", "reduce-scatter", "all-reduce"]
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


def schedule_of(
    collective: Collective, axes: tuple[Ring | Line, ...], directions: int, channels: int
) -> CollectiveSchedule | Program:
    """The schedule of a collective over those axes."""
    if len(axes) == 1:
        make = {
            "all-gather": all_gather,
            "reduce-scatter": reduce_scatter,
            "all-reduce": all_reduce,
        }[collective]
        return make(axes[0], directions=directions, channels=channels)
    if collective != "all-gather":
        raise ValueError(
            f"a grid or a torus has an all-gather only, got {collective}; use a ring or a line"
        )
    if channels != 1:
        raise ValueError(
            f"--channels must be 1 on a grid or a torus, which takes one for each half and axis; "
            f"got {channels}"
        )
    return grid_all_gather(*axes, directions=directions)


def read_collective(name: str) -> Collective | CollectiveSchedule:
    """The name of a collective, or the schedule in the text file of that name.

    Raises:
        ValueError: for a name that is neither, with the nearest ones.
        ScheduleError: for a file whose schedule is wrong.
    """
    for known in get_args(Collective):
        if name == known:
            return known
    if not Path(name).is_file():
        raise ValueError(
            f"{name!r} is no collective and no text file of a schedule"
            f"{nearest(name, get_args(Collective))}"
        )
    schedule = CollectiveSchedule.from_text(Path(name).read_text(encoding="utf-8"))
    schedule.validate()
    return schedule
