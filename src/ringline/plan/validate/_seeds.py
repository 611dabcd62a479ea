"""The arithmetic of the circular pipeline on several TPU slices, with its open points."""

from ringline.plan._model import model
from ringline.plan._roofline import hardware_intensity, mlp_intensity, slowdown
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.schedule import PipelineSchedule
from ringline.schedules import (
    circular,
    eager_one_f_one_b,
    interleaved_one_f_one_b,
    one_f_one_b,
)
from ringline.simulate import simulate
from ringline.topology import cluster

_STATED = 170e3


@check("source-arithmetic")
def source_arithmetic(options: Options) -> Report:
    """Intensities, bubbles and slowdowns of the two runs, and what remains with overlap."""
    two_layers = mlp_intensity(model("maxtext-32b"), 2)
    hardware = hardware_intensity(cluster("4x v4-16").chip)
    small = slowdown(4, 4, 2, intensity=_STATED, hardware=_STATED)
    large = slowdown(3, 24, 1, intensity=630e3, hardware=_STATED)
    figures = [
        Figure("model, 3 x 28k x 2 layers", two_layers, _STATED, "FLOP/byte", 0.015),
        Figure("hardware, 275 TFLOP/s over 1.6 GB/s", hardware, _STATED, "FLOP/byte", 0.015),
        Figure("bubble of 4 stages, 4 x 2", small.bubble, 3 / 8, "of useful work", 1e-9),
        Figure("the same as MaxText writes it", small.bubble_of_total, 0.273, "of total", 2e-3),
        Figure("bubble of 3 stages, m v = 24", large.bubble, 2 / 24, "of useful work", 1e-9),
        Figure("4x v4-16 without overlap", small.without_overlap, 2.75, "x", 1e-3),
        Figure("3x v4-128 without overlap", large.without_overlap, 1.37, "x", 0.01),
    ]
    for permutes, backward, full in ((1, 2.29, 2.06), (2, 3.21, 2.75)):
        for units, published in (((3, 2), backward), ((4, 2), full)):
            run = slowdown(
                4,
                4,
                2,
                intensity=_STATED,
                hardware=_STATED,
                permutes=permutes,
                compute_units=units[0],
                transfer_units=units[1],
            )
            name = f"{permutes} permute(s), compute : transfer {units[0]} : {units[1]}"
            figures.append(Figure(name, run.without_overlap, published, "x", 5e-3))
    notes = (
        "The bubble is written over useful work (0.375); over the total it is 0.273. The factor "
        "on time is the same.",
        "One permute an iteration and forward compute only are counted; the rows with 3 : 2 and "
        "4 : 2 add the backward and full rematerialisation, with one and two permutes.",
        "The stated 32 layers are not 4 stages x 2 layers x 2 repeats = 16: 2.75x needs 2 "
        "repeats and 2 layers a stage.",
        "1.6 GB/s is per chip. 1.37x follows from (1 + 2/24) (170k + 630k) / 630k.",
        *_what_remains(),
    )
    return Report(
        "source-arithmetic",
        "Arithmetic intensity, bubbles and slowdown of the circular pipeline on TPU slices",
        "the request for circular pipelining over slices of TPU v4",
        tuple(figures),
        notes,
    )


def _what_remains() -> tuple[str, ...]:
    """Simulated slowdowns with overlapping transfers, backward included."""
    lines = []
    for name, schedule, share in (
        ("4x v4-16, circular, 4 stages x 2 repeats, 4 microbatches", circular(4, 4, 2), 1.0),
        ("4x v4-16, circular, 8 microbatches", circular(4, 8, 2), 1.0),
        ("4x v4-16, 1F1B, 8 microbatches", one_f_one_b(4, 8), 0.5),
        ("4x v4-16, eager 1F1B, 8 microbatches", eager_one_f_one_b(4, 8), 0.5),
        ("4x v4-16, interleaved, 8 microbatches", interleaved_one_f_one_b(4, 8, 2), 1.0),
        ("3x v4-128, circular, 3 stages x 2 repeats, 12 microbatches", circular(3, 12, 2), 17 / 63),
        ("3x v4-128, 1F1B, 24 microbatches", one_f_one_b(3, 24), 17 / 126),
    ):
        late, early = (_simulated(schedule, share, overlap) for overlap in (False, True))
        lines.append(
            f"With backward, simulated: {name}: {late:.2f}x without overlap, {early:.2f}x with."
        )
    return tuple(lines)


def _simulated(schedule: PipelineSchedule, share: float, overlap: bool) -> float:
    """The step over its ideal, a chunk's transfer taking `share` of its forward."""
    forward = 1.0
    step = simulate(
        schedule,
        forward_s=forward,
        backward_s=2 * forward,
        transfer_s=share * forward / schedule.repeats,
        overlap=overlap,
    )
    return step.makespan_s / (schedule.microbatches * 3 * forward)
