"""What a recipe should cost on its target, from the schedule and the chip, before compiling."""

from collections.abc import Mapping
from dataclasses import dataclass

from ringline.aot import transfer_s
from ringline.pipeline import MAX_UNROLLED, tick_tables
from ringline.plan import slowdown
from ringline.recipes._recipe import Recipe, Way
from ringline.recipes._ticks import TickTimes, autodiff_loop, scheduled_loop

_WEIGHT, _SUM = 2, 4  # bytes of a bfloat16 weight, and of its float32 sum of gradients
# Values as wide as the MLP that a layer's backward makes beside the two each layer keeps.
_BACKWARD_WORKING_SET = 3
# A chunk of many layers is a loop over them, which keeps more of each, and stacks of its own of
# their weights and gradients.
_KEPT, _KEPT_IN_LOOP = 2, 6


@dataclass(frozen=True, slots=True)
class Prediction:
    """What to expect of one device in a step.

    Attributes:
        flops: of the matrix products, every tick's bubble counted as if it ran, which is how a
            compiled program reads.
        temporaries_bytes: memory while the step runs, by what it is for.
        costs_s: seconds of one chunk's operations.
        transfer_s: one transfer between stages.
        loop: the loop over ticks.
        exposed_s: what of the loop its transfers add; the bubble is the rest beside computation.
        outside_s: gathers of weights before the loop and reductions of gradients after it.
        ideal_s: the step's useful FLOPs at the chip's peak.
        tick_transfers: how many transfers a step makes, with their bytes, by what they carry.
        gathered_bytes: whole weights made before the loop.
        reduced_bytes: whole sums of gradients reduced after it.
        in_loop_bytes: what the FSDP axis moves in all ticks, none of them skipped.
    """

    flops: float
    temporaries_bytes: Mapping[str, float]
    costs_s: Mapping[str, float]
    transfer_s: float
    loop: TickTimes
    exposed_s: float
    outside_s: float
    ideal_s: float
    model_flops: float
    peak_flops_per_s: float
    tick_transfers: Mapping[str, tuple[int, float]]
    gathered_bytes: float
    reduced_bytes: float
    in_loop_bytes: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.loop.loop_s + self.outside_s

    @property
    def relative(self) -> float:
        """The loop's time over the computation of its busiest stage: 1 is ideal."""
        return self.loop.loop_s / self.loop.busy_s

    @property
    def mfu(self) -> float:
        """Share of the peak that the step's needed FLOPs make up, without recomputation."""
        return self.model_flops / (self.step_s * self.peak_flops_per_s)

    @property
    def memory_bytes(self) -> float:
        """All temporaries."""
        return sum(self.temporaries_bytes.values())


def predict(recipe: Recipe, way: Way, *, achievable: bool = True) -> Prediction:
    """The prediction of one way to run a recipe.

    Args:
        recipe: sizes.
        way: the order.
        achievable: matmuls at the chip's achievable rate and sums of gradients at its memory's;
            False takes the peak alone, as hand arithmetic does.
    """
    target, depth = recipe.target, way.depth(recipe)
    chip = target.cluster.chip
    peak = chip.bf16_flops_per_s / target.devices_per_chip
    forward, backward = chunk_flops(recipe, depth)
    rate = peak * (chip.matmul_efficiency if achievable else 1.0)
    weights = depth * 3 * recipe.d_model * recipe.mlp
    sums_s = 2 * weights * _SUM / (chip.hbm_bytes_per_s / target.devices_per_chip)
    costs = {"F": forward / rate, "B": backward / rate + (sums_s if achievable else 0.0)}
    # Split, the second half redoes nothing: two of the three parts of a backward are I.
    costs |= {"I": costs["B"] * 2 / 3, "W": costs["B"] / 3}
    hop = _hop_bytes(recipe)
    link = "DCN" if target.cluster.slices > 1 else "ICI"
    travel = transfer_s(target, "collective-permute", link, hop, 2) if recipe.stages > 1 else 0.0
    loop = _loop(way, costs, travel)
    runs = recipe.microbatches * way.schedule.repeats
    useful = runs * 3 * forward
    whole = way.schedule.repeats * weights if recipe.fsdp > 1 else 0
    before, after, in_loop = _fsdp_bytes(recipe, way, whole, loop.ticks)
    return Prediction(
        flops=loop.ticks * (forward + backward),
        temporaries_bytes=_temporaries(recipe, way, loop.ticks),
        costs_s=costs,
        transfer_s=travel,
        loop=loop,
        exposed_s=loop.loop_s - _loop(way, costs, 0.0).loop_s,
        outside_s=_outside_s(recipe, before, after) + _outputs_s(recipe, way),
        ideal_s=useful / peak,
        model_flops=useful,
        peak_flops_per_s=peak,
        tick_transfers={
            "activation": (loop.ticks, hop),
            "cotangent": (loop.ticks, hop),
        },
        gathered_bytes=before,
        reduced_bytes=after,
        in_loop_bytes=in_loop,
    )


