"""vTrain's 1,440 measured steps on one node of A100: fitted on some, tested on the rest."""

import csv
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringline.plan._calibration import Calibration
from ringline.plan._layout import Layout
from ringline.plan._model import Model
from ringline.plan._step import Evaluator, Work
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.topology import cluster

_COLUMNS = (
    "# GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
    "iteration time (ms)",
)
_FIT_ROWS = 150
_SEED = 0
# Start, lowest and highest value of every fitted parameter.
_PARAMETERS = {
    "matmul_share": (0.95, 0.3, 1.14),
    "matmul_knee": (150.0, 0.0, 2000.0),
    "attention_efficiency": (0.4, 0.02, 1.0),
    "kernel_s": (2e-5, 0.0, 2e-4),
    "traffic": (0.8, 0.1, 6.0),
    "loss_bytes_per_logit": (100.0, 1.0, 400.0),
    "layer_floor_s": (7e-4, 0.0, 3e-3),
    "link_efficiency": (0.7, 0.05, 1.25),
    "collective_s": (3e-5, 0.0, 1e-3),
    "optimizer_bytes_per_parameter": (30.0, 1.0, 400.0),
    "step_s": (2e-3, 0.0, 2e-2),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One measured step."""

    chips: int
    batch: int
    microbatch: int
    hidden: int
    heads: int
    layers: int
    length: int
    tensor: int
    data: int
    stages: int
    measured_s: float

    def predict_s(self, how: Calibration) -> float:
        """The step with the efficiencies `how`: full recomputation, 1F1B, no sequence split."""
        model = Model(
            "gpt",
            self.layers,
            self.hidden,
            self.heads,
            4 * self.hidden,
            # Megatron pads the 50,257 entries to a multiple of 128 on each chip.
            -(-50257 // (128 * self.tensor)) * 128 * self.tensor,
            tied=True,
        )
        work = Work(model, cluster(f"{self.chips}x a100"), self.batch, self.length, how, False)
        layout = Layout(
            self.stages,
            1,
            self.batch // (self.data * self.microbatch),
            "one_f_one_b" if self.stages > 1 else "none",
            "full",
            1,
            self.tensor,
            self.data,
            "step",
        )
        return Evaluator(work).best(layout).predicted_s


@check("vtrain")
def vtrain(options: Options) -> Report:
    """Eleven efficiencies fitted on 150 rows drawn by a fixed seed; the rest is the test."""
    title = "1,440 measured steps of GPT on one node of 8 A100 (Megatron-DeepSpeed)"
    source = "vTrain, arXiv 2312.12391, single-node ground truth (MIT licence)"
    if options.vtrain is None:
        return Report("vtrain", title, source, skipped="give the file with --vtrain FILE")
    runs = read_runs(options.vtrain)
    fitted, rest = split(runs)
    options.progress(f"fitting to {len(fitted)} of {len(runs)} rows")
    how = fit(fitted)
    test, train = _errors(rest, how), _errors(fitted, how)
    figures = (
        Figure("median error, test rows", statistics.median(test), 0.0, "", 0.06, relative=False),
        Figure("mean error, test rows", statistics.fmean(test), 0.0, "", 0.09, relative=False),
        Figure("largest error, test rows", max(test), 0.0, "", relative=False),
        Figure(
            "share of test rows off by more than 15%",
            sum(error > 0.15 for error in test) / len(test),
            0.0,
            "",
            relative=False,
        ),
        Figure("median error, fit rows", statistics.median(train), 0.0, "", None, False, True),
        Figure("mean error, fit rows", statistics.fmean(train), 0.0, "", None, False, True),
    )
    values = ", ".join(f"{name} = {getattr(how, name):.3g}" for name in _PARAMETERS)
    return Report(
        "vtrain",
        title,
        source,
        figures,
        (
            f"Fitted on {len(fitted)} rows drawn with seed {_SEED}, tested on the other "
            f"{len(rest)}: {values}.",
            "vTrain itself reports 8.37% mean error on its single-node runs.",
            *_worst_cells(rest, how),
        ),
    )


def read_runs(path: Path) -> list[Run]:
    """The rows of vTrain's CSV file.

    Raises:
        ValueError: when the file is missing or lacks a column, or a cell is no number.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give vTrain's CSV file") from error
    runs = []
    for number, row in enumerate(rows, start=2):
        try:
            cells = [row[column] for column in _COLUMNS]
            counts: list[Any] = [int(cell) for cell in cells[:-1]]
            runs.append(Run(*counts, measured_s=float(cells[-1]) * 1e-3))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}: expected the columns {', '.join(_COLUMNS)} as numbers, "
                f"got {error}"
            ) from error
    if len(runs) <= _FIT_ROWS:
        raise ValueError(f"{path}: expected more than {_FIT_ROWS} rows, got {len(runs)}")
    return runs


def split(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Rows to fit on and rows to test on."""
    order = list(range(len(runs)))
    random.Random(_SEED).shuffle(order)
    chosen = set(order[:_FIT_ROWS])
    return (
        [run for index, run in enumerate(runs) if index in chosen],
        [run for index, run in enumerate(runs) if index not in chosen],
    )


def fit(runs: Sequence[Run]) -> Calibration:
    """The efficiencies with the least error of the logarithm, large errors counted less."""
    from scipy.optimize import least_squares  # here, so that other checks do not load it

    start, low, high = (np.array(column) for column in zip(*_PARAMETERS.values()))

    def errors(values: np.ndarray) -> np.ndarray:
        how = _with(values)
        return np.array([np.log(run.predict_s(how) / run.measured_s) for run in runs])

    found = least_squares(
        errors,
        start,
        bounds=(low, high),
        x_scale=start,
        loss="soft_l1",
        f_scale=0.05,
        max_nfev=25,
    )
    return _with(found.x)


def _with(values: np.ndarray) -> Calibration:
    fitted: dict[str, Any] = {name: float(value) for name, value in zip(_PARAMETERS, values)}
    return Calibration(fused_attention=False, data_overlap=0.0, **fitted)


def _errors(runs: Sequence[Run], how: Calibration) -> list[float]:
    return [abs(run.predict_s(how) / run.measured_s - 1) for run in runs]


def _worst_cells(runs: Sequence[Run], how: Calibration) -> tuple[str, ...]:
    """The shapes of a chip's work that resist most, with their mean error."""
    cells: dict[tuple[int, int, int], list[float]] = {}
    for run in runs:
        key = (run.hidden, run.microbatch, run.tensor)
        cells.setdefault(key, []).append(run.predict_s(how) / run.measured_s - 1)
    means = {key: statistics.fmean(values) for key, values in cells.items()}
    worst = sorted(means, key=lambda key: -abs(means[key]))[:4]
    named = ", ".join(
        f"hidden {h} microbatch {b} tensor {t}: {means[h, b, t]:+.0%}" for h, b, t in worst
    )
    return (
        f"Resisting shapes (mean error): {named}. Their measured times do not grow with the "
        "work: 24 layers of hidden 1024 on 2 chips take 83, 90, 83 and 130 ms a microbatch of "
        "1, 2, 4 and 8, and with 8 chips a microbatch of 1 takes longer than one of 4. That is "
        "the choice of kernels and the host, which a roofline does not hold.",
    )
