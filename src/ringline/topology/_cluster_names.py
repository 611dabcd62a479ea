"""Read a cluster's name as people write it: `4x v4-16`, `16k H100`, `2 nodes of 8 A100 80GB`."""

import math
import re
from collections.abc import Collection
from typing import NamedTuple

_FILLERS = (
    r"(?<![\w-])(?:nodes?|hosts?|machines?|box(?:es)?|slices?|pods?|gpus?|chips?|with|of|each"
    r"|nvidia|google|cloud|sxm\d?)(?![\w-])"
)
_NAME = re.compile(r"((?:\d+\s*[x*]?\s*)*)([a-z][a-z0-9\- ]*?)(?:[-:](\d+(?:x\d+)*))?")
_COUNT_BEHIND = re.compile(r"(.*?)(?:\s*[x*]\s*|\s+)(\d+)")


class ClusterName(NamedTuple):
    """What a name says.

    Attributes:
        kind: the chip or box, empty where nothing could be read.
        count: how many.
        size: what comes after the dash or the colon, None without one.
    """

    kind: str
    count: int
    size: str | None


def read_cluster_name(text: str, known: Collection[str], sliced: Collection[str]) -> ClusterName:
    """Split the name of a cluster.

    Args:
        text: the name.
        known: every kind there is, in lower case.
        sliced: those of which a number behind counts the chips of a slice, not the chips.

    Returns:
        The parts; the kind is in `known` or is what stands in its place.

    Example:
        >>> read_cluster_name("2 nodes of 8 H100", ["h100"], [])
        ClusterName(kind='h100', count=16, size=None)
        >>> read_cluster_name("v5e 64", ["v5e"], ["v5e"])
        ClusterName(kind='v5e', count=1, size='64')
    """
    plain = text.strip().lower().replace("×", "x").replace("_", "-")
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    plain = re.sub(r"\b(\d+)k\b", lambda found: str(int(found[1]) * 1024), plain)
    plain = " ".join(re.sub(_FILLERS, " ", plain).split())
    match = _NAME.fullmatch(plain)
    if match and (kind := _kind(match[2], known)):
        return ClusterName(kind, _product(match[1]), match[3])
    behind = _COUNT_BEHIND.fullmatch(plain)
    head = _NAME.fullmatch(behind[1]) if behind else None
    if behind and head and (kind := _kind(head[2], known)):
        count = _product(head[1])
        if kind in sliced and head[3] is None:
            return ClusterName(kind, count, behind[2])
        return ClusterName(kind, count * int(behind[2]), head[3])
    return ClusterName(match[2].strip() if match else plain, 1, None)


def _kind(text: str, known: Collection[str]) -> str | None:
    """The known kind that `text` spells: with a dash for a space, or as a plural."""
    dashed = re.sub(r"[ -]+", "-", text.strip())
    spellings = (dashed, dashed.removesuffix("s"), dashed.replace("-", ""))
    return next((spelling for spelling in spellings if spelling in known), None)


def _product(text: str) -> int:
    return math.prod(int(number) for number in re.findall(r"\d+", text))
