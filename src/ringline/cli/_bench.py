"""`ringline bench COLLECTIVE`: nccl-tests' table for the collectives on a ring and a line."""

import importlib.util
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from ringline.cli._bench_table import (
    average_busbw,
    columns_of,
    count_of,
    foot,
    head,
    line_of,
    link_share,
    redop_of,
    wrong_in,
)
from ringline.cli._files import write_text
from ringline.cli._flag_types import File, FileOrOutput, Whole, takes
from ringline.cli._sizes import read_bytes

if TYPE_CHECKING:
    from ringline.collectives.measure import Case, Operation, Row, Setup

_MAX_EMULATED_DEVICES = 64
_PICTURES = (".png", ".svg", ".pdf")
_WAYS = {1: "one direction", 2: "both directions"}


@dataclass(frozen=True, slots=True)
class _Flags:
    """What all collectives' commands take."""

    collective: ClassVar[str]

    topology: Literal["ring", "line"] = "ring"
    """How the devices are linked."""
    devices: int = 4
    """n, how many of the devices take part."""
    directions: Annotated[Literal[1, 2] | None, takes("1|2")] = None
    """How many directions of a link work at the same time; auto: as the library chooses."""
    channels: int = 1
    """Queues of a directed link that share each send."""
    per_host: Annotated[Literal[1, 2] | None, takes("1|2")] = None
    """2: hosts have two devices each, one sends up and one down; auto finds that by itself."""
    implementation: Literal["permute", "xla", "pallas", "auto"] = "permute"
    """permute sends between neighbours; xla is the built-in; auto lets ringline choose."""
    cases: Literal["sweep", "targeted"] = "sweep"
    """A sweep over sizes, or the shapes x 2 element types of 4-chip decoder LMs."""
    begin: Annotated[str, tyro.conf.arg(aliases=["-b"], metavar="BYTES")] = "8"
    """Smallest size of the sweep: all of the array; K, M, G and KiB, MiB, GiB are binary."""
    end: Annotated[str, tyro.conf.arg(aliases=["-e"], metavar="BYTES")] = "64MiB"
    """Largest size of the sweep."""
    factor: Annotated[int, tyro.conf.arg(aliases=["-f"])] = 2
    """Each size of the sweep is this many times the one before."""
    dtype: Literal["bfloat16", "float16", "float32", "int32", "uint8"] = "bfloat16"
    """Element type of the sweep."""
    max_bytes: Annotated[str | None, takes("BYTES")] = None
    """Skip cases whose array is larger."""
    iters: int = 20
    """Repeats that the medians are over; slow cases stop after 20 s, two repeats at least."""
    link_gb_s: Annotated[float | None, takes("GB/S")] = None
    """Line rate of one direction of a link; adds linkbw's share of it."""
    coordinator: Annotated[str | None, takes("HOST:PORT")] = None
    """For several processes: host:port of process 0."""
    process_id: Whole = None
    """For several processes: the number of this one, from 0."""
    num_processes: Whole = None
    """For several processes: how many."""
    json: FileOrOutput = None
    """Write the rows; `-` for standard output, and the table goes to standard error."""
    plot: File = None
    """Draw bandwidth against size, beside the built-in: a .png, .svg or .pdf file."""


@dataclass(frozen=True, slots=True)
class AllGather(_Flags):
    """Measure the all-gather on a ring or a line, checking every element.

    Sizes are of the gathered array. Beside it, in the same run: the link's microbenchmark (one
    permute to the next neighbour of as many bytes as the busiest link carries) and the built-in
    all-gather. Without accelerators the devices are emulated on the CPU.
    """

    collective: ClassVar[str] = "all-gather"


@dataclass(frozen=True, slots=True)
class ReduceScatter(_Flags):
    """Measure the reduce-scatter on a ring or a line, checking every element.

    Sizes are of the array before the scatter. Beside it, in the same run: the link's microbenchmark
    (one permute to the next neighbour of as many bytes as the busiest link carries) and the
    built-in reduce-scatter. Without accelerators the devices are emulated on the CPU.
    """

    collective: ClassVar[str] = "reduce-scatter"


