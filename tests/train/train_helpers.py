"""A model small enough to compile in a second or two, and engines that tests share."""

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ringline.train import TrainConfig
from ringline.train._data import Corpus
from ringline.train._state import make_mesh
from ringline.train._step import Engine, build, make_schedule

SMALL = TrainConfig(
    d_model=16,
    heads=2,
    kv_heads=1,
    d_ff=32,
    layers=4,
    seq=16,
    batch=4,
    microbatches=2,
    stages=2,
    fsdp=2,
    steps=6,
    warmup=1,
    save_every=3,
    log_every=1,
    eval_batches=2,
    sample_bytes=8,
    peak_tflops=1.0,
).resolve()


def small(**changes: Any) -> TrainConfig:
    """`SMALL` with changes, what follows from others worked out again."""
    derived: dict[str, Any] = {"repeats": None, "devices": None}
    return dataclasses.replace(SMALL, **{**derived, **changes}).resolve()


@cache
def engine(config: TrainConfig, plain: bool = False) -> Engine:
    """The compiled functions of a configuration; `plain` is the loop over layers on one device."""
    if plain:
        return build(
            config, Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("stage", "fsdp")), None
        )
    return build(config, make_mesh(config), make_schedule(config))


def text_corpus(size: int = 2000) -> Corpus:
    """Words in a made-up order."""
    words = np.array([b"ring ", b"line ", b"stage ", b"tick ", b"hop\n"])
    data = b"".join(words[np.random.default_rng(0).integers(len(words), size=size)])
    whole = np.frombuffer(data, np.uint8)[:size]
    return Corpus("words", "words", whole[: size * 3 // 4], whole[size * 3 // 4 :])
