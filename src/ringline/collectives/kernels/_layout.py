"""Shapes that TPU copies can cut: where a slice has to lie, and what to do with other shapes.

The last two dims of an array in TPU memory are stored in tiles of 8 x 128 words of 32 bits (16 or
32 rows of smaller words), and a copy cannot begin or end within a tile. So a gather whose stripes
or pieces do not fit the tiles moves blocks `[piece, rows, 128]` of the stripe's elements in order,
and puts them in place afterwards. A reduction always works on such blocks.
"""

from itertools import pairwise
from math import prod
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

LANES = 128
# All buffers of a kernel together; the smallest on-chip memory is 16 MiB.
_VMEM_BYTES = 10 * 2**20
_MAX_IN_TILES = 1.125


def tile_rows(dtype) -> int:
    """Rows of a tile."""
    return 32 // jnp.dtype(dtype).itemsize


def cut_in_place(shape: tuple[int, ...], axis: int, pieces: int, dtype) -> int | None:
    """The dim along which a stripe can be cut where it lies; None if it has to be packed.

    Args:
        shape: of a stripe.
        axis: the dim along which stripes are joined.
        pieces: of a stripe, of equal length.
        dtype: of the words.
    """
    units = [1] * len(shape)
    units[-2:] = [tile_rows(dtype), LANES][-len(shape) :]
    if len(shape) < 2 or shape[axis] % units[axis] or _in_tiles(shape, units) > _MAX_IN_TILES:
        return None
    # The sooner the dim comes, the longer are the runs that a copy is made of.
    fits = (dim for dim, unit in enumerate(units) if shape[dim] % (pieces * unit) == 0)
    return next(fits, None)


