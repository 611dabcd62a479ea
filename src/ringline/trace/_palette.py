"""Colours and names of operations, shared by every drawing.

The four hues are told apart with any of the common kinds of colour blindness (they follow Okabe
and Ito 2008); the chunks of one stage are shades of them, mixed toward the background.
"""

from dataclasses import dataclass
from typing import Literal

Theme = Literal["light", "dark"]

THEMES: tuple[Theme, ...] = ("light", "dark")
BACKGROUND: dict[Theme, str] = {"light": "#ffffff", "dark": "#14181f"}
INK = "#050607"  # dark enough that it or PAPER reads at 4.5 to 1 on any colour
PAPER = "#ffffff"

_BASE: dict[str, dict[Theme, str]] = {
    "F": {"light": "#1668ad", "dark": "#3f93dd"},
    "B": {"light": "#eba21a", "dark": "#eeab33"},
    "I": {"light": "#cf5a1b", "dark": "#e57a41"},
    "W": {"light": "#10876a", "dark": "#2fae8c"},
    "SEND_F": {"light": "#1668ad", "dark": "#3f93dd"},
    "SEND_B": {"light": "#c98407", "dark": "#eeab33"},
    "REDUCE": {"light": "#5b6470", "dark": "#9aa4b2"},
    # Instructions of a compiled program; its transfers take the other colour.
    "fusion": {"light": "#5b6470", "dark": "#9aa4b2"},
    "conditional": {"light": "#cf5a1b", "dark": "#e57a41"},
    "while": {"light": "#10876a", "dark": "#2fae8c"},
}
_OTHER: dict[Theme, str] = {"light": "#a2497d", "dark": "#cf7fae"}
_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "SEND_F": "activation on a link",
    "SEND_B": "cotangent on a link",
    "SEND": "transfer",
    "GATHER": "gather of weights",
    "REDUCE": "reduction of gradients",
}
_FAINTEST = 0.52


@dataclass(frozen=True, slots=True)
class Paint:
    """Fill, outline and text colour of one kind of cell."""

    fill: str
    edge: str
    text: str


def name_of(kind: str) -> str:
    """What people call an operation."""
    return _NAMES.get(kind, kind)


def paint(kind: str, repeat: int, repeats: int, theme: Theme = "light") -> Paint:
    """The colours of operation `kind` on a stage's chunk number `repeat` of `repeats`.

    Example:
        >>> paint("F", 0, 2).fill
        '#1668ad'
        >>> paint("F", 1, 2).fill
        '#7daad1'
    """
    base = _BASE.get(kind, _OTHER)[theme]
    most = min(_FAINTEST, 0.44 + 0.04 * (repeats - 2))
    share = most * repeat / max(1, repeats - 1)
    fill = _mix(base, BACKGROUND[theme], share)
    text = max((INK, PAPER), key=lambda color: contrast(color, fill))
    return Paint(fill, _mix(base, INK if theme == "light" else PAPER, 0.25), text)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _mix(color: str, other: str, share: float) -> str:
    pairs = zip(_channels(color), _channels(other))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _channels(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def _luminance(color: str) -> float:
    linear = [
        c / 12.92 if (c := channel / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for channel in _channels(color)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
