"""The decoder language model, as pure functions on a plain tree of parameters.

RMSNorm, rotary positions, grouped-query attention and SwiGLU; bytes are the tokens. Leaves
under `layers` are stacked `[layers, ...]`, which is what `ringline.pipeline` takes.

Shape suffixes:
    B batch, L position, D d_model, H query heads, K key and value heads, N size of a head,
    F d_ff, V vocabulary, Z layers
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ringline.train._config import TrainConfig

VOCABULARY = 256

Params = dict[str, Any]
ApplyLayers = Callable[[Params, jax.Array], jax.Array]


def init_params(config: TrainConfig, key: jax.Array) -> Params:
    """Random parameters in float32; every layer is drawn from a key of its own."""
    d_model = config.d_model
    embed_key, layers_key, head_key = jax.random.split(key, 3)
    layer_keys = jax.random.split(layers_key, config.layers)
    params = {
        "embed_VD": _normal(embed_key, (VOCABULARY, d_model), d_model**-0.5),
        "layers": jax.vmap(partial(_init_layer, config))(layer_keys),
        "final_norm_D": jnp.ones((d_model,)),
    }
    if not config.tied:
        params["head_DV"] = _normal(head_key, (d_model, VOCABULARY), d_model**-0.5)
    return params


def _init_layer(config: TrainConfig, key: jax.Array) -> Params:
    d_model, d_ff, heads, kv_heads = config.d_model, config.d_ff, config.heads, config.kv_heads
    size = d_model // heads
    keys = iter(jax.random.split(key, 7))
    # The 2 Z additions to the residual stream start with a sum of variance about one.
    small = (2 * config.layers) ** -0.5
    return {
        "attention_norm_D": jnp.ones((d_model,)),
        "query_DHN": _normal(next(keys), (d_model, heads, size), d_model**-0.5),
        "key_DKN": _normal(next(keys), (d_model, kv_heads, size), d_model**-0.5),
        "value_DKN": _normal(next(keys), (d_model, kv_heads, size), d_model**-0.5),
        "out_HND": _normal(next(keys), (heads, size, d_model), small * d_model**-0.5),
        "ff_norm_D": jnp.ones((d_model,)),
        "gate_DF": _normal(next(keys), (d_model, d_ff), d_model**-0.5),
        "up_DF": _normal(next(keys), (d_model, d_ff), d_model**-0.5),
        "down_FD": _normal(next(keys), (d_ff, d_model), small * d_ff**-0.5),
    }


def _normal(key: jax.Array, shape: tuple[int, ...], scale: float) -> jax.Array:
    return scale * jax.random.normal(key, shape, jnp.float32)


def embed(config: TrainConfig, params: Params, tokens_BL: jax.Array) -> jax.Array:
    """Activations `[batch, length, d_model]` of tokens `[batch, length]`, in the compute type."""
    x_BLD = params["embed_VD"][tokens_BL] * config.d_model**0.5
    return x_BLD.astype(config.dtype)


def layer(config: TrainConfig, params: Params, x_BLD: jax.Array) -> jax.Array:
    """One transformer layer; parameters are cast to the type of `x_BLD`."""
    params = jax.tree.map(lambda leaf: leaf.astype(x_BLD.dtype), params)
    x_BLD = x_BLD + _attention(config, params, rms_norm(x_BLD, params["attention_norm_D"]))
    return x_BLD + _feed_forward(params, rms_norm(x_BLD, params["ff_norm_D"]))


def head(params: Params, x_BLD: jax.Array) -> jax.Array:
    """Logits `[batch, length, vocabulary]` in float32."""
    x_BLD = rms_norm(x_BLD, params["final_norm_D"])
    head_DV = params["head_DV"] if "head_DV" in params else params["embed_VD"].T
    return jnp.matmul(x_BLD, head_DV.astype(x_BLD.dtype), preferred_element_type=jnp.float32)


def logits(
    config: TrainConfig, params: Params, tokens_BL: jax.Array, apply_layers: ApplyLayers
) -> jax.Array:
    """Logits of the next token; `apply_layers(params["layers"], x)` runs all layers."""
    x_BLD = embed(config, params, tokens_BL)
    return head(params, apply_layers(params["layers"], x_BLD))


def loss(
    config: TrainConfig, params: Params, tokens_BL: jax.Array, apply_layers: ApplyLayers
) -> jax.Array:
    """Mean cross entropy in nats of tokens `[batch, length + 1]`, each from those before it."""
    x_BLD = embed(config, params, tokens_BL[:, :-1])
    return head_loss(params, apply_layers(params["layers"], x_BLD), tokens_BL[:, 1:])


def head_loss(params: Params, x_BLD: jax.Array, targets_BL: jax.Array) -> jax.Array:
    """Mean cross entropy in nats of `targets_BL`, from the activations after the last layer."""
    logits_BLV = head(params, x_BLD)
    return optax.softmax_cross_entropy_with_integer_labels(logits_BLV, targets_BL).mean()


def plain_layers(config: TrainConfig) -> ApplyLayers:
    """The loop over all layers without a pipeline, which every pipeline must equal."""
    run = partial(layer, config)
    if config.remat == "full":
        run = jax.checkpoint(run)

    def apply(layers: Params, x_BLD: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, one: (run(one, x), None), x_BLD, layers)[0]

    return apply


def flops_per_token(config: TrainConfig) -> float:
    """Model FLOPs of one training token: forward and backward, 3 x 2 for each multiply-add.

    Causal attention counts half of the square; the embedding look-up and recomputation count
    nothing. This is the convention behind the `mfu` that a run prints.
    """
    d_model = config.d_model
    size = d_model // config.heads
    projections = d_model * size * (2 * config.heads + 2 * config.kv_heads)
    scores = 2 * config.seq * d_model / 2
    per_layer = projections + scores + 3 * d_model * config.d_ff
    return 6.0 * (config.layers * per_layer + d_model * VOCABULARY)


def rms_norm(x_BLD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """x / sqrt(mean(x^2)) * scale, computed in float32."""
    x32_BLD = x_BLD.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32_BLD), axis=-1, keepdims=True)
    return (x32_BLD * jax.lax.rsqrt(mean_square + 1e-6) * scale_D).astype(x_BLD.dtype)


def rope(x_BLHN: jax.Array, base: float) -> jax.Array:
    """Rotate each pair (i, i + N/2) of a head by its position times base^(-2i/N)."""
    length, half = x_BLHN.shape[1], x_BLHN.shape[3] // 2
    angle_LP = jnp.arange(length)[:, None] * base ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle_LP)[:, None, :], jnp.sin(angle_LP)[:, None, :]
    first, second = jnp.split(x_BLHN.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BLHN.dtype)


def _attention(config: TrainConfig, params: Params, x_BLD: jax.Array) -> jax.Array:
    query_BLHN = rope(jnp.einsum("bld,dhn->blhn", x_BLD, params["query_DHN"]), config.rope_base)
    key_BLKN = rope(jnp.einsum("bld,dkn->blkn", x_BLD, params["key_DKN"]), config.rope_base)
    value_BLKN = jnp.einsum("bld,dkn->blkn", x_BLD, params["value_DKN"])
    mixed_BLHN = jax.nn.dot_product_attention(query_BLHN, key_BLKN, value_BLKN, is_causal=True)
    return jnp.einsum("blhn,hnd->bld", mixed_BLHN, params["out_HND"])


def _feed_forward(params: Params, x_BLD: jax.Array) -> jax.Array:
    gate_BLF = jax.nn.silu(x_BLD @ params["gate_DF"])
    return (gate_BLF * (x_BLD @ params["up_DF"])) @ params["down_FD"]
