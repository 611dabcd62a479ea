"""The time of a training step in a layout: lower, predicted and upper bound, part by part."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ringline.plan._calibration import Calibration, calibration_for
from ringline.plan._layer import (
    LayerCost,
    Shape,
    embedding_cost,
    head_cost,
    layer_cost,
)
from ringline.plan._layout import Layout
from ringline.plan._links import Links, Placement, placements
from ringline.plan._memory import (
    Memory,
    expert_group,
    is_folded,
    memory,
    stage_layers,
    stage_parameters,
)
from ringline.plan._model import Model
from ringline.plan._rules import RULES
from ringline.topology import Cluster

# How far the compute model may be off: nine in ten of the measured steps that `ringline
# validate` compares with are within it.
MARGIN = 0.15
_WEIGHT_BYTES = 2  # weights are gathered, and gradients reduced, in bfloat16


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be trained, and on what.

    Attributes:
        model: the decoder.
        cluster: the chips.
        batch: sequences of a step.
        length: tokens of a sequence.
        how: efficiencies, those of the chip's usual stack where None.
        sequence_parallel: whether the residual stream is split over the tensor axis.
    """

    model: Model
    cluster: Cluster
    batch: int
    length: int
    how: Calibration | None = None
    sequence_parallel: bool = True

    @property
    def calibration(self) -> Calibration:
        """The efficiencies."""
        return self.how or calibration_for(self.cluster.chip)

    @property
    def model_flops(self) -> float:
        """FLOPs that the step needs: causal attention, no recomputation, no look-up."""
        return self.model.step_flops(self.batch * self.length, self.length)

    def mfu(self, step_s: float) -> float:
        """Share of the chips' peak that the needed FLOPs make up in a step of `step_s`."""
        peak = self.cluster.chips * self.cluster.chip.bf16_flops_per_s
        return self.model_flops / (step_s * peak)


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds of each stage for one microbatch, tensor-parallel communication included.

    Attributes:
        forward_s: F of every stage.
        input_gradient_s: I with the recomputation.
        weight_gradient_s: W.
        hop_s: one activation to the next stage.
    """

    forward_s: tuple[float, ...]
    input_gradient_s: tuple[float, ...]
    weight_gradient_s: tuple[float, ...]
    hop_s: float

    @property
    def backward_s(self) -> tuple[float, ...]:
        """B of every stage."""
        return tuple(i + w for i, w in zip(self.input_gradient_s, self.weight_gradient_s))


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout with its prediction.

    Attributes:
        layout: the layout.
        placement: which axes cross slices.
        lower_s: all communication hidden, matmuls at the chip's achievable rate.
        predicted_s: what to expect.
        upper_s: nothing hidden, computation `MARGIN` slower.
        parts_s: what the predicted time is made of.
        memory: of the fullest chip.
        mfu: of the predicted time, with causal attention and without recomputation.
        costs: of every stage.
        simulated: whether the pipeline's part comes from the simulator.
    """

    layout: Layout
    placement: Placement
    lower_s: float
    predicted_s: float
    upper_s: float
    parts_s: Mapping[str, float]
    memory: Memory
    mfu: float
    costs: StageCosts = field(repr=False)
    simulated: bool = False

    @property
    def bubble_rate(self) -> float:
        """The pipeline bubble as a share of the predicted step."""
        return self.parts_s["bubble"] / self.predicted_s

    @property
    def exposed_s(self) -> float:
        """Communication that nothing hides."""
        return sum(self.parts_s[name] for name in ("tensor", "experts", "fsdp", "data", "transfer"))


