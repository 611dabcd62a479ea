"""The table of `ringline bench`: nccl-tests' columns and what is measured beside them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringline.collectives.measure import Operation, Row

Column = tuple[str, int, Callable[["Row"], Any]]
"""Heading, width, and the text of a row."""


def columns_of(operation: "Operation", link_gb_s: float | None) -> list[Column]:
    """The columns for an operation; the line rate of a link adds one."""
    matmul: list[Column] = [("matmul(us)", 11, lambda r: _time(r.matmul_us))]
    line: list[Column] = [("of line", 7, lambda r: _share(link_share(r, link_gb_s)))]
    in_place: list[Column] = [
        ("in place(us)", 12, lambda r: _time(r.in_place_us)),
        ("ip busbw", 8, lambda r: _rate(r.in_place_busbw_gb_s)),
        ("ip wrong", 8, lambda r: _count(r.in_place_wrong)),
    ]
    return [
        ("size(B)", 11, lambda r: r.size_bytes),
        ("count", 10, lambda r: count_of(operation, r)),
        ("type", 8, lambda r: r.dtype),
        ("redop", 5, lambda r: redop_of(operation)),
        ("topo", 4, lambda r: r.topology),
        ("dir", 3, lambda r: r.directions),
        ("chan", 4, lambda r: r.channels),
        ("host", 4, lambda r: r.per_host),
        ("backend", 7, lambda r: r.backend or "-"),
        ("time(us)", 10, lambda r: _time(r.time_us)),
        ("algbw", 7, lambda r: _rate(r.algbw_gb_s)),
        ("busbw", 7, lambda r: _rate(r.busbw_gb_s)),
        ("linkbw", 7, lambda r: _rate(r.linkbw_gb_s)),
        *(line if link_gb_s is not None else ()),
        ("share", 6, lambda r: _share(r.share_of_microbenchmark)),
        ("permute(us)", 11, lambda r: _time(r.microbenchmark_us)),
        ("builtin(us)", 11, lambda r: _time(r.builtin_us)),
        *(matmul if operation.matmul else ()),
        ("#wrong", 6, lambda r: _count(r.wrong)),
        *(in_place if operation.in_place else ()),
        ("shape", 20, lambda r: f"{'x'.join(map(str, r.shape))}@{r.dim}"),
    ]


def head(operation: "Operation", columns: list[Column], title: str) -> str:
    """What stands above the rows."""
    rounds = "2(n-1)/n" if operation.rounds == 2 else "(n-1)/n"
    in_place = "# in place (ip): written over a buffer that is given away (out=, donated)"
    line = "# of line: linkbw as a share of the line rate that --link-gb-s gives"
    names = [name for name, _, _ in columns]
    lines = [
        f"# {operation.name}, {title}; medians; sizes binary, GB/s decimal",
        f"# size: the {operation.array}; busbw = {rounds} size/time; "
        "linkbw = bytes over the busiest directed link / time",
        "# share = permute(us) / time(us); the permute moves the busiest link's bytes one hop",
        *([line] if "of line" in names else ()),
        *([in_place] if operation.in_place else ()),
        "# host: devices that share the links between hosts, one sending up and one down",
        "# " + " ".join(f"{name:>{width}}" for name, width, _ in columns),
    ]
    return "\n".join(lines)


def line_of(row: "Row", columns: list[Column]) -> str:
    """One row; where it was skipped, the reason on a line of its own."""
    text = "  " + " ".join(f"{cell(row)!s:>{width}}" for _, width, cell in columns)
    return text if row.skipped is None else f"{text}\n#   skipped: {row.skipped}"


def foot(rows: "list[Row]") -> str:
    """How many elements were wrong, and the mean bandwidth."""
    average = average_busbw(rows)
    if average is None:
        return "# Nothing was measured: every case was skipped"
    wrong = wrong_in(rows)
    return (
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n"
        f"# Avg bus bandwidth    : {average:.4g} GB/s"
    )


def wrong_in(rows: "list[Row]") -> int:
    """Elements that are not what they should be."""
    return sum((row.wrong or 0) + (row.in_place_wrong or 0) for row in rows)


def average_busbw(rows: "list[Row]") -> float | None:
    """Mean bus bandwidth of what was measured, in GB/s."""
    busbw = [row.busbw_gb_s for row in rows if row.busbw_gb_s is not None]
    return sum(busbw) / len(busbw) if busbw else None


def redop_of(operation: "Operation") -> str:
    """The reduction, as nccl-tests calls it."""
    return "sum" if operation.sums else "none"


def count_of(operation: "Operation", row: "Row") -> int:
    """Elements as nccl-tests counts them: of a reduce-scatter and an all-gather, per device."""
    import jax.numpy as jnp

    elements = row.size_bytes // jnp.dtype(row.dtype).itemsize
    return elements // row.devices if operation.rounds == 1 else elements


def link_share(row: "Row", link_gb_s: float | None) -> float | None:
    """linkbw as a share of the line rate."""
    if link_gb_s is None or row.linkbw_gb_s is None:
        return None
    return row.linkbw_gb_s / link_gb_s


def _time(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _count(count: int | None) -> str:
    return "-" if count is None else str(count)


def _rate(gb_s: float | None) -> str:
    """At most seven characters."""
    if gb_s is None:
        return "-"
    if gb_s >= 1000:
        return f"{gb_s:.0f}"
    return f"{gb_s:.3g}" if gb_s >= 0.001 or gb_s == 0 else f"{gb_s:.1e}"
