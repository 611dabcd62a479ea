"""Collectives inside fusions.

The compiler puts a collective into a fusion to run it beside other work: a first fusion starts
it, fusions with computations of their own go on with it, a last one ends it; each names it
again, with its channel. Or to keep only a slice of what it makes: an all-reduce of which every
device keeps its own part is a reduce-scatter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringline.aot._hlo import Instruction, Module

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_STARTS, _ENDS = "AsyncCollectiveStart", "AsyncCollectiveDone"


@dataclass(frozen=True, slots=True)
class Part:
    """A collective as one fusion names it.

    Attributes:
        computation: what the fusion calls.
        collective: in it.
        kind: what it comes to.
        channel: the same in all fusions of one collective.
        starts: whether the fusion starts it.
        ends: whether the fusion waits for its end.
    """

    computation: str
    collective: Instruction
    kind: str
    channel: str
    starts: bool
    ends: bool


def parts(module: Module, fusion: Instruction) -> Iterator[Part]:
    """The collectives that a fusion names, those of fusions inside it too."""
    for name in fusion.callees("calls"):
        for instruction in module.computations[name]:
            if instruction.opcode in KINDS:
                yield _part(module, name, instruction)
            elif instruction.opcode == "fusion":
                yield from parts(module, instruction)


def _part(module: Module, computation: str, collective: Instruction) -> Part:
    users = _users(module, computation, collective)
    targets = {user.attribute("custom_call_target") for user in users}
    sliced = bool(users) and all(user.opcode == "dynamic-slice" for user in users)
    scatters = collective.opcode == "all-reduce" and sliced
    return Part(
        computation,
        collective,
        "reduce-scatter" if scatters else collective.opcode,
        collective.attribute("channel_id") or collective.name,
        _STARTS in targets,
        _ENDS in targets,
    )


def _users(module: Module, computation: str, made: Instruction) -> list[Instruction]:
    """What reads a value, past what only gives it another shape."""
    found = []
    for user in module.computations[computation]:
        if made.name not in user.operands:
            continue
        same = user.opcode in ("bitcast", "copy")
        found += (same and _users(module, computation, user)) or [user]
    return found
