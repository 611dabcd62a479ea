"""What one layer, the head and the embedding cost on one chip: a roofline with its knees."""

from dataclasses import dataclass
from typing import Literal

from ringline.plan._calibration import Calibration
from ringline.plan._model import Model
from ringline.topology import Chip

Remat = Literal["none", "selective", "full"]
REMATS: tuple[Remat, ...] = ("none", "selective", "full")

_BYTES = 2  # of a bfloat16 or float16 number
# Reads and writes of an unfused layer's element-wise work, in numbers moved: two norms (2 each),
# two residual sums (3 each), two dropouts or copies (2 each).
_STREAM_TRAFFIC = 14
# Queries, keys and values each written and read once; the MLP's hidden numbers three times.
_QKV_TRAFFIC, _MLP_TRAFFIC = 2, 3
# Bytes moved for each score when attention is not fused: mask and softmax, dropout, its mask.
_SCORE_BYTES = 11


@dataclass(frozen=True, slots=True)
class Shape:
    """What one chip sees of a microbatch.

    Attributes:
        sequences: sequences of the microbatch on this chip's tensor group.
        length: tokens of a sequence.
        tensor: chips that share the heads and the MLP's width.
        sequence_parallel: whether the residual stream is split over them too.
        expert_group: chips that share the routed experts.
    """

    sequences: float
    length: int
    tensor: int = 1
    sequence_parallel: bool = True
    expert_group: int = 1

    @property
    def tokens(self) -> float:
        """Tokens of the microbatch."""
        return self.sequences * self.length


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Seconds of one layer (or the head) for one microbatch on one chip, without communication.

    Attributes:
        forward_s: F.
        input_gradient_s: I.
        weight_gradient_s: W.
        recompute_s: what rematerialisation adds to the backward.
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    recompute_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """The whole backward with its recomputation."""
        return self.input_gradient_s + self.weight_gradient_s + self.recompute_s


def matmul_s(chip: Chip, how: Calibration, rows: float, inner: float, columns: float) -> float:
    r"""Time of a [rows, inner] x [inner, columns] matmul.

    $t = t_0 + \frac{2 m k n}{e\,P}\left(1 + \frac{q}{\min(m, k, n)}\right)$ with peak P,
    efficiency e, knee q and fixed time $t_0$.

    Args:
        chip: gives the peak.
        how: gives e, q and t_0.
        rows: m.
        inner: k.
        columns: n.

    Returns:
        Seconds.
    """
    rate = chip.bf16_flops_per_s * chip.matmul_efficiency * how.matmul_share
    knee = 1 + how.matmul_knee / max(1.0, min(rows, inner, columns))
    return how.kernel_s + 2 * rows * inner * columns / rate * knee


def layer_cost(
    model: Model, chip: Chip, how: Calibration, shape: Shape, remat: Remat = "none"
) -> LayerCost:
    """One layer, mean over the dense and sparse layers of the model.

    Forward: its matmuls, its attention, its element-wise traffic; the backward does each twice.
    The input gradient I takes one matmul pass, all of the attention's backward and the traffic;
    the weight gradient W takes the other matmul pass.

    Args:
        model: sizes.
        chip: peaks.
        how: efficiencies.
        shape: what the chip sees.
        remat: `none` keeps everything; `selective` keeps the matmuls' outputs and runs
            attention and element-wise work again; `full` keeps the layer's input only.

    Returns:
        The cost.
    """
    weights = _weights_s(model, chip, how, shape)
    attention = _attention_s(model, chip, how, shape)
    traffic = _traffic_s(model, chip, how, shape)
    forward = _at_least(weights + attention + traffic, how.layer_floor_s)
    backward = _at_least(2 * (weights + attention + traffic), 2 * how.layer_floor_s)
    weight_gradient = weights
    recompute = {"none": 0.0, "selective": attention + traffic, "full": forward}[remat]
    if remat == "selective" and not how.fused_attention:
        recompute = attention + _scores_s(model, chip, how, shape)
    return LayerCost(forward, backward - weight_gradient, weight_gradient, recompute)


def head_cost(model: Model, chip: Chip, how: Calibration, shape: Shape) -> LayerCost:
    """The output head and the loss."""
    matmul = matmul_s(chip, how, shape.tokens, model.hidden, model.vocab / shape.tensor)
    logits = shape.tokens * model.vocab / shape.tensor
    loss = logits * how.loss_bytes_per_logit / _memory_rate(chip, how)
    return LayerCost(matmul + loss / 3, matmul + 2 * loss / 3, matmul)


def embedding_cost(model: Model, chip: Chip, how: Calibration, shape: Shape) -> LayerCost:
    """Reading rows of the embedding, and adding their gradients."""
    once = shape.tokens * model.hidden * 2 * _BYTES / _memory_rate(chip, how)
    return LayerCost(once, 0.0, 2 * once)


