"""The convergence check: the same training plainly and through pipelines, step by step."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ringline.train._config import TrainConfig
from ringline.train._console import Reporter
from ringline.train._data import Corpus, load_corpus, train_batch
from ringline.train._metrics import Peak, make_record
from ringline.train._state import make_mesh, put_batch
from ringline.train._step import Engine, bubble_share, build, make_schedule

LIMIT = 1e-4


@dataclass(frozen=True, slots=True)
class Comparison:
    """Losses of the same training done in three ways.

    Attributes:
        config: resolved, of the circular run.
        corpus: the text, for people.
        losses: per way (`plain`, `linear`, `circular`), the loss of each step.
        wall_s: time of all.
    """

    config: TrainConfig
    corpus: str
    losses: dict[str, list[float]]
    wall_s: float

    def differences(self) -> dict[str, list[float]]:
        """Per pipeline and step, |loss - plain loss|."""
        plain = np.asarray(self.losses["plain"])
        return {
            way: np.abs(np.asarray(losses) - plain).tolist()
            for way, losses in self.losses.items()
            if way != "plain"
        }

    def largest(self) -> float:
        """The largest difference of any step."""
        return max(max(values) for values in self.differences().values())

    @property
    def passed(self) -> bool:
        """Whether the largest difference is within 1e-4."""
        return self.largest() <= LIMIT

    def summary(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "largest_difference": self.largest(),
            "limit": LIMIT,
            "passed": self.passed,
            "largest_difference_by_schedule": {k: max(v) for k, v in self.differences().items()},
            "steps": self.config.steps,
            "text": self.corpus,
            "wall_s": self.wall_s,
            "jax": jax.__version__,
            "config": dataclasses.asdict(self.config),
            "losses": self.losses,
        }


def compare(config: TrainConfig, reporter: Reporter) -> Comparison:
    """Train plainly on one device, through a linear and through a circular pipeline.

    All three start from the same parameters and read the same batches, in float32.

    Args:
        config: of the circular run; `schedule` and `repeats` of the linear one follow.
        reporter: where to print.

    Raises:
        ValueError: for what cannot run.
    """
    began = time.perf_counter()
    circular = dataclasses.replace(config, schedule="circular", dtype="float32").resolve()
    linear = dataclasses.replace(circular, schedule="linear", repeats=1)
    corpus = load_corpus(circular.text, seq=circular.seq, held_out=circular.held_out)
    mesh = make_mesh(circular)
    alone = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("stage", "fsdp"))
    losses = {
        "plain": _losses("plain", build(circular, alone, None), corpus, reporter),
        "linear": _losses("linear", build(linear, mesh, make_schedule(linear)), corpus, reporter),
        "circular": _losses(
            "circular", build(circular, mesh, make_schedule(circular)), corpus, reporter
        ),
    }
    return Comparison(circular, corpus.source, losses, time.perf_counter() - began)


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """All curves, and below them how far the pipelines are from the plain loop."""
    from ringline.train._figure import figure

    fig, (curves, gaps) = figure(8, 6.4, rows=2)
    steps = np.arange(1, comparison.config.steps + 1)
    styles = {"plain": ("#b8b8b8", 5.0), "linear": ("#1f4e8c", 2.2), "circular": ("#c1440e", 1.0)}
    for way, losses in comparison.losses.items():
        color, width = styles[way]
        curves.plot(steps, losses, color=color, linewidth=width, label=way)
    curves.set_ylabel("training loss, nats per byte")
    curves.legend(loc="upper right", frameon=False)
    curves.set_title("The same training, plainly and through pipelines", loc="left", fontsize=11)
    # An exact zero has no place on a log axis; float32's step near 1 stands for it.
    floor = 2.0**-24
    for way, values in comparison.differences().items():
        color, _ = styles[way]
        gaps.plot(steps, np.maximum(values, floor), color=color, linewidth=1.2, label=way)
    gaps.axhline(LIMIT, color="#5f5f5f", linestyle="--", linewidth=1.2)
    gaps.annotate(
        "limit 1e-4",
        (0.01, LIMIT),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color="#5f5f5f",
        fontsize=9,
    )
    gaps.set_yscale("log")
    gaps.set_ylim(floor / 2, max(LIMIT * 6, comparison.largest() * 3))
    gaps.set_ylabel("|loss - plain loss|")
    gaps.set_xlabel("step")
    fig.savefig(path, dpi=150)


def _losses(way: str, engine: Engine, corpus: Corpus, reporter: Reporter) -> list[float]:
    config = engine.config
    bubble = bubble_share(engine.schedule, config.overlap) if engine.schedule else 0.0
    state = engine.init()
    losses = []
    reporter.say(f"{way}:")
    reporter.start(way, 0, config.steps)
    try:
        for step in range(config.steps):
            start = time.perf_counter()
            tokens = train_batch(
                corpus, seed=config.seed, step=step, batch=config.batch, seq=config.seq
            )
            state, loss = engine.step(state, put_batch(tokens, engine.mesh))
            losses.append(float(loss))
            record = make_record(
                config, step + 1, losses[-1], time.perf_counter() - start, _NO_PEAK, bubble
            )
            reporter.step(record, step + 1 == config.steps)
    finally:
        reporter.stop()
    return losses


# Speed is not what is compared, so no peak is measured and `mfu` reads 0.
_NO_PEAK = Peak(float("inf"), "not measured")
