"""Measure a collective: time, bandwidths, the link's own speed beside it, every element checked.

Definitions, for n devices, T bytes (gathered, before a scatter, or reduced) and t seconds:
algbw = T / t; busbw = (n - 1) / n T / t, twice that for an all-reduce; linkbw = bytes over the
busiest directed link / t. The *microbenchmark* is one permute in which every device sends its next
neighbour as many bytes as the collective puts on its busiest link; the share of it is the permute's
time over the collective's. *In place*: the result is written over a buffer that is given away.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.stages import Compiled

from ringline.collectives._arguments import Directions, Implementation, default_directions
from ringline.collectives._hosts import MIN_STRIPE_BYTES, side_by_side
from ringline.collectives.measure._operations import ALL_GATHER, Operation
from ringline.collectives.measure._processes import any_text
from ringline.collectives.measure._shapes import TARGETED, Case
from ringline.collectives.measure._timing import Bench, Subject, time_interleaved
from ringline.topology import Ladder, Line, Rails, Ring, TopologyName, topology

# Above this, inputs of the other measurements are not kept in memory beside the one that runs.
_INTERLEAVED_MAX_BYTES = 2**29


@dataclass(frozen=True, slots=True)
class Setup:
    """What to run and how, and how often to repeat it."""

    operation: Operation = ALL_GATHER
    topology: TopologyName = "ring"
    devices: int = 4
    directions: Directions | None = None
    channels: int = 1
    per_host: Literal[1, 2] | None = None
    implementation: Implementation | None = "permute"
    iters: int = 20
    in_place: bool = True
    """Whether to time a gather in place, too."""
    bounds: bool = False
    """Whether to time what bounds a gather from below, too: `chained_us`, `fresh_us`,
    `placed_us`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case; times are medians. None where a value was not measured.

    Attributes:
        collective: what was measured.
        size_bytes: T, bytes of the array that is gathered, scattered or reduced.
        shape: of that array.
        dim: the dim along which it is gathered or scattered.
        dtype: element type.
        topology: `ring` or `line`.
        devices: n.
        directions: 1 or 2.
        channels: queues of a directed link.
        per_host: 2 where two devices of a host send one up and one down, else 1.
        implementation: the backend asked for; `auto` where the library chose.
        backend: the one that ran.
        iters: how many repeats the medians are over; fewer than asked for where one is slow.
        time_us: of one run.
        algbw_gb_s: T / t.
        busbw_gb_s: (n - 1) / n T / t; twice that for an all-reduce.
        linkbw_gb_s: bytes over the busiest directed link / t.
        link_bytes: those bytes.
        microbenchmark_us: one permute to the next neighbour of `link_bytes` on each device.
        share_of_microbenchmark: microbenchmark_us / time_us.
        builtin_us: what `jax.lax` has for it, on the same arrays.
        matmul_us: the matmul alone, where there is one.
        in_place_us: of one run that writes over a buffer, for a collective that can.
        in_place_busbw_gb_s: as busbw_gb_s, of that.
        chained_us: n - 1 permutes of a stripe, one after the other.
        fresh_us: writing as much fresh memory as the results of all devices take, once.
        placed_us: writing the own stripe n times over a buffer of the result's shape.
        wrong: elements, over all devices, whose bits are not what they should be.
        in_place_wrong: as wrong, of what was written over a buffer.
        skipped: why the row, or a part of it, was not measured.
    """

    collective: str
    size_bytes: int
    shape: tuple[int, ...]
    dim: int
    dtype: str
    topology: str
    devices: int
    directions: int
    channels: int
    per_host: int
    implementation: str
    backend: str | None = None
    iters: int | None = None
    time_us: float | None = None
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    linkbw_gb_s: float | None = None
    link_bytes: int | None = None
    microbenchmark_us: float | None = None
    share_of_microbenchmark: float | None = None
    builtin_us: float | None = None
    matmul_us: float | None = None
    in_place_us: float | None = None
    in_place_busbw_gb_s: float | None = None
    chained_us: float | None = None
    fresh_us: float | None = None
    placed_us: float | None = None
    wrong: int | None = None
    in_place_wrong: int | None = None
    skipped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)


def measure(case: Case, setup: Setup, *, max_bytes: int | None = None) -> Row:
    """Check and time one case.

    Args:
        case: shape, dim and element type of the array that is gathered, scattered or reduced.
        setup: what to run, and how.
        max_bytes: larger cases are skipped.

    Returns:
        The row. Cases that are larger than `max_bytes`, that need more memory than there is or
        that the devices cannot share evenly are skipped, with the reason.

    Raises:
        ValueError: when `setup` asks for what the collective refuses.
    """
    where = _topology(case, setup)
    directions = setup.directions or default_directions(
        where.name, where.devices, setup.implementation
    )
    schedule = setup.operation.schedule(where, directions=directions, channels=setup.channels)
    row = {
        "collective": setup.operation.name,
        "size_bytes": case.size_bytes,
        "shape": case.shape,
        "dim": case.dim,
        "dtype": case.dtype,
        "topology": setup.topology,
        "devices": setup.devices,
        "directions": directions,
        "channels": setup.channels,
        "per_host": 2 if isinstance(where, Rails) else 1,
        "implementation": setup.implementation or "auto",
        "link_bytes": round(schedule.busiest_link_bytes(case.size_bytes)),
    }
    reason = _why_skip(case, setup, max_bytes)
    if reason is not None:
        return Row(**row, skipped=reason)
    measured = _run(case, setup, where, row["link_bytes"])
    if "time_s" not in measured:
        return Row(**row, **measured)
    time_s = measured.pop("time_s")
    share = setup.operation.rounds * (setup.devices - 1) / setup.devices
    micro_us, in_place_us = measured["microbenchmark_us"], measured["in_place_us"]
    return Row(
        **row,
        **measured,
        time_us=time_s * 1e6,
        algbw_gb_s=case.size_bytes / time_s / 1e9,
        busbw_gb_s=share * case.size_bytes / time_s / 1e9,
        linkbw_gb_s=row["link_bytes"] / time_s / 1e9,
        in_place_busbw_gb_s=in_place_us and share * case.size_bytes / in_place_us / 1e3,
        share_of_microbenchmark=None if micro_us is None else micro_us / (time_s * 1e6),
    )


def targeted(operation: Operation) -> list[Case]:
    """The targeted cases that an operation can run: a matmul sums over the last dim."""
    return [c for c in TARGETED if not operation.matmul or c.dim < len(c.shape) - 1]


def sweep(
    begin_bytes: int,
    end_bytes: int,
    factor: int,
    dtype: str,
    devices: int,
    columns: int | None = None,
) -> list[Case]:
    """Cases from `begin_bytes` to `end_bytes`, each `factor` times the last.

    They are one-dimensional, or rows of `columns` elements. Sizes are rounded down to whole rows on
    each device, at least one.

    Raises:
        ValueError: for sizes out of order or a factor under 2.
    """
    if not 0 < begin_bytes <= end_bytes:
        raise ValueError(
            f"the sweep needs 0 < begin <= end, got {begin_bytes} and {end_bytes} bytes; "
            "change --begin or --end"
        )
    if factor < 2:
        raise ValueError(f"the sweep's factor must be at least 2, got {factor}; change --factor")
    cases, size = [], begin_bytes
    while size <= end_bytes:
        row_bytes = (columns or 1) * jnp.dtype(dtype).itemsize
        rows = devices * max(1, size // devices // row_bytes)
        cases.append(Case((rows,) if columns is None else (rows, columns), 0, dtype))
        size *= factor
    return list(dict.fromkeys(cases))


def available_bytes() -> int | None:
    """Memory of this host that a process may still take; None where it cannot be read."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit != "max":
            found.append(max(0, int(limit) - int(used)))
    except OSError:
        pass
    return min(found, default=None)


