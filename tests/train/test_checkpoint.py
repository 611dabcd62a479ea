import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from train_helpers import SMALL, engine, small, text_corpus

from ringline.train._checkpoint import CheckpointError, Checkpoints
from ringline.train._data import train_batch
from ringline.train._state import put_batch, to_plain


def _after(built, steps):
    state = built.init()
    for step in range(steps):
        tokens = train_batch(text_corpus(), seed=0, step=step, batch=4, seq=16)
        state, _ = built.step(state, put_batch(tokens, built.mesh))
    return state


def _plain(built, state):
    return to_plain(state, built.schedule)


def test_a_checkpoint_is_restored_bit_for_bit_into_any_layout(tmp_path):
    built = engine(SMALL)
    state = _after(built, 2)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.save(built, state) == 2
    for config in (SMALL, small(stages=4, repeats=1, fsdp=1)):
        other = engine(config)
        checkpoints.check(config)
        back = checkpoints.restore(other)
        assert int(back.step) == 2
        jax.tree.map(np.testing.assert_array_equal, _plain(other, back), _plain(built, state))
        places = jax.tree.map(lambda leaf: leaf.sharding, other.abstract)
        assert jax.tree.map(lambda leaf: leaf.sharding, back) == places
    checkpoints.close()


def test_every_layer_is_in_the_checkpoint(tmp_path):
    # torchtitan#474: only the layers of some stages were saved.
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(engine(SMALL), _after(engine(SMALL), 0))
    checkpoints.close()
    saved = ocp.StandardCheckpointer().restore(tmp_path / "checkpoints" / "0" / "state")
    layers = jax.tree.map(lambda leaf: leaf.shape[0], saved["params"]["layers"])
    assert layers == dict.fromkeys(engine(SMALL).abstract.params["layers"].places[0], SMALL.layers)
    assert len(jax.tree.leaves(saved)) > 3 * len(jax.tree.leaves(saved["params"]))


def test_the_step_after_a_restore_is_the_step_that_would_have_been(tmp_path):
    # marin#8972: values restored right, and another loss in the step after.
    built = engine(SMALL)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(built, _after(built, 2))
    batch = put_batch(train_batch(text_corpus(), seed=0, step=2, batch=4, seq=16), built.mesh)
    state, loss = built.step(checkpoints.restore(built), batch)
    want, want_loss = built.step(_after(built, 2), batch)
    assert loss == want_loss
    jax.tree.map(np.testing.assert_array_equal, state, want)
    checkpoints.close()


def test_the_newest_two_are_kept(tmp_path):
    checkpoints, built = Checkpoints(tmp_path / "checkpoints"), engine(SMALL)
    for steps in (0, 1, 2):
        checkpoints.save(built, _after(built, steps))
    checkpoints.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]


# The thread that orbax leaves behind ends after its event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_save_leaves_the_one_before_usable(tmp_path, monkeypatch):
    checkpoints, built = Checkpoints(tmp_path / "checkpoints"), engine(SMALL)
    checkpoints.save(built, _after(built, 1))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    # The JSON part is written after the arrays: the save breaks when most of it is on disk.
    monkeypatch.setattr(ocp.JsonCheckpointHandler, "_save_fn", full)
    with pytest.raises(CheckpointError, match=r"step 2 .*No space left.*step 1 is still usable"):
        checkpoints.save(built, _after(built, 2))
    monkeypatch.undo()
    again = Checkpoints(tmp_path / "checkpoints")
    assert again.latest() == 1
    assert int(again.restore(built).step) == 1
    again.close()


def test_what_a_kill_left_behind_is_not_taken_for_a_checkpoint(tmp_path):
    checkpoints, built = Checkpoints(tmp_path / "checkpoints"), engine(SMALL)
    checkpoints.save(built, _after(built, 1))
    checkpoints.close()
    half = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    (half / "state").mkdir(parents=True)
    (half / "state" / "manifest.ocdbt").write_bytes(b"half")
    again = Checkpoints(tmp_path / "checkpoints")
    assert again.latest() == 1
    assert int(again.restore(built).step) == 1
    again.close()


def test_another_model_is_refused_in_one_line(tmp_path):
    checkpoints, built = Checkpoints(tmp_path / "checkpoints"), engine(SMALL)
    checkpoints.save(built, _after(built, 0))
    with pytest.raises(CheckpointError, match="d_model is 16 there, 32 here; change --d-model"):
        checkpoints.check(small(d_model=32))
    checkpoints.close()
    assert json.loads(json.dumps(SMALL.model_fields())) == SMALL.model_fields()


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        Checkpoints(tmp_path / "checkpoints").check(SMALL)
    assert not list(tmp_path.iterdir())
