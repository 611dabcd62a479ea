"""Sizes as people write them on a command line: `8`, `64KiB`, `1G`."""

import re

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def read_bytes(flag: str, text: str) -> int:
    """The bytes that `text` says; K, M, G and KiB, MiB, GiB are binary.

    Args:
        flag: what the text was given to, for the error.
        text: a number and a unit.

    Raises:
        ValueError: for anything else.

    Example:
        >>> read_bytes("--size", "64KiB"), read_bytes("--size", "1.5M")
        (65536, 1572864)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{flag} must be a size like 8, 64KiB or 1G, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])
