"""The 72 bubble rates of the zero-bubble paper, simulated from its measured times."""

from pathlib import Path

from ringline import schedules
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.schedule import PipelineSchedule
from ringline.simulate import simulate
from ringline.topology._tables import Table, read_table

_DATA = Path(__file__).parent.parent / "data" / "zero_bubble.toml"
_LENGTH = 1024
_EXACT = (
    ("one_f_one_b", "1F1B"),
    ("zero_bubble_h1", "ZB-H1"),
    ("zero_bubble_h2", "ZB-H2"),
)


@check("zero-bubble")
def zero_bubble(options: Options) -> Report:
    """Bubble over the longest stage's span, from T_F, T_B, T_W and T_comm of 12 runs."""
    figures = []
    for done, run in enumerate(runs()):
        options.progress(f"{run.name}, run {done + 1} of {len(runs())}")
        figures += run_figures(run)
    return Report(
        "zero-bubble",
        "Bubble rates of six schedules for 1.5B to 28.3B models",
        "Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
        tuple(figures),
        (
            "1F1B-I is simulated in Megatron's interleaved order. A hop then costs T_comm on each "
            "of 2 (p v - 1) crossings of the critical path; the published rates follow "
            "(2 p v - p - 2) T_comm, which counts p fewer. The rows 'by that form' show it.",
            "ZB-1p and ZB-2p are the paper's automatic schedules under 1p and 2p memory; ours "
            "has to be at most 1e-3 above. Memory counts as in the paper: an activation keeps "
            "32 h / (34 h + 5 a s) of itself from I to W.",
        ),
    )


def runs() -> list[Table]:
    """The paper's 12 runs."""
    return list(read_table(_DATA).tables())


def run_figures(run: Table) -> list[Figure]:
    """The figures of one run."""
    return [*_exact(run), *_interleaved(run), *_scheduled(run)]


def _exact(run: Table) -> list[Figure]:
    p, m = run.whole("stages"), run.whole("microbatches")
    return [
        Figure(
            f"{run.name} p={p} m={m} {title}",
            _rate(run, getattr(schedules, name)(stages=p, microbatches=m)),
            run.number(name),
            "of the span",
            1e-4,
            relative=False,
        )
        for name, title in _EXACT
    ]


def _interleaved(run: Table) -> list[Figure]:
    p, m, v = run.whole("stages"), run.whole("microbatches"), run.whole("repeats")
    work = sum(run.number(key) for key in ("forward_ms", "input_ms", "weight_ms"))
    idle = (p - 1) * work / v + (2 * p * v - p - 2) * run.number("hop_ms")
    schedule = schedules.interleaved_one_f_one_b(stages=p, microbatches=m, repeats=v)
    published = run.number("interleaved")
    name = f"{run.name} p={p} m={m} 1F1B-I"
    return [
        Figure(name, _rate(run, schedule), published, "of the span", relative=False),
        Figure(
            f"{name} by that form",
            idle / (idle + m * work),
            published,
            "of the span",
            1e-4,
            relative=False,
        ),
    ]


def _scheduled(run: Table) -> list[Figure]:
    """The automatic scheduler under 1p and 2p memory."""
    p, m = run.whole("stages"), run.whole("microbatches")
    h, a = run.whole("hidden"), run.whole("heads")
    figures = []
    for times, key in ((1, "zb_1p"), (2, "zb_2p")):
        schedule = schedules.zero_bubble(
            stages=p,
            microbatches=m,
            max_activations=times * p,
            forward_s=run.number("forward_ms"),
            input_gradient_s=run.number("input_ms"),
            weight_gradient_s=run.number("weight_ms"),
            transfer_s=run.number("hop_ms"),
            weight_share=32 * h / (34 * h + 5 * a * _LENGTH),
        )
        rate = _rate(run, schedule)
        figures.append(
            Figure(
                f"{run.name} p={p} m={m} scheduled, {times}p memory",
                rate,
                run.number(key),
                "of the span",
                relative=False,
                bounds=(rate - 1e-3, 1.0),
                note="at most 1e-3 above the published rate",
            )
        )
    return figures


def _rate(run: Table, schedule: PipelineSchedule) -> float:
    step = simulate(
        schedule,
        forward_s=run.number("forward_ms"),
        input_gradient_s=run.number("input_ms"),
        weight_gradient_s=run.number("weight_ms"),
        transfer_s=run.number("hop_ms"),
    )
    return step.bubble_rate
