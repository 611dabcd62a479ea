"""Generate text from a model, byte by byte."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringline.train import _model
from ringline.train._config import TrainConfig


def sample(config: TrainConfig, params: Any, prompt: bytes, count: int) -> bytes:
    """`count` bytes that follow `prompt`, drawn at the configured temperature and seed.

    Each byte is drawn from softmax(logits / temperature), given the last `seq` bytes.

    Args:
        config: resolved.
        params: layers `[layers, ...]`, on one device.
        prompt: at least one byte.
        count: how many bytes to draw.
    """
    window = np.zeros(config.seq, np.int32)
    start = np.frombuffer(prompt, np.uint8)[-config.seq :]
    window[: len(start)] = start
    drawn = _generate(config, count, params, jnp.asarray(window), len(start))
    return np.asarray(drawn, np.uint8).tobytes()


@partial(jax.jit, static_argnums=(0, 1))
def _generate(config: TrainConfig, count: int, params: Any, window_L, filled) -> jax.Array:
    apply_layers = _model.plain_layers(config)

    def draw(carry, key):
        window_L, filled = carry
        logits_LV = _model.logits(config, params, window_L[None], apply_layers)[0]
        token = jax.random.categorical(key, logits_LV[filled - 1] / config.temperature)
        # A full window moves on by one byte; positions are relative, so it may.
        full = filled == config.seq
        window_L = jnp.where(full, jnp.roll(window_L, -1), window_L)
        place = jnp.where(full, config.seq - 1, filled)
        return (window_L.at[place].set(token), place + 1), token

    keys = jax.random.split(jax.random.key(config.seed), count)
    return jax.lax.scan(draw, (window_L, filled), keys)[1]
