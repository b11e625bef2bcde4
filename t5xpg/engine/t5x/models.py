"""A model is a flax module plus its loss, metrics, scores and predictions."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import freeze
from jax import lax

from t5x import decoding, losses
from t5x.embedded import beams
from t5x.embedded.base_model import (
    BaseModel,
    BaseTransformerModel,
    Batch,
    DecodeFnCallable,
    SeqioClass,
    TokensIdsToLogitsCallable,
    best_or_all,
    get_input_vocabulary,
    get_output_vocabulary,
)
from t5x.embedded.contract import refuse_missing
from t5x.metrics import (
    MetricsMap,
    compute_base_metrics,
    compute_metrics,
    compute_weighted_accuracy,
    count_packed_examples,
)

refuse_missing(globals(), "models")

__all__ = [
    "BaseModel",
    "BaseTransformerModel",
    "DecodeFnCallable",
    "DecoderOnlyModel",
    "DecoderParams",
    "EncoderDecoderModel",
    "MetricsMap",
    "TokensIdsToLogitsCallable",
    "compute_base_metrics",
    "compute_metrics",
    "compute_weighted_accuracy",
    "count_packed_examples",
    "get_input_vocabulary",
    "get_output_vocabulary",
    "remove_prefix",
]


@dataclasses.dataclass(frozen=True)
class DecoderParams:
    return_all_decodes: bool = False
    num_decodes: int = 1


class EncoderDecoderModel(BaseTransformerModel):
    """T5: an encoder over the inputs, a decoder over the targets.

    Subclasses may override `_compute_logits`, `_compute_metrics`, `_compute_logits_from_slice`, `_compute_kv_cache`.

    Args (beyond BaseTransformerModel's):
      feature_converter_cls: replaces seqio.EncDecFeatureConverter.
      default_decoder_params: how many decodes to make and return.
    """

    FEATURE_CONVERTER_CLS = SeqioClass("EncDecFeatureConverter")

    def __init__(
        self,
        module: nn.Module,
        input_vocabulary,
        output_vocabulary,
        optimizer_def,
        decode_fn: DecodeFnCallable = decoding.beam_search,
        feature_converter_cls: Callable[..., Any] | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: float | int | str | losses.SpecialLossNormalizingFactor | None = None,
        default_decoder_params: DecoderParams | None = None,
    ):
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls
        self._default_decoder_params = default_decoder_params or DecoderParams()
        super().__init__(
            module,
            input_vocabulary,
            output_vocabulary,
            optimizer_def,
            decode_fn,
            label_smoothing,
            z_loss,
            loss_normalizing_factor,
        )

    def get_initial_variables(self, rng: jax.Array, input_shapes: Mapping, input_types: Mapping | None = None):
        types = input_types or {}

        def ones(name, dtype):
            shape = input_shapes.get(name)
            return None if shape is None else jnp.ones(shape, types.get(name, dtype))

        decoder_tokens = ones("decoder_input_tokens", jnp.int32)
        variables = self.module.init(
            rng,
            ones("encoder_input_tokens", jnp.int32),
            decoder_tokens,
            decoder_tokens,
            encoder_positions=ones("encoder_positions", jnp.int32),
            decoder_positions=ones("decoder_positions", jnp.int32),
            encoder_segment_ids=ones("encoder_segment_ids", jnp.int32),
            decoder_segment_ids=ones("decoder_segment_ids", jnp.int32),
            decode=False,
            enable_dropout=False,
        )
        return freeze(variables)

    def _compute_logits(
        self,
        params,
        batch: Batch,
        dropout_rng: jax.Array | None = None,
        mutable=False,
        other_variables: Mapping | None = None,
    ):
        """Returns logits [batch, targets, vocab], or (logits, variables) where some are `mutable`."""
        return self.module.apply(
            {"params": params, **(other_variables or {})},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            encoder_positions=batch.get("encoder_positions"),
            decoder_positions=batch.get("decoder_positions"),
            decode=False,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
        )

    def predict_batch_with_aux(
        self,
        params,
        batch: Batch,
        rng: jax.Array | None = None,
        decoder_params: Mapping | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
        prompt_with_targets: bool = False,
    ):
        """Decodes a batch.

        Args:
          params: the parameters.
          batch: has encoder_input_tokens [batch, inputs] and decoder_input_tokens [batch, targets], whose
            length bounds the prediction.
          rng: for decode functions that sample.
          decoder_params: further arguments of the decode function.
          return_all_decodes: whether to return every decode rather than the best.
          num_decodes: beams, or samples, of each example.
          prompt_with_targets: whether decoder_input_tokens is a prompt to be continued.

        Returns:
          (ids [batch, targets], {"scores": [batch]}), or with return_all_decodes (ids [batch, num_decodes,
          targets], {"scores": [batch, num_decodes]}) in increasing order of score.
        """
        defaults = self._default_decoder_params
        num_decodes = defaults.num_decodes if num_decodes is None else num_decodes
        if return_all_decodes is None:
            return_all_decodes = defaults.return_all_decodes

        encoder_tokens, prompt = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        # EOS within a prompt would end the decode right there.
        is_text = (prompt != self.output_vocabulary.eos_id) & prompt_with_targets
        prompt = jnp.where(is_text, prompt, 0)
        encoded: Any = self.module.apply(  # no tuple: nothing is mutable
            {"params": params}, encoder_tokens, enable_dropout=False, method=self.module.encode
        )  # [batch, inputs, emb]
        takes_index = "initial_index" in inspect.signature(self._needed_decode_fn()).parameters
        cache, initial_index = self._compute_kv_cache(
            params,
            encoded_inputs=encoded,
            encoder_input_tokens=encoder_tokens,
            decoder_input_tokens=prompt,
            prefill_decoder_prompt=takes_index and "prefill" in inspect.signature(self.module.decode).parameters,
        )
        with beams.repeated(encoded, num_decodes) as encoded_rows:
            tokens_to_logits = partial(
                self._compute_logits_from_slice,
                params=params,
                encoded_inputs=encoded_rows,
                raw_inputs=decoding.flat_batch_beam_expand(encoder_tokens, num_decodes),
                max_decode_length=prompt.shape[1],
            )
            found = self._decode(prompt, cache, tokens_to_logits, num_decodes, rng, decoder_params, initial_index)
        return best_or_all(*found, return_all_decodes)

    def _compute_kv_cache(
        self,
        params,
        encoded_inputs: jax.Array,
        encoder_input_tokens: jax.Array,
        decoder_input_tokens: jax.Array,
        prefill_decoder_prompt: bool = False,
    ) -> tuple[Any, jax.Array | None]:
        """Returns the key-value cache to decode with, and where to start.

        Args:
          params: the parameters.
          encoded_inputs: [batch, inputs, emb].
          encoder_input_tokens: [batch, inputs], for the padding mask.
          decoder_input_tokens: [batch, targets], a prompt, or zeros.
          prefill_decoder_prompt: whether to fill the cache with the prompt, for which `module.decode` must take
            `prefill` and `prefill_lengths`; `t5.network` does not, and reads prompts token by token.

        Returns:
          (cache, None), or (filled cache, positions [batch] of the last prompt token).
        """
        ones = jnp.ones_like(decoder_input_tokens)
        cache = self.module.apply(
            {"params": params},
            encoder_input_tokens=jnp.ones_like(encoder_input_tokens),
            decoder_input_tokens=ones,
            decoder_target_tokens=ones,
            decode=True,
            enable_dropout=False,
            mutable=["cache"],
        )[1]["cache"]
        if not prefill_decoder_prompt:
            return cache, None
        lengths = jnp.sum(decoder_input_tokens != 0, axis=1)  # position 0 is the start token
        cache = self.module.apply(
            {"params": params, "cache": cache},
            encoded=encoded_inputs,
            encoder_input_tokens=encoder_input_tokens,
            decoder_input_tokens=decoder_input_tokens,
            decoder_target_tokens=ones,
            enable_dropout=False,
            prefill=True,
            prefill_lengths=lengths,
            mutable=["cache"],
            method=self.module.decode,
        )[1]["cache"]
        if "position_embedder" in cache["decoder"]:
            cache["decoder"]["position_embedder"]["position_embedder_index"] = lengths
        return cache, lengths

    def _compute_logits_from_slice(
        self,
        decoding_state: decoding.DecodingState,
        params,
        encoded_inputs: jax.Array,
        raw_inputs: jax.Array,
        max_decode_length: int,
    ):
        """Returns next-token logits [batch * num_decodes, vocab] and the cache.

        Args:
          decoding_state: the current tokens and the cache.
          params: the parameters.
          encoded_inputs: [batch * num_decodes, inputs, emb].
          raw_inputs: [batch * num_decodes, inputs], for the padding mask.
          max_decode_length: the length of the cache.
        """
        logits, variables = self.module.apply(
            {"params": params, "cache": decoding_state.cache},
            encoded_inputs,
            raw_inputs,
            decoding_state.cur_token,  # [batch * num_decodes, 1]
            decoding_state.cur_token,
            enable_dropout=False,
            decode=True,
            max_decode_length=max_decode_length,
            mutable=["cache"],
            method=self.module.decode,
        )
        return jnp.squeeze(logits, axis=1), variables["cache"]


class DecoderOnlyModel(BaseTransformerModel):
    """A language model; given inputs as well as targets, it reads both in a row and learns the targets.

    Subclasses may override the same methods as those of EncoderDecoderModel.

    Args (beyond BaseTransformerModel's):
      vocabulary: of inputs and targets.
      inputs_bidirectional_attention: whether inputs see each other in both directions, which makes it a prefix
        language model (https://arxiv.org/abs/1910.10683, section 3.2.1). Batches need decoder_causal_attention then.
      feature_converter_cls: replaces seqio.DecoderFeatureConverter.
    """

    FEATURE_CONVERTER_CLS = SeqioClass("DecoderFeatureConverter")

    def __init__(
        self,
        module: nn.Module,
        vocabulary,
        optimizer_def,
        decode_fn: DecodeFnCallable = decoding.temperature_sample,
        inputs_bidirectional_attention: bool = False,
        feature_converter_cls: Callable[..., Any] | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: float | int | str | losses.SpecialLossNormalizingFactor | None = None,
    ):
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls
        self._inputs_bidirectional_attention = inputs_bidirectional_attention
        super().__init__(
            module,
            vocabulary,
            vocabulary,
            optimizer_def,
            decode_fn,
            label_smoothing,
            z_loss,
            loss_normalizing_factor,
        )

    def get_initial_variables(self, rng: jax.Array, input_shapes: Mapping, input_types: Mapping | None = None):
        name = "decoder_input_tokens"
        tokens = jnp.ones(input_shapes[name], (input_types or {}).get(name, jnp.float32))
        return freeze(self.module.init(rng, tokens, tokens, enable_dropout=False))

    def _get_decoder_causal_attention(self, batch: Batch) -> jax.Array | None:
        """Returns where inputs see each other both ways, [batch, length], or None if they do not."""
        if not self._inputs_bidirectional_attention:
            return None
        if "decoder_causal_attention" not in batch:
            raise ValueError(
                "inputs_bidirectional_attention needs decoder_causal_attention in the batch; "
                "give task_feature_lengths for inputs as well as targets."
            )
        return batch["decoder_causal_attention"]

    def _compute_logits(
        self,
        params,
        batch: Batch,
        dropout_rng: jax.Array | None = None,
        mutable=False,
        other_variables: Mapping | None = None,
    ):
        """Returns logits [batch, length, vocab], or (logits, variables) where some are `mutable`."""
        return self.module.apply(
            {"params": params, **(other_variables or {})},
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            decoder_positions=batch.get("decoder_positions"),
            decoder_causal_attention=self._get_decoder_causal_attention(batch),
            decode=False,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
        )

    def predict_batch_with_aux(
        self,
        params,
        batch: Batch,
        rng: jax.Array | None = None,
        *,
        return_all_decodes: bool = False,
        num_decodes: int = 1,
        decoder_params: Mapping | None = None,
    ):
        """Decodes what follows the inputs of a batch; its targets are not looked at.

        Args:
          params: the parameters.
          batch: has decoder_input_tokens [batch, length], inputs and targets shifted right, and
            decoder_causal_attention of the same shape, 1 up to the position that the first target is predicted from.
          rng: for decode functions that sample.
          return_all_decodes: whether to return every decode rather than the best.
          num_decodes: beams, or samples, of each example.
          decoder_params: further arguments of the decode function, which must take `initial_index`.

        Returns:
          As EncoderDecoderModel's; every decode begins with the first token after the inputs, and is followed by
          zeros up to `length`, which bounds inputs and decode together.
        """
        if "decoder_causal_attention" not in batch:
            raise ValueError(
                "The batch has no decoder_causal_attention, which tells inputs from targets; "
                "give task_feature_lengths for inputs as well as targets."
            )
        prefix = batch["decoder_causal_attention"]
        prompt = batch["decoder_input_tokens"] * prefix
        cache, initial_index = self._compute_kv_cache(params, prompt, prefix)
        tokens_to_logits = partial(self._compute_logits_from_slice, params=params, max_decode_length=prompt.shape[1])
        decodes, scores = self._decode(prompt, cache, tokens_to_logits, num_decodes, rng, decoder_params, initial_index)
        return best_or_all(remove_prefix(decodes, initial_index), scores, return_all_decodes)

    def _compute_kv_cache(self, params, inputs: jax.Array, causal_attention_mask: jax.Array) -> tuple[Any, jax.Array]:
        """Returns the key-value cache of every prompt but its last token, the one to decode from, and its position.

        Args:
          params: the parameters.
          inputs: int [batch, length], the start token and a prompt, then zeros.
          causal_attention_mask: [batch, length], 1 at both. It, not the inputs, says here what is padding: the start
            token is 0 as well.
        """
        lengths = jnp.sum(inputs[:, 1:] != 0, axis=-1)
        ones = jnp.ones_like(inputs)
        cache = self.module.apply({"params": params}, ones, ones, decode=True, enable_dropout=False, mutable=["cache"])[
            1
        ]["cache"]
        attention = self._get_decoder_causal_attention({"decoder_causal_attention": causal_attention_mask})
        variables = self.module.apply(
            {"params": params, "cache": cache},
            decoder_input_tokens=inputs,
            decoder_target_tokens=causal_attention_mask,
            decoder_causal_attention=attention,
            enable_dropout=False,
            prefill=True,
            prefill_lengths=lengths,
            mutable=["cache"],
        )[1]
        return variables["cache"], lengths

    def _compute_logits_from_slice(self, decoding_state: decoding.DecodingState, params, max_decode_length: int):
        """Returns next-token logits [batch * num_decodes, vocab] and the cache; see EncoderDecoderModel."""
        logits, variables = self.module.apply(
            {"params": params, "cache": decoding_state.cache},
            decoding_state.cur_token,  # [batch * num_decodes, 1]
            decoding_state.cur_token,
            enable_dropout=False,
            decode=True,
            max_decode_length=max_decode_length,
            mutable=["cache"],
        )
        return jnp.squeeze(logits, axis=1), variables["cache"]


@jax.vmap
def remove_prefix(sequence: jax.Array, prefix_length: jax.Array) -> jax.Array:
    """Drops the first prefix_length [batch] ids of sequences [batch, …, length], and puts zeros at the end."""
    position = lax.broadcasted_iota(jnp.int32, sequence.shape, sequence.ndim - 1)
    return jnp.roll(jnp.where(position < prefix_length, 0, sequence), -prefix_length, axis=-1)
