"""What every model has: loss, metrics and scores of any module that gives logits for target tokens."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from t5x import decoding, losses
from t5x.metrics import BitsPerByte, MetricsMap, compute_base_metrics

Batch = Mapping[str, jax.Array]


class TokensIdsToLogitsCallable(Protocol):
    """One step of decoding: the logits [batch * num_decodes, vocab] of the next token, and the new cache."""

    def __call__(self, decoding_state: decoding.DecodingState) -> tuple[jax.Array, Any]: ...


class DecodeFnCallable(Protocol):
    """What a `decode_fn` is called with, besides the `decoder_params` of predictions, and returns; see `decoding`."""

    def __call__(
        self,
        *,
        inputs: jax.Array,
        cache,
        tokens_to_logits: TokensIdsToLogitsCallable,
        eos_id: int,
        num_decodes: int,
        decode_rng: jax.Array | None,
        cache_offset: int,
    ) -> tuple[jax.Array, jax.Array]: ...


class SeqioClass:
    """A class attribute that is a class of SeqIO, imported when it is asked for.

    A training step on ready-made batches needs neither SeqIO nor TensorFlow.
    """

    def __init__(self, name: str):
        self.name = name

    def __get__(self, instance, owner):
        return getattr(importlib.import_module("seqio"), self.name)


class BaseModel(abc.ABC):
    """What a trainer needs from a model.

    `FEATURE_CONVERTER_CLS` is the seqio.FeatureConverter class that makes its batches; a subclass, or a model, sets it.
    """

    FEATURE_CONVERTER_CLS: Callable[..., Any]

    def __init__(self, optimizer_def):
        self.optimizer_def = optimizer_def

    @abc.abstractmethod
    def loss_fn(self, params, batch: Batch, dropout_rng: jax.Array | None) -> tuple[jax.Array, MetricsMap]:
        """Returns (scalar loss, metrics); without a dropout rng the model is deterministic."""

    def eval_fn(self, params, batch: Batch) -> tuple[jax.Array, MetricsMap]:
        return self.loss_fn(params, batch, dropout_rng=None)

    def predict_batch(self, params, batch: Batch, rng: jax.Array | None = None) -> jax.Array:
        return self.predict_batch_with_aux(params, batch, rng=rng)[0]

    @abc.abstractmethod
    def predict_batch_with_aux(self, params, batch: Batch, rng: jax.Array | None = None):
        """Returns (predicted ids, {"scores": …})."""

    @abc.abstractmethod
    def score_batch(self, params, batch: Batch, return_intermediates: bool = False):
        """Returns the log likelihood of each example's targets."""

    @abc.abstractmethod
    def get_initial_variables(self, rng: jax.Array, input_shapes: Mapping, input_types: Mapping | None = None):
        """Returns the freshly initialized variables {"params", "params_axes", …}."""


