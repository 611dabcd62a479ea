"""What a user's loss may return, brought to one form: a sum, its weight, a mean, and metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ringline.pipeline._cut import depends_on, piece, trace_flat, variables

PyTree = Any
Loss = Callable[..., Any]

FORMS = "a scalar (a mean), (sum, weight) or (sum, weight, mean)"


class Terms(NamedTuple):
    """The loss of one microbatch.

    Attributes:
        sum: the numerator.
        weight: the denominator, without gradient; 1 for a loss that is a mean.
        mean: what is averaged over microbatches whatever their weights; None for nothing.
        metrics: scalars or arrays without gradient, summed and divided like `sum`.
    """

    sum: Any
    weight: Any
    mean: Any
    metrics: PyTree


def loss_terms(loss: Loss, has_aux: bool) -> Callable[[PyTree, PyTree, PyTree], Terms]:
    """The loss as a function `(loss_params, y, targets) -> Terms`."""

    def terms(loss_params, y, targets):
        value, metrics = _apart(loss(loss_params, y, targets), has_aux)
        total, *others = map(jnp.asarray, value if isinstance(value, tuple) else (value,))
        weight, mean = (*others, None)[:2] if others else (jnp.ones((), total.dtype), None)
        return Terms(total, lax.stop_gradient(weight), mean, lax.stop_gradient(metrics))

    return terms


def _apart(result: Any, has_aux: bool) -> tuple[Any, PyTree]:
    return result if has_aux else (result, ())


def check_loss(loss: Loss, has_aux: bool, params: PyTree, y: PyTree, targets: PyTree) -> PyTree:
    """Raise ValueError unless the loss gives one of the forms that `loss_terms` takes.

    Args:
        loss: `(params, y, targets) -> ...`.
        has_aux: whether it returns metrics beside the loss.
        params: the loss's parameters, or their shapes.
        y: the shapes of one microbatch of what the last layer gives.
        targets: the shapes of one microbatch of targets.

    Returns:
        The shapes of the metrics; `()` without.
    """
    got = jax.eval_shape(loss, params, y, targets)
    if has_aux and not (isinstance(got, tuple) and len(got) == 2):
        raise ValueError(
            f"with has_aux=True the loss must return (loss, metrics), got {_shown(got)}; return a "
            "pair, or leave has_aux out"
        )
    value, metrics = _apart(got, has_aux)
    values = value if isinstance(value, tuple) else (value,)
    scalars = [isinstance(v, jax.ShapeDtypeStruct) and v.shape == () for v in values]
    if not all(scalars) or not 1 <= len(values) <= 3:
        raise ValueError(
            f"the loss must return {FORMS}; got {_shown(value)}; metrics beside it need "
            "has_aux=True"
        )
    for v in (values[0], *values[2:]):
        if not jnp.issubdtype(v.dtype, jnp.floating):
            raise ValueError(f"the loss must be a real floating-point number, got {v.dtype}")
    if len(values) == 3:
        _weight_alone(loss_terms(loss, has_aux), params, y, targets)
    return metrics


def total_weight(
    terms: Callable[[PyTree, PyTree, PyTree], Terms], params: PyTree, y: PyTree, targets: PyTree
) -> jax.Array:
    """The sum of the weights of all microbatches, from the targets alone.

    Args:
        terms: the loss.
        params: its parameters.
        y: the shapes of one microbatch of what the last layer gives.
        targets: leaves `[rows, microbatches, ...]`.
    """
    one = jax.eval_shape(lambda t: jax.tree.map(lambda leaf: leaf[:, 0], t), targets)
    weight = _weight_alone(terms, params, y, one)
    by_microbatch = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), targets)
    return jnp.sum(lax.map(lambda target: weight(params, target), by_microbatch))


def _weight_alone(
    terms: Callable[[PyTree, PyTree, PyTree], Terms], params: PyTree, y: PyTree, targets: PyTree
) -> Callable[[PyTree, PyTree], Any]:
    """The weight as a function of `(params, targets)`, computing nothing else."""
    shapes = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    leaves, structure = jax.tree.flatten(shapes(((params, targets), y)))

    def flat(*leaves):
        (params, targets), y = jax.tree.unflatten(structure, leaves)
        return [terms(params, y, targets).weight]

    closed = trace_flat(flat, *leaves)
    known = len(leaves) - len(jax.tree.leaves(y))
    given, of_y = closed.jaxpr.invars[:known], closed.jaxpr.invars[known:]
    if depends_on(closed, of_y).intersection(variables(closed.jaxpr.outvars)):
        raise ValueError(
            "a loss of the form (sum, weight, mean) needs a weight that follows from the targets "
            "alone, got one that reads y; compute the weight from targets or loss_params, or "
            "return (sum, weight)"
        )
    part = piece(closed, given, closed.jaxpr.outvars)
    return lambda params, targets: part(jax.tree.leaves((params, targets)))[0]


def _shown(tree: PyTree) -> str:
    return str(jax.tree.map(lambda v: f"{v.dtype}{list(v.shape)}", tree))
