"""`Layout`: how a training step is spread over chips, and its text form."""

from dataclasses import dataclass, fields, replace
from typing import Any

from ringline.plan._layer import REMATS, Remat
from ringline.plan._model import Model
from ringline.plan._rules import NOT_CONSIDERED, RULES
from ringline.topology import Cluster
from ringline.topology._tables import nearest

GATHERS = ("step", "tick")
_KEYS = {
    "p": "stages",
    "pp": "stages",
    "v": "repeats",
    "vpp": "repeats",
    "m": "microbatches",
    "tp": "tensor",
    "dp": "data",
    "recompute": "remat",
}
_SHORT = {
    "1f1b": "one_f_one_b",
    "gpipe": "linear",
    "eager_1f1b": "eager_one_f_one_b",
    "interleaved": "interleaved_one_f_one_b",
    "interleaved_1f1b": "interleaved_one_f_one_b",
    "zb_h1": "zero_bubble_h1",
    "zb_h2": "zero_bubble_h2",
    "zbh1": "zero_bubble_h1",
    "zbh2": "zero_bubble_h2",
    "zb_v": "zero_bubble_v",
    "zbv": "zero_bubble_v",
    "zb_v_half": "zero_bubble_v_half",
    "zb_v_min": "zero_bubble_v_min",
    "dualpipe": "dualpipe_v",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to run a training step.

    Attributes:
        stages: pipeline stages, 1 for no pipeline.
        repeats: chunks that a stage holds.
        microbatches: parts of the batch; without a pipeline their gradients are accumulated.
        schedule: name of the schedule, `none` without a pipeline.
        remat: `none`, `selective` or `full`.
        fsdp: chips that share parameters, gradients and optimizer state, each with own data.
        tensor: chips that share every matmul.
        data: replicas.
        gather: weights are gathered over `fsdp` once a `step`, or for each use, a `tick`.

    Example:
        >>> str(Layout(stages=4, microbatches=8, schedule="one_f_one_b", fsdp=16))
        'stages=4,microbatches=8,schedule=one_f_one_b,fsdp=16'
    """

    stages: int = 1
    repeats: int = 1
    microbatches: int = 1
    schedule: str = "none"
    remat: Remat = "none"
    fsdp: int = 1
    tensor: int = 1
    data: int = 1
    gather: str = "tick"

    def __str__(self) -> str:
        plain = Layout()
        parts = (
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        )
        return ",".join(parts) or "stages=1"

    @property
    def chips(self) -> int:
        """Chips it takes."""
        return self.stages * self.fsdp * self.tensor * self.data

    @property
    def pipelined(self) -> bool:
        """Whether there is a pipeline."""
        return self.stages > 1

    def sequences(self, batch: int) -> float:
        """Sequences of one microbatch that one tensor group sees."""
        return batch / (self.data * self.fsdp * self.microbatches)

    def refuses(self, model: Model, cluster: Cluster, batch: int) -> str | None:
        """Why this layout cannot run at all, or None; memory is not looked at."""
        if self.chips != cluster.chips:
            return (
                f"stages x fsdp x tensor x data = {self.stages} x {self.fsdp} x {self.tensor} x "
                f"{self.data} = {self.chips} chips, but {cluster.name} has {cluster.chips}"
            )
        shares = self.data * self.fsdp * self.microbatches
        if batch % shares:
            return (
                f"batch {batch} does not divide by data x fsdp x microbatches = {self.data} x "
                f"{self.fsdp} x {self.microbatches} = {shares}"
            )
        if self.stages * self.repeats > model.layers:
            return (
                f"stages x repeats = {self.stages} x {self.repeats} is more than the "
                f"{model.layers} layers of {model.name}"
            )
        if model.heads % self.tensor:
            return f"tensor={self.tensor} does not divide the {model.heads} heads"
        if self.tensor > cluster.chips_per_slice:
            return f"tensor={self.tensor} is more than the {cluster.chips_per_slice} chips a slice"
        if not self.pipelined:
            return None if self.schedule == "none" else "a schedule needs stages of at least 2"
        if self.schedule not in RULES:
            return "stages of at least 2 need a schedule"
        return RULES[self.schedule].refuses(
            self.stages, self.microbatches, self.repeats, self.remat
        )


def parse_constraints(text: str) -> dict[str, Any]:
    """The values that `stages=4,schedule=1f1b` fixes.

    Raises:
        ValueError: for an unknown key or value, with what is known.

    Example:
        >>> parse_constraints("stages=4, schedule=1f1b")
        {'stages': 4, 'schedule': 'one_f_one_b'}
        >>> parse_constraints("TP=8,PP=4")
        {'tensor': 8, 'stages': 4}
    """
    known = [field.name for field in fields(Layout)]
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = _KEYS.get(key.lower(), key.lower())
        if key in known and not value:
            raise ValueError(f"layout {text!r}: {part!r} has no value; write for example {key}=...")
        if key not in known or not equals:
            raise ValueError(f"layout {text!r}: unknown part {part!r}{nearest(key, known)}")
        values[key] = _value(text, key, value)
    if not values:
        raise ValueError(f"layout {text!r} fixes nothing; write for example 'stages=4,fsdp=16'")
    return values


def matches(layout: Layout, constraints: dict[str, Any]) -> bool:
    """Whether `layout` has every value of `constraints`."""
    return all(getattr(layout, key) == value for key, value in constraints.items())


def with_values(layout: Layout, constraints: dict[str, Any]) -> Layout:
    """`layout` with the values of `constraints` in place of its own."""
    return replace(layout, **constraints)


def _value(text: str, key: str, value: str) -> int | str:
    choices = {"schedule": ("none", *RULES), "remat": REMATS, "gather": GATHERS}.get(key)
    if choices:
        value = _SHORT.get(value.lower().replace("-", "_"), value.lower().replace("-", "_"))
        if key == "schedule" and value in NOT_CONSIDERED:
            raise ValueError(
                f"layout {text!r}: {value} is not planned, {NOT_CONSIDERED[value]}; time it with "
                "ringline simulate, or ask for another schedule"
            )
        if value not in choices:
            raise ValueError(f"layout {text!r}: unknown {key} {value!r}{nearest(value, choices)}")
        return value
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"layout {text!r}: {key} must be a whole number >= 1, got {value!r}")
    return int(value)