def activation_bytes(model: Model, how: Calibration, shape: Shape, remat: Remat) -> float:
    r"""Bytes that one layer keeps of one microbatch for its backward, on one chip.

    For a plain layer without fused attention this is $s b h (34 + 5 a s / h)$ (arXiv
    2205.05198, equation 1), less the dropout masks where attention is fused; everything splits
    over the tensor group with sequence parallelism, and without it all but the stream's 10.

    Args:
        model: sizes.
        how: whether attention is fused.
        shape: what the chip sees.
        remat: as in `layer_cost`.

    Returns:
        Bytes.
    """
    stream = shape.tensor if shape.sequence_parallel else 1
    h, tokens = model.hidden, shape.tokens
    if remat == "full":
        return tokens * _BYTES * h / stream
    heads = model.heads * (model.key_width + model.value_width)
    heads += model.key_heads * (model.key_width + model.value_width)
    hidden = _mlp_numbers(model)
    if remat == "selective":
        # The layer's input is the output of the one before.
        kept = h / stream + (heads + hidden * (2 if model.gated else 1)) / shape.tensor
        if not how.fused_attention:  # everything but the scores, as arXiv 2205.05198 does
            kept = 5 * h / stream + (heads + 2 * hidden) / shape.tensor
        return tokens * _BYTES * kept
    kept = 4 * h / stream + (heads + hidden * (3 if model.gated else 2)) / shape.tensor
    if how.fused_attention:
        return tokens * _BYTES * kept
    masks = 2 * h / stream  # one byte for each number of two dropouts
    scores = 5 * model.heads * shape.length / shape.tensor
    return tokens * (_BYTES * kept + masks + scores)


def _weights_s(model: Model, chip: Chip, how: Calibration, shape: Shape) -> float:
    """All matmuls with weights, forward."""
    h, t, tokens = model.hidden, shape.tensor, shape.tokens
    out = model.heads * model.value_width
    total = matmul_s(chip, how, tokens, h, (model.attention_matrices / h - out) / t)
    total += matmul_s(chip, how, tokens, out / t, h)
    sparse = model.sparse_layers / model.layers
    ups = model.mlp_matrices - 1
    if sparse < 1:
        plain = matmul_s(chip, how, tokens, h, ups * model.mlp / t)
        plain += matmul_s(chip, how, tokens, model.mlp / t, h)
        total += (1 - sparse) * plain
    if sparse > 0:
        here = model.experts / shape.expert_group
        rows = tokens * model.experts_per_token / here
        one = matmul_s(chip, how, rows, h, ups * model.expert_mlp / t)
        one += matmul_s(chip, how, rows, model.expert_mlp / t, h)
        total += sparse * (here * (one - 2 * how.kernel_s) + 2 * how.kernel_s)
        if model.shared_experts:
            width = model.shared_experts * model.expert_mlp / t
            total += sparse * matmul_s(chip, how, tokens, h, ups * width)
            total += sparse * matmul_s(chip, how, tokens, width, h)
    return total


def _attention_s(model: Model, chip: Chip, how: Calibration, shape: Shape) -> float:
    flops = model.attention_flops(shape.length, causal=how.fused_attention)
    rate = chip.bf16_flops_per_s * how.attention_efficiency
    return shape.tokens * flops / shape.tensor / rate + 2 * how.kernel_s


def _traffic_s(model: Model, chip: Chip, how: Calibration, shape: Shape) -> float:
    stream = shape.tensor if shape.sequence_parallel else 1
    heads = (model.heads + 2 * model.key_heads) * model.key_width
    moved = _STREAM_TRAFFIC * model.hidden / stream
    moved += (_QKV_TRAFFIC * heads + _MLP_TRAFFIC * _mlp_numbers(model)) / shape.tensor
    seconds = how.traffic * shape.tokens * _BYTES * moved / _memory_rate(chip, how)
    return seconds if how.fused_attention else seconds + _scores_s(model, chip, how, shape)


def _scores_s(model: Model, chip: Chip, how: Calibration, shape: Shape) -> float:
    scores = shape.tokens * shape.length * model.heads / shape.tensor
    return how.traffic * scores * _SCORE_BYTES / _memory_rate(chip, how)


def _mlp_numbers(model: Model) -> float:
    """Width of the hidden numbers of the MLPs that one token goes through, mean over layers."""
    sparse = model.sparse_layers / model.layers
    routed = (model.experts_per_token + model.shared_experts) * model.expert_mlp
    return (1 - sparse) * model.mlp + sparse * routed


def _memory_rate(chip: Chip, how: Calibration) -> float:
    return chip.hbm_bytes_per_s * how.memory_efficiency


def _at_least(seconds: float, floor_s: float) -> float:
    """The larger of both, rounded off where they are alike: the host's and the device's time."""
    return (seconds**4 + floor_s**4) ** 0.25
