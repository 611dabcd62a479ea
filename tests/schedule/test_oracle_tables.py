"""Schedule tables that other projects made: read, accepted or rejected, and made again."""

import csv
import json
import re
from dataclasses import replace

import pytest
from schedule_cases import ORACLES, bubbles, needs_oracles

from ringline import schedules
from ringline.schedule import (
    PipelineSchedule,
    ScheduleError,
    Value,
    allocate_slots,
    check_program,
    lifetimes,
    merge_backward,
    parse_pipeline,
    parse_program,
    receive_early,
    split_backward,
    value_slots,
)

pytestmark = needs_oracles

GOOD = sorted(
    path
    for folder in ("tables", "pytorch_published")
    for path in (ORACLES / folder).rglob("*.csv")
    if not path.stem.endswith("_instructions")  # DeepSpeed's own words, no table of actions
)
BAD = sorted((ORACLES / "known_bad").glob("*.csv"))
COMMS = sorted((ORACLES / "tables" / "torch213_generated").glob("*_comms.csv"))
NAMED = re.compile(r"(.+)_p(\d+)_v(\d+)_m(\d+)(_compute)?")
COSTS = ((1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.1), (1.0, 1.2, 0.8, 0.0))

# Families whose tables our generator gives action for action.
SAME = {
    "1f1b": "one_f_one_b",
    "Std1F1B": "one_f_one_b",
    "TrainSchedule1F1B": "one_f_one_b",
    "Eager1F1B": "eager_one_f_one_b",
    "Interleaved1F1B": "interleaved_one_f_one_b",
    "vpp_interleaved1f1b": "interleaved_one_f_one_b",
    "LoopedBFS": "circular",
    "InterleavedZeroBubble": "zero_bubble_h1",
    "ZeroBubble": "zero_bubble_h1",
}
# Families with another order of ours at the same peak or less: GPipe runs its backward in the
# order of the forward there, KimiK2 runs one more forward ahead, ZB-V tables differ at the end.
NO_WORSE = {
    "GPipe": "linear",
    "KimiK2": "interleaved_one_f_one_b",
    "ZBVZeroBubble": "zero_bubble_v",
    "zbv_zb": "zero_bubble_v",
    "zbv_min": "zero_bubble_v_min",
}


def tables(families: dict[str, str]) -> list[tuple]:
    found = []
    for path in GOOD:
        name = NAMED.fullmatch(path.stem)
        if name and name[1] in families:
            p, v, m = map(int, name.group(2, 3, 4))
            found.append((path, families[name[1]], p, v, m))
    return found


def vectors() -> dict:
    return json.loads((ORACLES / "pytorch_inline" / "vectors.json").read_text())


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_table_is_accepted(path):
    schedule = parse_pipeline(path)
    schedule.validate()
    assert (schedule.written is not None) == path.stem.endswith("_comms")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_table_is_rejected_naming_stage_and_step(path):
    schedule = parse_pipeline(path)
    with pytest.raises(ScheduleError, match=r"stage \d+ step \d+: ") as caught:
        schedule.validate()
    stage, step = caught.value.device, caught.value.step
    assert stage is not None
    assert step is not None
    if path.stem.startswith("torch213_1F1B"):
        # The last stage skips its first forward and still runs that backward.
        assert (stage, step) == (schedule.stages - 1, 1)
    else:
        # InterleavedGPipe repeats one backward, right after it ran it.
        assert schedule.rows[stage][step] == schedule.rows[stage][step - 1]


@pytest.mark.parametrize(
    ("path", "name", "p", "v", "m"), tables(SAME), ids=[t[0].stem for t in tables(SAME)]
)
def test_our_generator_gives_the_same_rows(path, name, p, v, m):
    ours = getattr(schedules, name)(stages=p, microbatches=m, repeats=v)
    assert ours.rows == parse_pipeline(path).rows


@pytest.mark.parametrize(
    ("path", "name", "p", "v", "m"), tables(NO_WORSE), ids=[t[0].stem for t in tables(NO_WORSE)]
)
def test_our_generator_has_no_larger_bubble_at_no_larger_peak(path, name, p, v, m):
    ours = getattr(schedules, name)(stages=p, microbatches=m, repeats=v)
    theirs = parse_pipeline(path)
    assert max(ours.peak_activations()) <= max(theirs.peak_activations())
    for costs in COSTS:
        for mine, other in zip(bubbles(ours, *costs), bubbles(theirs, *costs)):
            assert mine <= other + 1e-9


HALF = tables({"zbv_half": "zero_bubble_v_half"})


