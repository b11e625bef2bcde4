"""What decoding is made of, against sorting and by definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x.embedded import beams


@pytest.mark.parametrize("size", [3, 128, 300, 1000])
@pytest.mark.parametrize("levels", [2, 1000])  # with two levels nearly all scores are equal
def test_of_equal_scores_the_first_are_the_largest(size, levels):
    scores = np.random.default_rng(size).integers(0, levels, (4, size)).astype(np.float32)
    scores[scores == 0] = -np.inf
    order = np.argsort(-scores, axis=1, stable=True)[:, :3]
    values, indices = jax.jit(beams.top_k, static_argnums=1)(scores, 3)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, 1))


def test_only_what_was_repeated_is_unrepeated():
    x = jnp.arange(6).reshape(2, 3)
    with beams.repeated(x, 2) as rows:
        np.testing.assert_array_equal(rows, np.repeat(np.arange(6).reshape(2, 3), 2, axis=0))
        assert beams.unrepeated(rows) is x
        changed = rows + 1
        assert beams.unrepeated(changed) is changed
        with beams.repeated(x, 3):
            assert beams.unrepeated(rows) is rows
        assert beams.unrepeated(rows) is x
    assert beams.unrepeated(rows) is rows
