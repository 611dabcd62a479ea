"""What a step is measured by, and where the numbers of all steps are kept."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from ringline.train._config import TrainConfig
from ringline.train._model import flops_per_token


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step.

    Attributes:
        step: counted from 1.
        loss: training loss in nats a byte.
        step_s: seconds, data and update included.
        tokens_per_s: bytes learnt per second.
        mfu: model FLOPs per second over the peak (see `flops_per_token`).
        bubble: share of the schedule's ticks in which a stage runs nothing.
    """

    step: int
    loss: float
    step_s: float
    tokens_per_s: float
    mfu: float
    bubble: float

    def line(self) -> str:
        """The plain line of the output."""
        return (
            f"step: {self.step} loss: {self.loss:.4f} tokens/s: {self.tokens_per_s:.0f} "
            f"step_s: {self.step_s:.3f} mfu: {self.mfu:.3f} bubble: {self.bubble:.3f}"
        )


@dataclass(frozen=True, slots=True)
class Peak:
    """The FLOPs per second that `mfu` is a share of, and where the number comes from."""

    flops_per_s: float
    source: str


def make_record(
    config: TrainConfig, step: int, loss: float, step_s: float, peak: Peak, bubble: float
) -> StepRecord:
    """The record of a step that took `step_s`."""
    tokens_per_s = config.batch * config.seq / step_s
    mfu = tokens_per_s * flops_per_token(config) / peak.flops_per_s
    return StepRecord(step, loss, step_s, tokens_per_s, mfu, bubble)


def find_peak(config: TrainConfig) -> Peak:
    """The stated peak times the devices, else what a square matmul reaches.

    Emulated devices share one machine, so there the matmul of one of them stands for all.
    """
    assert config.devices is not None
    if config.peak_tflops is not None:
        total = config.peak_tflops * 1e12 * config.devices
        return Peak(total, f"--peak-tflops {config.peak_tflops} x {config.devices} devices")
    device = jax.local_devices()[0]
    emulated = device.platform == "cpu"
    size = 1024 if emulated else 8192
    one = _matmul_flops_per_s(device, config.dtype, size)
    what = f"a {config.dtype} matmul of {size}^3 on {device.device_kind}"
    if emulated:
        return Peak(one * jax.process_count(), f"measured: {what}, for the whole machine")
    return Peak(one * config.devices, f"measured: {what}, x {config.devices} devices")


def append_records(path: Path, records: Iterable[StepRecord]) -> None:
    """Add records to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(record)) + "\n" for record in records)


def read_records(path: Path, until: int) -> list[StepRecord]:
    """The records of the steps up to `until`, dropping a line that a kill cut short."""
    records: dict[int, StepRecord] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            record = StepRecord(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        if record.step <= until:
            records[record.step] = record
    return [records[step] for step in sorted(records)]


def _matmul_flops_per_s(device: jax.Device, dtype: str, size: int) -> float:
    square = jax.device_put(jnp.ones((size, size), dtype), device)
    matmul = jax.jit(lambda a: a @ a)
    matmul(square).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        matmul(square).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
