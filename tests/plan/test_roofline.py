"""The arithmetic of the circular pipeline over slices, as it was written down."""

import pytest

from ringline.plan import hardware_intensity, mlp_intensity, model, slowdown, stage_intensity
from ringline.topology import cluster


def test_both_intensities_are_about_170k():
    assert hardware_intensity(cluster("4x v4-16").chip) == pytest.approx(170e3, rel=0.015)
    assert mlp_intensity(model("maxtext-32b"), 2) == pytest.approx(170e3, rel=0.015)


def test_attention_adds_to_the_models_side():
    assert stage_intensity(model("maxtext-32b"), 2, 2048) > mlp_intensity(model("maxtext-32b"), 2)


def test_the_two_runs_without_overlap():
    small = slowdown(4, 4, 2, intensity=170e3, hardware=170e3)
    assert small.bubble == 3 / 8
    assert small.bubble_of_total == pytest.approx(0.273, abs=5e-4)
    assert small.without_overlap == 2.75
    large = slowdown(3, 24, 1, intensity=630e3, hardware=170e3)
    assert large.bubble == 2 / 24
    assert large.without_overlap == pytest.approx(1.37, abs=0.01)


@pytest.mark.parametrize(
    ("permutes", "units", "slower"),
    [(1, (3, 2), 2.29), (2, (3, 2), 3.21), (1, (4, 2), 2.06), (2, (4, 2), 2.75)],
)
def test_with_the_backward_counted(permutes, units, slower):
    run = slowdown(
        4,
        4,
        2,
        intensity=1.0,
        hardware=1.0,
        permutes=permutes,
        compute_units=units[0],
        transfer_units=units[1],
    )
    assert run.without_overlap == pytest.approx(slower, abs=5e-3)


def test_what_remains_with_overlap_is_the_bubble():
    assert slowdown(4, 4, 2, intensity=2.0, hardware=1.0).with_overlap == 1.375
    assert slowdown(4, 4, 2, intensity=1.0, hardware=2.0).with_overlap == 2.75
