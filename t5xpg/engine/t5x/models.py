"""A model is a flax module plus its loss, metrics, scores and predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import freeze
from jax import lax

from t5x import decoding, losses
from t5x.embedded.base_model import BaseTransformerModel, Batch, best_or_all

__all__ = [
    *("BaseModel", "BaseTransformerModel", "Batch", "Metrics"),
    *("DecoderOnlyModel", "DecoderParams", "EncoderDecoderModel", "remove_prefix"),
]


@dataclasses.dataclass(frozen=True)
class DecoderParams:
    return_all_decodes: bool = False
    num_decodes: int = 1


class EncoderDecoderModel(BaseTransformerModel):
    """T5: an encoder over the inputs, a decoder over the targets.

    Args (beyond BaseTransformerModel's):
      feature_converter_cls: replaces seqio.EncDecFeatureConverter.
      default_decoder_params: how many decodes to make and return.
    """

    def __init__(
        self,
        module: nn.Module,
        input_vocabulary,
        output_vocabulary,
        optimizer_def,
        decode_fn: Callable = decoding.beam_search,
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

    @cached_property
    def FEATURE_CONVERTER_CLS(self):
        # Imported late: a training step on ready-made batches needs neither SeqIO nor TensorFlow.
        import seqio

        return seqio.EncDecFeatureConverter

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
        prompt = prompt * (prompt != self.output_vocabulary.eos_id) if prompt_with_targets else jnp.zeros_like(prompt)
        encoded = self.module.apply(
            {"params": params}, encoder_tokens, enable_dropout=False, method=self.module.encode
        )  # [batch, inputs, emb]
        decodes, scores = self._decode(
            prompt,
            self._empty_cache(params, encoder_tokens, prompt, prompt),
            self._tokens_to_logits(params, encoded, encoder_tokens, prompt.shape[1], num_decodes),
            num_decodes,
            rng,
            decoder_params,
        )
        return best_or_all(decodes, scores, return_all_decodes)

    def _tokens_to_logits(self, params, encoded, encoder_tokens, max_decode_length: int, num_decodes: int):
        """Returns a function (decoding state) -> (next-token logits [batch * num_decodes, vocab], cache)."""
        encoded = decoding.flat_batch_beam_expand(encoded, num_decodes)  # [batch * num_decodes, inputs, emb]
        encoder_tokens = decoding.flat_batch_beam_expand(encoder_tokens, num_decodes)

        def step(state: decoding.DecodingState):
            logits, variables = self.module.apply(
                {"params": params, "cache": state.cache},
                encoded,
                encoder_tokens,  # for the padding mask
                state.cur_token,  # [batch * num_decodes, 1]
                state.cur_token,
                enable_dropout=False,
                decode=True,
                max_decode_length=max_decode_length,
                mutable=["cache"],
                method=self.module.decode,
            )
            return jnp.squeeze(logits, axis=1), variables["cache"]

        return step


class DecoderOnlyModel(BaseTransformerModel):
    """A language model; with inputs as well as targets, their concatenation, of which it learns the targets.

    Args (beyond BaseTransformerModel's):
      vocabulary: of inputs and targets.
      inputs_bidirectional_attention: whether inputs see each other in both directions, which makes it a prefix
        language model (https://arxiv.org/abs/1910.10683, section 3.2.1). Batches need decoder_causal_attention then.
      feature_converter_cls: replaces seqio.DecoderFeatureConverter.
    """

    def __init__(
        self,
        module: nn.Module,
        vocabulary,
        optimizer_def,
        decode_fn: Callable = decoding.temperature_sample,
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

    @cached_property
    def FEATURE_CONVERTER_CLS(self):
        import seqio  # late, as in EncoderDecoderModel

        return seqio.DecoderFeatureConverter

    def get_initial_variables(self, rng: jax.Array, input_shapes: Mapping, input_types: Mapping | None = None):
        name = "decoder_input_tokens"
        tokens = jnp.ones(input_shapes[name], (input_types or {}).get(name, jnp.float32))
        return freeze(self.module.init(rng, tokens, tokens, enable_dropout=False))

    def _prefix(self, batch: Batch) -> jax.Array | None:
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
            decoder_causal_attention=self._prefix(batch),
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
        lengths = jnp.sum(prompt[:, 1:] != 0, axis=-1)  # position 0 is the start token
        decodes, scores = self._decode(
            prompt,
            self._prefilled_cache(params, prompt, prefix, lengths),
            self._tokens_to_logits(params, prompt.shape[1]),
            num_decodes,
            rng,
            decoder_params,
            initial_index=lengths,
        )
        return best_or_all(remove_prefix(decodes, lengths), scores, return_all_decodes)

    def _prefilled_cache(self, params, prompt: jax.Array, prefix: jax.Array, lengths: jax.Array):
        """Returns the key-value cache of every prompt but its last token, the one to decode from.

        The prefix, not the prompt, says here what is padding: the prompt begins with the start token 0.
        """
        return self.module.apply(
            {"params": params, "cache": self._empty_cache(params, prompt, prompt)},
            prompt,
            prefix,
            decoder_causal_attention=self._prefix({"decoder_causal_attention": prefix}),
            enable_dropout=False,
            prefill=True,
            prefill_lengths=lengths,
            mutable=["cache"],
        )[1]["cache"]

    def _tokens_to_logits(self, params, max_decode_length: int):
        """Returns a function (decoding state) -> (next-token logits [batch * num_decodes, vocab], cache)."""

        def step(state: decoding.DecodingState):
            logits, variables = self.module.apply(
                {"params": params, "cache": state.cache},
                state.cur_token,  # [batch * num_decodes, 1]
                state.cur_token,
                enable_dropout=False,
                decode=True,
                max_decode_length=max_decode_length,
                mutable=["cache"],
            )
            return jnp.squeeze(logits, axis=1), variables["cache"]

        return step


@jax.vmap
def remove_prefix(sequence: jax.Array, prefix_length: jax.Array) -> jax.Array:
    """Drops the first prefix_length [batch] ids of sequences [batch, …, length], with zeros at the end instead."""
    position = lax.broadcasted_iota(jnp.int32, sequence.shape, sequence.ndim - 1)
    return jnp.roll(jnp.where(position < prefix_length, 0, sequence), -prefix_length, axis=-1)
