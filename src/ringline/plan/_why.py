"""Why a layout lost, in one sentence with the number."""

from dataclasses import dataclass

from ringline.plan._layout import Layout, parse_constraints, with_values
from ringline.plan._memory import Memory
from ringline.plan._search import Found, search
from ringline.plan._step import Plan, Work

GIB = 2**30
_NAMES = {
    "compute": "computation",
    "recompute": "recomputation",
    "bubble": "the pipeline bubble",
    "tensor": "exposed tensor-parallel communication",
    "experts": "exposed exchange with the experts",
    "fsdp": "exposed gathers of weights and scatters of gradients",
    "data": "the exposed all-reduce of gradients",
    "transfer": "exposed transfers between stages",
    "optimizer": "the optimizer",
}


@dataclass(frozen=True, slots=True)
class Why:
    """What became of the layouts that a user named.

    Attributes:
        asked: the text.
        sentence: the answer.
        plan: the best layout with those values, None where there is none.
    """

    asked: str
    sentence: str
    plan: Plan | None


def why(work: Work, found: Found, asked: str) -> Why:
    """Why the layouts with the values `asked`, such as `stages=4,schedule=1f1b`, lost.

    Args:
        work: what is planned.
        found: the search over all layouts.
        asked: values of a layout; the best layout with them stands for all.

    Returns:
        The answer.

    Raises:
        ValueError: when `asked` names no value of a layout.
    """
    wanted = parse_constraints(asked)
    try:
        theirs = search(work, top=1, constraints=wanted)
    except ValueError as error:
        base = found.plans[0].layout if found.plans else Layout()
        reason = with_values(base, wanted).refuses(work.model, work.cluster, work.batch)
        detail = f"; with the rest as in the best layout: {reason}" if reason else ""
        return Why(asked, f"{asked} cannot run: {error}{detail}", None)
    if not theirs.plans:
        assert theirs.closest is not None
        return Why(asked, f"{asked} does not fit: {misfit(theirs.closest)}", theirs.closest)
    plan, best = theirs.plans[0], found.plans[0]
    if plan.predicted_s <= best.predicted_s * (1 + 1e-9):
        return Why(asked, f"{plan.layout} is the best: {plan.predicted_s:.3f} s", plan)
    return Why(asked, _lost(plan, best), plan)


def misfit(plan: Plan) -> str:
    """By how much `plan` misses the memory, what takes it, and which knob to turn."""
    used = plan.memory
    part, size = max(parts_of(used).items(), key=lambda item: item[1])
    return (
        f"{plan.layout} needs {used.total_bytes / GIB:.1f} GiB of {used.limit_bytes / GIB:.1f} "
        f"GiB a chip, {(used.total_bytes - used.limit_bytes) / GIB:.1f} GiB too much; "
        f"{part} take {size / GIB:.1f} GiB: {_knob(part, plan.layout)}"
    )


def parts_of(used: Memory) -> dict[str, float]:
    """The parts of a chip's memory in bytes."""
    return {
        "parameters": used.parameters_bytes,
        "optimizer moments": used.optimizer_bytes,
        "gradients": used.gradients_bytes,
        "activations": used.activations_bytes,
    }


def verdict(found: Found) -> str:
    """Whether to pipeline, in one sentence with the numbers."""
    alone, piped = found.without_pipeline, found.with_pipeline
    if alone and piped:
        first, second = (
            ("do not pipeline", piped)
            if alone.predicted_s <= piped.predicted_s
            else ("pipeline", alone)
        )
        best = min(alone, piped, key=lambda plan: plan.predicted_s)
        return (
            f"{first}: {best.layout} takes {best.predicted_s:.3f} s; the best layout "
            f"{'with' if second is piped else 'without'} a pipeline, {second.layout}, takes "
            f"{second.predicted_s:.3f} s ({second.predicted_s / best.predicted_s - 1:+.1%})"
        )
    if alone:
        return f"do not pipeline: {alone.layout} takes {alone.predicted_s:.3f} s; no pipeline fits"
    if piped:
        return (
            f"pipeline: {piped.layout} takes {piped.predicted_s:.3f} s; nothing without a "
            "pipeline fits"
        )
    assert found.closest is not None
    return f"nothing fits; closest: {misfit(found.closest)}"


def _lost(plan: Plan, best: Plan) -> str:
    more = plan.predicted_s - best.predicted_s
    gaps = {name: plan.parts_s[name] - best.parts_s[name] for name in plan.parts_s}
    worst = max(gaps, key=gaps.__getitem__)
    return (
        f"{plan.layout} takes {plan.predicted_s:.3f} s, {more / best.predicted_s:.1%} more than "
        f"the best ({best.predicted_s:.3f} s, {best.layout}): {_NAMES[worst]} is "
        f"{plan.parts_s[worst]:.3f} s against {best.parts_s[worst]:.3f} s"
    )


def _knob(part: str, layout: Layout) -> str:
    if part == "activations":
        if layout.remat != "full":
            return "set remat=full, or use more tensor or microbatches"
        return "use more tensor or microbatches, or a shorter length"
    if part == "gradients" and layout.gather == "step":
        return "set gather=tick, or use more stages or tensor"
    return "use more chips, or spread over more fsdp, stages or tensor"
