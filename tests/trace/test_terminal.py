import io

from rich.console import Console
from trace_helpers import circular_step, linear_step, split_step

from ringline.schedule import circular
from ringline.simulate import simulate
from ringline.trace import summary, terminal


def printed(timelines, **options) -> str:
    out = io.StringIO()
    terminal(timelines, console=Console(file=out, **options))
    return out.getvalue()


def test_plain_grid_has_operation_and_microbatch():
    lines = printed(linear_step(), width=80).splitlines()
    assert lines[0].startswith("linear: 4 stages, 8 microbatches; one column is 333.3 ms")
    assert lines[1].startswith("stage 0 |F0 F1 F2 F3 F4 F5 F6 F7 ....")
    assert lines[1].endswith("B1--- B0---")
    assert lines[4].count("B") == 8
    assert "\x1b" not in "".join(lines)


def test_rows_of_one_grid_end_together():
    lines = printed([linear_step(), split_step()], width=80).splitlines()
    rows = [line for line in lines if line.startswith("stage")]
    for grid in (rows[:4], rows[4:]):
        full = max(map(len, grid))
        assert all(len(row) >= full - 1 for row in grid)  # the blank after a cell is cut


def test_colours_on_a_terminal():
    text = printed(
        circular_step(), width=120, force_terminal=True, color_system="truecolor", no_color=False
    )
    assert "48;2;22;104;173" in text
    assert "48;2;125;170;209" in text  # the second repeat is a shade


def test_a_long_step_fits_the_terminal():
    step = simulate(circular(2, 64, 4), forward_s=1.0, backward_s=2.0)
    text = printed(step, width=100, force_terminal=True, color_system=None)
    rows = [line for line in text.splitlines() if line.startswith("stage")]
    assert max(len(row) for row in rows) <= 100


def test_summary_has_a_row_for_each_timeline():
    out = io.StringIO()
    Console(file=out, width=80).print(summary([linear_step(), circular_step()]))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[-2][:3] == ["linear", "34.2", "s"]
    assert rows[-1] == [
        "circular",
        "29.7",
        "s",
        "5.7",
        "s",
        "(19.2%)",
        "5.7",
        "s",
        "(19.2%)",
        "800",
        "ms",
        "16",
        "each",
    ]
