"""How often the body of a compiled loop runs: where its counter starts, steps and ends."""

import re

from ringline.aot._hlo import Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SAME = ("copy", "bitcast", "convert")
_FARTHEST = 64  # instructions that a value is followed through


def trips(module: Module, computation: str, loop: Instruction) -> int | None:
    """The trips of a loop that counts up to a constant, None for any other.

    Args:
        module: the program.
        computation: where the loop is.
        loop: the `while`.
    """
    if known := _KNOWN.search(loop.text):
        return int(known[1])
    for condition in loop.callees("condition"):
        root = module.root(condition)
        if root is None or root.opcode != "compare" or root.attribute("direction") != "LT":
            continue
        counter = _element(module, condition, root.operands[0])
        end = _constant(module, condition, root.operands[1])
        if end is None:
            continue
        start, step = 0, 1
        if counter is not None:
            start = _start(module, computation, loop, counter)
            step = _step(module, loop, counter)
        return max(0, -(-(end - start) // step))
    return None


def _start(module: Module, computation: str, loop: Instruction, counter: int) -> int:
    """The counter's first value; 0 where the program does not say."""
    state = _source(module, computation, loop.operands[0])
    if state is None or state.opcode != "tuple":
        return 0
    return _constant(module, computation, state.operands[counter]) or 0


def _step(module: Module, loop: Instruction, counter: int) -> int:
    """What a trip adds to the counter; 1 where the program does not say."""
    for body in loop.callees("body"):
        root = module.root(body)
        if root is None or root.opcode != "tuple":
            continue
        name, step = root.operands[counter], 0
        for _ in range(_FARTHEST):
            found = _source(module, body, name)
            if found is None or found.opcode != "add":
                break
            added = [_constant(module, body, operand) for operand in found.operands]
            if added[0] is None and added[1] is None:
                break
            name = found.operands[0 if added[0] is None else 1]
            step += added[0] if added[0] is not None else added[1] or 0
        if step > 0 and _element(module, body, name) == counter:
            return step
    return 1


def _source(module: Module, computation: str, name: str) -> Instruction | None:
    """The instruction that makes a value, past what only copies it."""
    found = module.find(computation, name)
    for _ in range(_FARTHEST):
        if found is None or found.opcode not in _SAME:
            break
        found = module.find(computation, found.operands[0])
    return found


def _element(module: Module, computation: str, name: str) -> int | None:
    """Which element of the computation's parameter a value is."""
    found = _source(module, computation, name)
    if found is None or found.opcode != "get-tuple-element":
        return None
    whole = module.find(computation, found.operands[0])
    place = found.attribute("index")
    return int(place) if place and whole and whole.opcode == "parameter" else None


def _constant(module: Module, computation: str, name: str) -> int | None:
    found = _source(module, computation, name)
    if found is None or found.opcode != "constant":
        return None
    return int(found.operand_text) if re.fullmatch(r"-?\d+", found.operand_text) else None
