"""The cost of a layer against the closed forms, and that it grows with the work."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.plan import Calibration, Shape, activation_bytes, head_cost, layer_cost, model
from ringline.topology import chip

PERFECT = Calibration(
    matmul_knee=0, kernel_s=0, traffic=0, attention_efficiency=1, fused_attention=False
)
IDEAL_CHIP = replace(chip("a100"), matmul_efficiency=1.0)
GPT = model("gpt3-22b")


def test_forward_input_and_weight_gradient_of_a_plain_layer():
    s, b, h = 2048, 4, GPT.hidden
    cost = layer_cost(GPT, IDEAL_CHIP, PERFECT, Shape(b, s))
    peak = IDEAL_CHIP.bf16_flops_per_s
    assert cost.forward_s * peak == pytest.approx(s * b * h * (24 * h + 4 * s))
    assert cost.input_gradient_s * peak == pytest.approx(s * b * h * (24 * h + 8 * s))
    assert cost.weight_gradient_s * peak == pytest.approx(24 * s * b * h**2)


def test_activations_of_a_plain_layer():
    s, b, h, a = 2048, 4, GPT.hidden, GPT.heads
    kept = activation_bytes(GPT, PERFECT, Shape(b, s), "none")
    assert kept == pytest.approx(s * b * h * (34 + 5 * a * s / h))
    t = 8
    split = activation_bytes(GPT, PERFECT, Shape(b, s, t), "none")
    assert split == pytest.approx(kept / t)
    whole = activation_bytes(GPT, PERFECT, Shape(b, s, t, sequence_parallel=False), "none")
    assert whole == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))
    selective = activation_bytes(GPT, PERFECT, Shape(b, s), "selective")
    assert selective == pytest.approx(34 * s * b * h)
    assert activation_bytes(GPT, PERFECT, Shape(b, s), "full") == pytest.approx(2 * s * b * h)


def test_rematerialisation_adds_what_it_runs_again():
    none, selective, full = (
        layer_cost(GPT, IDEAL_CHIP, PERFECT, Shape(1, 2048), remat)
        for remat in ("none", "selective", "full")
    )
    assert none.recompute_s == 0
    assert 0 < selective.recompute_s < full.recompute_s == none.forward_s
    assert full.backward_s == pytest.approx(3 * none.forward_s)


def test_experts_cost_what_a_token_sees():
    mixtral = model("mixtral-8x7b")
    cost = layer_cost(mixtral, IDEAL_CHIP, PERFECT, Shape(1, 1024))
    expected = 1024 * mixtral.layer_flops(1024) / IDEAL_CHIP.bf16_flops_per_s
    router = 2 * 1024 * mixtral.hidden * mixtral.experts / IDEAL_CHIP.bf16_flops_per_s
    assert cost.forward_s == pytest.approx(expected - router, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["gpt3-22b", "llama3-8b", "mixtral-8x7b", "deepseek-v3"]),
    sequences=st.integers(1, 16),
    length=st.sampled_from([128, 1024, 8192]),
    tensor=st.sampled_from([1, 2, 8]),
)
def test_costs_grow_with_the_work(name, sequences, length, tensor):
    found, how = model(name), Calibration(layer_floor_s=1e-4)
    small, more, longer = (
        layer_cost(found, chip("h100"), how, shape)
        for shape in (
            Shape(sequences, length, tensor),
            Shape(sequences + 1, length, tensor),
            Shape(sequences, 2 * length, tensor),
        )
    )
    for larger in (more, longer):
        assert larger.forward_s >= small.forward_s
        assert larger.backward_s >= small.backward_s
    heads = [
        head_cost(found, chip("h100"), how, Shape(n, length, tensor)).forward_s
        for n in (sequences, sequences + 1)
    ]
    assert heads[1] >= heads[0]