@dataclass(frozen=True, slots=True)
class AllReduce(_Flags):
    """Measure the all-reduce on a ring or a line, checking every element.

    Sizes are of the array. Beside it, in the same run: the link's microbenchmark (one permute to
    the next neighbour of as many bytes as the busiest link carries) and the built-in all-reduce.
    Without accelerators the devices are emulated on the CPU.
    """

    collective: ClassVar[str] = "all-reduce"


@dataclass(frozen=True, slots=True)
class _MatmulFlags(_Flags):
    """What the fused collectives' commands take besides."""

    begin: Annotated[str, tyro.conf.arg(aliases=["-b"], metavar="BYTES")] = "64KiB"
    """Smallest size of the sweep: all of the array; K, M, G and KiB, MiB, GiB are binary."""
    end: Annotated[str, tyro.conf.arg(aliases=["-e"], metavar="BYTES")] = "4MiB"
    """Largest size of the sweep."""
    columns: int = 512
    """k of the sweep: arrays are [rows, k], the matrix is [k, k]."""


@dataclass(frozen=True, slots=True)
class AllGatherMatmul(_MatmulFlags):
    """Measure the all-gather that a matmul is fused with, checking every element.

    Sizes are of the gathered array. Beside it, in the same run: the link's microbenchmark (one
    permute to the next neighbour of as many bytes as the busiest link carries), the built-in
    all-gather and then the matmul, and the matmul alone. Without accelerators the devices are
    emulated on the CPU.
    """

    collective: ClassVar[str] = "all-gather-matmul"


@dataclass(frozen=True, slots=True)
class MatmulReduceScatter(_MatmulFlags):
    """Measure the reduce-scatter that a matmul is fused with, checking every element.

    Sizes are of the product before the scatter. Beside it, in the same run: the link's
    microbenchmark (one permute to the next neighbour of as many bytes as the busiest link carries),
    the matmul and then the built-in reduce-scatter, and the matmul alone. Without accelerators the
    devices are emulated on the CPU.
    """

    collective: ClassVar[str] = "matmul-reduce-scatter"


def run(flags: _Flags) -> int:
    """Measure, print and write what the flags ask for.

    Returns:
        1 if an element was wrong or nothing was measured, else 0.

    Of several processes, which run the same command on their hosts, the first prints and writes.
    """
    begin, end = read_bytes("--begin", flags.begin), read_bytes("--end", flags.end)
    max_bytes = None if flags.max_bytes is None else read_bytes("--max-bytes", flags.max_bytes)
    _check(flags)
    first = _start_devices(flags)
    out = (sys.stderr if flags.json == "-" else sys.stdout) if first else StringIO()

    from ringline.collectives.measure import OPERATIONS, Setup, sweep, targeted

    operation = OPERATIONS[flags.collective]
    if flags.cases == "targeted":
        cases = targeted(operation)
    else:
        width = flags.columns if isinstance(flags, _MatmulFlags) else None
        cases = sweep(begin, end, flags.factor, flags.dtype, flags.devices, width)
    setup = Setup(
        operation=operation,
        topology=flags.topology,
        devices=flags.devices,
        directions=flags.directions,
        channels=flags.channels,
        per_host=flags.per_host,
        implementation=None if flags.implementation == "auto" else flags.implementation,
        iters=flags.iters,
    )
    rows = []
    columns = columns_of(operation, flags.link_gb_s)
    print(head(operation, columns, _title(flags)), file=out, flush=True)
    with warnings.catch_warnings(record=True) as said:
        for row in _measured(cases, setup, max_bytes, show=first):
            rows.append(row)
            print(*(f"# note: {note.message}\n" for note in said), sep="", end="", file=out)
            said.clear()
            print(line_of(row, columns), file=out, flush=True)
    print(foot(rows), file=out)
    if flags.json is not None and first:
        document = _document(flags, operation, rows)
        write_text(flags.json, json.dumps(document, indent=2) + "\n")
    if flags.plot is not None and first:
        from ringline.cli._bench_plot import plot_bandwidth

        used = {row.directions for row in rows}
        ways = " or ".join(name for way, name in _WAYS.items() if way in used)
        title = f"{operation.name}, {flags.devices} devices on a {flags.topology}, {ways}"
        plot_bandwidth(rows, flags.plot, title)
    return 1 if wrong_in(rows) or average_busbw(rows) is None else 0


