"""Masks and what is made with them against t5's own, from the same seeds, example by example."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from objective_runs import BYTES
from t5.data import preprocessors as t5_preprocessors

from t5xpg.batchwise import noise
from t5xpg.batchwise.ragged import Ragged
from t5xpg.objectives.lengths import mask_counts


def t5_mask(mask_fn, size, density, seed):
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 6))
    return mask_fn(tf.constant(size), density, seeds=seeds[:2]).numpy()


@pytest.mark.parametrize(("tokens", "density", "span"), [(568, 0.15, 3.0), (60, 0.5, 3.0), (700, 0.3, 8.0)])
def test_masks_are_t5s(tokens, density, span):
    rng = np.random.default_rng(tokens)
    sizes = np.array([tokens, 1, 2, 3, *rng.integers(1, tokens, 6)])
    pairs = rng.integers(0, 2**32, (len(sizes), 2))
    counts = np.array([mask_counts(size, density, span) for size in range(tokens + 1)])
    spans = functools.partial(t5_preprocessors.random_spans_noise_mask, mean_noise_span_length=span)
    prefixes = noise.prefix_sizes(sizes, pairs.T)
    is_prefix = np.concatenate([np.arange(size) < prefix for size, prefix in zip(sizes, prefixes, strict=True)])
    ways = [
        (noise.span_mask(sizes, counts, pairs.T), spans, density),
        (noise.iid_mask(sizes, density, pairs.T), t5_preprocessors.iid_noise_mask, density),
        (is_prefix, t5_preprocessors.random_prefix_noise_mask, 0.5),
    ]
    for ours, mask_fn, t5_density in ways:
        theirs = [t5_mask(mask_fn, int(size), t5_density, pair) for size, pair in zip(sizes, pairs, strict=True)]
        assert ours.tolist() == np.concatenate(theirs).tolist()


def test_sentinels_are_t5s():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, 50)
    examples = Ragged(rng.integers(3, 259, sizes.sum()).astype(np.int32), sizes)
    masked = rng.random(sizes.sum()) < rng.choice([0.0, 0.3, 1.0], 50).repeat(sizes)
    ours = noise.with_sentinels(examples, masked, BYTES.vocab_size - 1)
    theirs = [
        t5_preprocessors.noise_span_to_unique_sentinel(tf.constant(tokens), tf.constant(mask), BYTES, None).numpy()
        for tokens, mask in zip(*(np.split(x, np.cumsum(sizes)[:-1]) for x in (examples.values, masked)), strict=True)
    ]
    assert ours.sizes.tolist() == [len(ids) for ids in theirs]
    np.testing.assert_array_equal(ours.values, np.concatenate(theirs), strict=True)
