"""What every model has: loss, metrics and scores of any module that gives logits for target tokens."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from t5x import losses
from t5x.metrics import BitsPerByte, compute_base_metrics

Batch = Mapping[str, jax.Array]
Metrics = Mapping[str, Any]


class BaseModel(abc.ABC):
    """What a trainer needs of a model.

    `FEATURE_CONVERTER_CLS` is the seqio.FeatureConverter class that makes its batches.
    """

    FEATURE_CONVERTER_CLS: Callable[..., Any]

    def __init__(self, optimizer_def):
        self.optimizer_def = optimizer_def

    @abc.abstractmethod
    def loss_fn(self, params, batch: Batch, dropout_rng: jax.Array | None) -> tuple[jax.Array, Metrics]:
        """Returns (scalar loss, metrics); without a dropout rng the model is deterministic."""

    def eval_fn(self, params, batch: Batch) -> tuple[jax.Array, Metrics]:
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
        decode_fn: Callable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: float | int | str | losses.SpecialLossNormalizingFactor | None = None,
    ):
        super().__init__(optimizer_def)
        self.module = module
        self.input_vocabulary, self.output_vocabulary = input_vocabulary, output_vocabulary
        self.decode_fn = decode_fn
        self._label_smoothing, self._z_loss = label_smoothing, z_loss
        self._loss_normalizing_factor = loss_normalizing_factor

    @abc.abstractmethod
    def _compute_logits(self, params, batch: Batch, dropout_rng: jax.Array | None = None, mutable=False):
        """Returns logits [batch, length, vocab], or (logits, variables) where some are `mutable`."""

    def loss_fn(self, params, batch: Batch, dropout_rng: jax.Array | None) -> tuple[jax.Array, Metrics]:
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

    def _compute_metrics(self, logits, targets, mask, loss, z_loss=None, segment_ids=None) -> Metrics:
        metrics = compute_base_metrics(
            logits=logits, targets=targets, mask=mask, loss=loss, z_loss=z_loss, segment_ids=segment_ids
        )
        if type(self.output_vocabulary).__name__ == "ByteVocabulary":  # SeqIO itself stays unimported here
            nats = metrics["nats_per_token"]
            metrics["bits_per_byte"] = BitsPerByte(total=nats.total, count=nats.count)
        return metrics

    def score_batch(self, params, batch: Batch, return_intermediates: bool = False):
        """Returns log likelihoods [batch] of the targets, with the intermediates sown if asked for."""
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
        tokens_to_logits: Callable,
        num_decodes: int,
        rng: jax.Array | None,
        decoder_params: Mapping | None,
        **arguments,
    ) -> tuple[jax.Array, jax.Array]:
        """Calls the decode function; returns ids [batch, num_decodes, length] and scores [batch, num_decodes]."""
        arguments |= decoder_params or {}
        if rng is not None:
            if arguments.get("decode_rng") is not None:
                raise ValueError("The random key is given twice, as rng and in decoder_params['decode_rng'].")
            arguments["decode_rng"] = rng
        arguments.setdefault("eos_id", self.output_vocabulary.eos_id or 1)
        return self.decode_fn(
            inputs=prompt,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            num_decodes=num_decodes,
            cache_offset=1 if getattr(self.module, "scan_layers", False) else 0,
            **arguments,
        )

    def _empty_cache(self, params, *tokens: jax.Array):
        """Returns an all-zero key-value cache for a module that is called with `tokens` of these shapes."""

        def init():
            arguments = (jnp.ones_like(x) for x in tokens)
            variables = {"params": params}
            return self.module.apply(variables, *arguments, decode=True, enable_dropout=False, mutable=["cache"])

        cache = jax.eval_shape(init)[1]["cache"]
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), cache)


def best_or_all(decodes: jax.Array, scores: jax.Array, return_all: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (ids, {"scores": …}) of all decodes [batch, num_decodes, length], or of the last, which is the best."""
    return (decodes, {"scores": scores}) if return_all else (decodes[:, -1], {"scores": scores[:, -1]})


def segments_of(batch: Batch) -> dict[str, jax.Array]:
    """Returns {feature: segment ids} of a packed batch, or {feature: not padding} of an unpacked one."""
    suffix = "_segment_ids"
    segments = {name.removesuffix(suffix): x for name, x in batch.items() if name.endswith(suffix)}
    tokens = ("encoder_input_tokens", "decoder_target_tokens")
    return segments or {name: x != 0 for name, x in batch.items() if name in tokens}
