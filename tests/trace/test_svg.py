from xml.etree import ElementTree

import pytest
from trace_helpers import circular_step, gather, linear_step, split_step

from ringline.schedule import zero_bubble_h1
from ringline.simulate import simulate
from ringline.trace import svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("make", [linear_step, circular_step, split_step, gather])
def test_is_a_picture_with_a_cell_for_each_computation(make):
    step = make()
    root = ElementTree.fromstring(svg(step))
    cells = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    assert len(cells) == sum(event.peer is None for event in step.events)
    width = float(root.attrib["width"])
    for rect in root.iter(f"{SVG}rect"):
        if rect.attrib["width"] != "100%":
            assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width


def test_timelines_share_their_scale():
    root = ElementTree.fromstring(svg([linear_step(), circular_step()]))
    idle = [float(r.attrib["width"]) for r in root.iter(f"{SVG}rect") if r.get("class") == "idle"]
    ratio = circular_step().makespan_s / linear_step().makespan_s
    assert idle[4] / idle[0] == pytest.approx(ratio, rel=1e-3)


def test_numbers_of_two_digits_are_drawn_where_those_of_one_are():
    text = svg(
        simulate(zero_bubble_h1(8, 24), forward_s=1, input_gradient_s=1, weight_gradient_s=1)
    )
    numbers = [t.text for t in ElementTree.fromstring(text).iterfind(f"{SVG}g/{SVG}text")]
    assert len(numbers) == 3 * 8 * 24
    assert numbers.count("9") == numbers.count("23") == 3 * 8


def test_names_are_escaped():
    step = linear_step()
    named = type(step)("a < b & c", step.events, step.devices, step.peak_activations)
    assert ElementTree.fromstring(svg(named)) is not None
