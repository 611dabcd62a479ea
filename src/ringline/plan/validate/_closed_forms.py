"""Every closed form of `_forms` beside the simulator, over the whole grid of p, v and m."""

from collections.abc import Iterator

from ringline import schedules
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.plan.validate._forms import FORMS, FORWARD, INPUT, WEIGHT, Form
from ringline.schedule import PipelineSchedule
from ringline.simulate import Timeline, simulate

_STAGES, _MICROBATCHES = range(2, 9), range(1, 33)


@check("closed-forms")
def closed_forms(options: Options) -> Report:
    """The largest difference of each form over p 2-8, v 1-4 and m 1-32."""
    figures = []
    for done, form in enumerate(FORMS):
        options.progress(f"{form.name}{form.note}, form {done + 1} of {len(FORMS)}")
        figures += form_figures(form)
    sources = dict.fromkeys(form.source for form in FORMS)
    return Report(
        "closed-forms",
        "Closed forms of bubbles, hops and activations against the simulator, exactly",
        "; ".join(sources),
        tuple(figures),
        (
            "The grid is p 2-8, m 1-32 and, where a schedule takes several, v 1-4: every point at "
            "which the form is claimed. F = 1, I = 1.25, W = 0.75 and a hop of 1/64, all exact in "
            "binary, but F = I = W = 1 where the form needs it.",
            "The published 2 (p - 1) m/p + 2 (p - 2) hops of 1F1B are for p dividing m; in "
            "between 2 (p - 1) + 2 ceil((m - 2)(p - 1)/p) holds, which is the same there. Looped "
            "schedules with m < p wait (v - 1)(p - m) chunks more than the published (p - 1).",
            "Sources give no hops for the two V schedules: 5p - 7 and those of 1F1B were read off "
            "the simulator, and the planner uses them.",
            'What sources state as "about" (V-half, V-min) is claimed here only where an exact '
            "form is known: V-half for even p.",
        ),
    )


def form_figures(form: Form) -> list[Figure]:
    """The largest difference of the idle time, of the hops and of the activations."""
    worst: dict[str, tuple[int, float]] = {}
    for what, difference in _differences(form):
        count, most = worst.get(what, (0, 0.0))
        worst[what] = (count + 1, max(most, difference, key=abs))
    return [
        Figure(
            f"{form.name}{form.note}, {what}, largest difference at {count} points",
            most,
            0.0,
            "" if what == "activations" else "s",
            1e-9,
            relative=False,
        )
        for what, (count, most) in worst.items()
    ]


def _differences(form: Form) -> Iterator[tuple[str, float]]:
    for p in _STAGES:
        for v in form.repeats:
            for m in _MICROBATCHES:
                yield from _at(form, p, m, v)


def _at(form: Form, p: int, m: int, v: int) -> Iterator[tuple[str, float]]:
    """What the simulator says less what the form says, at one point of the grid."""
    schedule = _schedule(form, p, m, v)
    idle_holds = form.idle_holds(p, m, v)
    kept = form.kept if form.kept_holds(p, m, v) else None
    if idle_holds or kept:
        step = _simulated(form, schedule, 0.0)
        if idle_holds:
            yield "idle", _idle_s(form, step) - form.idle(p, m, v)
        if kept:
            gaps = [have - kept(p, m, v, s) for s, have in enumerate(step.peak_activations)]
            yield "activations", max(gaps, key=abs)
    if form.hops is not None and idle_holds and form.hops_hold(p, m, v):
        hop_s = form.hop_s(v)
        expected = form.idle(p, m, v) + form.hops(p, m, v) * hop_s
        yield "idle with hops", _idle_s(form, _simulated(form, schedule, hop_s)) - expected


def _schedule(form: Form, p: int, m: int, v: int) -> PipelineSchedule:
    repeats = {"repeats": v} if form.repeats != (1,) else {}
    schedule = getattr(schedules, form.name)(stages=p, microbatches=m, **repeats)
    return schedule.forward() if form.forward_only else schedule


def _simulated(form: Form, schedule: PipelineSchedule, hop_s: float) -> Timeline:
    return simulate(
        schedule,
        forward_s=FORWARD,
        input_gradient_s=FORWARD if form.alike else INPUT,
        weight_gradient_s=FORWARD if form.alike else WEIGHT,
        transfer_s=hop_s,
    )


def _idle_s(form: Form, step: Timeline) -> float:
    return step.makespan_bubble_s if form.makespan else step.bubble_s