def _topology(case: Case, setup: Setup) -> Ring | Line | Rails:
    """Whose links are used: the hosts' where two devices of each share the work."""
    pairs = setup.operation.pairs and setup.per_host == 2
    if setup.operation.pairs and setup.per_host is None and setup.implementation is None:
        everyone = [device.process_index for device in jax.devices()]
        large = case.size_bytes // setup.devices >= MIN_STRIPE_BYTES
        fits = len(everyone) == setup.devices and setup.directions != 1
        pairs = jax.default_backend() == "cpu" and large and fits and side_by_side(everyone)
    if pairs and setup.devices % 2 == 0:
        return Ladder(topology(setup.topology, setup.devices // 2))
    return topology(setup.topology, setup.devices)


def _why_skip(case: Case, setup: Setup, max_bytes: int | None) -> str | None:
    if max_bytes is not None and case.size_bytes > max_bytes:
        return f"{case.size_bytes} bytes are more than the {max_bytes} of --max-bytes"
    if setup.operation.name == "all-reduce":
        rows = -(-prod(case.shape) // setup.devices)
    elif case.shape[case.dim] % setup.devices:
        return f"dim {case.dim} of {case.shape} does not divide by {setup.devices} devices"
    else:
        rows = case.shape[case.dim] // setup.devices
    if setup.channels > rows:
        return f"{setup.channels} channels are more than the {rows} rows of a shard"
    return None


def _too_large(needed_bytes: int, held_bytes: int = 0) -> str | None:
    """Why a run does not fit beside the `held_bytes` of its input that are allocated already."""
    available = available_bytes()
    if jax.default_backend() != "cpu" or available is None:
        return None
    if needed_bytes <= available + held_bytes:
        return None
    return f"needs {needed_bytes} bytes of memory, {available + held_bytes} are available"


def _run(case: Case, setup: Setup, where: Ring | Line | Rails, link_bytes: int) -> dict[str, Any]:
    """The measured fields of a row, and `time_s`; or only why it was skipped."""
    operation = setup.operation
    bench = Bench(operation, case, where)
    way = _way(case, setup)
    ours, builtin = bench.compile(way), bench.compile(operation.builtin(case.dim))
    reason = any_text(_too_large(bench.host_bytes(ours)))
    if reason is not None:
        return {"skipped": reason}
    skipped = []

    def fits(name: str, compiled: Compiled) -> bool:
        reason = any_text(_too_large(bench.host_bytes(compiled), held_bytes=bench.input_bytes))
        if reason is not None:
            skipped.append(f"{name} only: {reason}")
        return reason is None

    inputs = bench.inputs()
    wrong = bench.wrong(ours(*inputs))
    subjects = {"ours": Subject(ours, inputs)}
    if fits("the built-in", builtin):
        subjects["builtin"] = Subject(builtin, inputs)
    if operation.matmul:
        subjects["matmul"] = bench.bare_matmul()
    beside = _beside(bench, setup, inputs[0], link_bytes)
    also_in_place = setup.in_place and operation.in_place
    if also_in_place and fits("in place", in_place := bench.compile_in_place(way)):
        beside["in place"] = lambda: bench.over_buffer(in_place, inputs[0])
    interleaved = case.size_bytes <= _INTERLEAVED_MAX_BYTES
    if interleaved:
        subjects |= {name: make() for name, make in beside.items()}
    times = time_interleaved(subjects, setup.iters)
    wrong = max(wrong, bench.wrong(ours(*inputs)))
    over_buffer = subjects.get("in place")
    in_place_wrong = None if over_buffer is None else bench.wrong(over_buffer.run())
    del subjects, over_buffer
    for name, make in () if interleaved else beside.items():
        times |= time_interleaved({name: (subject := make())}, setup.iters)
        if name == "in place":
            in_place_wrong = bench.wrong(subject.run())
        del subject
    medians_us = {name: median(seconds) * 1e6 for name, seconds in times.items()}
    return {
        "time_s": median(times["ours"]),
        "backend": setup.implementation or _backend(ours),
        "iters": len(times["ours"]),
        "builtin_us": medians_us.get("builtin"),
        "microbenchmark_us": medians_us.get("micro"),
        "matmul_us": medians_us.get("matmul"),
        "in_place_us": medians_us.get("in place"),
        "chained_us": medians_us.get("chained"),
        "fresh_us": medians_us.get("fresh"),
        "placed_us": medians_us.get("placed"),
        "wrong": wrong,
        "in_place_wrong": in_place_wrong,
        "skipped": "; ".join(skipped) or None,
    }


def _backend(compiled: Compiled) -> str:
    """The one that the library chose."""
    return "permute" if "collective-permute" in (compiled.as_text() or "") else "xla"


def _beside(
    bench: Bench, setup: Setup, array: Array, link_bytes: int
) -> dict[str, Callable[[], Subject]]:
    """What is measured to compare with, made when it is run: large inputs are not all kept."""
    found: dict[str, Callable[[], Subject]] = {}
    if link_bytes:
        found["micro"] = lambda: bench.microbenchmark(link_bytes)
    if setup.bounds and setup.operation.in_place:
        found["chained"] = lambda: bench.chained_permutes(array)
        found["fresh"] = lambda: bench.fresh_result(array)
        found["placed"] = lambda: bench.placed(array)
    return found


def _way(case: Case, setup: Setup) -> Callable[..., Any]:
    """The public function with the options of `setup`."""
    pairs = {"per_host": setup.per_host} if setup.operation.pairs else {}
    return setup.operation.ours(
        case.dim,
        topology=setup.topology,
        directions=setup.directions,
        channels=setup.channels,
        implementation=setup.implementation,
        **pairs,
    )
