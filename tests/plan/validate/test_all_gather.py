import pytest

from ringline.plan.validate import CHECKS, Options
from ringline.plan.validate._all_gather import _MIB
from ringline.schedule import all_gather
from ringline.simulate import collective_s
from ringline.topology import Line, mover


@pytest.mark.slow
def test_the_published_curve_is_reproduced():
    report = CHECKS["all-gather"](Options())
    assert len(report.figures) == 36
    assert report.failures == ()
    judged = [figure for figure in report.figures if figure.tolerance is not None]
    assert [figure.tolerance for figure in judged].count(0.04) == 4
    assert [figure.tolerance for figure in judged].count(0.01) == 4
    assert [figure.tolerance for figure in judged].count(0.10) == 12


@pytest.mark.parametrize(("size", "published_s"), [(64 << 10, 14.16e-6), (_MIB, 77.5e-6)])
def test_a_line_of_four(size, published_s):
    hardware = mover("wormhole-ethernet").with_packet(6144)
    predicted_s = collective_s(all_gather(Line(4)), size, mover=hardware)
    assert predicted_s == pytest.approx(published_s, rel=0.04)