def chunk_flops(recipe: Recipe, depth: int) -> tuple[float, float]:
    """FLOPs of a chunk on one device, forward and backward.

    The backward runs the forward again but for its last matmul, whose result nobody reads.
    """
    product = 2.0 * recipe.tokens * recipe.d_model * recipe.mlp
    forward = depth * 3 * product
    return forward, 3 * forward - product


# What is counted for one chunk: permutes in a direction, units of computation, of transfer.
_BY_HAND = {
    "forward, one permute": (1, 1, 1),
    "forward and backward, one permute": (1, 3, 2),
    "forward and backward, two permutes": (2, 3, 2),
    "with rematerialisation, one permute": (1, 4, 2),
    "with rematerialisation, two permutes": (2, 4, 2),
}


def by_hand(recipe: Recipe) -> dict[str, float]:
    """The step over an ideal one without overlap, by hand, for each way of counting.

    The first is how the run was described: bubble and one transfer a chunk, forward.
    """
    chip = recipe.target.cluster.chip
    intensity = 3.0 * recipe.mlp * recipe.layers_per_chunk
    hardware = chip.bf16_flops_per_s / chip.dcn_bytes_per_s
    sizes = recipe.stages, recipe.microbatches, recipe.repeats
    return {
        name: slowdown(
            *sizes,
            intensity=intensity,
            hardware=hardware,
            permutes=permutes,
            compute_units=compute,
            transfer_units=transfer,
        ).without_overlap
        for name, (permutes, compute, transfer) in _BY_HAND.items()
    }


def _loop(way: Way, costs: Mapping[str, float], travel: float) -> TickTimes:
    if way.scheduled:
        return scheduled_loop(way.schedule, costs, travel)
    return autodiff_loop(way.schedule, costs, travel, way.late_send)


def _hop_bytes(recipe: Recipe) -> float:
    return float(recipe.tokens * recipe.d_model * _WEIGHT)


def _fsdp_bytes(recipe: Recipe, way: Way, whole: int, ticks: int) -> tuple[float, float, float]:
    """Bytes before the loop, after it, and in all its ticks.

    Args:
        recipe: says when weights are gathered.
        way: without a schedule for the backward, the compiler reduces gradients in every tick.
        whole: weights of a stage.
        ticks: of the loop.
    """
    chunk = whole / way.schedule.repeats
    gathered = whole * _WEIGHT
    if not way.scheduled:
        return gathered, 0.0, ticks * chunk * _WEIGHT
    if recipe.gather == "step":
        return gathered, whole * _SUM, 0.0
    return 0.0, 0.0, ticks * chunk * (2 * _WEIGHT + _SUM)


def _outside_s(recipe: Recipe, gathered: float, reduced: float) -> float:
    """Gathers before the loop, and reductions after it, which the compiler does whole."""
    gather_s = transfer_s(recipe.target, "all-gather", "ICI", gathered, recipe.fsdp)
    return gather_s + transfer_s(recipe.target, "all-reduce", "ICI", reduced, recipe.fsdp)


def _outputs_s(recipe: Recipe, way: Way) -> float:
    """Without a schedule for the loss, the last stage's outputs go to every stage, and back."""
    if way.scheduled or recipe.stages == 1:
        return 0.0
    link = "DCN" if recipe.target.cluster.slices > 1 else "ICI"
    size = recipe.microbatches * _hop_bytes(recipe)
    kinds = ("collective-permute", "all-reduce", "collective-permute")
    return sum(transfer_s(recipe.target, kind, link, size, recipe.stages) for kind in kinds)


def _temporaries(recipe: Recipe, way: Way, ticks: int) -> dict[str, float]:
    depth, repeats = way.depth(recipe), way.schedule.repeats
    weights = depth * repeats * 3 * recipe.d_model * recipe.mlp
    whole = recipe.gather == "step" or recipe.fsdp == 1
    held = weights if whole else weights / repeats
    hop = _hop_bytes(recipe)
    wide = float(recipe.tokens * recipe.mlp * _WEIGHT)
    looped = depth > MAX_UNROLLED
    kept = _KEPT_IN_LOOP if looped else _KEPT
    working = (kept * depth + _BACKWARD_WORKING_SET) * wide
    if looped and way.scheduled:  # without, the sums below hold the stacks
        working += 2 * weights / repeats * _WEIGHT
    parts = {
        "whole weights": held * _WEIGHT if recipe.fsdp > 1 else 0.0,
        "sums of gradients": weights * _SUM / (1 if whole else recipe.fsdp),
        "working set": working,
    }
    if not way.scheduled:
        # In bfloat16: the loop's sum, its copy, what a tick adds, and a chunk's part reduced.
        parts["sums of gradients"] = (3 + 1 / repeats) * weights * _WEIGHT
        parts["kept for the backward"] = ticks * hop
        return parts
    tables = tick_tables(way.schedule, keep_inputs=True)
    # And what the last tick made.
    slots = sum(count for kind, count in tables.places.items() if kind != "residual") + 2
    return parts | {"activations and cotangents": slots * hop}
