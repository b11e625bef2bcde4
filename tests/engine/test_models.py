"""Models: predictions and scores against those recorded from T5X, and what their batches must hold."""

from __future__ import annotations

import functools
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import cases
from golden import record_predictions as golden

from t5x import decoding, models
from t5x.examples.t5 import network

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

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
    with pytest.raises(ValueError, match="The random key is given twice"):
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


# What subclasses build on


def tiny(cls=models.EncoderDecoderModel, decode_fn=decoding.beam_search, **arguments):
    """Returns (model, params, batch) of a network of one layer a side."""
    cfg = network.T5Config(
        vocab_size=16, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1, num_decoder_layers=1
    )
    vocabulary = types.SimpleNamespace(eos_id=1)
    model = cls(network.Transformer(cfg), vocabulary, vocabulary, None, decode_fn=decode_fn, **arguments)
    tokens = jnp.array([[3, 5, 1], [7, 1, 0]])
    batch = {
        "encoder_input_tokens": tokens,
        "decoder_input_tokens": jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": (tokens > 0).astype(jnp.float32),
    }
    shapes = {name: x.shape for name, x in batch.items()}
    return model, model.get_initial_variables(jax.random.PRNGKey(0), shapes)["params"], batch


def test_all_public_names_are_there():
    space = {}
    exec("from t5x.models import *", space)
    assert {"BaseModel", "MetricsMap", "get_input_vocabulary"} <= space.keys()


def test_the_feature_converter_is_a_class_attribute():
    import seqio

    assert models.EncoderDecoderModel.FEATURE_CONVERTER_CLS is seqio.EncDecFeatureConverter
    assert models.DecoderOnlyModel.FEATURE_CONVERTER_CLS is seqio.DecoderFeatureConverter

    class PrefixModel(models.DecoderOnlyModel):
        FEATURE_CONVERTER_CLS = seqio.PrefixLMFeatureConverter

    assert PrefixModel.FEATURE_CONVERTER_CLS is seqio.PrefixLMFeatureConverter
    assert PrefixModel(None, None, None).FEATURE_CONVERTER_CLS is seqio.PrefixLMFeatureConverter
    model = models.DecoderOnlyModel(None, None, None, feature_converter_cls=seqio.LMFeatureConverter)
    assert model.FEATURE_CONVERTER_CLS is seqio.LMFeatureConverter


def test_vocabularies_and_decode_fn_are_read_from_the_protected_attributes():
    model, params, batch = tiny()
    model._input_vocabulary, model._output_vocabulary = "in", types.SimpleNamespace(eos_id=9)
    assert models.get_input_vocabulary(model) == model.input_vocabulary == "in"
    assert models.get_output_vocabulary(model) is model.output_vocabulary is model._output_vocabulary
    seen = {}

    def decode(inputs, **arguments):
        seen.update(arguments)
        return inputs[:, None] + 4, jnp.zeros((2, 1))

    model._decode_fn = decode
    assert model.decode_fn is decode
    np.testing.assert_array_equal(model.predict_batch(params, batch), np.full((2, 3), 4))
    assert seen["eos_id"] == 9 and "initial_index" not in seen


def test_a_model_without_a_decode_fn_says_so():
    model, params, batch = tiny(decode_fn=None)
    with pytest.raises(ValueError, match="EncoderDecoderModel has no decode_fn to predict with"):
        model.predict_batch(params, batch)


def test_overridden_methods_are_those_that_are_called():
    class Louder(models.EncoderDecoderModel):
        def _compute_logits(self, params, batch, dropout_rng=None, mutable=False, other_variables=None):
            logits = super()._compute_logits(params, batch, dropout_rng, mutable, other_variables)
            return logits.at[:, :, 6].add(100.0)

        def _compute_metrics(self, **arguments):
            return super()._compute_metrics(**arguments) | {"told": arguments["loss"]}

        def _compute_logits_from_slice(self, decoding_state, params, encoded_inputs, raw_inputs, max_decode_length):
            assert encoded_inputs.shape == (4, 3, 8) and raw_inputs.shape == (4, 3) and max_decode_length == 3
            logits, cache = super()._compute_logits_from_slice(
                decoding_state, params, encoded_inputs, raw_inputs, max_decode_length
            )
            return logits.at[:, 6].add(100.0), cache

        def _compute_kv_cache(self, params, encoded_inputs, encoder_input_tokens, decoder_input_tokens, **arguments):
            called.append(arguments)
            return super()._compute_kv_cache(
                params, encoded_inputs, encoder_input_tokens, decoder_input_tokens, **arguments
            )

    called = []
    model, params, batch = tiny(Louder, decoding.temperature_sample)
    decodes, _ = model.predict_batch_with_aux(params, batch, num_decodes=2)
    np.testing.assert_array_equal(decodes, np.full((2, 3), 6))
    assert called == [{"prefill_decoder_prompt": False}]
    loss, metrics = model.loss_fn(params, batch, None)
    assert loss > 200 and metrics["told"] == loss
    assert (model.score_batch(params, batch) < -90).all()


