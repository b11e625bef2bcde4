"""Lengths against t5's planner and masks, and against masks drawn with numpy."""

from __future__ import annotations

import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg.objectives import SpanCorruption, lengths


def t5_plan(inputs_length, density, mean_span):
    return t5_preprocessors.random_spans_helper(
        inputs_length=inputs_length,
        noise_density=density,
        mean_noise_span_length=mean_span,
        extra_tokens_per_span_inputs=1,
        extra_tokens_per_span_targets=1,
    )


@pytest.mark.parametrize(
    "case, expected",
    [
        ((16, 0.15, 3), (17, 5, 3, 1)),
        ((32, 0.15, 3), (34, 8, 5, 2)),
        ((64, 0.15, 3), (70, 14, 10, 3)),
        ((114, 0.15, 3), (126, 26, 19, 6)),
        ((128, 0.15, 3), (141, 29, 21, 7)),
        ((256, 0.15, 3), (284, 58, 43, 14)),
        ((512, 0.15, 3), (568, 114, 85, 28)),
        ((1024, 0.15, 3), (1137, 229, 171, 57)),
        ((2048, 0.15, 3), (2274, 456, 341, 114)),
        ((1024, 0.15, 20), (1193, 189, 179, 9)),
        ((512, 0.15, 10), (591, 99, 89, 9)),
        ((512, 0.25, 3), (614, 206, 154, 51)),
        ((512, 0.5, 3), (766, 512, 383, 128)),
        ((512, 0.15, 1), (511, 155, 77, 77)),
        ((512, 0.15, 8), (588, 100, 88, 11)),
        ((512, 0.15, 20), (597, 95, 90, 4)),
        ((512, 0.15, 64), (600, 92, 90, 1)),
        ((640, 0.15, 3), (710, 144, 107, 36)),
        ((172, 0.15, 3), (190, 40, 29, 10)),
    ],
)
def test_lengths_table(case, expected):
    assert lengths.span_corruption_lengths(*case) == expected


def test_lengths_are_t5s_but_for_39_where_its_mask_makes_two_more():
    differing = {}
    for length in range(10, 4100):
        tokens, targets = t5_plan(length, 0.15, 3.0)
        ours = lengths.span_corruption_lengths(length)
        assert ours.tokens == tokens and ours.inputs <= length
        if ours.targets != targets:
            differing[length] = ours.targets - targets
    assert len(differing) == 39 and set(differing.values()) == {2}
    assert {172, 640} < set(differing)
    assert not {128, 192, 256, 384, 512, 768, 1024, 1536, 2048} & set(differing)


@pytest.mark.parametrize("density, span", [(0.15, 20), (0.15, 8), (0.5, 3), (0.5, 64), (0.3, 2)])
def test_lengths_never_promise_less_room_than_t5_asks_for(density, span):
    for length in range(3, 1500, 7):
        tokens, targets = t5_plan(length, density, span)
        ours = lengths.span_corruption_lengths(length, density, span)
        assert ours.tokens == tokens and ours.targets >= targets


@pytest.mark.parametrize("density, span", [(0.15, 3), (0.15, 20), (0.5, 3), (0.3, 6), (0.15, 64)])
def test_counts_are_those_of_t5s_mask_eager_and_in_tf_data(density, span):
    def count(tokens):
        seeds = tf.constant([[0, 1], [2, 3]])
        mask = t5_preprocessors.random_spans_noise_mask(tokens, density, seeds, span)
        mask = tf.cast(mask, tf.int32)
        return tf.reduce_sum(mask), tf.reduce_sum(tf.cast(mask[1:] > mask[:-1], tf.int32))

    tokens = np.array([*range(2, 40), *range(40, 2400, 59), 190, 350, 710, 711], np.int32)
    expected = [lengths.mask_counts(int(n), density, span) for n in tokens]
    in_graph = tf.data.Dataset.from_tensor_slices(tokens).map(count)
    assert [(int(a), int(b)) for a, b in in_graph.as_numpy_iterator()] == expected
    eager = [count(tf.constant(n)) for n in tokens[::10]]
    assert [(int(a), int(b)) for a, b in eager] == expected[::10]


@pytest.mark.parametrize("density, span", [(0.15, 3), (0.15, 20), (0.5, 3), (0.5, 2), (0.25, 1)])
def test_what_check_accepts_holds_every_shorter_example_too(density, span):
    objective, vocabulary = SpanCorruption(density, span), seqio.ByteVocabulary(1000)
    accepted = 0
    for length in (*range(3, 80), 172, 512, 640):
        made = objective.lengths(length)
        try:
            objective.check({"inputs": length, "targets": made.targets}, vocabulary)
        except ValueError:
            continue
        accepted += 1
        assert_every_example_fits(made.tokens, density, span, length, made.targets)
    assert accepted > 20


def assert_every_example_fits(tokens, density, span, inputs_length, targets_length):
    for n in range(2, tokens + 1):
        noise, spans = lengths.mask_counts(n, density, span)
        assert n - noise + spans + 1 <= inputs_length
        assert noise + spans + 1 <= targets_length
        assert spans <= min(noise, n - noise)


UL2S = [(0.15, 3), (0.15, 8), (0.5, 3), (0.5, 8), (0.15, 64), (0.5, 64)]


@pytest.mark.parametrize("density, span", UL2S)
def test_fitted_lengths_hold_every_example_and_are_t5s_but_where_those_do_not_fit(density, span):
    for length in (*range(3, 80), 172, 507, 512, 640):
        planned = lengths.span_corruption_lengths(length, density, span)
        made = lengths.fitted_span_corruption_lengths(length, density, span)
        assert_every_example_fits(made.tokens, density, span, length, made.targets)
        noise, spans = lengths.mask_counts(made.tokens + 1, density, span)
        assert made == planned or made.tokens + 1 - noise + spans + 1 > length


# ---- I.i.d. denoising ----


@pytest.mark.parametrize("density", [0.15, 0.5])
def test_iid_lengths_of_all_masks(density):
    tokens = 14
    masks = (np.arange(2**tokens)[:, None] >> np.arange(tokens)) % 2  # [masks, tokens]
    chances = np.prod(np.where(masks, density, 1 - density), axis=1)
    before = np.pad(masks, ((0, 0), (1, 0)))[:, :-1]
    masked_runs = np.sum(masks & ~before & 1, axis=1)
    other_runs = np.sum((1 - masks) & before, axis=1) + (1 - masks[:, 0])
    made = lengths.iid_denoising_lengths(tokens + 1, density)
    targets = masks.sum(1) + other_runs + 1  # one sentinel per run of unmasked tokens, EOS
    assert chances @ (targets > made.targets) < 1e-6 <= chances @ (targets > made.targets - 1)
    assert chances @ (np.maximum(masked_runs, other_runs) > made.sentinels) < 1e-6


def test_iid_lengths_of_t5s_examples():
    made = lengths.iid_denoising_lengths(512, 0.15)
    assert made.tokens == 511
    masks = np.random.default_rng(0).random((20_000, 511)) < 0.15
    runs = np.sum(masks[:, 1:] > masks[:, :-1], axis=1)
    mean, deviation = np.mean(masks.sum(1) + runs), np.std(masks.sum(1) + runs)
    assert 4 < (made.targets - mean) / deviation < 5.5, "one in a million: 4.75 of a normal"
    assert made.sentinels <= 100, "T5's own setting fits its vocabulary"
