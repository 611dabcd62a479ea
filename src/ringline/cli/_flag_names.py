"""Say a library's error with the names of the command's flags: `transfer_s` is `--transfer`."""

import re
from collections.abc import Iterable

_UNITS = ("_s", "_bytes")


def in_flags(message: str, fields: Iterable[str]) -> str:
    """`message` with parameters as flags.

    A parameter that ends with a unit is replaced wherever it stands, and one with a value, such
    as injection='bubble'. One that may also be a plain word is replaced where it can only be a
    parameter: as what must be something, or what to change.

    Args:
        message: of an error that a library function raised.
        fields: the names of the command's flags, with underscores.

    Example:
        >>> in_flags("transfer_s must be >= 0, got -1; change transfer_s", ["transfer"])
        '--transfer must be >= 0, got -1; change --transfer'
        >>> in_flags("a ring has slots; slots must be at least 1", ["slots"])
        'a ring has slots; --slots must be at least 1'
    """
    if ", key '" in message:  # of a file, whose keys have names of their own
        return message
    for field in fields:
        flag = f"--{field.replace('_', '-')}"
        units = "|".join(_UNITS)
        message = re.sub(rf"(?<![\w-]){field}(?:{units})(?!\w)", flag, message)
        message = re.sub(rf"(?<![\w-]){field}='([^']*)'", rf"{flag} \1", message)
        message = re.sub(rf"(?<![\w-]){field}(?= must\b)", flag, message)
        message = re.sub(rf"(?<=\bchange ){field}(?![\w-])", flag, message)
    return message
