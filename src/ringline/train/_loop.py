"""`train`: the whole run, from the configuration to the results."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ringline.train._checkpoint import Checkpoints
from ringline.train._config import TrainConfig, to_toml
from ringline.train._console import Reporter
from ringline.train._data import Corpus, eval_batch, load_corpus, train_batch
from ringline.train._distributed import any_process, barrier, is_main
from ringline.train._folder import CONFIG, check_writable, new_folder
from ringline.train._metrics import (
    Peak,
    StepRecord,
    append_records,
    find_peak,
    make_record,
    read_records,
)
from ringline.train._sample import sample
from ringline.train._state import TrainState, make_mesh, put_batch, to_plain
from ringline.train._step import Engine, bubble_share, build, make_schedule
from ringline.train._stop import StopRequest

RECORDS = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to.

    Attributes:
        config: resolved.
        folder: where its files are.
        corpus: name and split of the text, for people.
        records: every step so far, those before a resume included.
        finished: False when it was stopped before its last step.
        eval_loss: nats a byte on held-out text; None when stopped.
        unigram_entropy: nats a byte of the held-out text under the training text's frequencies.
        own_entropy: entropy of the held-out text's own frequencies.
        prompt: what the sample starts from.
        sample: text that the model made up.
        peak: what `mfu` is a share of.
        bubble: share of idle ticks in the schedule.
        compile_s: time to build the step.
        wall_s: time of this call.
        checkpoint_step: the step of the last checkpoint.
    """

    config: TrainConfig
    folder: Path
    corpus: str
    records: list[StepRecord]
    finished: bool
    eval_loss: float | None
    unigram_entropy: float
    own_entropy: float
    prompt: str
    sample: str
    peak: Peak
    bubble: float
    compile_s: float
    wall_s: float
    checkpoint_step: int


def train(
    config: TrainConfig,
    *,
    resume: Path | None = None,
    stream: TextIO | None = None,
) -> RunResult:
    """Train a language model through a pipeline, with checkpoints, evaluation and a sample.

    Minimises the mean of -log p(byte | bytes before it) over random windows of the text.

    Args:
        config: what to do; resolved here.
        resume: folder of the run to go on with, or None to start a new one.
        stream: where to print, or None.

    Returns:
        The numbers of the run; checkpoints, configuration and steps are in its folder.

    Raises:
        ValueError: for what cannot run, before anything is written.
    """
    began = time.perf_counter()
    config = config.resolve()
    corpus = load_corpus(config.text, seq=config.seq, held_out=config.held_out)
    reporter = Reporter(stream if is_main() else None, config.log_every)
    folder = resume or _new_folder(config, corpus)
    schedule, mesh = make_schedule(config), make_mesh(config)
    if is_main():
        check_writable(folder)
    reporter.say(f"text: {corpus.source}: {len(corpus.train):,} + {len(corpus.held_out):,} bytes")
    reporter.say(
        f"devices: {config.devices} {mesh.devices.flat[0].platform} = {config.stages} stages x "
        f"{config.fsdp} fsdp; {config.schedule}, repeats: {config.repeats}, "
        f"microbatches: {config.microbatches}"
    )
    checkpoints = Checkpoints(folder / "checkpoints")
    if resume is not None:
        checkpoints.check(config)
    engine = build(config, mesh, schedule)
    compile_s = time.perf_counter() - began
    state = engine.init() if resume is None else checkpoints.restore(engine)
    _check_steps(config, folder, int(state.step))
    peak, bubble = find_peak(config), bubble_share(schedule, config.overlap)
    records = _open_folder(folder, config, int(state.step))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    reporter.say(f"model: {parameters:,} parameters; compiled in {compile_s:.1f} s")
    reporter.say(f"peak: {peak.flops_per_s / 1e9:,.0f} GFLOP/s ({peak.source})")
    if int(state.step) == config.steps:
        reporter.say(f"all {config.steps} steps are done; --steps asks for more")
    barrier("before the first step", timeout_s=300)
    run = _Run(engine, corpus, checkpoints, reporter, folder, peak, bubble, records)
    state, finished = run.steps(state)
    eval_loss, prompt, text = None, "", ""
    if finished:
        eval_loss = evaluate(engine, corpus, state)
        prompt, text = _generate(engine, corpus, state)
    checkpoints.close()
    return RunResult(
        config=config,
        folder=folder,
        corpus=corpus.source,
        records=run.records,
        finished=finished,
        eval_loss=eval_loss,
        unigram_entropy=corpus.unigram_entropy(),
        own_entropy=corpus.own_entropy(),
        prompt=prompt,
        sample=text,
        peak=peak,
        bubble=bubble,
        compile_s=compile_s,
        wall_s=time.perf_counter() - began,
        checkpoint_step=int(state.step),
    )


