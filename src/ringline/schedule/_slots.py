"""Give every interval of life a slot, such that no slot holds two values at once."""

import heapq
from collections.abc import Sequence


def allocate_slots(intervals: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], int]:
    """The slot of each interval and how many slots there are, which is the least possible.

    Intervals are visited by their start, and each takes the lowest slot that is free: linear
    scan, which is optimal for intervals. The count is the most intervals alive at one time.

    Args:
        intervals: `(start, end)`, whole numbers with start < end. The slot is taken from `start`
            on and free again at `end`, so an interval that starts where another ends may follow
            it in the same slot. Any order.

    Returns:
        For each interval, in the order given, its slot; and the number of slots.

    Raises:
        ValueError: for an interval that ends where or before it starts.

    Example:
        >>> allocate_slots([(0, 4), (1, 6), (4, 8)])
        ((0, 1, 0), 2)
        >>> allocate_slots([])
        ((), 0)

    References:
        Poletto and Sarkar, Linear Scan Register Allocation, TOPLAS 21(5), 1999.
    """
    slots = [-1] * len(intervals)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    count = 0
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i][0]):
        start, end = intervals[index]
        if end <= start:
            raise ValueError(
                f"interval {index} is [{start}, {end}); expected start < end: a value that is "
                "written takes its slot for at least one step"
            )
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, count)
            count += 1
        slots[index] = heapq.heappop(free)
        heapq.heappush(busy, (end, slots[index]))
    return tuple(slots), count
