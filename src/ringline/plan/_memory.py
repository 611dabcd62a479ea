"""Memory of one chip in a layout."""

import math
from dataclasses import dataclass
from functools import lru_cache

from ringline.plan._calibration import Calibration
from ringline.plan._layer import Shape, activation_bytes
from ringline.plan._layout import Layout
from ringline.plan._model import Model
from ringline.plan._rules import RULES
from ringline.topology import Chip

# float32 master weights, float32 gradients, the two moments of Adam, and bfloat16 copies.
_MASTER, _GRADIENT, _MOMENTS, _COPY = 4, 4, 8, 2
# Share of the memory that a program can use; the rest is the runtime's, and fragmentation.
USABLE = 0.95
# Activation-sized values for each layer that a split backward hands from I to W.
_HANDOVER = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest chip.

    Attributes:
        parameters_bytes: float32 weights, and the gathered bfloat16 copy.
        optimizer_bytes: the moments of Adam.
        gradients_bytes: float32 gradients, unsharded where they are reduced once a step.
        activations_bytes: what the forwards in flight keep, a layer's working set, the logits.
        limit_bytes: what a program can use of the chip's memory.
    """

    parameters_bytes: float
    optimizer_bytes: float
    gradients_bytes: float
    activations_bytes: float
    limit_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return (
            self.parameters_bytes
            + self.optimizer_bytes
            + self.gradients_bytes
            + self.activations_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether the chip holds it."""
        return self.total_bytes <= self.limit_bytes


def stage_layers(model: Model, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage when they are spread over stages x repeats chunks in order."""
    return _stage_layers(model.layers, layout.stages, layout.repeats, is_folded(layout))


def is_folded(layout: Layout) -> bool:
    """Whether the first stage holds the last chunk too, and so embedding and head."""
    return layout.schedule in RULES and RULES[layout.schedule].folded


@lru_cache(maxsize=4096)
def _stage_layers(layers: int, stages: int, repeats: int, folded: bool) -> tuple[int, ...]:
    base, extra = divmod(layers, stages * repeats)
    chunks = [base + (chunk < extra) for chunk in range(stages * repeats)]
    rounds = [chunks[start : start + stages] for start in range(0, len(chunks), stages)]
    if folded:
        rounds[1].reverse()
    return tuple(map(sum, zip(*rounds)))


@lru_cache(maxsize=4096)
def expert_group(experts: int, fsdp: int) -> int:
    """Chips that the routed experts are spread over: as many of `fsdp` as divide them."""
    return math.gcd(experts, fsdp) if experts else 1


@lru_cache(maxsize=64)
def _layer_parameters(model: Model) -> tuple[float, float]:
    """Parameters of a layer: all but the routed experts', and theirs."""
    routed = model.expert_matrices_per_layer
    return model.layer_parameters - routed, routed


def stage_parameters(model: Model, layout: Layout, layers: int) -> tuple[float, float]:
    """Parameters of a stage with embedding or head: those to gather, and the routed experts'."""
    dense, routed = _layer_parameters(model)
    ends = 1 if model.tied or (layout.pipelined and not is_folded(layout)) else 2
    return layers * dense + ends * model.vocab * model.hidden, layers * routed


def memory(
    model: Model, chip: Chip, how: Calibration, layout: Layout, shape: Shape, layers: int
) -> Memory:
    """Memory of a chip of the fullest stage.

    Args:
        model: sizes.
        chip: gives the limit.
        how: whether attention is fused.
        layout: how the step is spread.
        shape: what a chip sees of a microbatch.
        layers: of the fullest stage.

    Returns:
        The parts.
    """
    dense, routed = stage_parameters(model, layout, layers)
    t, z = layout.tensor, layout.fsdp
    experts = routed / shape.expert_group
    sharded = (dense / z + routed / z) / t
    parameters = sharded * _MASTER
    gradients = sharded * _GRADIENT
    whole = (dense + experts) / t
    if layout.gather == "step" and z > 1:
        parameters += whole * _COPY
        gradients = whole * _GRADIENT
    elif z > 1:  # two layers' weights: the one in use and the one on its way
        parameters += 2 * whole / max(1, layers) * _COPY
    return Memory(
        parameters,
        sharded * _MOMENTS,
        gradients,
        _activations(model, how, layout, shape, layers),
        USABLE * chip.hbm_bytes,
    )


def _activations(
    model: Model, how: Calibration, layout: Layout, shape: Shape, layers: int
) -> float:
    one = activation_bytes(model, how, shape, layout.remat)
    in_flight = 1.0
    kept = one
    if layout.pipelined:
        rule = RULES[layout.schedule]
        chunks = rule.in_flight(layout.stages, layout.microbatches, layout.repeats)
        in_flight = chunks / layout.repeats
        if rule.splits_backward:
            stream = shape.tokens * 2 * model.hidden / layout.tensor
            kept += _HANDOVER * stream
    total = in_flight * layers * kept
    if layout.remat != "none":  # while a layer's backward runs, all of it is there
        total += activation_bytes(model, how, shape, "none")
    # The last stage holds the logits in bfloat16 and their float32 gradient.
    return total + shape.tokens * model.vocab / layout.tensor * 6
