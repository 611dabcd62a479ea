import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_helpers import small

from ringline.train._model import init_params
from ringline.train._optimizer import decayed, learning_rate, make_optimizer


def test_the_rate_climbs_then_falls_to_a_tenth():
    config = small(steps=100, warmup=10, learning_rate=1.0)
    rate = [float(jnp.asarray(learning_rate(config)(step))) for step in range(101)]
    assert rate[0] == pytest.approx(1 / 11)
    assert max(rate) == rate[10] == pytest.approx(1.0)
    assert rate[100] == pytest.approx(0.1)
    assert np.all(np.diff(rate[10:]) < 0)


@pytest.mark.parametrize("warmup", [0, 1, 50])
def test_a_run_shorter_than_its_warm_up_still_learns(warmup):
    rate = learning_rate(small(steps=2, warmup=warmup))
    assert jnp.asarray([rate(0), rate(1)]).min() > 0


def test_norms_are_not_decayed():
    params = init_params(small(), jax.random.key(0))
    kept = {
        jax.tree_util.keystr(path)
        for path, on in jax.tree_util.tree_leaves_with_path(decayed(params))
        if not on
    }
    assert kept == {
        "['final_norm_D']",
        "['layers']['attention_norm_D']",
        "['layers']['ff_norm_D']",
    }


def test_the_gradient_is_clipped_by_its_global_norm():
    optimizer = make_optimizer(small(clip=1.0, weight_decay=0.0))
    params = {"a": jnp.zeros(3), "b": jnp.zeros(4)}
    steep = {"a": jnp.full(3, 1e6), "b": jnp.full(4, 1e6)}
    _, state = optimizer.update(steep, optimizer.init(params), params)
    moments = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if ".mu" in jax.tree_util.keystr(path)
    ]
    norm = np.sqrt(sum(float(jnp.sum((leaf / 0.1) ** 2)) for leaf in moments))
    assert norm == pytest.approx(1.0, rel=1e-4)