@pytest.mark.parametrize(("path", "name", "p", "v", "m"), HALF, ids=[t[0].stem for t in HALF])
def test_v_half_is_within_one_chunk_forward_of_the_table_at_its_memory(path, name, p, v, m):
    ours = schedules.zero_bubble_v_half(stages=p, microbatches=m)
    theirs = parse_pipeline(path)
    assert max(ours.peak_activations()) <= max(theirs.peak_activations())
    assert bubbles(ours)[0] <= bubbles(theirs)[0] + 0.5 + 1e-9


def test_dualpipe_v_is_the_published_table_to_the_letter():
    published = ORACLES / "pytorch_published" / "dualpipev_4rank_10mb.csv"
    assert schedules.dualpipe_v(stages=4, microbatches=10).to_csv() == published.read_text()


DUALPIPE_V = tables({"DualPipeV": "dualpipe_v"})


@pytest.mark.parametrize(
    ("path", "name", "p", "v", "m"),
    DUALPIPE_V,
    ids=[f"{t[0].parent.name}-{t[0].stem}" for t in DUALPIPE_V],
)
def test_dualpipe_v_is_that_of_two_projects(path, name, p, v, m):
    """JaxPP splits every backward and ends with another order of W, which idles longer."""
    ours = schedules.dualpipe_v(stages=p, microbatches=m)
    theirs = parse_pipeline(path)
    if path.parent.name == "torch213_generated":
        assert (ours.rows, ours.joined) == (theirs.rows, theirs.joined)
        return
    ours = split_backward(ours)
    without_weights = [
        [[action for action in row if action.op != "W"] for row in schedule.rows]
        for schedule in (ours, theirs)
    ]
    assert without_weights[0] == without_weights[1]
    assert ours.peak_activations() == theirs.peak_activations()
    for costs in COSTS:
        assert bubbles(ours, *costs)[0] <= bubbles(theirs, *costs)[0] + 1e-9


@pytest.mark.parametrize("limit", ["1p", "1.5p", "2p"])
def test_the_automatic_scheduler_is_no_worse_at_equal_memory(limit):
    """Their memory model: F adds 2, I and W take 1 each."""
    for path in (ORACLES / "tables" / "zb_sailsg_generated").glob(f"zb_mem{limit}_*.csv"):
        p, m = (int(number) for number in re.findall(r"_[pm](\d+)(?=_|$)", path.stem))
        ours = schedules.zero_bubble(p, m, max_activations=float(limit[:-1]) * p, weight_share=0.5)
        ours.validate()
        for mine, other in zip(bubbles(ours), bubbles(parse_pipeline(path))):
            assert mine <= other + 1e-9


def test_sends_and_receives_are_those_of_torch():
    """Posted where the sender sends; torch first makes a B of an I and W side by side."""
    folder = ORACLES / "pytorch_published"
    compute = parse_pipeline(folder / "zb1p_2rank_2stagep_compute.csv")
    comms = parse_program(folder / "zb1p_2rank_2stagep_comms.csv")
    assert receive_early(merge_backward(compute).program()) == comms


@pytest.mark.parametrize("path", COMMS, ids=lambda path: path.stem)
def test_torch_programs_are_reproduced_and_never_hang(path):
    comms = parse_program(path)
    compute = parse_pipeline(path.with_name(path.name.replace("_comms", "_compute")))
    assert receive_early(compute.program()) == comms
    for capacity in (0, 1, None):
        check_program(comms, capacity=capacity)


@pytest.mark.parametrize("number", [0, 1])
def test_send_and_receive_vectors(number):
    """Receives stand elsewhere: these rows have waits as cells, which count as turns there.

    The second vector writes B for the input gradient beside its W.
    """
    vector = vectors()["send_recv"][number]
    tables = [
        "\n".join(",".join(vector[form][rank]) for rank in ("0", "1"))
        for form in ("compute", "comms")
    ]
    if "W" in tables[0]:
        tables = [re.sub(r"(\d)B(\d)", r"\1I\2", table) for table in tables]
    schedule, comms = parse_pipeline(tables[0]), parse_program(tables[1])
    assert list(schedule.stage_of) == vector["stage_to_rank"]
    check_program(comms)
    for ours, theirs in zip(schedule.program().rows, comms.rows):
        assert sorted(map(str, ours)) == sorted(map(str, theirs))
        assert [i for i in ours if i.queue[0] != "receive"] == [
            i for i in theirs if i.queue[0] != "receive"
        ]


@pytest.mark.parametrize(
    ("case", "stage", "step"), [("case1", 0, 0), ("case2", 0, 2)], ids=["case1", "case2"]
)
def test_pytorch_172668_both_traces_deadlock_by_rendezvous_and_only_so(case, stage, step):
    ranks = vectors()["pytorch172668_deadlocks"][case]
    program = parse_program(f"{ranks['rank0']}\n{ranks['rank1']}", fragment=True)
    check_program(program)
    check_program(program, capacity=1)
    with pytest.raises(ScheduleError, match="deadlock") as caught:
        check_program(program, capacity=0)
    assert (caught.value.device, caught.value.step) == (stage, step)


def test_deferring_a_receive_mends_the_deadlock_case():
    case = vectors()["defer_recv_deadlock_case"]
    first = ",".join(case["rank0"])
    for rank in ("rank1_in", "rank1_out"):
        check_program(parse_program(first + "\n" + ",".join(case[rank])))


def test_merge_backward_vector():
    vector = vectors()["merge_bw"]
    schedule = parse_pipeline(",".join(vector["inp"]))
    assert merge_backward(schedule).to_csv().strip() == ",".join(vector["out"])


@pytest.mark.parametrize("number", [0, 1])
def test_activation_liveness_vectors(number):
    vector = vectors()["activation_liveness"][number]
    program = parse_program(",".join(vector["actions"]), fragment=True)
    alive = lifetimes(program)[0]
    slots, count = value_slots(program)[0]
    for name, (first, last) in vector["lifetimes"].items():
        chunk, i = map(int, name.split(","))
        assert alive[Value("residual", chunk, i)] == (first, last + 1)
    for name, slot in vector.get("slots", {}).items():
        chunk, i = map(int, name.split(","))
        assert slots[Value("residual", chunk, i)] == slot
    assert count == vector.get("num_slots", vector.get("stage_slots"))
    if "microbatch_slots" in vector:
        spans = [
            [life for value, life in alive.items() if value[::2] == ("residual", i)]
            for i in range(3)
        ]
        whole = [(min(s for s, _ in lives), max(e for _, e in lives)) for lives in spans]
        assert allocate_slots(whole)[1] == vector["microbatch_slots"]


@pytest.mark.parametrize("name", ["VShaped", "Unbalanced", "WithW"])
def test_custom_schedules_are_accepted(name):
    vector = vectors()["custom_schedules"][name]
    schedule = parse_pipeline(
        "\n".join(vector[rank].replace("_", "").replace(" ", ",") for rank in ("0", "1"))
    )
    assert list(schedule.stage_of) == vector["stage_to_rank"]
    schedule.validate()


def test_dualpipe_is_read_as_two_pipelines():
    path = ORACLES / "tables" / "dualpipe_generated" / "DualPipe_p4_m8.csv"
    schedule = parse_pipeline(path)
    assert schedule.directions == 2
    assert schedule.peak_activations() == (5, 5, 5, 5)
    with pytest.raises(ScheduleError, match="stage 3 step 0: 4F0 reads"):
        replace(schedule, directions=1).validate()


def _paper_rows() -> list[dict[str, str]]:
    path = ORACLES / "paper_tables" / "zero_bubble_inputs_and_bubble_rates.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


# Hidden size and heads of the models of arXiv 2401.10241, table 3; all of sequence 1024.
MODELS = {"1.5B": (2304, 24), "6.2B": (4096, 32), "14.6B": (5120, 40), "28.3B": (6144, 48)}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=f"{row['model']}-m{row['m']}",
            marks=[pytest.mark.slow] if int(row["p"]) * int(row["m"]) > 1000 else [],
        )
        for row in _paper_rows()
    ],
)
def test_bubble_rates_of_the_zero_bubble_paper(row):
    p, m = int(row["p"]), int(row["m"])
    f, i, w, c = (float(row[k]) for k in ("T_F_ms", "T_B_ms(dgrad)", "T_W_ms", "T_comm_ms"))
    h, a = MODELS[row["model"]]

    def rate(schedule: PipelineSchedule) -> float:
        idle = bubbles(schedule, f, i, w, c)[0]
        return idle / (idle + m * (f + i + w))

    for column, name in (
        ("bubble_1F1B", "one_f_one_b"),
        ("bubble_ZB-H1", "zero_bubble_h1"),
        ("bubble_ZB-H2", "zero_bubble_h2"),
    ):
        made = getattr(schedules, name)(stages=p, microbatches=m)
        assert rate(made) == pytest.approx(float(row[column]), abs=1e-4)
    for column, memory in (("bubble_ZB-1p", p), ("bubble_ZB-2p", 2 * p)):
        found = schedules.zero_bubble(
            p,
            m,
            max_activations=memory,
            forward_s=f,
            input_gradient_s=i,
            weight_gradient_s=w,
            transfer_s=c,
            weight_share=32 * h / (34 * h + 5 * a * 1024),
        )
        assert rate(found) <= float(row[column]) + 1e-3