def _in_tiles(shape: tuple[int, ...], units: list[int]) -> float:
    """How many times its size an array takes in whole tiles, all of which a copy moves."""
    whole = [-(-size // unit) * unit for size, unit in zip(shape, units)]
    return prod(whole) / prod(shape)


def packed(x: Array, pieces: int) -> Array:
    """The elements of a stripe in order as `[1, pieces, rows, 128]`, with zeros after the last."""
    rows = -(-x.size // (pieces * LANES))
    flat = padded(x.reshape(-1), pieces * rows * LANES, 0)
    return flat.reshape(1, pieces, rows, LANES)


def unpacked(blocks: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Stripes of `shape`, packed in `[devices, pieces, rows, 128]`, joined along `axis`."""
    devices = blocks.shape[0]
    stripes = blocks.reshape(devices, -1)[:, : prod(shape)].reshape(devices, *shape)
    joined = (*shape[:axis], devices * shape[axis], *shape[axis + 1 :])
    return jnp.moveaxis(stripes, 0, axis).reshape(joined)


class Blocks(NamedTuple):
    """How the terms of a reduction are laid out.

    Where stripes and pieces are runs of columns that fit the tiles, the terms stay where they are,
    as `[slabs * rows, devices * pieces * lanes]`. Else they are moved to blocks of their own,
    `[devices, pieces, slabs * rows, lanes]`.

    Attributes:
        axis: the dim along which the stripes lie.
        cut: the dim along which a stripe is cut into pieces.
        bounds: where along it the pieces begin and end.
        piece: the shape of the longest piece.
        slabs: how many slabs a block is summed in.
        rows: of a slab.
        lanes: of a row.
        columns: whether stripes and pieces are runs of columns.
    """

    axis: int
    cut: int
    bounds: tuple[int, ...]
    piece: tuple[int, ...]
    slabs: int
    rows: int
    lanes: int
    columns: bool


def blocks_of(
    stripe: tuple[int, ...], axis: int, cut: int, pieces: int, buffered: int, dtype
) -> Blocks:
    """How to lay out the terms of stripes of shape `stripe`.

    Args:
        stripe: its shape.
        axis: the dim along which the stripes lie.
        cut: the dim along which a stripe is cut into pieces.
        pieces: how many.
        buffered: how many pieces' slabs a kernel holds on the chip.
        dtype: of the terms.
    """
    bounds = cut_evenly(stripe[cut], pieces)
    piece = (*stripe[:cut], max(_lengths(bounds)), *stripe[cut + 1 :])
    tile, itemsize = tile_rows(dtype), jnp.dtype(dtype).itemsize
    lanes = piece[-1]
    wide = buffered * tile * lanes * itemsize > _VMEM_BYTES
    if wide or lanes % LANES or prod(piece[:-1]) % tile:
        lanes = LANES
    most = max(tile, _VMEM_BYTES // (buffered * lanes * itemsize) // tile * tile)
    used = -(-prod(piece) // lanes)
    slabs, rows = in_blocks(used, most, tile)
    in_place = axis == cut == len(stripe) - 1 and lanes == piece[-1] and stripe[cut] % pieces == 0
    columns = in_place and slabs * rows == used
    return Blocks(axis, cut, bounds, piece, slabs, rows, lanes, columns)


def in_blocks(used: int, most: int, tile: int) -> tuple[int, int]:
    """How many blocks hold `used` rows, and rows of each: at most `most`, with little padding."""
    tiles, limit = -(-used // tile), most // tile
    exact = next((count for count in range(min(tiles, limit), 0, -1) if tiles % count == 0), 1)
    if 2 * exact < min(tiles, limit):
        slabs = -(-tiles // limit)
        return slabs, -(-tiles // slabs) * tile
    return tiles // exact, exact * tile


def terms_in_blocks(x: Array, devices: int, blocks: Blocks) -> Array:
    """This device's term of all stripes, as `blocks` says."""
    if blocks.columns:
        return x.reshape(blocks.slabs * blocks.rows, -1)
    whole = blocks.slabs * blocks.rows
    pieces = split_pieces(x, devices, blocks.axis, blocks.cut, blocks.bounds)
    flat = padded(pieces.reshape(*pieces.shape[:2], -1), whole * blocks.lanes, 2)
    return flat.reshape(*pieces.shape[:2], whole, blocks.lanes)


def stripe_of_blocks(y: Array, blocks: Blocks) -> Array:
    """The stripe whose sum is `[pieces, slabs * rows, lanes]`, or lies in columns."""
    if blocks.columns:
        return y.reshape(*blocks.piece[:-1], -1)
    found = y.reshape(y.shape[0], -1)[:, : prod(blocks.piece)]
    return join_pieces(found.reshape(-1, *blocks.piece), blocks.cut, blocks.bounds)


def split_pieces(x: Array, devices: int, axis: int, cut: int, bounds: tuple[int, ...]) -> Array:
    """All stripes along `axis`, each in pieces along `cut`: `[devices, pieces, *piece]`.

    Pieces shorter than the longest end with zeros.
    """
    shape = (*x.shape[:axis], devices, x.shape[axis] // devices, *x.shape[axis + 1 :])
    stripes = jnp.moveaxis(x.reshape(shape), axis, 0)
    lengths = _lengths(bounds)
    if len(set(lengths)) == 1:
        split = (*stripes.shape[: cut + 1], len(lengths), lengths[0], *stripes.shape[cut + 2 :])
        return jnp.moveaxis(stripes.reshape(split), cut + 1, 1)
    pieces = (lax.slice_in_dim(stripes, a, b, axis=cut + 1) for a, b in pairwise(bounds))
    return jnp.stack([padded(piece, max(lengths), cut + 1) for piece in pieces], 1)


def join_pieces(pieces: Array, cut: int, bounds: tuple[int, ...]) -> Array:
    """The stripe whose pieces along `cut` are `[pieces, *piece]`."""
    lengths = _lengths(bounds)
    if len(set(lengths)) == 1:
        shape = list(pieces.shape[1:])
        shape[cut] *= len(lengths)
        return jnp.moveaxis(pieces, 0, cut).reshape(shape)
    kept = (lax.slice_in_dim(piece, 0, size, axis=cut) for piece, size in zip(pieces, lengths))
    return lax.concatenate(list(kept), cut)


def cut_evenly(rows: int, pieces: int) -> tuple[int, ...]:
    """Where the pieces of a stripe begin and end."""
    return tuple(rows * piece // pieces for piece in range(pieces + 1))


def _lengths(bounds: tuple[int, ...]) -> list[int]:
    return [stop - start for start, stop in pairwise(bounds)]


def padded(x: Array, size: int, dim: int) -> Array:
    """`x` with zeros up to `size` along `dim`."""
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (0, size - x.shape[dim], 0)
    return x if x.shape[dim] == size else lax.pad(x, x.dtype.type(0), config)
