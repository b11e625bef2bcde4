"""Masks of the likeliest entries, against sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x import binary_search


@pytest.mark.parametrize("k", [1, 3, 7, 40])
def test_the_largest_are_those_of_a_sort(k):
    rng = np.random.RandomState(k)
    x = (rng.standard_normal((6, 40)) * 10.0 ** rng.randint(-30, 30, (6, 40))).astype(np.float32)
    x[0, ::3] = -np.inf
    x[1] = np.abs(x[1])
    x[2] = np.round(rng.standard_normal(40)) + 0.0  # many equal values, no negative zeros
    expected = np.where(x >= np.sort(x, axis=-1)[:, -k][:, None], x, np.float32(-7))
    np.testing.assert_array_equal(binary_search.topk_mask(jnp.asarray(x), k, -7.0), expected)
    np.testing.assert_array_equal(jax.jit(binary_search.topk_mask)(x, k, -7.0), expected)
    np.testing.assert_array_equal(binary_search.topk_mask(jnp.asarray(x[3]), k, -7.0), expected[3])


@pytest.mark.parametrize("p", [0.0, 0.3, 0.55, 0.9, 1.0])
def test_the_share_of_the_probability_is_the_smallest_that_is_enough(p):
    logits = np.random.RandomState(0).standard_normal((5, 30)).astype(np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    masked = np.asarray(binary_search.topp_mask(jnp.asarray(logits), p, -np.inf))
    for row, kept in zip(probs, masked > -np.inf, strict=True):
        descending = np.sort(row)[::-1]
        enough = max(int(np.argmax(np.cumsum(descending) >= p - 1e-6)) + 1, 1) if p < 1 else len(row)
        assert kept.sum() == enough
        assert set(row[kept]) == set(descending[:enough])
