"""TOML files read with errors that name the file, the line and the key."""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\-\"']+)\s*=")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class Table:
    """One table of a TOML file; reading from it fails with the file, the line and the key.

    Attributes:
        path: the file.
        name: the table's dotted name, empty for the top of the file.
        values: what it holds.
        lines: line number of every table and key of the file, by dotted name.
    """

    path: Path
    name: str
    values: dict[str, Any]
    lines: dict[str, int] = field(repr=False)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def tables(self) -> Iterator["Table"]:
        """The tables directly inside this one."""
        for key, value in self.values.items():
            if isinstance(value, dict):
                yield self.table(key)

    def table(self, key: str) -> "Table":
        """The table `key` inside this one."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.error(key, f"expected a table [{self._dotted(key)}]; add one")
        return Table(self.path, self._dotted(key), value, self.lines)

    def error(self, key: str, message: str) -> ValueError:
        """A ValueError at the line of `key`, or of the table where the key is missing."""
        line = self.lines.get(self._dotted(key), self.lines.get(self.name, 1))
        where = f" of [{self.name}]" if self.name else ""
        return ValueError(f"{self.path}, line {line}, key {key!r}{where}: {message}")

    def require_known(self, known: Iterable[str]) -> None:
        """Raise at the first key that is not in `known`, with the nearest names."""
        known = tuple(known)
        for key in self.values:
            if key not in known:
                raise self.error(key, f"unknown key{nearest(key, known)}")

    def text(self, key: str, default: str | None = None) -> str:
        """The text under `key`."""
        value = self._get(key, default, "a text")
        if not isinstance(value, str):
            raise self.error(key, f'expected a text in quotes, got {value!r}; write {key} = "..."')
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of texts under `key`, empty when it is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"expected a list of texts, got {value!r}")
        return tuple(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """The true or false under `key`."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0) -> float:
        """The number under `key`, larger than `above`."""
        return self.quantity(key, default, above=above).value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """The whole number under `key`, at least `least`."""
        value = self._get(key, default, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(
                key, f"expected a whole number of at least {least}, got {value!r}; change {key}"
            )
        return value

    def quantity(
        self,
        key: str,
        default: float | None = None,
        *,
        above: float = 0.0,
        source: str = "",
        infinite: bool = False,
    ) -> Quantity:
        """The number under `key` with its source: `{ value = 1e12, source = "..." }`.

        A plain number has the file as its source. With `infinite` it may be inf: no limit.
        """
        given = self._get(key, default, "a number")
        source = source or str(self.path)
        if isinstance(given, dict):
            inner = Table(self.path, self._dotted(key), given, self.lines)
            inner.require_known(("value", "source"))
            source = inner.text("source", source)
            given = inner._get("value", None, "a number")
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > above:
            raise self.error(key, f"expected a number > {above:g}, got {given!r}; change {key}")
        if given == math.inf and not infinite:
            raise self.error(key, f"expected a finite number, got {given!r}; change {key}")
        return Quantity(float(given), source)

    def _get(self, key: str, default: Any, what: str) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise self.error(key, f"missing; add {key} = {what}")
        return value

    def _dotted(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def read_table(path: str | Path) -> Table:
    """The top table of the TOML file at `path`.

    Raises:
        ValueError: when the file is missing or is not TOML, with the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}; give the path of a TOML file") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}; correct that line") from error
    return Table(path, "", values, _line_numbers(text))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'a' or 'b'?`, or the whole list when nothing is near.

    Example:
        >>> nearest("lama3-8b", ["llama3-8b", "gpt3-22b"])
        "; did you mean 'llama3-8b'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if not close and len(name) > 1:
        close = [one for one in known if name.lower() in one][:4]
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; known: {', '.join(known)}"


def _line_numbers(text: str) -> dict[str, int]:
    """Line of each header and of each `key =` below it, by dotted name."""
    lines = {"": 1}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = header[1].replace('"', "").replace(" ", "")
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            name = key[1].replace('"', "")
            lines.setdefault(f"{section}.{name}" if section else name, number)
    return lines
