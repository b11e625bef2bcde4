"""Masked language modelling with an encoder alone, against T5X's API: either engine trains it.

The data is objective='mlm' of `tasks.jsonl_task` (see `objectives.MaskedLM`): "inputs" with masks in them, "targets"
the text, and "selected", which says where the model is asked. In gin:

    MODEL = @mlm.EncoderOnlyModel()
    mlm.EncoderOnlyModel.module = @roberta.Roberta()       # or @mlm.T5Encoder()

Names of batches and metrics are T5X's. "Target" in them means a position that the model is asked about.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import seqio
import tensorflow as tf
from clu import metrics as clu_metrics
from flax import linen as nn
from flax.core import freeze

from t5x import models
from t5x.examples.t5 import layers, network
from t5xpg.base import private
from t5xpg.batchwise.packing import CONVERTERS
from t5xpg.roberta import visible

Batch = Mapping[str, jax.Array]
Spec = seqio.FeatureConverter.FeatureSpec
SELECTED = 2  # in the feature "selected"; other tokens have 1, and packing drops 0


class MaskedLMFeatureConverter(seqio.FeatureConverter):
    """Rows of objective='mlm' as batches, packed or padded, with weight 1 exactly where the model is asked.

    seqio.EncoderFeatureConverter asks only where the input is the mask, and so never about the tokens that were
    selected and then replaced or kept.

        {"inputs": [8, 4, 9], "targets": [8, 7, 9], "selected": [1, 2, 2]} ->
        {"encoder_input_tokens": [8, 4, 9, 0], "decoder_target_tokens": [8, 7, 9, 0],
         "decoder_loss_weights": [0, 1, 1, 0]}

    With packing also encoder_segment_ids (from 1) and encoder_positions (from 0 in each segment).
    """

    TASK_FEATURES = {name: Spec(tf.int32) for name in ("inputs", "targets", "selected")}
    MODEL_FEATURES = {
        name: Spec(tf.int32) for name in ("encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights")
    }
    PACKING_FEATURE_DTYPES = {"encoder_segment_ids": tf.int32, "encoder_positions": tf.int32}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        def convert(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            made = {
                "encoder_input_tokens": row["inputs"],
                "decoder_target_tokens": row["targets"],
                "decoder_loss_weights": tf.cast(row["selected"] == SELECTED, tf.int32),
            }
            if self.pack:
                made |= {f"encoder_{name}": row[f"inputs_{name}"] for name in ("segment_ids", "positions")}
            return made

        return self._pack_or_pad(ds, task_feature_lengths).map(convert, tf.data.AUTOTUNE)

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """All features have one length; raises ValueError where those of the task differ."""
        lengths = {name: task_feature_lengths[name] for name in self.TASK_FEATURES}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"inputs, targets and selected stand side by side and need one length; found {lengths}.")
        features = [*self.MODEL_FEATURES, *(self.PACKING_FEATURE_DTYPES if self.pack else ())]
        return dict.fromkeys(features, lengths["inputs"])


def convert_rows(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """MaskedLMFeatureConverter's conversion of many rows, {feature: int32 [rows, length]}."""
    made = {
        "encoder_input_tokens": rows["inputs"],
        "decoder_target_tokens": rows["targets"],
        "decoder_loss_weights": (rows["selected"] == SELECTED).astype(np.int32),
    }
    packed = [name for name in ("segment_ids", "positions") if f"inputs_{name}" in rows]
    return made | {f"encoder_{name}": rows[f"inputs_{name}"] for name in packed}


CONVERTERS[MaskedLMFeatureConverter, frozenset(MaskedLMFeatureConverter.TASK_FEATURES)] = convert_rows


@flax.struct.dataclass
class Perplexity(clu_metrics.Average):
    """exp of the mean: `total` nats over `count` positions."""

    def compute(self):
        return jnp.exp(super().compute())


