import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_helpers import SMALL, small

from ringline.train import _model as model

PARAMS = model.init_params(SMALL, jax.random.key(0))


def _logits(config, params, tokens):
    return model.logits(config, params, tokens, model.plain_layers(config))


def _tokens(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (2, SMALL.seq))


def test_no_token_sees_a_later_one():
    tokens = _tokens()
    changed = tokens.copy()
    changed[:, 9:] = 7
    before, after = _logits(SMALL, PARAMS, tokens), _logits(SMALL, PARAMS, changed)
    assert (before[:, :9] == after[:, :9]).all()
    assert (before[:, 9:] != after[:, 9:]).any()


def test_every_layer_starts_different():
    for leaf in jax.tree.leaves({k: v for k, v in PARAMS["layers"].items() if "norm" not in k}):
        flat = np.asarray(leaf).reshape(SMALL.layers, -1)
        assert len(np.unique(flat, axis=0)) == SMALL.layers
        assert np.abs(np.corrcoef(flat) - np.eye(SMALL.layers)).max() < 0.3


def test_leaves_of_one_layer_start_different():
    layers = PARAMS["layers"]
    assert (layers["gate_DF"] != layers["up_DF"]).all()
    assert (layers["key_DKN"] != layers["value_DKN"]).all()


def test_grouped_queries_equal_repeated_keys_and_values():
    whole = small(kv_heads=2)
    layers = dict(PARAMS["layers"])
    for name in ("key_DKN", "value_DKN"):
        layers[name] = jnp.repeat(layers[name], 2, axis=2)
    expected = _logits(whole, {**PARAMS, "layers": layers}, _tokens())
    np.testing.assert_allclose(_logits(SMALL, PARAMS, _tokens()), expected, rtol=1e-5, atol=1e-5)


def test_rotary_scores_depend_on_distance_only():
    query, key = jax.random.normal(jax.random.key(1), (2, 8))
    turned_q, turned_k = (
        model.rope(jnp.broadcast_to(vector, (1, 12, 1, 8)), 100.0)[0, :, 0]
        for vector in (query, key)
    )
    scores = turned_q @ turned_k.T
    for distance in range(-11, 12):
        np.testing.assert_allclose(
            np.diag(scores, distance), np.diag(scores, distance)[0], rtol=1e-4, atol=1e-5
        )


def test_a_head_of_its_own_and_the_tied_one():
    assert "head_DV" not in PARAMS
    untied = small(tied=False)
    params = model.init_params(untied, jax.random.key(0))
    tied_by_hand = {**params, "head_DV": params["embed_VD"].T}
    del params["head_DV"]
    np.testing.assert_array_equal(
        _logits(untied, tied_by_hand, _tokens()), _logits(untied, params, _tokens())
    )


def test_bfloat16_computes_close_to_float32():
    half = small(dtype="bfloat16")
    got = _logits(half, PARAMS, _tokens())
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, _logits(SMALL, PARAMS, _tokens()), atol=0.15)


def test_remat_changes_no_gradient():
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, SMALL.seq + 1)))

    def gradient(config):
        layers = model.plain_layers(config)
        return jax.grad(lambda params: model.loss(config, params, tokens, layers))(PARAMS)

    kept, again = gradient(SMALL), gradient(small(remat="full"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), kept, again)


def test_flops_are_six_for_each_weight_and_the_causal_half_of_attention():
    matrices = (
        sum(leaf.size for name, leaf in PARAMS["layers"].items() if "norm" not in name)
        + PARAMS["embed_VD"].size
    )
    attention = SMALL.layers * SMALL.seq * SMALL.d_model
    assert model.flops_per_token(SMALL) == pytest.approx(6 * (matrices + attention))
