from dataclasses import replace
from statistics import linear_regression

import pytest

from ringline.plan.validate import CHECKS, Options
from ringline.plan.validate._all_gather import _MIB, _PUBLISHED_US, _SIZES
from ringline.schedule import all_gather
from ringline.simulate import collective_s, simulate_collective
from ringline.topology import Line, mover


@pytest.mark.slow
def test_the_published_curve_is_reproduced():
    report = CHECKS["all-gather"](Options())
    assert len(report.figures) == 36
    assert report.failures == ()
    fitted = [figure.name for figure in report.figures if figure.fit]
    assert len(fitted) == 5
    assert all(name.startswith("line") for name in fitted)
    judged = [figure for figure in report.figures if figure.tolerance is not None]
    assert [figure.tolerance for figure in judged].count(0.04) == 4
    assert [figure.tolerance for figure in judged].count(0.01) == 4
    assert [figure.tolerance for figure in judged].count(0.10) == 12


@pytest.mark.parametrize(("size", "published_s"), [(64 << 10, 14.16e-6), (_MIB, 77.5e-6)])
def test_a_line_of_four(size, published_s):
    hardware = mover("wormhole-ethernet").with_packet(6144)
    predicted_s = collective_s(all_gather(Line(4)), size, mover=hardware)
    assert predicted_s == pytest.approx(published_s, rel=0.04)


def test_the_start_is_the_fit_that_it_says_it_is():
    hardware = mover("wormhole-ethernet").with_packet(6144)
    at_once = replace(hardware, start_s=0.0, start_per_pair_s=0.0)
    pairs, starts_us = [], []
    for devices in (2, 4, 8):
        published_us = _PUBLISHED_US[Line(devices)][_SIZES.index(_MIB)]
        packets_s = simulate_collective(all_gather(Line(devices)), _MIB, mover=at_once).time_s
        pairs.append(devices * (devices - 1) / 2)
        starts_us.append(published_us - packets_s * 1e6)
    slope, start = linear_regression(pairs, starts_us)
    assert start == pytest.approx(hardware.start_s * 1e6, abs=0.01)
    assert slope == pytest.approx(hardware.start_per_pair_s * 1e6, abs=0.001)
