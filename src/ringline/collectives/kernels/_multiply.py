"""A matmul inside a TPU kernel, tile by tile: while one is multiplied the next is on its way."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringline.collectives.kernels._layout import LANES, in_blocks, tile_rows

# Large enough for the matrix unit to be busier than the memory; the code of a tile is unrolled.
_MOST_ROWS, _MOST_INNER, _MOST_COLUMNS = 512, 512, 1024


class Tiles(NamedTuple):
    """Tiles of `[rows, inner] @ [inner, columns]`, and how many there are of each.

    Attributes:
        rows: of a tile of the left operand.
        inner: the length that is summed over in one tile.
        columns: of a tile of the right operand.
        counts: how many along each.
    """

    rows: int
    inner: int
    columns: int
    counts: tuple[int, int, int]

    @property
    def padded(self) -> tuple[int, int, int]:
        """The sizes of the whole product with the padding."""
        rows, inner, columns = self.counts
        return rows * self.rows, inner * self.inner, columns * self.columns


def tiles_of(rows: int, inner: int, columns: int, dtype: Any) -> Tiles:
    """Tiles for operands of type `dtype` that fit the chip's memory twice, and its registers."""
    most = _MOST_COLUMNS * 2 // jnp.dtype(dtype).itemsize
    row_blocks, height = in_blocks(rows, _MOST_ROWS, max(tile_rows(dtype), 16))
    inner_blocks, depth = in_blocks(inner, _MOST_INNER, LANES)
    column_blocks, width = in_blocks(columns, most, LANES)
    return Tiles(height, depth, width, (row_blocks, inner_blocks, column_blocks))


class Scratch(NamedTuple):
    """Tiles on the chip, two of each that is copied, and a semaphore for each copy."""

    lefts: Any
    rights: Any
    results: Any
    total: Any
    addend: Any
    left_copies: Any
    right_copies: Any
    result_copies: Any
    addend_copy: Any


def scratch_for(tiles: Tiles, dtype: Any, out_dtype: Any) -> list[Any]:
    """The shapes of a `Scratch`."""
    two = pltpu.SemaphoreType.DMA((2,))
    return [
        pltpu.VMEM((2, tiles.rows, tiles.inner), dtype),
        pltpu.VMEM((2, tiles.inner, tiles.columns), dtype),
        pltpu.VMEM((2, tiles.rows, tiles.columns), out_dtype),
        pltpu.VMEM((tiles.rows, tiles.columns), jnp.float32),
        pltpu.VMEM((tiles.rows, tiles.columns), out_dtype),
        two,
        two,
        two,
        pltpu.SemaphoreType.DMA(()),
    ]


def multiply(
    x: Any,
    w: Any,
    place: Any,
    tiles: Tiles,
    scratch: Scratch,
    *,
    before: Callable[[], None] | None = None,
    add: Callable[[Any], None] | None = None,
) -> None:
    """Write `x @ w` to `place`, summed in float32.

    Args:
        x: left operand in memory, `[rows, inner]`.
        w: right operand, `[inner, columns]`.
        place: of the result, `[rows, columns]`.
        tiles: all sizes are whole multiples of them.
        scratch: on the chip.
        before: done before the first tile of the result is finished.
        add: adds to `scratch.total`, given where the tile lies in the result.
    """
    deep, across = x.shape[1] // tiles.inner, w.shape[1] // tiles.columns
    results = x.shape[0] // tiles.rows * across
    slots = scratch.results

    def loads(number: Any) -> list[Any]:
        result, inner = number // deep, number % deep
        rows, columns = result // across, result % across
        depth = _tile(inner, tiles.inner)
        slot = number % 2
        left = x.at[_tile(rows, tiles.rows), depth]
        right = w.at[depth, _tile(columns, tiles.columns)]
        return [
            pltpu.make_async_copy(left, scratch.lefts.at[slot], scratch.left_copies.at[slot]),
            pltpu.make_async_copy(right, scratch.rights.at[slot], scratch.right_copies.at[slot]),
        ]

    def store(result: Any) -> Any:
        at = (_tile(result // across, tiles.rows), _tile(result % across, tiles.columns))
        slot = result % 2
        return pltpu.make_async_copy(slots.at[slot], place.at[at], scratch.result_copies.at[slot])

    def finish(result: Any) -> None:
        if before is not None:
            pl.when(result == 0)(before)
        if add is not None:
            add((_tile(result // across, tiles.rows), _tile(result % across, tiles.columns)))
        pl.when(result >= 2)(lambda: store(result - 2).wait())
        slots[result % 2] = scratch.total[...].astype(slots.dtype)
        store(result).start()

    def step(number: Any, _: Any) -> None:
        @pl.when(number + 1 < results * deep)
        def _() -> None:
            for copy in loads(number + 1):
                copy.start()

        for copy in loads(number):
            copy.wait()
        slot = number % 2
        product = jnp.dot(
            scratch.lefts[slot],
            scratch.rights[slot],
            preferred_element_type=jnp.float32,
            precision=_precision(scratch.lefts.dtype),
        )
        inner = number % deep

        @pl.when(inner == 0)
        def _() -> None:
            scratch.total[...] = product

        @pl.when(inner > 0)
        def _() -> None:
            scratch.total[...] += product

        pl.when(inner == deep - 1)(lambda: finish(number // deep))

    for copy in loads(0):
        copy.start()
    jax.lax.fori_loop(0, results * deep, step, None)
    for last in range(max(0, results - 2), results):
        store(last).wait()


def _precision(dtype: Any) -> Any:
    """Products of float32 are not rounded to fewer bits."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None


def _tile(number: Any, size: int) -> Any:
    start = number * size
    return pl.ds(start if isinstance(start, int) else pl.multiple_of(start, size), size)