class EncoderOnlyModel(models.BaseTransformerModel):
    """Learns the tokens at selected positions; loss and metrics see no others.

    Args:
      module: maps encoder_input_tokens, and a packed batch's encoder_positions and encoder_segment_ids, to logits.
      vocabulary: of inputs and targets.
      optimizer_def, label_smoothing, z_loss, loss_normalizing_factor: as in every T5X model. With
        'NUM_REAL_TARGET_TOKENS' the loss is a mean over the selected positions.
    """

    FEATURE_CONVERTER_CLS = MaskedLMFeatureConverter

    def __init__(
        self,
        module: nn.Module,
        vocabulary: seqio.Vocabulary,
        optimizer_def,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: float | int | str | None = None,
    ):
        super().__init__(
            module=module,
            input_vocabulary=vocabulary,
            output_vocabulary=vocabulary,
            optimizer_def=optimizer_def,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            loss_normalizing_factor=loss_normalizing_factor,
        )

    def get_initial_variables(self, rng: jax.Array, input_shapes: Mapping, input_types: Mapping | None = None):
        del input_types  # tokens are integers
        tokens = jnp.ones(input_shapes["encoder_input_tokens"], jnp.int32)
        return freeze(self.module.init(rng, tokens, enable_dropout=False))

    def _compute_logits(self, params, batch: Batch, dropout_rng: jax.Array | None = None, mutable=False):
        """Returns logits, float32 [batch, length, vocab], or (logits, variables) where some are `mutable`."""
        return self.module.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            encoder_positions=batch.get("encoder_positions"),
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
        )

    def _compute_metrics(self, logits, targets, mask, loss, z_loss=None, segment_ids=None) -> dict[str, Any]:
        """Returns T5X's metrics; on google-research/t5x, also the embedded engine's nats_per_token and perplexity."""
        found = super()._compute_metrics(
            logits=logits, targets=targets, mask=mask, loss=loss, z_loss=z_loss, segment_ids=segment_ids
        )
        if "perplexity" not in found:
            asked = (mask > 0).astype(jnp.float32)
            nats = {"total": -jnp.sum(log_likelihoods(logits, targets) * asked), "count": jnp.sum(asked)}
            found |= {"nats_per_token": clu_metrics.Average(**nats), "perplexity": Perplexity(**nats)}
        return found

    def predict_batch_with_aux(self, params, batch: Batch, rng: jax.Array | None = None):
        """Returns the likeliest token of every position [batch, length], and what `metrics` adds up, [batch] each.

        Of the selected positions: "asked", how many they are; "correct", where the prediction is the target; "nats",
        minus the targets' log likelihood; "scores", the predictions' log likelihood.
        """
        del rng  # nothing is sampled
        logits = self._compute_logits(params, batch)
        targets, asked = batch["decoder_target_tokens"], batch["decoder_loss_weights"].astype(jnp.float32)
        tokens = jnp.argmax(logits, axis=-1).astype(targets.dtype)
        found = {
            "asked": asked,
            "correct": asked * (tokens == targets).astype(jnp.float32),
            "nats": -asked * log_likelihoods(logits, targets),
            "scores": asked * log_likelihoods(logits, tokens),
        }  # [batch, length] each
        return tokens, {name: x.sum(-1) for name, x in found.items()}

    def score_batch(self, params, batch: Batch, return_intermediates: bool = False) -> jax.Array:
        """Returns the log likelihood of each row's targets at its selected positions, [batch]."""
        if return_intermediates:
            raise ValueError("EncoderOnlyModel has no intermediates to return; leave return_intermediates out.")
        logits = self._compute_logits(params, batch)
        asked = batch["decoder_loss_weights"].astype(jnp.float32)
        return jnp.sum(asked * log_likelihoods(logits, batch["decoder_target_tokens"]), -1)


def log_likelihoods(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """[batch, length, vocab], int [batch, length] -> float32 [batch, length]."""
    return -optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens)


