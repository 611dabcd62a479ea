"""Find a schedule by the name that people call it."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from ringline.schedule._auto import zero_bubble
from ringline.schedule._breadth_first import circular, linear
from ringline.schedule._one_f_one_b import (
    eager_one_f_one_b,
    interleaved_one_f_one_b,
    one_f_one_b,
)
from ringline.schedule._pipeline import PipelineSchedule, parse_pipeline
from ringline.schedule._v_memory import zero_bubble_v_half, zero_bubble_v_min
from ringline.schedule._v_shape import dualpipe_v, zero_bubble_v
from ringline.schedule._zero_bubble import zero_bubble_h1, zero_bubble_h2

_MAKERS: dict[str, Callable[..., PipelineSchedule]] = {
    make.__name__: make
    for make in (
        linear,
        circular,
        one_f_one_b,
        eager_one_f_one_b,
        interleaved_one_f_one_b,
        zero_bubble_h1,
        zero_bubble_h2,
        zero_bubble,
        zero_bubble_v,
        zero_bubble_v_half,
        zero_bubble_v_min,
        dualpipe_v,
    )
}

ALIASES = {
    "gpipe": "linear",
    "breadth_first": "circular",
    "1f1b": "one_f_one_b",
    "eager_1f1b": "eager_one_f_one_b",
    "interleaved": "interleaved_one_f_one_b",
    "interleaved_1f1b": "interleaved_one_f_one_b",
    "zb_h1": "zero_bubble_h1",
    "zb_h2": "zero_bubble_h2",
    "zb_v": "zero_bubble_v",
}


def named_schedule(
    name: str, *, stages: int = 4, microbatches: int = 8, repeats: int | None = None
) -> PipelineSchedule:
    """The schedule called `name`, such as `circular`, `1f1b` or `zero-bubble-h1`.

    Args:
        name: a function of `ringline.schedules`, with hyphens or underscores, a common short
            name, or the path of a `.csv` file, whose own sizes then count.
        stages: p.
        microbatches: m.
        repeats: v; None for the schedule's own default.

    Raises:
        ValueError: for an unknown name, with the nearest ones, or sizes it cannot have.
        OSError: for a file that cannot be read.

    Example:
        >>> named_schedule("1f1b", stages=2, microbatches=3).name
        'one_f_one_b'
    """
    if name.endswith(".csv"):
        return parse_pipeline(Path(name), name=Path(name).stem)
    make = _maker(name)
    sizes = {"stages": stages, "microbatches": microbatches}
    return make(**sizes) if repeats is None else make(**sizes, repeats=repeats)


def schedule_names() -> list[str]:
    """The full names that `named_schedule` knows, with hyphens."""
    return sorted(name.replace("_", "-") for name in _MAKERS)


def _maker(name: str) -> Callable[..., PipelineSchedule]:
    plain = name.lower().replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in _MAKERS:
        near = get_close_matches(plain, [*_MAKERS, *ALIASES], n=2) or list(_MAKERS)
        expected = " or ".join(close.replace("_", "-") for close in near)
        raise ValueError(f"no schedule is called {name!r}; expected {expected}, or a .csv file")
    return _MAKERS[plain]
