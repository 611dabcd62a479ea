r"""Arithmetic intensity on both sides, and what a pipeline over slow links costs without overlap.

A stage receives one activation of h numbers for each token and does its layers' matmuls with
it. What a token's bytes buy in FLOPs is the model's intensity; what a chip could do in the time
in which its network brings a byte is the hardware's. Where they are equal, a transfer that is
not hidden takes as long as the computation.
"""

from dataclasses import dataclass

from ringline.plan._model import Model
from ringline.topology import Chip


def hardware_intensity(chip: Chip) -> float:
    """FLOPs that a chip does while its network between slices brings one byte: P / r.

    Example:
        >>> from ringline.topology import cluster
        >>> round(hardware_intensity(cluster("4x v4-16").chip))
        171875
    """
    return chip.bf16_flops_per_s / chip.dcn_bytes_per_s


def mlp_intensity(model: Model, layers_per_stage: int) -> float:
    r"""FLOPs of the MLPs of a stage for each byte of activation it receives, forward.

    A token brings h bfloat16 numbers, 2h bytes, and costs $2 k h f$ FLOPs in each layer, with k
    matrices (3 for SwiGLU) of width f: $k f L$ FLOPs a byte for L layers.

    Args:
        model: sizes.
        layers_per_stage: layers between two transfers, L.

    Returns:
        FLOPs per byte.

    Example:
        >>> from ringline.plan import model
        >>> mlp_intensity(model("maxtext-32b"), 2)
        172032.0
    """
    return float(model.mlp_matrices * model.mlp * layers_per_stage)


def stage_intensity(model: Model, layers_per_stage: int, length: int) -> float:
    """The same with attention: all FLOPs of a stage for each byte it receives, forward."""
    return layers_per_stage * model.layer_flops(length, causal=True) / (2 * model.hidden)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A pipelined step as a multiple of one without bubble and without transfers.

    Attributes:
        bubble: idle time over useful time.
        transfer: transfers over computation, for one chunk.
    """

    bubble: float
    transfer: float

    @property
    def bubble_of_total(self) -> float:
        """The same bubble as a share of the whole, as MaxText writes it."""
        return self.bubble / (1 + self.bubble)

    @property
    def without_overlap(self) -> float:
        """Every transfer waits: (1 + bubble) (1 + transfer)."""
        return (1 + self.bubble) * (1 + self.transfer)

    @property
    def with_overlap(self) -> float:
        """Transfers run beside the computation: (1 + bubble) max(1, transfer).

        The transfers of filling and draining stay; `ringline.simulate` counts them.
        """
        return (1 + self.bubble) * max(1.0, self.transfer)


def slowdown(
    stages: int,
    microbatches: int,
    repeats: int,
    *,
    intensity: float,
    hardware: float,
    permutes: int = 1,
    compute_units: int = 1,
    transfer_units: int = 1,
) -> Slowdown:
    r"""Bubble and transfers of a circular pipeline.

    The bubble over useful work is $(p - 1)/(m v)$. A chunk's transfer takes
    $k \frac{t}{c} \frac{H}{I}$ of its computation, with I the model's forward FLOPs per byte, H
    the hardware's, k permutes in each direction, and c units of forward computation beside t
    of transfer: 1 : 1 for a forward alone, 3 : 2 with the backward, 4 : 2 with full
    rematerialisation.

    Args:
        stages: p.
        microbatches: m.
        repeats: v.
        intensity: I.
        hardware: H.
        permutes: k.
        compute_units: c.
        transfer_units: t.

    Returns:
        The slowdown.

    Example:
        >>> run = slowdown(4, 4, 2, intensity=170e3, hardware=170e3)
        >>> run.bubble, run.without_overlap, run.with_overlap
        (0.375, 2.75, 1.375)
    """
    share = permutes * transfer_units / compute_units * hardware / intensity
    return Slowdown((stages - 1) / (microbatches * repeats), share)
