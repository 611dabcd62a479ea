"""`Calibration`: how well a software stack uses a chip."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ringline.topology import Chip
from ringline.topology._tables import Table, read_table

_DATA = Path(__file__).parent / "data" / "calibrations.toml"
_NUMBERS = (
    "matmul_share",
    "matmul_knee",
    "attention_efficiency",
    "kernel_s",
    "traffic",
    "memory_efficiency",
    "loss_bytes_per_logit",
    "layer_floor_s",
    "link_efficiency",
    "tensor_overlap",
    "data_overlap",
    "collective_s",
    "optimizer_bytes_per_parameter",
    "step_s",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The numbers between a chip's peaks and what a training step gets of them.

    Attributes:
        matmul_share: what a step keeps of the chip's achievable matmul rate.
        matmul_knee: smallest dimension at which a matmul takes twice its ideal time.
        attention_efficiency: share of the peak that scores and context reach.
        kernel_s: fixed time of one matmul.
        traffic: element-wise memory traffic, as a multiple of what an unfused stack moves.
        memory_efficiency: share of the memory's rate that is reached.
        loss_bytes_per_logit: traffic of the loss, forward and backward.
        layer_floor_s: least time of a layer's forward, spent by the host on launching it.
        link_efficiency: share of the links' rate that is reached.
        collective_s: fixed time of one collective, besides its hops.
        tensor_overlap: share of tensor-parallel communication that hides behind matmuls.
        data_overlap: share of the gradients' all-reduce that hides behind the backward.
        optimizer_bytes_per_parameter: traffic of the optimizer.
        step_s: what a step costs besides.
        fused_attention: scores stay on the chip, and a causal mask halves their FLOPs.
        source: where the numbers come from.
    """

    matmul_share: float = 1.0
    matmul_knee: float = 128.0
    attention_efficiency: float = 0.5
    kernel_s: float = 5e-6
    traffic: float = 1.0
    memory_efficiency: float = 0.8
    loss_bytes_per_logit: float = 24.0
    layer_floor_s: float = 0.0
    link_efficiency: float = 1.0
    collective_s: float = 0.0
    tensor_overlap: float = 0.0
    data_overlap: float = 0.5
    optimizer_bytes_per_parameter: float = 30.0
    step_s: float = 0.0
    fused_attention: bool = True
    source: str = ""


@cache
def calibrations() -> dict[str, Calibration]:
    """Every stack of the data file, by name."""
    return {table.name: _calibration_of(table) for table in read_table(_DATA).tables()}


@cache
def calibration_for(chip: Chip) -> Calibration:
    """The stack that usually runs on `chip`."""
    for table in read_table(_DATA).tables():
        if chip.network in table.texts("networks"):
            return calibrations()[table.name]
    raise ValueError(f"no calibration for network {chip.network!r}; add one to calibrations.toml")


def _calibration_of(table: Table) -> Calibration:
    table.require_known((*_NUMBERS, "source", "networks", "fused_attention"))
    return Calibration(
        fused_attention=table.flag("fused_attention", True),
        source=table.text("source", str(table.path)),
        **{name: table.number(name, above=-1e-300) for name in _NUMBERS},
    )