@pytest.mark.parametrize("decode_fn", [decoding.beam_search, decoding.temperature_sample])
def test_keys_and_values_of_inputs_are_made_before_the_loop_and_once_for_all_decodes(decode_fn):
    model, params, batch = tiny(decode_fn=decode_fn)
    batch["encoder_input_tokens"] = jnp.array([[3, 5, 7, 2, 1], [7, 1, 0, 0, 0]])
    program = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=3)).lower(params, batch).compile()
    text = program.as_text()
    (loop,) = re.findall(r"body=%([^,\s]+)", text)
    body = text.split(f"\n%{loop} (")[1].split("\n}")[0]
    made = re.findall(r"= f32\[\d,2,4,5\]\S* (\S+?)\(", body)  # [rows, heads, head_dim, inputs]
    assert made == ["get-tuple-element"] * 2
    assert not re.search(r"f32\[(6,5,8|30,8|6,2,4,5)\]", text)


def test_what_decodes_attend_to_may_differ():
    class Attentive(models.EncoderDecoderModel):
        def _compute_logits_from_slice(self, decoding_state, params, encoded_inputs, raw_inputs, max_decode_length):
            signs = jnp.array([1.0, -1.0, 1.0, -1.0])[:, None, None]
            logits, _ = super()._compute_logits_from_slice(
                decoding_state, params, encoded_inputs * signs, raw_inputs, max_decode_length
            )
            return logits, decoding_state.cache

    def first_logits(inputs, tokens_to_logits, cache, **arguments):
        tokens = inputs[:1, :1].repeat(4, 0)
        cache = decoding.cache_map(lambda x: x.repeat(2, 0), cache)
        logits, _ = tokens_to_logits(decoding.DecodingState(None, None, tokens, cache))
        return logits.reshape(2, 2, 16), jnp.zeros((2, 2))

    model, params, batch = tiny(Attentive, first_logits)
    logits, _ = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=2, return_all_decodes=True))(
        params, batch
    )
    assert np.abs(logits[:, 0] - logits[:, 1]).max() > 0.01


def test_overridden_methods_of_a_decoder_are_those_that_are_called():
    model, params, batch = golden.setup("decoder_only", "sample")

    class Louder(models.DecoderOnlyModel):
        def _compute_logits_from_slice(self, decoding_state, params, max_decode_length):
            logits, cache = super()._compute_logits_from_slice(decoding_state, params, max_decode_length)
            return logits.at[:, 6].add(1000.0), cache

        def _compute_kv_cache(self, params, inputs, causal_attention_mask):
            called.append(inputs.shape)
            return super()._compute_kv_cache(params, inputs, causal_attention_mask)

    called = []
    louder = Louder(model.module, model.output_vocabulary, None)
    decodes, _ = louder.predict_batch_with_aux(params, batch)
    length = batch["decoder_input_tokens"].shape[1]
    free = length - (batch["decoder_causal_attention"].sum(-1) - 1)
    np.testing.assert_array_equal(decodes, np.where(np.arange(length) < free[:, None], 6, 0))
    assert called == [batch["decoder_input_tokens"].shape]


def test_prompts_fill_the_cache_of_networks_that_can():
    class Prefilling(network.Transformer):
        def decode(self, *arguments, prefill=False, prefill_lengths=None, **keywords):
            logits = super().decode(*arguments, **keywords)
            if prefill:
                self.put_variable("cache", "filled", prefill_lengths)
            return logits

    model, params, batch = tiny()
    seen = {}

    def decode_fn(inputs, cache, initial_index, **_):
        seen.update(index=initial_index, filled=cache["filled"])
        return inputs[:, None], jnp.zeros((2, 1))

    prefilling = models.EncoderDecoderModel(
        Prefilling(model.module.config), None, types.SimpleNamespace(eos_id=1), None, decode_fn=decode_fn
    )
    prompt = batch | {"decoder_input_tokens": jnp.array([[0, 4, 5], [0, 3, 1]])}
    prefilling.predict_batch_with_aux(params, prompt, prompt_with_targets=True)
    np.testing.assert_array_equal(seen["index"], [2, 1])  # EOS is not part of a prompt
    np.testing.assert_array_equal(seen["filled"], [2, 1])


def test_what_a_module_puts_into_a_new_cache_stays():
    class Marking(network.Transformer):
        def decode(self, *arguments, **keywords):
            if self.is_mutable_collection("cache"):
                self.put_variable("cache", "mark", jnp.full((2, 1), 5))
            return super().decode(*arguments, **keywords)

    model, params, batch = tiny()
    marking = models.EncoderDecoderModel(Marking(model.module.config), None, None, None)
    tokens = batch["encoder_input_tokens"]
    cache, index = marking._compute_kv_cache(params, None, tokens, tokens)
    np.testing.assert_array_equal(cache["mark"], [[5], [5]])
    assert index is None


def test_float_tokens_train_as_whole_ones_do():
    model, params, batch = tiny()
    loss, _ = model.loss_fn(params, batch, None)
    floating = {name: x.astype(jnp.float32) for name, x in batch.items()}
    np.testing.assert_array_equal(model.loss_fn(params, floating, None)[0], loss)
