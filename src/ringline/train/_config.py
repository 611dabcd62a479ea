"""`TrainConfig`: everything a training run can be asked for, from TOML files and flags.

A key of the TOML file and a flag of the command line have the same name, and both come from
the fields of this one class. Flags win over the file, the file over the defaults.
"""

import dataclasses
import difflib
import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ringline.schedule import named_schedule

Schedule = Literal[
    "linear",
    "circular",
    "1f1b",
    "eager-1f1b",
    "interleaved",
    "zero-bubble-h1",
    "zero-bubble-h2",
    "zero-bubble-v",
    "dualpipe-v",
]


def _knob(default: Any, help_text: str, *, derived: str = "") -> Any:
    """A field with its help; `derived` says what None stands for."""
    return field(default=default, metadata={"help": help_text, "derived": derived})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A run of the reference trainer. Every field is a TOML key and a flag.

    Example:
        >>> from ringline.train import TrainConfig
        >>> config = TrainConfig(stages=2, fsdp=2).resolve()
        >>> config.devices, config.schedule, config.repeats
        (4, 'circular', 2)
    """

    # The model
    d_model: int = _knob(64, "Width of the model.")
    layers: int = _knob(8, "Transformer layers.")
    heads: int = _knob(4, "Query heads.")
    kv_heads: int = _knob(2, "Key and value heads, shared by groups of query heads.")
    d_ff: int = _knob(192, "Width of the SwiGLU feed-forward part.")
    tied: bool = _knob(True, "Whether the embedding is the output head too.")
    rope_base: float = _knob(10_000.0, "Base of the rotary position frequencies.")
    dtype: Literal["float32", "bfloat16"] = _knob(
        "float32", "Type of the computation; parameters are kept in float32."
    )
    # The data
    text: str | None = _knob(
        None, "File to learn, any bytes.", derived="the demo corpus, else Python's help topics"
    )
    seq: int = _knob(64, "Bytes in one sequence.")
    batch: int = _knob(16, "Sequences in one step, all microbatches together.")
    held_out: float = _knob(0.1, "Share of --text kept for evaluation: its end.")
    eval_batches: int = _knob(16, "Batches of held-out text in the evaluation.")
    # The optimizer
    learning_rate: float = _knob(4e-3, "Highest learning rate of AdamW.")
    warmup: int = _knob(40, "Steps of linear warm-up; cosine decay follows.")
    weight_decay: float = _knob(0.1, "Decoupled weight decay; norms have none.")
    beta2: float = _knob(0.98, "Decay of AdamW's second moment.")
    clip: float = _knob(1.0, "Largest global norm of the gradient.")
    # The pipeline
    schedule: Schedule = _knob("circular", "Order of the pipeline.")
    stages: int = _knob(4, "Pipeline stages.")
    repeats: int | None = _knob(
        None, "Chunks of layers on each stage.", derived="1 or 2, the schedule's own"
    )
    microbatches: int = _knob(8, "Pieces of the batch that travel through the stages.")
    fsdp: int | None = _knob(
        None, "Devices that share a stage's parameters.", derived="devices / stages, else 2"
    )
    devices: int | None = _knob(
        None, "Devices; emulated on the CPU without accelerators.", derived="stages x fsdp"
    )
    overlap: bool = _knob(
        False, "Send one tick ahead, beside the compute; for linear and circular."
    )
    gather: Literal["step", "repeat", "use"] = _knob(
        "step", "When weights are gathered over fsdp; linear and circular: once a step."
    )
    remat: Literal["none", "full"] = _knob("none", "What the backward pass computes again.")
    # The run
    steps: int = _knob(500, "Training steps.")
    seed: int = _knob(0, "Seed of parameters, batches and the sample.")
    out: str | None = _knob(None, "Folder of the run.", derived="a new one in runs/")
    log_every: int = _knob(10, "Steps between two lines of output.")
    save_every: int = _knob(200, "Steps between two checkpoints; the last step is always saved.")
    sample_bytes: int = _knob(300, "Bytes of text to generate at the end.")
    temperature: float = _knob(0.8, "Temperature of the generated text.")
    prompt: str | None = _knob(None, "Start of the generated text.", derived="of held-out text")
    peak_tflops: float | None = _knob(
        None, "Peak of one device for the MFU.", derived="measured with a matmul"
    )

    def resolve(self) -> "TrainConfig":
        """Fill in what follows from other fields, and check every value.

        Raises:
            ValueError: for a value that no run can have; the message names the knob.
        """
        changes: dict[str, Any] = {}
        if self.repeats is None:
            changes["repeats"] = named_schedule(self.schedule, stages=1, microbatches=1).repeats
        _check_positive(self)
        if self.fsdp is None:
            given = self.devices
            changes["fsdp"] = 2 if given is None else max(1, given // self.stages)
        config = dataclasses.replace(self, **changes)
        assert config.fsdp is not None
        product = config.stages * config.fsdp
        if config.devices is None:
            config = dataclasses.replace(config, devices=product)
        _check_relations(config, product)
        return config

    def model_fields(self) -> dict[str, Any]:
        """What decides whether a checkpoint fits this model."""
        return {name: getattr(self, name) for name in MODEL_FIELDS}


MODEL_FIELDS = ("d_model", "layers", "heads", "kv_heads", "d_ff", "tied", "rope_base")
_POSITIVE = (
    *("d_model", "layers", "heads", "kv_heads", "d_ff", "rope_base", "seq", "batch"),
    *("eval_batches", "learning_rate", "clip", "stages", "repeats", "microbatches", "fsdp"),
    *("devices", "steps", "log_every", "save_every", "temperature", "peak_tflops"),
)


def _check_positive(config: TrainConfig) -> None:
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name} must be above 0, got {value}; change --{_flag(name)}")
    for name in ("warmup", "weight_decay", "sample_bytes", "seed"):
        if not 0 <= getattr(config, name) < float("inf"):
            raise ValueError(
                f"{name} must be 0 or more, got {getattr(config, name)}; change --{_flag(name)}"
            )
    for name in ("held_out", "beta2"):
        if not 0 < getattr(config, name) < 1:
            raise ValueError(
                f"{name} must lie between 0 and 1, got {getattr(config, name)}; "
                f"change --{_flag(name)}"
            )


def _check_relations(config: TrainConfig, product: int) -> None:
    if config.devices != product:
        raise ValueError(
            f"devices must be stages x fsdp = {config.stages} x {config.fsdp} = {product}, got "
            f"{config.devices}; change --devices, --stages or --fsdp"
        )
    try:
        named_schedule(config.schedule, stages=1, microbatches=1, repeats=config.repeats)
    except ValueError as error:
        raise ValueError(f"{error}; change --schedule or --repeats") from None
    if config.overlap and config.schedule not in ("linear", "circular"):
        raise ValueError(
            f"overlap is for linear and circular pipelines, {config.schedule} hides its transfers "
            "anyway; leave --overlap out"
        )
    if config.gather != "step" and config.schedule in ("linear", "circular"):
        raise ValueError(
            f"{config.schedule} gathers weights once a step, got gather={config.gather!r}; use "
            "--gather step or another --schedule"
        )
    if config.d_model % (2 * config.heads):
        raise ValueError(
            f"d_model must be a multiple of 2 x heads = {2 * config.heads} (rotary pairs), got "
            f"{config.d_model}; change --d-model or --heads"
        )
    if config.heads % config.kv_heads:
        raise ValueError(
            f"heads must be a multiple of kv_heads, got {config.heads} and {config.kv_heads}; "
            "change --heads or --kv-heads"
        )
    if config.batch % config.microbatches:
        raise ValueError(
            f"batch must be a multiple of microbatches = {config.microbatches}, got "
            f"{config.batch}; change --batch or --microbatches"
        )
    each = config.batch // config.microbatches
    if config.fsdp is not None and each % config.fsdp:
        raise ValueError(
            f"a microbatch must be a multiple of fsdp = {config.fsdp} sequences, got {each} "
            f"(batch {config.batch} / microbatches {config.microbatches}); change --batch, "
            "--microbatches or --fsdp"
        )


def _flag(name: str) -> str:
    return name.replace("_", "-")


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file, each checked to be a known key with a value of its type.

    Raises:
        ValueError: when the file cannot be read or parsed, for an unknown key (with the nearest
            known ones) or a value of another type.
    """
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"config file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config file {path} is not TOML: {error}") from None
    hints = get_type_hints(TrainConfig)
    for key, value in settings.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=3, cutoff=0.5)
            guess = f"did you mean {', '.join(near)}?" if near else "see ringline train --help"
            raise ValueError(f"config file {path}: unknown key {key!r}; {guess}")
        settings[key] = _typed(path, key, value, hints[key])
    return settings


def merge(file: Mapping[str, Any], flags: Mapping[str, Any]) -> TrainConfig:
    """The defaults, under the file's settings, under the flags that were given (not None)."""
    return TrainConfig(**{**file, **{k: v for k, v in flags.items() if v is not None}})


def to_toml(config: TrainConfig) -> str:
    """The configuration as TOML that `read_toml` gives back; None is left out."""
    lines = ["# The resolved configuration of this run; pass it with --config to repeat it."]
    for knob in dataclasses.fields(config):
        value = getattr(config, knob.name)
        if value is not None:
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{knob.name} = {text}")
    return "\n".join(lines) + "\n"


def _typed(path: str | Path, key: str, value: Any, hint: Any) -> Any:
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if get_origin(option) is Literal:
            if value in get_args(option) and isinstance(value, str):
                return value
        elif option is float and type(value) in (int, float):
            return float(value)
        elif type(value) is option:
            return value
    wanted = " or ".join(
        " or ".join(map(repr, get_args(o))) if get_origin(o) is Literal else o.__name__
        for o in options
        if o is not type(None)
    )
    raise ValueError(
        f"config file {path}: {key} must be {wanted}, got {value!r} ({type(value).__name__}); "
        "change it there"
    )
