"""Cut a traced computation in pieces: what the first results need, and what is left for the rest.

A backward has two kinds of result: the input's cotangent, which the stage before waits for, and
the weights' gradients, which can wait. Both come from one traced function. Its equations are
sorted by what they need, and the values that cross from one piece to the next are handed over.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

CALLS = ("jit", "pjit", "closed_call", "core_call")
CALLS_AND_REMAT = (*CALLS, "checkpoint", "remat2")


def trace_flat(
    function: Callable[..., Any], *arguments: Any, calls: tuple[str, ...] = CALLS
) -> ClosedJaxpr:
    """Trace `function`, inner calls laid open so that they can be cut as well.

    Rematerialised parts stay closed unless `calls` names them: opened, what they would compute
    again looks like something to keep.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    if not any(eqn.primitive.name in calls for eqn in closed.jaxpr.eqns):
        return closed
    inputs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *values: _open_calls(closed, values, calls))(*inputs)


def _open_calls(closed: ClosedJaxpr, arguments: Sequence[Any], calls: tuple[str, ...]) -> list[Any]:
    """Evaluate a traced function, inner calls equation by equation."""
    jaxpr = closed.jaxpr
    known: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts))
    known.update(zip(jaxpr.invars, arguments))

    def value(atom):
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if eqn.primitive.name in calls and isinstance(inner, ClosedJaxpr | Jaxpr):
            inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
            outputs = _open_calls(inner, [value(atom) for atom in eqn.invars], calls)
        else:
            reads = tuple(dict.fromkeys(variables(eqn.invars)))
            outputs = _function(closed, [eqn], reads, eqn.outvars)(*map(value, reads))
        known.update(zip(eqn.outvars, outputs))
    return [value(atom) for atom in jaxpr.outvars]


def _function(
    closed: ClosedJaxpr, equations: Sequence[Any], inputs: Sequence[Var], outputs: Sequence[Any]
) -> Callable[..., list[Any]]:
    """The function that runs only `equations`, from `inputs` to `outputs`."""
    part = closed.jaxpr.replace(
        eqns=list(equations),
        invars=list(inputs),
        outvars=list(outputs),
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return jaxpr_as_fun(ClosedJaxpr(part, closed.consts))


@dataclass(frozen=True)
class Piece:
    """A part of a traced computation as a function of its own.

    Attributes:
        inputs: the variables it takes, in order.
        outputs: the variables it gives, in order.
        equations: the indices of its equations.
    """

    closed: ClosedJaxpr
    inputs: tuple[Var, ...]
    outputs: tuple[Any, ...]
    equations: frozenset[int]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        equations = [self.closed.jaxpr.eqns[i] for i in sorted(self.equations)]
        return _function(self.closed, equations, self.inputs, self.outputs)(*values)

    @property
    def made(self) -> set[Var]:
        """Every variable that the piece computes."""
        return {v for i in self.equations for v in self.closed.jaxpr.eqns[i].outvars}


def depends_on(closed: ClosedJaxpr, sources: Iterable[Var]) -> set[Var]:
    """The variables that depend on any of `sources`, those included."""
    found = set(sources)
    for eqn in closed.jaxpr.eqns:
        if any(v in found for v in variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def piece(
    closed: ClosedJaxpr,
    given: Sequence[Var],
    outputs: Sequence[Any],
    also: Iterable[int] = (),
) -> Piece:
    """The least part that computes `outputs` from `given` and the constants.

    The equations of index `also` belong to it in any case.
    """
    at_hand, wanted = set(given), set(also)
    missing = set(variables(outputs)) - at_hand
    chosen: set[int] = set()
    for index in range(len(closed.jaxpr.eqns) - 1, -1, -1):
        eqn = closed.jaxpr.eqns[index]
        if index in wanted or any(v in missing for v in eqn.outvars):
            chosen.add(index)
            missing.update(v for v in variables(eqn.invars) if v not in at_hand)
    return Piece(closed, tuple(given), tuple(outputs), frozenset(chosen))


def effects(closed: ClosedJaxpr, without: Iterable[Var] = ()) -> list[int]:
    """The equations that do something beside computing, and read nothing of `without`."""
    excluded = set(without)
    return [
        index
        for index, eqn in enumerate(closed.jaxpr.eqns)
        if eqn.effects and not excluded.intersection(variables(eqn.invars))
    ]


def used(closed: ClosedJaxpr, part: Piece) -> set[Var]:
    """The variables that the piece reads, given ones included."""
    reads = {v for i in part.equations for v in variables(closed.jaxpr.eqns[i].invars)}
    return reads | set(variables(part.outputs))


def ordered(closed: ClosedJaxpr, chosen: set[Var]) -> tuple[Var, ...]:
    """`chosen` in the order in which the computation makes them, without repetition."""
    made = [*closed.jaxpr.invars, *(v for eqn in closed.jaxpr.eqns for v in eqn.outvars)]
    return tuple(v for v in made if v in chosen)


def variables(atoms: Iterable[Any]) -> list[Var]:
    """Those of `atoms` that are no literal constants."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
