"""The page, opened in a headless browser where there is one."""

import json
import re
import shutil
from collections.abc import Iterator

import pytest
from trace_helpers import circular_step, gather, linear_step, program, split_step

from ringline.schedule import all_reduce, circular
from ringline.simulate import Timeline, simulate, simulate_collective
from ringline.topology import Ring, mover
from ringline.trace import html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VIEW = "document.getElementById('range').textContent"


def until(page, condition: str) -> None:
    """Wait in steps: the page's own policy forbids what `wait_for_function` does."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"not true within 5 s: {condition}")


def data_of(page: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def test_holds_every_event():
    step = circular_step()
    (timeline,) = data_of(html(step))["timelines"]
    assert all(len(column) == len(step.events) for column in timeline["events"].values())
    assert timeline["makespan"] == step.makespan_s


def test_asks_the_network_for_nothing():
    page = html([linear_step(), circular_step()])
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert not re.search(r"https?://|@import|url\(", page)


def test_names_cannot_end_the_script():
    step = linear_step()
    evil = Timeline("</script><b>", step.events, step.devices, step.peak_activations)
    page = html(evil, title="a < b")
    assert data_of(page)["timelines"][0]["name"] == "</script><b>"
    assert "<title>a &lt; b</title>" in page


def test_summary_compares_with_the_first():
    page = html([linear_step(), circular_step()])
    assert "−13.2%" in page
    assert "16 each" in page


@pytest.fixture(scope="module")
def browser() -> Iterator:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on the path")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path) -> Iterator:
    """Open timelines as a page; at the end nothing may have failed or left the file."""
    faults: list[str] = []
    contexts = []

    def opened(timelines, **options):
        path = tmp_path / "page.html"
        html(timelines, path)
        options.setdefault("viewport", {"width": 1200, "height": 900})
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:")) or faults.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        until(page, f"{VIEW} !== ''")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def test_pointer_shows_what_an_event_waited_for(visit):
    page = visit(linear_step())
    box = page.locator(".panel canvas").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    assert page.locator("#tip").is_hidden()
    place = page.evaluate("document.querySelector('.panel canvas').clientWidth - 66 - 12")
    second_row = 26 + 30 + 1 + 6 + 1 + 9 + 15
    page.mouse.move(box["x"] + 66 + place * 1.7 / (34.2 * 1.015), box["y"] + second_row)
    page.wait_for_selector("#tip:visible")
    text = page.locator("#tip").inner_text()
    assert "1F0 · forward, microbatch 0" in text
    assert "1.2 s for the activation of microbatch 0 for chunk 1, from stage 0" in text
    page.mouse.move(box["x"] + 66 + place * 0.6 / (34.2 * 1.015), box["y"] + second_row)
    text = page.locator("#tip").inner_text()
    assert "stage 1 is idle" in text
    assert "for the activation of microbatch 0 for chunk 1, from stage 0" in text
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    assert page.locator("#tip").is_hidden()


def test_two_fingers_zoom(visit):
    page = visit(circular_step(), viewport={"width": 500, "height": 900}, has_touch=True)
    whole = page.evaluate(VIEW)
    box = page.locator(".panel canvas").bounding_box()
    touch = page.context.new_cdp_session(page)

    def fingers(kind: str, *xs: float) -> None:
        points = [{"x": box["x"] + x, "y": box["y"] + 60, "id": i} for i, x in enumerate(xs)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", 200, 260)
    for apart in range(0, 60, 10):
        fingers("touchMove", 200 - apart, 260 + apart)
    fingers("touchEnd")
    until(page, f"{VIEW} !== {json.dumps(whole)}")
    start, end = (float(part.split()[0]) for part in page.evaluate(VIEW).split(" – "))
    assert end - start < 29.7 / 2


def test_sizes_are_shown(visit):
    page = visit(gather())
    page.locator(".panel canvas").focus()
    page.keyboard.press("Enter")
    assert "3 MiB" in page.locator("#tip").inner_text()


def test_stripes_of_a_collective_are_named(visit):
    hardware = mover("wormhole-ethernet")
    page = visit(simulate_collective(all_reduce(Ring(4)), 1 << 16, mover=hardware).timeline)
    page.locator(".panel canvas").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+ArrowDown")
    assert "piece 0 of stripe" in page.locator("#tip").inner_text()
    assert "until the last packet has arrived" in page.locator("thead").inner_text()
    assert "microbatch" not in page.locator("body").inner_text()


def test_a_compiled_program_has_no_stages_or_microbatches(visit):
    page = visit([program(), program()])
    page.locator(".panel canvas").first.focus()
    page.keyboard.press("Enter")
    tip = page.locator("#tip").inner_text()
    assert "a_very_long_name_of_a_fusion.1 · fusion" in tip
    body = page.locator("body").inner_text()
    assert "2 loops on one time axis" in body
    assert "1.5 ms" in page.locator("tbody").inner_text()  # of the transfer that is exposed
    assert not re.search(r"stage|microbatch|bubble|chunk|-1", body, re.IGNORECASE)
    assert not page.get_by_role("button", name="Arrows").is_visible()


def test_keys_zoom_pan_and_pick(visit):
    page = visit([linear_step(), circular_step()])
    whole = page.evaluate(VIEW)
    page.locator(".panel canvas").nth(1).focus()
    views = [whole]
    for key in ("+", "ArrowRight", "ArrowLeft", "-", "+", "0"):
        page.keyboard.press(key)
        until(page, f"{VIEW} !== {json.dumps(views[-1])}")
        views.append(page.evaluate(VIEW))
    assert views[-1] == whole
    assert views[1] == views[3] == views[5]
    assert views[4] == whole
    page.keyboard.press("Enter")
    assert page.locator("#live").text_content().startswith("0F0 · forward, microbatch 0; stage 0")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    assert page.locator("#live").text_content().startswith("1F0 · forward, microbatch 0; stage 1")
    assert page.locator("#tip").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    assert page.locator("#live").text_content() == ""


def test_wheel_zooms_around_the_pointer_and_drag_pans(visit):
    page = visit(circular_step())
    whole = page.evaluate(VIEW)
    box = page.locator(".panel canvas").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.wheel(0, -400)
    until(page, f"{VIEW} !== {json.dumps(whole)}")
    zoomed = page.evaluate(VIEW)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    until(page, f"{VIEW} !== {json.dumps(zoomed)}")
    page.get_by_role("button", name="Fit").click()
    until(page, f"{VIEW} === {json.dumps(whole)}")


def test_follows_the_readers_theme_and_the_button(visit):
    page = visit(split_step(), color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(theme) == "dark"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate(theme) == "light"
    assert page.evaluate(background) != dark
    page.emulate_media(color_scheme="light")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.emulate_media(color_scheme="dark")
    until(page, f"{theme} === 'dark'")


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_hangs_over_the_side(visit, width):
    page = visit(
        [linear_step(), circular_step(), gather()], viewport={"width": width, "height": 800}
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_thousands_of_events_are_drawn(visit):
    step = simulate(circular(8, 32, 4), forward_s=0.01, backward_s=0.02, transfer_s=0.0005)
    assert len(step.events) > 4000
    page = visit(step)
    before = page.evaluate(VIEW)
    page.locator(".panel canvas").focus()
    for _ in range(5):
        page.keyboard.press("+")
    until(page, f"{VIEW} !== {json.dumps(before)}")