def metrics(targets: list[str], predictions: list[str], aux_values: Mapping[str, list]) -> dict[str, float]:
    """Returns accuracy, nats and perplexity over all selected positions of a split, for a task's metric_fns.

    Args:
      targets, predictions: decoded texts, not looked at.
      aux_values: the auxiliary values of `EncoderOnlyModel.predict_batch_with_aux`, each a list over examples.
    """
    del targets, predictions
    asked, correct, nats = (float(np.sum(aux_values[name])) for name in ("asked", "correct", "nats"))
    return {"accuracy": correct / asked, "nats_per_token": nats / asked, "perplexity": math.exp(nats / asked)}


def is_matrix(params):
    """Returns which parameters weight decay is for: all but biases and norms (for `optimizers.adamw.mask`)."""
    return jax.tree.map(lambda parameter: parameter.ndim > 1, params)


class T5Encoder(nn.Module):
    """T5's encoder, pre-norm with relative positions, and a projection of its result to the vocabulary."""

    config: network.T5Config

    @nn.compact
    def __call__(
        self,
        encoder_input_tokens: jax.Array,
        encoder_positions: jax.Array | None = None,
        encoder_segment_ids: jax.Array | None = None,
        *,
        enable_dropout: bool = True,
    ) -> jax.Array:
        """As `roberta.Roberta`; the relative bias makes positions unnecessary, and rows of any length are taken."""
        del encoder_positions
        cfg, tokens = self.config, encoder_input_tokens
        embedder = layers.Embed(
            cfg.vocab_size,
            cfg.emb_dim,
            dtype=cfg.dtype,
            attend_dtype=jnp.float32,
            embedding_init=nn.initializers.normal(stddev=1.0),
            name="token_embedder",
        )
        mask = visible(tokens, encoder_segment_ids)
        mask = jnp.broadcast_to(mask, (tokens.shape[0], 1, tokens.shape[1], tokens.shape[1]))
        x = network.Encoder(cfg, embedder, name="encoder")(tokens, mask, deterministic=not enable_dropout)
        if cfg.logits_via_embedding:
            return embedder.attend(x.astype(jnp.float32) / jnp.sqrt(cfg.emb_dim))
        return layers.DenseGeneral(cfg.vocab_size, kernel_axes=("embed", "vocab"), name="logits_dense")(x)


def fill_mask(model: EncoderOnlyModel, params, text: str, mask_id: int, top: int = 5) -> list[list[tuple[int, float]]]:
    """Returns the likeliest tokens for each "<mask>" in a text.

    Args:
      model, params: a trained model.
      text: a document, or part of one; a mask takes the space before it, as RoBERTa's does.
      mask_id: see `objectives.MaskedLM.mask_token`.
      top: how many tokens for each mask.

    Returns:
      For each mask [(token, its probability), …], the likeliest first.

    Raises:
      ValueError: no mask in the text, or no such number of tokens.
    """
    vocabulary = model.output_vocabulary
    if not 1 <= top <= vocabulary.vocab_size:
        raise ValueError(f"top is {top}; it is how many of the vocabulary's {vocabulary.vocab_size} tokens to give.")
    parts = [vocabulary.encode(part) for part in re.split(r"\s*<mask>", text)]
    if len(parts) == 1:
        raise ValueError(f"there is no <mask> in {text!r}; put one where a token is to be guessed.")
    ids = [i for part in parts for i in (mask_id, *part)][1:]
    bos = [] if vocabulary.bos_id is None or vocabulary.bos_id < 0 else [vocabulary.bos_id]
    tokens = np.array([[*bos, *ids, vocabulary.eos_id]], np.int32)
    logits = jax.jit(functools.partial(private.compute_logits, model))(params, {"encoder_input_tokens": tokens})
    logits = logits[0, tokens[0] == mask_id, : vocabulary.vocab_size]  # embeddings beyond it stand for nothing
    chances, best = jax.lax.top_k(nn.softmax(logits), top)  # [masks, top] each
    return [list(zip(b, c, strict=True)) for b, c in zip(best.tolist(), chances.tolist(), strict=True)]
