"""Makespans, bubbles and peaks of schedule tables that other projects generated."""

import csv
from pathlib import Path

import pytest

from ringline.schedule import parse_pipeline
from ringline.simulate import simulate

ORACLES = Path(__file__).resolve().parents[3] / "shared" / "oracles"
COSTS = {
    "F1B1W1c0": (1.0, 1.0, 1.0, 0.0),
    "F1B1W1c.1": (1.0, 1.0, 1.0, 0.1),
    "F1B1.2W.8c0": (1.0, 1.2, 0.8, 0.0),
}
PEAKS = ("peak_act_chunks_per_rank", "peak")
ROUNDED = 5.1e-5  # the tables print four decimals


def _cases():
    """(name, path, expected numbers) of every row that has numbers and a table."""
    for row in _rows("oracle_bubbles.csv"):
        if row["F1B1W1c0_makespan"]:
            yield row["file"], ORACLES / "tables" / row["file"], row
    for row in _rows("torch213_bubbles.csv"):
        name = f"{row['schedule']}_p{row['p']}_v{row['v']}_m{row['m']}_compute.csv"
        yield name, ORACLES / "tables" / "torch213_generated" / name, row


def _rows(name: str) -> list[dict[str, str]]:
    path = ORACLES / name
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


CASES = [pytest.param(path, row, id=name) for name, path, row in _cases() if path.exists()]
NONE = [pytest.param(None, {}, marks=pytest.mark.skip(reason=f"no schedule tables in {ORACLES}"))]


@pytest.mark.parametrize(("path", "expected"), CASES or NONE)
def test_makespan_bubbles_and_peaks_equal_the_table(path, expected):
    schedule = parse_pipeline(path)
    schedule.validate()
    for costs, (forward_s, input_s, weight_s, transfer_s) in COSTS.items():
        step = simulate(
            schedule,
            forward_s=forward_s,
            input_gradient_s=input_s,
            weight_gradient_s=weight_s,
            transfer_s=transfer_s,
        )
        for column, found in (
            (f"{costs}_makespan", step.makespan_s),
            (f"{costs}_bubble_makespan", step.makespan_bubble_s),
            (f"{costs}_bubble_longest", step.bubble_s),
        ):
            if column in expected:
                assert found == pytest.approx(float(expected[column]), abs=ROUNDED), column
        peaks = next(expected[name] for name in PEAKS if name in expected)
        assert step.peak_activations == tuple(map(int, peaks.split()))
