"""What a run leaves for people: results as JSON, the loss as a picture."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ringline.train._loop import RunResult


def summary(result: RunResult) -> dict[str, Any]:
    """The numbers of a run, ready for JSON."""
    steady = result.records[1:] or result.records
    return {
        "finished": result.finished,
        "steps": len(result.records),
        "eval_loss": result.eval_loss,
        "unigram_entropy": result.unigram_entropy,
        "held_out_entropy": result.own_entropy,
        "train_loss": result.records[-1].loss if result.records else None,
        "tokens_per_s": _median(record.tokens_per_s for record in steady),
        "step_s": _median(record.step_s for record in steady),
        "mfu": _median(record.mfu for record in steady),
        "mfu_peak_flops_per_s": result.peak.flops_per_s,
        "mfu_peak_source": result.peak.source,
        "bubble": result.bubble,
        "compile_s": result.compile_s,
        "wall_s": result.wall_s,
        "text": result.corpus,
        "prompt": result.prompt,
        "sample": result.sample,
        "folder": str(result.folder),
        "checkpoint_step": result.checkpoint_step,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "config": asdict(result.config),
        "losses": [record.loss for record in result.records],
    }


def write_json(path: Path, value: Any) -> None:
    """Write beside the place and rename, so that nobody reads half a file."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def plot_loss(result: RunResult, path: Path) -> None:
    """The training loss of every step, its running mean, and what it is to be compared with."""
    from ringline.train._figure import figure

    fig, axes = figure(8, 4.6)
    steps = [record.step for record in result.records]
    losses = [record.loss for record in result.records]
    axes.plot(steps, losses, color="#9db7d5", linewidth=0.8, label="training, each step")
    axes.plot(steps, _running_mean(losses), color="#1f4e8c", linewidth=1.8, label="running mean")
    axes.axhline(result.unigram_entropy, color="#8a8a8a", linestyle="--", linewidth=1.2)
    _note(axes, result.unigram_entropy, f"byte frequencies alone {result.unigram_entropy:.2f}")
    if result.eval_loss is not None:
        label = f"held-out {result.eval_loss:.2f}"
        axes.plot(steps[-1:], [result.eval_loss], "o", color="#c1440e", markersize=7, label=label)
    low = min([*losses, result.eval_loss or np.inf, result.unigram_entropy])
    # The first tenth falls steeply from far above: what it comes down to is of interest.
    high = max(result.unigram_entropy + 0.8, losses[-1] + 0.5, losses[len(losses) // 10] + 0.1)
    axes.set_ylim(max(0, low - 0.35), high)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per byte")
    axes.legend(loc="upper right", frameon=False)
    config = result.config
    axes.set_title(
        f"{result.corpus.split(' (')[0]}: {config.schedule} pipeline, {config.stages} stages x "
        f"{config.repeats} repeats, {config.microbatches} microbatches",
        loc="left",
        fontsize=11,
    )
    fig.savefig(path, dpi=150)


def _note(axes, height: float, text: str) -> None:
    axes.annotate(
        text,
        (0.99, height),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color="#5f5f5f",
        fontsize=9,
    )


def _running_mean(values: Sequence[float]) -> np.ndarray:
    """Mean of the steps around each, as many before as after, so that the curve does not lag."""
    count = len(values)
    total = np.cumsum(np.concatenate([[0.0], values]))
    step = np.arange(count)
    half = np.minimum(min(12, count // 20), np.minimum(step, count - 1 - step))
    return (total[step + half + 1] - total[step - half]) / (2 * half + 1)


def _median(values) -> float | None:
    values = list(values)
    return float(np.median(values)) if values else None
