"""Random numbers against TensorFlow's own, from the same seeds."""

import numpy as np
import pytest
import tensorflow as tf

from t5xpg.batchwise import random_numbers
from t5xpg.batchwise.random_numbers import dataset_stream

SEEDS = [(0, 0), (1, -1), (2**62, -(2**63)), (-5, 2**32)]


def pairs(seed):
    """The seed as one of two, so that what is drawn for one is not drawn for the other."""
    return [np.array([part, 9]) for part in seed]


@pytest.fixture
def global_seed():
    tf.random.set_seed(3)
    yield
    tf.random.set_seed(None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [0, 1, 4, 7, 1000])
def test_floats_and_integers_are_tensorflows(seed, count):
    with_tf = tf.constant(seed, tf.int64)
    floats = random_numbers.floats(pairs(seed), count)
    assert floats.shape == (2, count) and floats.dtype == np.float32
    np.testing.assert_array_equal(floats[0], tf.random.stateless_uniform([count], with_tf))
    integers = random_numbers.integers(pairs(seed), count, 3, 10)
    np.testing.assert_array_equal(
        integers[0], tf.random.stateless_uniform([count], with_tf, minval=3, maxval=10, dtype=tf.int32)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_split_as_tensorflows(seed):
    theirs = tf.random.experimental.stateless_split(tf.constant(seed, tf.int64), 3).numpy()
    ours = random_numbers.split_seeds(pairs(seed), 3)
    assert [[part[0].astype(np.int64) for part in pair] for pair in ours] == theirs.tolist()


@pytest.mark.parametrize("rates", [[3, 1], [0.2, 0.2, 0.1, 0.5], [1e-3, 5, 2]])
def test_classes_are_tensorflows(rates):
    logits = np.log(rates).astype(np.float32)
    for seed in SEEDS:
        theirs = tf.random.stateless_categorical(logits[None], 300, seed)[0]
        np.testing.assert_array_equal(random_numbers.categorical(pairs(seed), 300, logits)[0], theirs)


@pytest.mark.parametrize("seed", [0, 7, 2**31 + 5])
@pytest.mark.parametrize("start", [0, 1, 6])
def test_any_part_of_a_random_dataset(seed, start):
    theirs = list(tf.data.Dataset.random(seed).skip(start).take(9).as_numpy_iterator())
    assert dataset_stream(seed).words(start, 9).tolist() == theirs


def test_the_global_seed_counts(global_seed):
    assert dataset_stream(0).words(0, 4).tolist() == list(tf.data.Dataset.random(0).take(4).as_numpy_iterator())
    tf.random.set_seed(0)
    assert dataset_stream(0).words(0, 4).tolist() == list(tf.data.Dataset.random(0).take(4).as_numpy_iterator())