class Evaluator:
    """Evaluates layouts of one `Work`; remembers what layouts share."""

    def __init__(self, work: Work):
        self.work = work
        self.how = work.calibration
        self.links = Links(work.cluster, self.how)
        self._layers: dict[tuple, tuple[LayerCost, LayerCost, LayerCost, LayerCost]] = {}

    def best(self, layout: Layout) -> Plan:
        """The plan with the best placement of its axes on the slices.

        Raises:
            ValueError: when no axis of the layout can be cut along the slices.
        """
        plans = [self.plan(layout, place) for place in placements(layout, self.work.cluster)]
        if not plans:
            raise ValueError(
                f"{self.work.cluster.slices} slices do not divide stages x data x fsdp = "
                f"{layout.stages} x {layout.data} x {layout.fsdp}; tensor stays in a slice"
            )
        return min(plans, key=lambda plan: plan.predicted_s)

    def floor_s(self, layout: Layout) -> float:
        """A time that no placement of `layout` goes below; far cheaper than a plan."""
        return self._floor_s(layout, self._costs(layout, self.shape(layout))[1])

    def shape(self, layout: Layout) -> Shape:
        """What a chip sees of a microbatch."""
        return Shape(
            layout.sequences(self.work.batch),
            self.work.length,
            layout.tensor,
            self.work.sequence_parallel,
            expert_group(self.work.model.experts, layout.fsdp),
        )

    def memory(self, layout: Layout) -> Memory:
        """Memory of the fullest chip."""
        work = self.work
        layers = max(stage_layers(work.model, layout))
        return memory(work.model, work.cluster.chip, self.how, layout, self.shape(layout), layers)

    def plan(self, layout: Layout, place: Placement) -> Plan:
        """Time and memory of `layout` with its axes at `place`."""
        work, how = self.work, self.how
        p, m = layout.stages, layout.microbatches
        shape = self.shape(layout)
        layers = stage_layers(work.model, layout)
        layer, ideal, head, embed = self._costs(layout, shape)
        tensor_f, tensor_b = self._tensor_s(layout, shape)
        experts_s = self._experts_s(layout, shape, place)
        costs = self._stage_costs(
            layout, place, layers, layer, head, embed, (tensor_f + experts_s, tensor_b + experts_s)
        )
        busy = [f + b for f, b in zip(costs.forward_s, costs.backward_s)]
        worst = max(range(p), key=busy.__getitem__)
        bubble, transfer, transfer_all = self._pipeline_s(layout, costs, busy, worst)
        fsdp, fsdp_all = self._fsdp_s(layout, place, max(layers), costs, worst)
        data, data_all = self._data_s(layout, place, max(layers), costs, worst)
        sharded = sum(stage_parameters(work.model, layout, max(layers))) / (
            layout.tensor * layout.fsdp
        )
        rate = work.cluster.chip.hbm_bytes_per_s * how.memory_efficiency
        optimizer = sharded * how.optimizer_bytes_per_parameter / rate + how.step_s
        recompute = m * layers[worst] * layer.recompute_s
        tensor = m * layers[worst] * (tensor_f + tensor_b)
        experts = m * layers[worst] * 2 * experts_s
        compute = m * busy[worst] - recompute - tensor - experts
        parts = {
            "compute": compute,
            "recompute": recompute,
            "bubble": bubble,
            "tensor": tensor,
            "experts": experts,
            "fsdp": fsdp,
            "data": data,
            "transfer": transfer,
            "optimizer": optimizer,
        }
        predicted = sum(parts.values())
        floor = self._floor_s(layout, ideal)
        lower = min(predicted, max(floor, fsdp_all, data_all))
        hidden = how.tensor_overlap / (1 - how.tensor_overlap) if how.tensor_overlap < 1 else 0
        upper = (compute + recompute + bubble + optimizer) * (1 + MARGIN)
        upper += tensor * (1 + hidden) + experts + fsdp_all + data_all + transfer_all
        return Plan(
            layout,
            place,
            lower,
            predicted,
            max(upper, predicted),
            parts,
            memory(work.model, work.cluster.chip, how, layout, shape, max(layers)),
            work.mfu(predicted),
            costs,
        )

    def _floor_s(self, layout: Layout, ideal: LayerCost) -> float:
        """The step of equal stages that do the layers' matmuls alone, with their bubble."""
        p, m, v = layout.stages, layout.microbatches, layout.repeats
        share = self.work.model.layers / p
        forward, weights = share * ideal.forward_s, share * ideal.weight_gradient_s
        gradient = share * (ideal.input_gradient_s + ideal.recompute_s)
        busy = m * (forward + gradient + weights)
        if not layout.pipelined:
            return busy
        return busy + RULES[layout.schedule].bubble(p, m, v, forward, gradient, weights)

    def _costs(
        self, layout: Layout, shape: Shape
    ) -> tuple[LayerCost, LayerCost, LayerCost, LayerCost]:
        """A layer, the layer at the chip's achievable rate alone, the head, the embedding."""
        key = (shape, layout.remat)
        if key not in self._layers:
            model, chip, how = self.work.model, self.work.cluster.chip, self.how
            perfect = replace(
                how,
                matmul_share=1.0,
                attention_efficiency=chip.matmul_efficiency,
                matmul_knee=0.0,
                kernel_s=0.0,
                traffic=0.0,
                layer_floor_s=0.0,
            )
            self._layers[key] = (
                layer_cost(model, chip, how, shape, layout.remat),
                layer_cost(model, chip, perfect, shape, layout.remat),
                head_cost(model, chip, how, shape),
                embedding_cost(model, chip, how, shape),
            )
        return self._layers[key]

    def _tensor_s(self, layout: Layout, shape: Shape) -> tuple[float, float]:
        """Exposed tensor-parallel communication of a layer, forward and backward.

        Two all-reduces each (as reduce-scatter and all-gather where the stream is split, with
        one more gather of each saved input backward); full rematerialisation repeats the two.
        """
        if layout.tensor == 1:
            return 0.0, 0.0
        size = shape.tokens * self.work.model.hidden * _WEIGHT_BYTES
        once = 2 * self.links.reduce_s(size, layout.tensor, 1) * (1 - self.how.tensor_overlap)
        again = 0.5 if shape.sequence_parallel else 0.0
        return once, once * (1 + again + (layout.remat == "full"))

    def _experts_s(self, layout: Layout, shape: Shape, place: Placement) -> float:
        """Exposed exchange of tokens with the experts' chips in one layer, one direction."""
        model, group = self.work.model, shape.expert_group
        if group == 1:
            return 0.0
        sent = shape.tokens * model.experts_per_token * model.hidden * _WEIGHT_BYTES
        across = min(place.fsdp, group)
        sent *= model.sparse_layers / model.layers / layout.tensor
        return 2 * self.links.exchange_s(sent, group // across, across)

    def _stage_costs(
        self,
        layout: Layout,
        place: Placement,
        layers: tuple[int, ...],
        layer: LayerCost,
        head: LayerCost,
        embed: LayerCost,
        extra: tuple[float, float],
    ) -> StageCosts:
        forward = [n * (layer.forward_s + extra[0]) for n in layers]
        gradient = [n * (layer.input_gradient_s + layer.recompute_s + extra[1]) for n in layers]
        weights = [n * layer.weight_gradient_s for n in layers]
        for stage, ends in ((0, embed), (0 if is_folded(layout) else -1, head)):
            forward[stage] += ends.forward_s
            gradient[stage] += ends.input_gradient_s
            weights[stage] += ends.weight_gradient_s
        hop = 0.0
        if layout.pipelined:
            tokens = layout.sequences(self.work.batch) * self.work.length
            size = tokens * self.work.model.hidden * _WEIGHT_BYTES / layout.tensor
            hop = self.links.hop_s(size, across=place.stage > 1)
        return StageCosts(tuple(forward), tuple(gradient), tuple(weights), hop)

    def _pipeline_s(
        self, layout: Layout, costs: StageCosts, busy: list[float], worst: int
    ) -> tuple[float, float, float]:
        """Bubble, exposed transfers, and transfers if nothing hid them."""
        p, m, v = layout.stages, layout.microbatches, layout.repeats
        if p == 1:
            return 0.0, 0.0, 0.0
        rule = RULES[layout.schedule]
        # The other stages fill and drain while the heaviest waits: the closed form for equal
        # stages, scaled by how much the others have to do.
        f, i, w = (
            costs.forward_s[worst],
            costs.input_gradient_s[worst],
            costs.weight_gradient_s[worst],
        )
        others_s = (sum(busy) - busy[worst]) / (p - 1)
        bubble = rule.bubble(p, m, v, f, i, w) * others_s / busy[worst]
        if rule.folded and worst == 0:
            # A V starts and ends on its first stage: while that works, the others' bubble fits.
            bubble = max(0.0, bubble - m * (busy[worst] - others_s))
        c = costs.hop_s
        # Where a link is slower than a chunk's compute the step goes at the link's pace.
        short = max(0.0, c - f / v) + max(0.0, c - (i + w) / v)
        exposed = rule.exposed_hops(p, m, v) * c + m * v * short
        return bubble, exposed, max(exposed, 2 * (m * v + p - 1) * c)

    def _fsdp_s(
        self, layout: Layout, place: Placement, layers: int, costs: StageCosts, worst: int
    ) -> tuple[float, float]:
        """Exposed gathers of weights and scatters of gradients, and all of them."""
        if layout.fsdp == 1:
            return 0.0, 0.0
        dense, _ = stage_parameters(self.work.model, layout, layers)
        size = dense / layout.tensor * _WEIGHT_BYTES
        inside, across = layout.fsdp // place.fsdp, place.fsdp
        gather = self.links.gather_s(size, inside, across)
        if layout.gather == "step":
            return 2 * gather, 2 * gather
        forward, backward = costs.forward_s[worst], costs.backward_s[worst]
        m = layout.microbatches
        late = max(0.0, gather - forward) + max(0.0, 2 * gather - backward)
        # Between slices no more hides than of the gradients' all-reduce.
        far = 3 * (1 - self.how.data_overlap) * self.links.across_s(size, inside, across)
        return m * max(late, far) + 2 * gather / layers, 3 * m * gather

    def _data_s(
        self, layout: Layout, place: Placement, layers: int, costs: StageCosts, worst: int
    ) -> tuple[float, float]:
        """Exposed all-reduce of the gradients over replicas, and all of it."""
        dense, routed = stage_parameters(self.work.model, layout, layers)
        parts = layout.tensor * layout.fsdp
        size = (dense + routed) / parts * _WEIGHT_BYTES
        total = self.links.reduce_s(size, layout.data // place.data, place.data)
        if layout.pipelined or not total:
            return total, total
        exposed = (1 - self.how.data_overlap) * total
        return max(exposed, total - costs.backward_s[worst]), total
