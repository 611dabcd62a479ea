"""Counts of parameters and FLOPs against published ones."""

import pytest

from ringline.plan import model, models

PUBLISHED_BILLIONS = {
    "llama2-7b": 6.74,
    "llama2-13b": 13.0,
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.85,
    "gpt3-22b": 22.0,
    "gpt3-175b": 174.6,
    "gpt3-530b": 529.6,
    "gpt3-1t": 1008.0,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "qwen3-235b": 235.1,
    "deepseek-v3": 671.0,
    "gpt2-xl": 1.558,
    "gpt-neox-20b": 20.55,
    "bloom-176b": 176.2,
    "llama3-2-1b": 1.236,
    "llama3-2-3b": 3.213,
    "mistral-7b": 7.24,
    "qwen2-5-7b": 7.616,
    "qwen2-5-32b": 32.76,
    "qwen3-8b": 8.19,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "gemma2-9b": 9.24,
    "gemma2-27b": 27.23,
}


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_parameters(name):
    assert model(name).parameters / 1e9 == pytest.approx(PUBLISHED_BILLIONS[name], rel=3e-3)


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 12.9), ("deepseek-v3", 37.5), ("qwen3-235b", 22.2)]
)
def test_active_parameters(name, billions):
    assert model(name).active_parameters / 1e9 == pytest.approx(billions, rel=5e-3)


@pytest.mark.parametrize("name", ["gpt3-22b", "gpt3-175b", "gpt3-1t"])
def test_step_flops_are_those_of_korthikanti(name):
    gpt = model(name)
    h, s, layers, vocab, batch = gpt.hidden, 2048, gpt.layers, gpt.vocab, 8
    published = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    assert gpt.step_flops(batch * s, s, causal=False) == pytest.approx(published, rel=1e-12)


def test_a_causal_mask_halves_attention():
    llama = model("llama3-8b")
    full, causal = (llama.attention_flops(4096, causal=c) for c in (False, True))
    assert full == 2 * causal


@pytest.mark.parametrize("name", models())
def test_every_preset_has_a_source_and_is_sane(name):
    found = model(name)
    assert found.source
    assert found.active_parameters <= found.parameters


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3-70B", "llama3-70b"),
        ("Llama 3 70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "llama3-405b"),
        ("llama3.2-3B", "llama3-2-3b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Llama-2-7b-hf", "llama2-7b"),
    ],
)
def test_names_that_people_use(name, preset):
    assert model(name).name == preset


def test_a_size_alone_gets_the_models_of_that_size():
    with pytest.raises(ValueError, match="'llama2-70b' or 'llama3-70b'"):
        model("70b")


def test_unknown_names_get_near_ones():
    with pytest.raises(ValueError, match="'llama3-70b'"):
        model("lama3-70b")


def test_a_model_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text("layers = 2\nhidden = 64\nheads = 4\nmlp = 256\nvocab = 100\ntied = true\n")
    small = model(str(path))
    assert small.name == "small"
    assert small.parameters == 2 * (12 * 64**2 + 128) + 100 * 64 + 64


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("heads = -4", "line 3, key 'heads'"),
        ("heads = 5", "line 3.*do not divide"),
        ("heads = 4.5", "line 3.*whole number"),
        ("heads = 4\nkv_heads = 3", "line 4.*do not divide"),
        ("", "key 'heads'.*missing"),
        ("heads = 4\nhead = 3", "line 4.*did you mean"),
        ("heads = 4\nexperts = 8", "line 4.*expert_mlp"),
    ],
)
def test_faults_of_a_model_file(tmp_path, change, says):
    path = tmp_path / "bad.toml"
    path.write_text(f"layers = 2\nhidden = 64\n{change}\nmlp = 256\nvocab = 100\n")
    with pytest.raises(ValueError, match=says):
        model(str(path))
