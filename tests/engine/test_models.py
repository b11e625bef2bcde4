"""Models: predictions and scores against those recorded from T5X, and what their batches must hold."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import cases
from golden import record_predictions as golden

from t5x import models

RECORD = json.loads(golden.PATH.read_text())


@pytest.mark.parametrize("name", golden.CASES)
def test_predictions_are_those_of_t5x(name):
    ours, theirs = golden.predict(name), RECORD[name]
    assert ours["ids"] == theirs["ids"]
    np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", golden.NETWORKS)
def test_scores_and_logits_are_those_of_t5x(network):
    ours, theirs = golden.score(network), RECORD[f"{network}/score"]
    np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-5)
    np.testing.assert_allclose(ours["logits"], theirs["logits"], atol=1e-5 * np.abs(theirs["logits"]).max())


def test_token_scores_sum_to_the_score():
    model, params, batch = golden.setup("prefix_lm", "sample")
    scores, intermediates = jax.jit(functools.partial(model.score_batch, return_intermediates=True))(params, batch)
    (token_scores,) = intermediates["decoder"]["token_scores"]
    np.testing.assert_allclose(token_scores.sum(-1), scores, rtol=1e-5)
    np.testing.assert_array_equal(token_scores == 0, batch["decoder_loss_weights"] == 0)


@pytest.mark.parametrize("network", ["decoder_only", "prefix_lm"])
def test_greedy_decoding_through_the_cache_takes_the_best_next_token_of_the_whole_network(network):
    model, params, batch = golden.setup(network, "sample")
    decodes, _ = jax.jit(model.predict_batch_with_aux)(params, batch)
    inputs = batch["decoder_causal_attention"].sum(-1) - 1
    targets = batch["decoder_target_tokens"].copy()
    for row, length in enumerate(inputs):
        targets[row, length:] = decodes[row, : targets.shape[1] - length]
    shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    # Targets say what is padding, and here nothing is: a decoded 0 is a token like the others.
    whole = batch | {"decoder_target_tokens": np.ones_like(targets), "decoder_input_tokens": shifted}
    best = np.asarray(golden.compute_logits(network)(params, whole).argmax(-1))
    for row, length in enumerate(inputs):
        decoded = targets[row, length:]
        np.testing.assert_array_equal(best[row, length:][decoded != 0], decoded[decoded != 0])


@pytest.mark.parametrize("network, reaches_back", [("decoder_only", False), ("prefix_lm", True)])
def test_inputs_see_each_other_both_ways_only_in_a_prefix_lm(network, reaches_back):
    _, params, batch = golden.setup(network, "sample")
    length = int(batch["decoder_causal_attention"].sum(-1).min())
    changed = dict(batch, decoder_input_tokens=batch["decoder_input_tokens"].copy())
    changed["decoder_input_tokens"][:, length - 1] += 1  # the last position of the shortest prefix
    before, after = (np.asarray(golden.compute_logits(network)(params, b))[:, : length - 1] for b in (batch, changed))
    assert (np.abs(before - after).max() > 1e-3) == reaches_back


def test_batches_without_a_prefix_are_refused():
    model, params, batch = golden.setup("prefix_lm", "sample")
    batch = {name: array for name, array in batch.items() if name != "decoder_causal_attention"}
    with pytest.raises(ValueError, match="decoder_causal_attention in the batch; give task_feature_lengths"):
        model.score_batch(params, batch)
    with pytest.raises(ValueError, match="no decoder_causal_attention"):
        model.predict_batch(params, batch)


def test_a_random_key_given_twice_is_refused():
    model, params, batch = golden.setup("decoder_only", "sample")
    key = jax.random.PRNGKey(0)
    with pytest.raises(ValueError, match="given twice"):
        model.predict_batch_with_aux(params, batch, rng=key, decoder_params={"decode_rng": key})


def test_decoder_only_batches_are_those_of_seqio():
    import seqio
    import tensorflow as tf

    case = cases.CASES["decoder_only"]
    length = cases.INPUT_LENGTH + cases.TARGET_LENGTH
    batch = cases.make_batch(case, 0)
    inputs, targets = [], []
    for tokens, prefix in zip(batch["decoder_target_tokens"], batch["decoder_causal_attention"], strict=True):
        split, end = prefix.sum() - 1, np.count_nonzero(tokens)
        inputs.append(tokens[:split])
        targets.append(tokens[split:end])
    converter = models.DecoderOnlyModel(None, None, None).FEATURE_CONVERTER_CLS(pack=False)
    assert isinstance(converter, seqio.DecoderFeatureConverter)
    rows = {"inputs": tf.ragged.constant(inputs), "targets": tf.ragged.constant(targets)}
    dataset = tf.data.Dataset.from_tensor_slices(rows).map(lambda x: {k: tf.cast(v, tf.int32) for k, v in x.items()})
    converted = converter(dataset, {"inputs": cases.INPUT_LENGTH, "targets": length - cases.INPUT_LENGTH})
    for i, row in enumerate(converted.as_numpy_iterator()):
        for name, array in batch.items():
            np.testing.assert_array_equal(row[name], array[i], err_msg=name)


def test_remove_prefix():
    sequences = jnp.array([[[1, 2, 3, 4, 0], [1, 2, 5, 0, 0]], [[6, 7, 8, 9, 3], [6, 1, 0, 0, 0]]])
    expected = [[[3, 4, 0, 0, 0], [5, 0, 0, 0, 0]], [[7, 8, 9, 3, 0], [1, 0, 0, 0, 0]]]
    np.testing.assert_array_equal(models.remove_prefix(sequences, jnp.array([2, 1])), expected)
    np.testing.assert_array_equal(models.remove_prefix(sequences[:, 0], jnp.array([2, 1])), [x[0] for x in expected])
