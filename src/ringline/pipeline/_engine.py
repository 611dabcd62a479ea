"""The engine: one scan over ticks that runs a schedule's forwards and backwards, and keeps sums.

A tick, on each stage:

1. the cotangent made in the tick before is sent on; it travels while F runs;
2. F runs, with the loss after the last chunk; its activation is sent on and travels while
3. B (or I) runs, and W.

What runs, on which microbatch, with which slots, is read from the tables (`_tables.py`). Where a
table says nothing runs, a condition skips the phase.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ringline.pipeline._buffers import buffers, put, put_if, select, take
from ringline.pipeline._leaves import Leaves
from ringline.pipeline._loss_terms import Terms
from ringline.pipeline._passes import Passes
from ringline.pipeline._tables import TickTables
from ringline.pipeline._travel import Row, row_of, send, store_arrivals
from ringline.pipeline._weights import Places, flat, sum_dtype

PyTree = Any

_SUMS = ("loss", "weight", "metrics")


@dataclass(frozen=True)
class Engine:
    """What the loop needs to know beside its arrays.

    Attributes:
        tables: what runs when, and which slots.
        passes: the chunk's operations, given the weights' leaves flat over places.
        head: `(loss_params, y, targets) -> (sum, (weight, metrics))`, the first two scalars.
        terms: the shapes of what the loss gives.
        weights: how weights are gathered and gradients reduced, see `_weights.py`.
        fixed: `(repeat) -> list`: the weights' leaves without gradient, flat over places.
        x_leaves: how an activation comes apart.
        keep_inputs: backwards start from the chunk's input, not from a residual.
        axis: the manual stage axis.
        stages: how many stages.
        microbatches: how many microbatches.
        stage: this stage's index.
        wants_dx: whether the cotangent of the pipeline's input is asked for.
    """

    tables: TickTables
    passes: Passes
    head: Callable[[PyTree, PyTree, PyTree], tuple[Any, Any]]
    terms: Terms
    weights: Any
    fixed: Callable[[Any], list[Any]]
    x_leaves: Leaves
    keep_inputs: bool
    axis: str
    stages: int
    microbatches: int
    stage: Any
    wants_dx: bool

    def run(self, x: PyTree, targets: PyTree, loss_params: PyTree) -> dict[str, Any]:
        """Run the whole schedule on this stage.

        Args:
            x: the pipeline's input, leaves `[rows, microbatches, ...]`: microbatch i has every
                m-th row of the batch, read where the batch lies.
            targets: what the loss compares with, leaves `[rows, microbatches, ...]`.
            loss_params: the loss's parameters.

        Returns:
            `loss`, `weight` and `metrics`, summed over microbatches where the last chunk is,
            zero on other stages; with a backward also `weights`, `loss_params` and `x`: sums of
            gradients.
        """
        carry = self._start(x, loss_params)
        rows = {name: jnp.asarray(table) for name, table in self.tables.rows.items()}
        rows |= {name: jnp.asarray(table) for name, table in self.weights.rows.items()}

        def tick(carry: dict[str, Any], row: Row):
            row = row_of(row, self.stage)
            arrived = self._send(carry["dx"], "cotangent") if self.has_backward else {}
            carry, y = self._forward(carry, row, x, targets, loss_params)
            if self.has_backward:
                # The cotangents have arrived before the next transfer begins. Without this, a
                # compiler may post the receive of the one and end the other too early, and
                # leave both without compute to hide behind.
                y, arrived = lax.optimization_barrier((y, arrived))
            activation = self._send(y, "activation")
            if self.has_backward:
                cotangents = store_arrivals(carry["cotangent"], row, "cotangent", arrived)
                carry = self._backward(carry | {"cotangent": cotangents}, row, x)
                carry = self._weight_gradient(carry, row, x)
            inbox = self._keep(carry["activation"], row, "F.makes.activation", y)
            inbox = store_arrivals(inbox, row, "activation", activation)
            return carry | {"activation": inbox}, None

        carry, _ = lax.scan(tick, carry, rows)
        result = {name: carry[name] for name in _SUMS}
        if self.has_backward:
            result["weights"] = self.weights.finish(carry["state"])
            result["loss_params"] = carry["loss_params"]
            result["x"] = carry["input_cotangent"]
        return result

    @property
    def has_backward(self) -> bool:
        """Whether the schedule has one."""
        return "B.repeat" in self.tables.rows

    def _start(self, x: PyTree, loss_params: PyTree) -> dict[str, Any]:
        """The carry before the first tick."""
        one = jax.tree.map(jnp.zeros_like, take(x, 0, axis=1))
        smooth = self.x_leaves.split(one)[0]
        places = self.tables.places
        scalar = jnp.zeros((), sum_dtype(self.terms.sum.dtype))
        carry = {
            "activation": buffers(one, places.get("activation", 1)),
            "loss": scalar,
            "weight": scalar,
            "metrics": jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, sum_dtype(leaf.dtype)), self.terms.metrics
            ),
            "state": self.weights.start(),
        }
        if not self.has_backward:
            return carry
        return carry | {
            "cotangent": buffers(smooth, places["cotangent"]),
            "dx": smooth,
            "residual": buffers(list(self.passes.residual), places.get("residual", 1)),
            "handover": buffers(list(self.passes.handover), places.get("handover", 1)),
            "loss_params": [
                jnp.zeros(leaf.shape, sum_dtype(leaf.dtype))
                for leaf in Leaves.of(loss_params).split(loss_params)[0]
            ],
            "input_cotangent": (
                jax.tree.map(jnp.zeros_like, self.x_leaves.split(x)[0]) if self.wants_dx else []
            ),
        }

    def _send(self, value: PyTree, kind: str) -> dict[int, PyTree]:
        return send(value, self.tables.senders.get(kind, {}), self.axis, self.stages)

    def _keep(self, buffer: PyTree, row: Row, name: str, value: PyTree) -> PyTree:
        return put(buffer, row[name], value) if name in row else buffer

    def _input(self, carry: dict[str, Any], row: Row, phase: str, x: PyTree) -> PyTree:
        """A chunk's input: from its slot, or the pipeline's own for the first chunk."""
        slot, inbox = row[f"{phase}.reads.activation"], carry["activation"]
        from_slot = slot < self.tables.slots.get("activation", 0)
        return select(from_slot, inbox, slot, take(x, row[f"{phase}.microbatch"], axis=1))

    def _reads(self, carry: dict[str, Any], row: Row, phase: str, x: PyTree) -> tuple[list, list]:
        """For a backward phase: the weights' leaves without gradient, and what was kept."""
        fixed = self.fixed(row[f"{phase}.repeat"])
        if self.keep_inputs:
            smooth, rest = self.x_leaves.split(self._input(carry, row, phase, x))
            return fixed, [*smooth, *rest]
        return fixed, list(take(carry["residual"], row[f"{phase}.reads.residual"]))

    def _forward(
        self, carry: dict[str, Any], row: Row, x: PyTree, targets: PyTree, loss_params: PyTree
    ) -> tuple[dict[str, Any], PyTree]:
        repeat = row["F.repeat"]
        carry = carry | {"state": self.weights.turn(carry["state"], "F", row)}
        taken = self._input(carry, row, "F", x)
        smooth, rest = self.x_leaves.split(taken)
        summed = {name: carry[name] for name in (*_SUMS, "loss_params") if name in carry}
        blank = jax.tree.map(jnp.zeros_like, (smooth, carry.get("residual", [])))

        def idle():
            none = jax.tree.map(lambda leaf: leaf[0], blank[1])
            return taken, none, blank[0], summed

        def run():
            w = flat(self.weights.weights(carry["state"], "F", repeat))
            made, residual = self.passes.forward(w, self.fixed(repeat), smooth, rest)
            y = self.x_leaves.join(made[: len(smooth)], made[len(smooth) :])

            def ends():
                target = take(targets, row["F.microbatch"], axis=1)
                return self._loss(loss_params, y, target, summed)

            at_end = row["F.output"] < self.microbatches
            seed, after = lax.cond(at_end, ends, lambda: (blank[0], summed))
            return y, residual, seed, after

        y, residual, seed, after = lax.cond(repeat >= 0, run, idle)
        carry = carry | after
        if self.has_backward:
            carry["residual"] = self._keep(carry["residual"], row, "F.makes.residual", residual)
            carry["cotangent"] = self._keep(carry["cotangent"], row, "F.makes.cotangent", seed)
        return carry, y

    def _loss(
        self, loss_params: PyTree, y: PyTree, target: PyTree, summed: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The loss of one microbatch, its cotangent at y, and the sums with it added."""
        parts = Leaves.of(loss_params)
        lw, lrest = parts.split(loss_params)
        ysmooth, yrest = self.x_leaves.split(y)

        def of(lw, ysmooth):
            return self.head(parts.join(lw, lrest), self.x_leaves.join(ysmooth, yrest), target)

        if not self.has_backward:
            loss, (weight, metrics) = of(lw, ysmooth)
            dlw, seed = [], [jnp.zeros_like(leaf) for leaf in ysmooth]
        else:
            loss, pull, (weight, metrics) = jax.vjp(of, lw, ysmooth, has_aux=True)
            dlw, seed = pull(jnp.ones_like(loss))
        made = {"loss": loss, "weight": weight, "metrics": metrics}
        if dlw:
            made["loss_params"] = dlw
        add = lambda total, value: total + jnp.asarray(value, total.dtype)  # noqa: E731
        return seed, summed | jax.tree.map(add, {name: summed[name] for name in made}, made)

    def _backward(self, carry: dict[str, Any], row: Row, x: PyTree) -> dict[str, Any]:
        repeat = row["B.repeat"]
        carry = carry | {"state": self.weights.turn(carry["state"], "B", row)}
        g = take(carry["cotangent"], row["B.reads.cotangent"])
        splits = "W.repeat" in row
        state = carry["state"]

        def whole():
            w = flat(self.weights.weights(state, "B", repeat))
            fixed, kept = self._reads(carry, row, "B", x)
            dw, dx = self.passes.backward(w, fixed, kept, g)
            places = self._unflat(dw)
            after = self.weights.add(state, "B", repeat, places)
            return dx, self._no_handover(), after

        def half():
            w = flat(self.weights.weights(state, "B", repeat))
            fixed, kept = self._reads(carry, row, "B", x)
            dx, handover = self.passes.input_gradient(w, fixed, kept, g)
            return dx, handover, state

        def idle():
            return jax.tree.map(jnp.zeros_like, g), self._no_handover(), state

        which = jnp.where(repeat < 0, 0, 1 + row["B.op"])
        branches = [idle, whole, half] if splits else [idle, whole]
        dx, handover, state = lax.switch(which, branches)
        carry = carry | {"dx": dx, "state": self.weights.leave(state, "B", row)}
        carry["cotangent"] = self._keep(carry["cotangent"], row, "B.makes.cotangent", dx)
        carry["handover"] = self._keep(carry["handover"], row, "B.makes.handover", handover)
        if self.wants_dx:
            i = row["B.output"]
            held = carry["input_cotangent"]
            carry["input_cotangent"] = put_if(i < self.microbatches, held, i, dx, axis=1)
        return carry

    def _weight_gradient(self, carry: dict[str, Any], row: Row, x: PyTree) -> dict[str, Any]:
        if "W.repeat" not in row:
            return carry
        repeat = row["W.repeat"]
        state = self.weights.turn(carry["state"], "W", row)

        def run():
            w = flat(self.weights.weights(state, "W", repeat))
            fixed, kept = self._reads(carry, row, "W", x)
            handover = take(carry["handover"], row["W.reads.handover"])
            dw = self.passes.weight_gradient(w, fixed, kept, handover)
            return self.weights.add(state, "W", repeat, self._unflat(dw))

        state = lax.cond(repeat >= 0, run, lambda: state)
        return carry | {"state": self.weights.leave(state, "W", row)}

    def _no_handover(self) -> list[Any]:
        return [jnp.zeros(shape.shape, shape.dtype) for shape in self.passes.handover]

    def _unflat(self, leaves: list[Any]) -> Places:
        """Gradients by place again."""
        depth = len(self.weights.stored)
        each = len(leaves) // depth
        return [leaves[i * each : (i + 1) * each] for i in range(depth)]
