"""AdamW with warm-up, cosine decay and clipping by the global norm (optax)."""

from typing import Any

import jax
import optax

from ringline.train._config import TrainConfig


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Linear up to the peak over the warm-up, then a cosine to a tenth of it."""
    warmup = min(config.warmup, config.steps // 2)
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (warmup + 1),
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=config.steps,
        end_value=0.1 * config.learning_rate,
    )


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """The chain of clipping and AdamW."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            learning_rate(config),
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=decayed,
        ),
    )


def decayed(params: Any) -> Any:
    """True for the leaves that weight decay shrinks: all but the scales of the norms."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "norm" not in jax.tree_util.keystr(path), params
    )