def evaluate(engine: Engine, corpus: Corpus, state: TrainState) -> float:
    """Mean loss in nats a byte over the held-out text."""
    config = engine.config
    losses = []
    for index in range(config.eval_batches):
        tokens = eval_batch(
            corpus, index=index, batches=config.eval_batches, batch=config.batch, seq=config.seq
        )
        losses.append(float(engine.evaluate(state.params, put_batch(tokens, engine.mesh))))
    return float(np.mean(losses))


@dataclass
class _Run:
    """The loop over steps and what it writes."""

    engine: Engine
    corpus: Corpus
    checkpoints: Checkpoints
    reporter: Reporter
    folder: Path
    peak: Peak
    bubble: float
    records: list[StepRecord]

    def steps(self, state: TrainState) -> tuple[TrainState, bool]:
        """Step until the end or until somebody asks to stop; the state is then saved."""
        config = self.engine.config
        first, unsaved = int(state.step), []
        stopped = False
        with self._progress(first), StopRequest() as stop:
            for step in range(first, config.steps):
                start = time.perf_counter()
                tokens = train_batch(
                    self.corpus, seed=config.seed, step=step, batch=config.batch, seq=config.seq
                )
                state, loss = self.engine.step(state, put_batch(tokens, self.engine.mesh))
                # Waiting for the loss keeps one step in flight: emulated devices that run two
                # programs with collectives at once can wait for each other for ever.
                value, step_s = float(loss), time.perf_counter() - start
                if not np.isfinite(value):
                    raise ValueError(
                        f"the loss of step {step + 1} is {value}; lower --learning-rate or --clip "
                        f"(the checkpoints in {self.folder} are of the steps before)"
                    )
                record = make_record(config, step + 1, value, step_s, self.peak, self.bubble)
                unsaved.append(record)
                self.records.append(record)
                stopped = any_process(stop.wanted)
                last = step + 1 == config.steps or stopped
                self.reporter.step(record, last)
                if last or (step + 1) % config.save_every == 0:
                    self._save(state, unsaved)
                    unsaved = []
                if last:
                    break
        return state, int(state.step) >= config.steps

    def _save(self, state: TrainState, records: list[StepRecord]) -> None:
        # Records first: those beyond the newest checkpoint are dropped on resuming.
        if is_main():
            append_records(self.folder / RECORDS, records)
        self.checkpoints.save(self.engine, state)

    @contextmanager
    def _progress(self, done: int) -> Generator[None]:
        self.reporter.start(self.folder.name, done, self.engine.config.steps)
        try:
            yield
        finally:
            self.reporter.stop()


def _new_folder(config: TrainConfig, corpus: Corpus) -> Path:
    if config.out is None and jax.process_count() > 1:
        raise ValueError(
            "several processes need one folder that all of them see, got none; give --out"
        )
    return new_folder(config.out, corpus.name)


def _check_steps(config: TrainConfig, folder: Path, done: int) -> None:
    if done > config.steps:
        raise ValueError(
            f"the run in {folder} has done {done} steps, expected at most the {config.steps} "
            "asked for; change --steps"
        )


def _open_folder(folder: Path, config: TrainConfig, done: int) -> list[StepRecord]:
    """Make the folder with its configuration; give the records of the steps already done."""
    records = read_records(folder / RECORDS, done)
    if is_main():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(to_toml(config), encoding="utf-8")
        (folder / RECORDS).unlink(missing_ok=True)
        append_records(folder / RECORDS, records)
    return records


def _generate(engine: Engine, corpus: Corpus, state: TrainState) -> tuple[str, str]:
    """The prompt and what the model makes of it; empty in all processes but the first."""
    config = engine.config
    params = local_params(engine, state)
    if not is_main():
        return "", ""
    prompt = config.prompt.encode() if config.prompt else _first_words(corpus)
    text = sample(config, params, prompt, config.sample_bytes) if config.sample_bytes else b""
    return prompt.decode(errors="replace"), text.decode(errors="replace")


def _first_words(corpus: Corpus) -> bytes:
    """How the held-out text begins, without the parts of characters at its ends."""
    start = corpus.held_out[:32].tobytes()
    return start.decode(errors="ignore").encode() or start


def local_params(engine: Engine, state: TrainState) -> Any:
    """All parameters, layers in model order, on one device of each process."""
    schedule = engine.schedule
    whole = NamedSharding(engine.mesh, PartitionSpec())
    gathered = jax.jit(
        lambda params: to_plain(params, schedule) if schedule is not None else params,
        out_shardings=whole,
    )(state.params)
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), gathered)
