"""What can be measured: each collective, its built-in counterpart, and what goes in and out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jax import Array, lax

from ringline.collectives._all_gather import all_gather
from ringline.collectives._all_reduce import all_reduce
from ringline.collectives._fused import all_gather_matmul, matmul_reduce_scatter
from ringline.collectives._reduce_scatter import reduce_scatter
from ringline.schedule import CollectiveSchedule
from ringline.schedule import all_gather as all_gather_schedule
from ringline.schedule import all_reduce as all_reduce_schedule
from ringline.schedule import reduce_scatter as reduce_scatter_schedule

AXIS = "devices"

Way = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective as it is measured.

    Attributes:
        name: as on the command line.
        takes: `shard`: each device has its stripe of the array; `term`: each has an array of the
            full shape, and they are summed.
        gives: `whole`: each device ends with the full array; `stripe`: with its share.
        matmul: whether a matrix `[k, k]` multiplies the last dim on the way.
        rounds: how often each byte crosses the links of an equivalent ring: busbw is
            rounds (n - 1) / n T / t.
        pairs: whether two devices of a host can share its work.
        schedule: makes the schedule.
        ours: the public function for (dim, options).
        builtin: the same from `jax.lax`, for (dim,).
    """

    name: str
    takes: Literal["shard", "term"]
    gives: Literal["whole", "stripe"]
    matmul: bool
    rounds: int
    pairs: bool
    schedule: Callable[..., CollectiveSchedule]
    ours: Callable[..., Way]
    builtin: Callable[[int], Way]

    @property
    def sums(self) -> bool:
        """Whether the devices' arrays are added up."""
        return self.takes == "term"

    @property
    def in_place(self) -> bool:
        """Whether it can write over a buffer that it is given."""
        return self.takes == "shard" and not self.matmul

    @property
    def array(self) -> str:
        """What T counts the bytes of."""
        match self.takes, self.gives:
            case "shard", _:
                return "gathered array"
            case _, "stripe":
                return "array before the scatter"
        return "array"


def _gather(dim: int, **options: Any) -> Way:
    return partial(all_gather, axis_name=AXIS, axis=dim, **options)


def _builtin_gather(dim: int) -> Way:
    return partial(lax.all_gather, axis_name=AXIS, axis=dim, tiled=True)


def _scatter(dim: int, **options: Any) -> Way:
    return partial(reduce_scatter, axis_name=AXIS, scatter_dimension=dim, **options)


def _builtin_scatter(dim: int) -> Way:
    return partial(lax.psum_scatter, axis_name=AXIS, scatter_dimension=dim, tiled=True)


def _reduce(dim: int, **options: Any) -> Way:
    return partial(all_reduce, axis_name=AXIS, **options)


def _builtin_reduce(dim: int) -> Way:
    return partial(lax.psum, axis_name=AXIS)


def _gather_matmul(dim: int, **options: Any) -> Way:
    return partial(all_gather_matmul, axis_name=AXIS, axis=dim, **options)


def _builtin_gather_matmul(dim: int) -> Way:
    return lambda x, w: _builtin_gather(dim)(x) @ w


def _matmul_scatter(dim: int, **options: Any) -> Way:
    return partial(matmul_reduce_scatter, axis_name=AXIS, scatter_dimension=dim, **options)


def _builtin_matmul_scatter(dim: int) -> Way:
    return lambda x, w: _builtin_scatter(dim)(x @ w)


ALL_GATHER = Operation(
    "all-gather", "shard", "whole", False, 1, True, all_gather_schedule, _gather, _builtin_gather
)
REDUCE_SCATTER = Operation(
    "reduce-scatter",
    "term",
    "stripe",
    False,
    1,
    True,
    reduce_scatter_schedule,
    _scatter,
    _builtin_scatter,
)
ALL_REDUCE = Operation(
    "all-reduce", "term", "whole", False, 2, True, all_reduce_schedule, _reduce, _builtin_reduce
)
ALL_GATHER_MATMUL = Operation(
    "all-gather-matmul",
    "shard",
    "whole",
    True,
    1,
    False,
    all_gather_schedule,
    _gather_matmul,
    _builtin_gather_matmul,
)
MATMUL_REDUCE_SCATTER = Operation(
    "matmul-reduce-scatter",
    "term",
    "stripe",
    True,
    1,
    False,
    reduce_scatter_schedule,
    _matmul_scatter,
    _builtin_matmul_scatter,
)

OPERATIONS = {
    operation.name: operation
    for operation in (
        ALL_GATHER,
        REDUCE_SCATTER,
        ALL_REDUCE,
        ALL_GATHER_MATMUL,
        MATMUL_REDUCE_SCATTER,
    )
}
