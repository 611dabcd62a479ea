"""`ringline hardware`: the chips and clusters that the package knows, with their sources."""

import json as json_format
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from ringline.cli._files import write_text
from ringline.cli._flag_types import FileOrOutput, takes
from ringline.plan import calibration_for
from ringline.topology import Chip, Cluster, chips, cluster
from ringline.topology._chips import chip as chip_named

_ROWS = (
    ("bf16_flops_per_s", "bf16 peak", "TFLOP/s", 1e12),
    ("int8_ops_per_s", "int8 or fp8 peak", "TOP/s", 1e12),
    ("matmul_efficiency", "achievable share of the peak", "%", 1e-2),
    ("hbm_gib", "memory", "GiB", 1.0),
    ("hbm_bytes_per_s", "memory rate", "GB/s", 1e9),
    ("link_bytes_per_s", "link, one way, achievable", "GB/s", 1e9),
    ("link_nominal_bytes_per_s", "link, one way, nominal", "GB/s", 1e9),
    ("dcn_bytes_per_s", "network between slices, a chip", "GB/s", 1e9),
    ("hop_latency_s", "hop latency", "us", 1e-6),
)


@dataclass(frozen=True)
class HardwareFlags:
    """Show the chips the package knows, or one chip or cluster with the sources of its numbers."""

    name: Annotated[str | None, tyro.conf.Positional, takes("[NAME]")] = None
    """A chip such as v5p, a cluster such as '4x v4-16', or a .toml file; all chips if left out."""
    json: FileOrOutput = None
    """Write JSON to this file; `-` for standard output, which then holds nothing else."""


def run(flags: HardwareFlags) -> int:
    """Print, and return the exit status."""
    if flags.name is None:
        table, data = _all_table(), {name: _chip_json(chip) for name, chip in chips().items()}
    else:
        found = _look_up(flags.name)
        one = isinstance(found, Chip)
        table = _chip_table(found) if one else _cluster_table(found)
        data = _chip_json(found) if one else _cluster_json(found)
    if flags.json:
        write_text(flags.json, json_format.dumps(data, indent=1) + "\n")
    if flags.json != "-":
        Console().print(table)
    return 0


def _look_up(name: str) -> Chip | Cluster:
    """A chip by its bare name, else a cluster."""
    try:
        return chip_named(name)
    except ValueError:
        return cluster(name)


def _all_table() -> Table:
    table = Table(
        title="Chips",
        caption="Rates are decimal; link: one direction of one link, achievable (nominal). "
        "`ringline hardware NAME` gives the sources.",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("chip")
    for name in ("bf16 TFLOP/s", "memory GiB", "GB/s", "links", "link GB/s", "DCN GB/s"):
        table.add_column(name, justify="right")
    for chip in chips().values():
        table.add_row(
            chip.name,
            f"{chip.bf16_flops_per_s / 1e12:g}",
            f"{chip.hbm_gib:g}",
            f"{chip.hbm_bytes_per_s / 1e9:g}",
            f"{chip.links} ({chip.network})",
            f"{chip.link_bytes_per_s / 1e9:g} ({chip.link_nominal_bytes_per_s / 1e9:g})",
            f"{chip.dcn_bytes_per_s / 1e9:g}",
        )
    return table


def _chip_table(chip: Chip) -> Table:
    table = Table(title=f"{chip.name}: {chip.title}", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("source", overflow="fold")
    for field, what, unit, scale in _ROWS:
        value = f"{getattr(chip, field) / scale:g} {unit}"
        table.add_row(what, value, chip.sources[field])
    counted = (
        f"{chip.name}-N counts TensorCores, {chip.cores_per_chip_in_names} a chip"
        if chip.cores_per_chip_in_names > 1
        else "the number in a name counts chips"
    )
    table.add_row("joined as", f"{chip.network}, {chip.links} links", counted)
    return table


def _cluster_table(found: Cluster) -> Table:
    chip = found.chip
    table = Table(title=found.name, title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    axes = ", ".join(
        f"{length}{' (ring)' if wrap else ''}" for length, wrap in zip(found.shape, found.wraps)
    )
    size = found.chips_per_slice
    rows = [
        ("chip", f"{chip.name}: {chip.title}"),
        ("slices (or boxes)", f"{found.slices}"),
        ("chips a slice", f"{size}: {axes}"),
        ("chips in all", f"{found.chips}"),
        ("bf16 peak", f"{found.chips * chip.bf16_flops_per_s / 1e15:g} PFLOP/s"),
        ("memory", f"{found.chips * chip.hbm_gib:g} GiB"),
        ("gather inside a slice", f"{found.slice_bytes_per_s(size) / 1e9:g} GB/s a chip"),
        ("between slices", f"{chip.dcn_bytes_per_s / 1e9:g} GB/s a chip"),
        ("FLOPs per byte between slices", f"{chip.bf16_flops_per_s / chip.dcn_bytes_per_s:,.0f}"),
        ("FLOPs per byte of memory", f"{chip.bf16_flops_per_s / chip.hbm_bytes_per_s:,.0f}"),
        ("planner's efficiencies", calibration_for(chip).source),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _chip_json(chip: Chip) -> dict[str, Any]:
    return {**asdict(chip), "sources": dict(chip.sources)}


def _cluster_json(found: Cluster) -> dict[str, Any]:
    return {
        "name": found.name,
        "chip": _chip_json(found.chip),
        "slices": found.slices,
        "shape": list(found.shape),
        "wraps": list(found.wraps),
        "links_per_edge": found.links_per_edge,
        "chips_per_slice": found.chips_per_slice,
        "chips": found.chips,
        "slice_bytes_per_s": found.slice_bytes_per_s(found.chips_per_slice),
    }