def _check(flags: _Flags) -> None:
    """Refuse bad flags before JAX starts and before minutes of measuring."""
    for name in ("devices", "channels", "iters", "columns"):
        if getattr(flags, name, 1) < 1:
            raise ValueError(
                f"{name} must be at least 1, got {getattr(flags, name)}; change --{name}"
            )
    if flags.per_host == 2 and isinstance(flags, _MatmulFlags):
        raise ValueError(
            "fused collectives do not share the devices of a host, got 2; leave --per-host out"
        )
    if flags.per_host == 2 and (flags.directions == 1 or flags.devices % 2):
        ways = _WAYS[flags.directions or 2]
        raise ValueError(
            "pairs of devices, one sending up and one down, need both directions and an even "
            f"number of devices, got {ways} and {flags.devices} devices; change --per-host, "
            "--directions or --devices"
        )
    if flags.link_gb_s is not None and not flags.link_gb_s > 0:
        raise ValueError(
            f"the line rate must be over 0 GB/s, got {flags.link_gb_s}; change --link-gb-s"
        )
    if flags.plot is not None:
        if flags.plot.suffix not in _PICTURES:
            raise ValueError(f"--plot must end in {', '.join(_PICTURES)}, got {str(flags.plot)!r}")
        if not importlib.util.find_spec("matplotlib"):
            raise ValueError("--plot needs matplotlib; run pip install 'ringline[plot]'")


def _start_devices(flags: _Flags) -> bool:
    """Start JAX, with emulated CPU devices where it finds no accelerator.

    Returns:
        Whether this is the first process.
    """
    from ringline.train._distributed import Processes, is_main, start

    processes = Processes.find(flags.coordinator, flags.process_id, flags.num_processes)
    start(min(flags.devices, _MAX_EMULATED_DEVICES), processes)
    import jax

    found = len(jax.devices())
    if found < flags.devices or (processes.count > 1 and found != flags.devices):
        raise ValueError(
            f"{flags.devices} devices were asked for and {found} {jax.default_backend()} devices "
            f"exist; use {'a smaller' if processes.count == 1 else 'all of them:'} --devices"
            + ("" if processes.count == 1 else f" {found}")
        )
    return is_main()


def _measured(
    cases: "Iterable[Case]", setup: "Setup", max_bytes: int | None, *, show: bool
) -> "Iterator[Row]":
    """Measure one case after the other; a terminal shows which one is running."""
    from ringline.collectives.measure import measure

    cases = list(cases)
    console = Console(stderr=True, quiet=not show)
    with console.status("starting") as status:
        for number, case in enumerate(cases, 1):
            status.update(f"{number} of {len(cases)}: {case}")
            yield measure(case, setup, max_bytes=max_bytes)


def _title(flags: _Flags) -> str:
    import jax

    several = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"{flags.devices} devices{several} on a {flags.topology}, {flags.implementation}"


def _document(flags: _Flags, operation: "Operation", rows: "list[Row]") -> dict[str, Any]:
    import jax

    found = []
    for row in rows:
        data = row.to_json() | {"redop": redop_of(operation), "count": count_of(operation, row)}
        if flags.link_gb_s is not None:
            data["linkbw_share"] = link_share(row, flags.link_gb_s)
        found.append(data)
    return {
        "collective": flags.collective,
        "rows": found,
        "out_of_bounds_values": wrong_in(rows),
        "avg_busbw_gb_s": average_busbw(rows),
        "link_gb_s": flags.link_gb_s,
        "machine": {
            "backend": jax.default_backend(),
            "device": jax.devices()[0].device_kind,
            "processes": jax.process_count(),
            "host_cpus": os.cpu_count(),
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }
