import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringline.train import TrainConfig, merge, read_toml, to_toml


@given(
    prompt=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
    rate=st.floats(1e-6, 1.0),
    overlap=st.booleans(),
)
def test_what_is_saved_is_read_back(tmp_path_factory, prompt, rate, overlap):
    config = TrainConfig(prompt=prompt, learning_rate=rate, overlap=overlap).resolve()
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert merge(read_toml(path), {}) == config


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("steps = 7\nseq = 32\n")
    config = merge(read_toml(path), {"steps": 9, "batch": None})
    assert (config.steps, config.seq, config.batch) == (9, 32, TrainConfig().batch)


def test_an_unknown_key_names_file_key_and_the_nearest(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("microbatchs = 4\n")
    with pytest.raises(ValueError, match=r"run\.toml: unknown key 'microbatchs'.*microbatches"):
        read_toml(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("steps = 1.5", "steps must be int, got 1.5"),
        ("steps = true", "steps must be int, got True"),
        ('overlap = "yes"', "overlap must be bool, got 'yes'"),
        ('schedule = "round"', "schedule must be 'linear' or 'circular' or '1f1b' or"),
        ("text = 3", "text must be str, got 3"),
        ("steps = ", "is not TOML"),
        ("[model]\nlayers = 2", "unknown key 'model'"),
    ],
)
def test_a_wrong_value_says_what_is_expected(tmp_path, line, message):
    path = tmp_path / "run.toml"
    path.write_text(line)
    with pytest.raises(ValueError, match=message) as raised:
        read_toml(path)
    assert "\n" not in str(raised.value)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml cannot be read"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("given", "layout"),
    [
        ({}, (4, 2, 8, 2)),
        ({"stages": 2}, (2, 2, 4, 2)),
        ({"devices": 4}, (4, 1, 4, 2)),
        ({"schedule": "linear"}, (4, 2, 8, 1)),
        ({"stages": 2, "fsdp": 1, "repeats": 3}, (2, 1, 2, 3)),
    ],
)
def test_the_layout_follows_from_what_is_given(given, layout):
    config = TrainConfig(**given).resolve()
    assert (config.stages, config.fsdp, config.devices, config.repeats) == layout


@pytest.mark.parametrize(
    ("given", "knob"),
    [
        ({"devices": 7, "fsdp": 2}, "--devices"),
        ({"schedule": "linear", "repeats": 2}, "--repeats"),
        ({"batch": 12}, "--batch"),
        ({"batch": 8, "microbatches": 8}, "--microbatches"),
        ({"heads": 5}, "--heads"),
        ({"kv_heads": 3}, "--kv-heads"),
        ({"steps": 0}, "--steps"),
        ({"held_out": 1.0}, "--held-out"),
        ({"warmup": -1}, "--warmup"),
    ],
)
def test_what_no_run_can_have_names_the_knob(given, knob):
    with pytest.raises(ValueError, match=f"got .*{knob}"):
        TrainConfig(**given).resolve()


def test_every_knob_has_help():
    assert all(knob.metadata["help"] for knob in dataclasses.fields(TrainConfig))


def test_weights_are_gathered_once_a_step_where_there_is_no_other_way():
    assert TrainConfig(schedule="interleaved", gather="use").resolve().gather == "use"
    for schedule in ("linear", "circular"):
        with pytest.raises(ValueError, match="gathers weights once a step, got gather='use'"):
            TrainConfig(schedule=schedule, gather="use").resolve()
