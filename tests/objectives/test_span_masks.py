"""Masks made by the batch against t5's own, made one by one from the same seeds."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf
from objective_runs import BYTES
from t5.data import preprocessors as t5_preprocessors

from t5xpg.objectives import span_masks
from t5xpg.objectives.span_masks import corrupt_spans

FEATURES = {name: seqio.Feature(BYTES) for name in ("inputs", "targets")}


def texts(tokens, count=25):
    """Of up to a dozen examples each, the last of any length."""
    rng = np.random.default_rng(tokens)
    rows = [rng.integers(3, 259, rng.integers(1, 12 * tokens)) for _ in range(count)]
    ragged = tf.ragged.constant([row.tolist() for row in rows], tf.int32)
    return tf.data.Dataset.from_tensor_slices({"targets": ragged}).map(lambda x: {"targets": x["targets"] + 0})


def by_t5(dataset, density, mean_span, tokens):
    examples = t5_preprocessors.split_tokens(dataset, max_tokens_per_segment=tokens)
    return t5_preprocessors.denoise(
        examples,
        FEATURES,
        noise_density=density,
        noise_mask_fn=functools.partial(t5_preprocessors.random_spans_noise_mask, mean_noise_span_length=mean_span),
        inputs_fn=t5_preprocessors.noise_span_to_unique_sentinel,
        targets_fn=t5_preprocessors.nonnoise_span_to_unique_sentinel,
    )


def by_us(dataset, density, mean_span, tokens):
    return corrupt_spans(dataset, density, mean_span, tokens, BYTES.vocab_size - 1)


def examples(make, *args, seed=3):
    with seqio.utils.map_seed_manager(seed):
        made = make(*args).as_numpy_iterator()
    return [{name: (ids.tolist(), str(ids.dtype)) for name, ids in example.items()} for example in made]


@pytest.mark.parametrize("batch_tokens", [1, 1000, 32_768])
@pytest.mark.parametrize(
    ("tokens", "density", "mean_span"),
    [
        *((568, 0.15, 3.0), (568, 0.15, 20.0), (300, 0.5, 64.0), (100, 0.5, 3.0)),
        *((7, 0.15, 3.0), (4, 0.3, 1.0), (2, 0.5, 1.0), (1, 0.15, 3.0)),
    ],
)
def test_as_t5_makes_them(monkeypatch, tokens, density, mean_span, batch_tokens):
    monkeypatch.setattr(span_masks, "_BATCH_TOKENS", batch_tokens)
    dataset = texts(tokens)
    theirs = examples(by_t5, dataset, density, mean_span, tokens)
    assert examples(by_us, dataset, density, mean_span, tokens) == theirs
    assert len(theirs) > 25


def test_draws_that_tie_keep_their_order():
    """Of 3,000 draws of 23 bits about half the sets have two that are equal."""
    dataset = tf.data.Dataset.from_tensors({"targets": tf.fill([40 * 4000], 7)})
    settings = (0.25, 3.0, 4000)
    assert examples(by_us, dataset, *settings) == examples(by_t5, dataset, *settings)


def test_a_saved_iterator_resumes(tmp_path):
    def iterator():
        with seqio.utils.map_seed_manager(5):
            return iter(by_us(texts(100).repeat(), 0.15, 3.0, 100))

    def take(rows, count):
        return [next(rows)["inputs"].numpy().tolist() for _ in range(count)]

    rows = iterator()
    take(rows, 77)
    saved = tf.train.Checkpoint(rows=rows).write(str(tmp_path / "saved"))
    rest = take(rows, 400)
    resumed = iterator()
    tf.train.Checkpoint(rows=resumed).read(saved).assert_consumed()
    assert take(resumed, 400) == rest