class BaseTransformerModel(BaseModel):
    """Cross entropy training for any transformer that gives logits for `decoder_target_tokens`.

    Args:
      module: the flax module.
      input_vocabulary, output_vocabulary: seqio vocabularies, checked against the task's.
      optimizer_def: an optimizers.OptimizerDef.
      decode_fn: decoding.beam_search, decoding.temperature_sample or their like.
      label_smoothing: share of each target's probability spread over the vocabulary.
      z_loss: coefficient of log(Z)^2, which keeps the logits from drifting.
      loss_normalizing_factor: a number the summed loss is divided by, None (no division), or a name of
        losses.SpecialLossNormalizingFactor.
    """

    def __init__(
        self,
        module: nn.Module,
        input_vocabulary,
        output_vocabulary,
        optimizer_def,
        decode_fn: DecodeFnCallable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: float | int | str | losses.SpecialLossNormalizingFactor | None = None,
    ):
        super().__init__(optimizer_def)
        self.module = module
        self._input_vocabulary, self._output_vocabulary = input_vocabulary, output_vocabulary
        self._decode_fn = decode_fn
        self._label_smoothing, self._z_loss = label_smoothing, z_loss
        self._loss_normalizing_factor = loss_normalizing_factor

    @property
    def input_vocabulary(self):
        return self._input_vocabulary

    @property
    def output_vocabulary(self):
        return self._output_vocabulary

    @property
    def decode_fn(self) -> DecodeFnCallable | None:
        return self._decode_fn

    def _needed_decode_fn(self) -> DecodeFnCallable:
        if self._decode_fn is None:
            raise ValueError(f"{type(self).__name__} has no decode_fn to predict with; pass decoding.beam_search.")
        return self._decode_fn

    @abc.abstractmethod
    def _compute_logits(self, params, batch: Batch, dropout_rng: jax.Array | None = None, mutable=False):
        """Returns logits [batch, length, vocab], or (logits, variables) where some are `mutable`."""

    def loss_fn(self, params, batch: Batch, dropout_rng: jax.Array | None) -> tuple[jax.Array, MetricsMap]:
        logits = self._compute_logits(params, batch, dropout_rng)
        factor, weights = losses.get_loss_normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        targets = batch["decoder_target_tokens"]
        loss, z_loss, _ = losses.compute_weighted_cross_entropy(
            logits,
            targets,
            weights,
            label_smoothing=self._label_smoothing,
            z_loss=self._z_loss,
            loss_normalizing_factor=factor,
        )
        return loss, self._compute_metrics(
            logits=logits,
            targets=targets,
            mask=weights,
            loss=loss,
            z_loss=z_loss,
            segment_ids=segments_of(batch),
        )

    def _compute_metrics(self, logits, targets, mask, loss, z_loss=None, segment_ids=None) -> MetricsMap:
        metrics = compute_base_metrics(
            logits=logits, targets=targets, mask=mask, loss=loss, z_loss=z_loss, segment_ids=segment_ids
        )
        if type(self.output_vocabulary).__name__ == "ByteVocabulary":  # SeqIO itself stays unimported here
            nats = metrics["nats_per_token"]
            metrics["bits_per_byte"] = BitsPerByte(total=nats.total, count=nats.count)
        return metrics

    def score_batch(self, params, batch: Batch, return_intermediates: bool = False):
        """Returns log likelihoods [batch] of the targets, and if asked for the sown intermediates."""
        weights = batch["decoder_loss_weights"].astype(jnp.float32)
        targets = batch["decoder_target_tokens"]
        if return_intermediates:
            logits, variables = self._compute_logits(params, batch, mutable=["intermediates"])
        else:
            logits = self._compute_logits(params, batch)
        # The z-loss serves training's stability and stays out of scores.
        token_scores = -losses.cross_entropy_with_logits(logits, targets)[0] * weights  # [batch, targets]
        scores = token_scores.sum(-1)
        if not return_intermediates:
            return scores
        intermediates = dict(variables.get("intermediates", {}))
        intermediates["decoder"] = {
            **intermediates.get("decoder", {}),
            "target_tokens": (targets,),
            "loss_weights": (weights,),
            "token_scores": (token_scores,),
        }
        return scores, intermediates

    def _decode(
        self,
        prompt: jax.Array,
        cache,
        tokens_to_logits: TokensIdsToLogitsCallable,
        num_decodes: int,
        rng: jax.Array | None,
        decoder_params: Mapping | None,
        initial_index: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Calls the decode function; returns ids [batch, num_decodes, length] and scores [batch, num_decodes]."""
        arguments = dict(decoder_params or {})
        if rng is not None:
            if arguments.get("decode_rng") is not None:
                raise ValueError("The random key is given twice, as rng and in decoder_params['decode_rng']; give one.")
            arguments["decode_rng"] = rng
        if initial_index is not None:
            arguments["initial_index"] = initial_index
        arguments.setdefault("eos_id", self.output_vocabulary.eos_id or 1)
        return self._needed_decode_fn()(
            inputs=prompt,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            num_decodes=num_decodes,
            cache_offset=1 if getattr(self.module, "scan_layers", False) else 0,
            **arguments,
        )


def best_or_all(decodes: jax.Array, scores: jax.Array, return_all: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (ids, {"scores": …}) of all decodes [batch, num_decodes, length], or of the last, which is the best."""
    return (decodes, {"scores": scores}) if return_all else (decodes[:, -1], {"scores": scores[:, -1]})


def segments_of(batch: Batch) -> dict[str, jax.Array]:
    """Returns {feature: segment ids} of a packed batch, or {feature: not padding} of an unpacked one."""
    suffix = "_segment_ids"
    segments = {name.removesuffix(suffix): x for name, x in batch.items() if name.endswith(suffix)}
    tokens = ("encoder_input_tokens", "decoder_target_tokens")
    return segments or {name: x != 0 for name, x in batch.items() if name in tokens}


def get_input_vocabulary(model: BaseTransformerModel):
    return model.input_vocabulary


def get_output_vocabulary(model: BaseTransformerModel):
    return model.output_vocabulary
