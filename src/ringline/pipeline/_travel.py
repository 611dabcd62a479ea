"""What a tick moves: look up a stage's row, pass values to other stages, store what arrives."""

from typing import Any

from jax import lax

from ringline.pipeline._buffers import put

PyTree = Any
Row = dict[str, Any]


def row_of(rows: Row, stage) -> Row:
    """One stage's entries of the tables' rows `[stages]` of a tick."""
    return {name: of_stages[stage] for name, of_stages in rows.items()}


def send(
    value: PyTree, senders: dict[int, tuple[int, ...]], axis: str, stages: int
) -> dict[int, PyTree]:
    """Pass `value` on by every offset that the schedule uses; gives what arrives, by offset."""
    return {
        offset: lax.ppermute(value, axis, [(s, (s + offset) % stages) for s in sending])
        for offset, sending in senders.items()
    }


def store_arrivals(buffer: PyTree, row: Row, kind: str, arrived: dict[int, PyTree]) -> PyTree:
    """Put what arrived into the slots that the row names."""
    for offset, value in arrived.items():
        buffer = put(buffer, row[f"arrives.{kind}.{offset}"], value)
    return buffer
