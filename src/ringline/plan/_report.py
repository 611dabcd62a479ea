"""A search's result as a table for people and as JSON for programs."""

from typing import Any

from rich.table import Table

from ringline.plan._rules import NOT_CONSIDERED, RULES
from ringline.plan._search import Found
from ringline.plan._step import Plan
from ringline.plan._why import GIB, Why, misfit, parts_of, verdict

MFU_CONVENTION = (
    "MFU: forward and twice that backward, causal attention counted half, head included, "
    "embedding look-up and recomputation not"
)


def plan_json(plan: Plan) -> dict[str, Any]:
    """One plan."""
    layout = plan.layout
    return {
        "layout": {name: getattr(layout, name) for name in layout.__slots__},
        "across_slices": {
            "stages": plan.placement.stage,
            "data": plan.placement.data,
            "fsdp": plan.placement.fsdp,
        },
        "step_s": {
            "lower": plan.lower_s,
            "predicted": plan.predicted_s,
            "upper": plan.upper_s,
        },
        "mfu": plan.mfu,
        "bubble_rate": plan.bubble_rate,
        "exposed_communication_s": plan.exposed_s,
        "parts_s": dict(plan.parts_s),
        "memory_bytes": {
            **{name.replace(" ", "_"): size for name, size in parts_of(plan.memory).items()},
            "total": plan.memory.total_bytes,
            "limit": plan.memory.limit_bytes,
            "fits": plan.memory.fits,
        },
        "pipeline_time_from": "simulator" if plan.simulated else "closed form",
    }


def found_json(found: Found, answers: list[Why]) -> dict[str, Any]:
    """A whole search."""
    work = found.work
    return {
        "model": work.model.name,
        "parameters": work.model.parameters,
        "active_parameters": work.model.active_parameters,
        "cluster": work.cluster.name,
        "chip": work.cluster.chip.name,
        "chips": work.cluster.chips,
        "slices": work.cluster.slices,
        "batch": work.batch,
        "length": work.length,
        "model_flops": work.model_flops,
        "mfu_convention": MFU_CONVENTION,
        "layouts_considered": found.considered,
        "schedules_considered": list(RULES),
        "schedules_not_considered": dict(NOT_CONSIDERED),
        "verdict": verdict(found),
        "plans": [plan_json(plan) for plan in found.plans],
        "closest": None
        if found.plans or not found.closest
        else {**plan_json(found.closest), "why": misfit(found.closest)},
        "why": [
            {
                "asked": answer.asked,
                "sentence": answer.sentence,
                "plan": plan_json(answer.plan) if answer.plan else None,
            }
            for answer in answers
        ],
    }


def memory_line(plan: Plan) -> str:
    """What takes a chip's memory in `plan`."""
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts_of(plan.memory).items())
    return f"GiB a chip of the best: {parts}"


def considered_line(found: Found) -> str:
    """How many layouts were looked at, and which schedules were not."""
    left_out = ", ".join(NOT_CONSIDERED)
    return (
        f"{found.considered} layouts divide the work, over {len(RULES)} schedules; not looked at: "
        f"{left_out} (why: --json)."
    )


def plan_table(found: Found) -> Table:
    """The best layouts, one a row."""
    work = found.work
    limit = found.plans[0].memory.limit_bytes / GIB if found.plans else 0.0
    table = Table(
        title=f"{work.model.name} on {work.cluster.name} ({work.cluster.chips} chips), batch "
        f"{work.batch} x {work.length} tokens",
        caption=f"step s: predicted, between lower and upper bound; exposed: communication in "
        f"seconds; GiB: of {limit:.1f} a chip. {MFU_CONVENTION}.",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("layout", overflow="fold")
    for name in ("step s", "bounds", "MFU", "bubble", "exposed", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for plan in found.plans:
        table.add_row(
            str(plan.layout).replace(",", ", "),
            f"[bold]{plan.predicted_s:.3f}[/]",
            f"{plan.lower_s:.2f}-{plan.upper_s:.2f}",
            f"{plan.mfu:.1%}",
            f"{plan.bubble_rate:.1%}",
            f"{plan.exposed_s:.3f}",
            f"{plan.memory.total_bytes / GIB:.1f}",
        )
    return table
