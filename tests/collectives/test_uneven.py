"""Shards of different lengths."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from collective_cases import (
    FORMS,
    assert_same_bits,
    form_id,
    on_devices,
    on_every_device,
    random_bits,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import ringline

forms = pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[5]], ids=form_id)


def _gather(x, sizes, **form):
    return ringline.all_gather(x, "x", sizes=sizes, **form)


def _scatter(x, sizes, **form):
    return ringline.reduce_scatter(x, "x", sizes=sizes, **form)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 1), st.sampled_from(FORMS)
)
def test_any_sizes_agree_with_numpy(sizes, dim, form):
    longest, devices = max(sizes), len(sizes)
    random = np.random.default_rng(0)
    shape = (longest, 3) if dim == 0 else (2, longest)
    x = random.integers(0, 99, (devices, *shape)).astype(np.int32)
    shards = [np.take(x[d], np.arange(size), dim) for d, size in enumerate(sizes)]
    whole = np.concatenate(shards, dim)
    got = on_devices(partial(_gather, sizes=sizes, axis=dim, **form), devices)(x)
    assert_same_bits(got, on_every_device(whole, devices))

    terms = random.integers(0, 99, (devices, *whole.shape)).astype(np.int32)
    got = on_devices(partial(_scatter, sizes=sizes, scatter_dimension=dim, **form), devices)(terms)
    stripes = np.split(terms.sum(0), np.cumsum(sizes)[:-1], dim)
    for stripe, want, size in zip(np.asarray(got), stripes, sizes):
        np.testing.assert_array_equal(np.take(stripe, np.arange(size), dim), want)
        assert not np.take(stripe, np.arange(size, longest), dim).any()


@forms
def test_bits_stay_as_they_are(form):
    x = random_bits((3, 2, 40), "bfloat16")
    got = on_devices(partial(_gather, sizes=[40, 7, 9], axis=1, **form), 3)(x)
    whole = np.concatenate([x[0], x[1, :, :7], x[2, :, :9]], 1)
    assert_same_bits(got, on_every_device(whole, 3))


@forms
def test_padding_gets_no_gradient(form):
    sizes = [2, 0, 3, 1]

    def loss(x):
        return (_gather(x, sizes, **form) ** 2).sum()

    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    got = np.asarray(on_devices(jax.grad(loss), 4)(x))
    for device, size in enumerate(sizes):
        np.testing.assert_allclose(got[device, :size], 8 * x[device, :size], rtol=1e-5)
        assert not got[device, size:].any()


@pytest.mark.parametrize(
    ("way", "sizes", "message"),
    [
        (_gather, [1, 2], "sizes must be 4 lengths of at least 0, one for each device, got (1, 2)"),
        (_gather, [1, 2, 3, -1], "sizes must be 4 lengths of at least 0"),
        (_gather, [1, 2, 3, 3], "the largest of sizes must be the 4 rows of an array of shape (4,"),
        (_scatter, [1, 1, 1, 0], "the sum of sizes must be the 4 rows of an array of shape (4, 2)"),
        (partial(_gather, tiled=False), [1, 2, 3, 4], "sizes need a dim to cut, got tiled=False"),
    ],
)
def test_sizes_that_do_not_match_are_refused(way, sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        on_devices(partial(way, sizes=sizes), 4)(np.zeros((4, 4, 2), np.float32))
