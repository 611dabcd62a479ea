"""Published training steps beside the planner's bounds for the same layout."""

from pathlib import Path

from ringline.plan._layout import Layout, parse_constraints, with_values
from ringline.plan._links import Placement
from ringline.plan._model import model
from ringline.plan._search import simulated_plan
from ringline.plan._step import Evaluator, Work
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.topology import cluster
from ringline.topology._tables import Table, read_table

_DATA = Path(__file__).parent.parent / "data" / "published.toml"
_UNITS = {"mfu_full": "MFU", "mfu": "MFU", "step_s": "s", "tflops_per_chip": "TFLOP/s"}


@check("published-steps")
def published_steps(options: Options) -> Report:
    """Every published number has to lie within the lower and the upper bound."""
    runs = [_figure(table) for table in read_table(_DATA).tables()]
    return Report(
        "published-steps",
        "Published training steps within the planner's bounds, with its default efficiencies",
        "MaxText, tpu-recipes, torchtitan and Llama 3; each row's own in data/published.toml",
        tuple(runs),
        (
            "The default efficiencies are round numbers chosen with these rows in view; the rows "
            "show how far one set of them carries, they are no blind test.",
            "The lower bound hides all communication and runs matmuls at the chip's achievable "
            "rate; the upper bound hides nothing and computes 15% slower.",
        ),
    )


def _figure(table: Table) -> Figure:
    work = Work(
        model(table.text("model")),
        cluster(table.text("cluster")),
        table.whole("batch"),
        table.whole("length"),
    )
    layout = with_values(Layout(), parse_constraints(table.text("layout")))
    refused = layout.refuses(work.model, work.cluster, work.batch)
    if refused:
        raise table.error("layout", refused)
    evaluator = Evaluator(work)
    # Those runs keep FSDP in a slice and replicas across, where there are as many.
    replicas = layout.data == work.cluster.slices > 1
    plan = (
        evaluator.plan(layout, Placement(data=layout.data)) if replicas else evaluator.best(layout)
    )
    plan = simulated_plan(work, plan)
    metric = table.text("metric")
    values = [
        _in_metric(work, metric, step_s)
        for step_s in (plan.predicted_s, plan.lower_s, plan.upper_s)
    ]
    return Figure(
        f"{table.name} ({table.text('cluster')})",
        values[0],
        table.number("published"),
        _UNITS[metric],
        bounds=(min(values[1:]), max(values[1:])),
        fit=True,  # the default efficiencies were chosen with these rows in view
        note=table.text("note", ""),
    )


def _in_metric(work: Work, metric: str, step_s: float) -> float:
    """A step's time as the number that was published."""
    if metric == "step_s":
        return step_s
    if metric == "mfu":
        return work.mfu(step_s)
    tokens = work.batch * work.length
    flops = work.model.step_flops(tokens, work.length, causal=False)
    per_chip = flops / step_s / work.cluster.chips
    peak = work.cluster.chip.bf16_flops_per_s
    return per_chip / 1e12 if metric == "tflops_per_chip" else per_chip / peak
