import itertools

import jax
import numpy as np
import pytest
from train_helpers import SMALL, engine, small, text_corpus

from ringline import schedules
from ringline.train._data import train_batch
from ringline.train._state import from_plain, make_mesh, put_batch, to_plain
from ringline.train._step import bubble_share, make_schedule


def _losses(built, steps=3):
    config, state, losses = built.config, built.init(), []
    for step in range(steps):
        tokens = train_batch(text_corpus(), seed=0, step=step, batch=config.batch, seq=config.seq)
        state, loss = built.step(state, put_batch(tokens, built.mesh))
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "linear"},
        {"overlap": True},
        {"stages": 4, "repeats": 1, "fsdp": 1},
        {"layers": 5, "remat": "full"},
        {"schedule": "eager-1f1b"},
        {"schedule": "interleaved", "gather": "repeat", "remat": "full"},
        {"schedule": "zero-bubble-v", "gather": "use"},
    ],
    ids=str,
)
def test_a_pipeline_trains_like_the_plain_loop(changes):
    config = small(**changes)
    plain = engine(small(layers=config.layers), plain=True)
    np.testing.assert_allclose(_losses(engine(config)), _losses(plain), rtol=1e-5)


def test_bfloat16_trains():
    losses = _losses(engine(small(dtype="bfloat16")))
    np.testing.assert_allclose(losses, _losses(engine(SMALL)), rtol=2e-2)


def test_each_device_holds_its_share_of_layers_and_moments():
    state = engine(SMALL).init()
    for tree in (state.params, state.opt_state[1][0].mu):
        leaf = tree["layers"].places[0]["gate_DF"]
        assert leaf.shape == (2, 2, 16, 32)
        assert {shard.data.shape for shard in leaf.addressable_shards} == {(2, 1, 16, 16)}


def test_no_two_layers_begin_with_the_same_weights():
    # pytorch#139304: the same seed on every stage.
    built = engine(SMALL)
    assert built.schedule is not None
    for leaf in jax.tree.leaves(to_plain(built.init(), built.schedule).params["layers"]):
        layers = np.asarray(leaf).reshape(SMALL.layers, -1)
        same = [np.array_equal(a, b) for a, b in itertools.combinations(layers, 2)]
        assert not any(same) or (layers == layers[0, 0]).all()  # norms begin as ones


def test_plain_form_and_stacked_form_are_inverses():
    built = engine(SMALL)
    assert built.schedule is not None
    state = built.init()
    plain = to_plain(state, built.schedule)
    assert plain.params["layers"]["gate_DF"].shape == (4, 16, 32)
    back = from_plain(plain, state, built.schedule)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_the_forward_loop_moves_activations_only():
    # Weights are gathered before the loop, and activations stay cut by batch: inside the loop
    # over ticks the forward has one permute and no other collective.
    built = engine(SMALL)
    tokens = jax.ShapeDtypeStruct(
        (SMALL.batch, SMALL.seq + 1),
        np.int32,
        sharding=put_batch(np.zeros((SMALL.batch, SMALL.seq + 1), np.int32), built.mesh).sharding,
    )
    text = built.evaluate.lower(built.abstract.params, tokens).compile().as_text()
    in_loop = [line for line in text.splitlines() if "while/body" in line.partition("op_name=")[2]]
    collectives = ("all-gather(", "all-reduce(", "reduce-scatter(", "all-to-all(")
    assert any("collective-permute(" in line for line in in_loop)
    assert not [line for line in in_loop if any(f" {name}" in line for name in collectives)]


def test_more_devices_than_exist_are_refused():
    config = small(stages=16, layers=32, fsdp=1)
    with pytest.raises(ValueError, match=r"needs 16 devices .* exist .*--devices"):
        make_mesh(config)


def test_layers_that_the_schedule_cannot_place_are_refused():
    with pytest.raises(ValueError, match="needs at least 4 layers"):
        make_schedule(small(layers=3))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("repeats", [1, 2])
def test_the_bubble_is_the_known_share(stages, repeats):
    schedule = schedules.circular(stages=stages, microbatches=8, repeats=repeats)
    expected = (stages - 1) / (repeats * 8 + stages - 1)
    assert bubble_share(schedule, overlap=False) == pytest.approx(expected)
    assert bubble_share(schedule, overlap=True) >= expected
