"""Cross entropy from integer targets, with label smoothing and z-loss, and what to divide it by.

T5X builds a [batch, length, vocab] array of smoothed one-hot targets. With `c` on the target, `s` on each other
class and c + (vocab - 1) s = 1, the same loss is

    -sum_i t_i log p_i = log Z - (c - s) x_target - s sum_i x_i,    log Z = log sum_i exp x_i

which needs the logits x alone; the gradient is computed again from them and from two numbers per token.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5x.embedded import vocab_axis
from t5x.embedded.contract import refuse_missing

refuse_missing(globals(), "losses")


def cross_entropy_with_logits(
    logits: jax.Array, targets: jax.Array, z_loss: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """Computes the cross entropy of every token, in float32.

    z-loss (z_loss * log(Z)^2, Z the softmax normalizer) keeps logits near zero, where bfloat16 is precise, and
    close to normalized log probabilities.

    Args:
      logits: [..., vocab] float array.
      targets: [...] class ids, of whatever type, or [..., vocab] probabilities (T5X takes only those).
      z_loss: coefficient of the z-loss.

    Returns:
      (loss including z-loss, z-loss), each [...] float32. Gradients flow through the first only, as in T5X.
      An id outside [0, vocab) gives NaN, where a one-hot target would silently give a wrong number.
    """
    if targets.ndim == logits.ndim:
        return _soft_cross_entropy(logits, targets, z_loss)
    _check_shapes(logits, targets)
    return _integer_cross_entropy(logits, targets.astype(jnp.int32), 0.0, z_loss)


def compute_weighted_cross_entropy(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    loss_normalizing_factor: float | jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sums the cross entropy over all tokens.

    Args:
      logits: [batch, length, vocab] float array.
      targets: [batch, length] class ids, of whatever type.
      weights: [batch, length] weights; tokens of weight 0 are ignored, whatever they hold. None: all ones.
      label_smoothing: probability taken from the target and shared among the other classes. The entropy of
        the smoothed target is subtracted, so a perfect prediction has loss 0.
      z_loss: coefficient of the z-loss, see `cross_entropy_with_logits`.
      loss_normalizing_factor: what both losses are divided by; None divides by nothing.

    Returns:
      Scalars, float32: (loss including z-loss, z-loss, sum of weights).
    """
    _check_shapes(logits, targets)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1).")
    ids = targets.astype(jnp.int32)
    loss, z = _integer_cross_entropy(logits, ids, label_smoothing, z_loss)  # [batch, length] each
    loss = loss - _target_entropy(label_smoothing, logits.shape[-1])
    if weights is None:
        weight_sum = jnp.float32(targets.size)
    else:
        weights = weights.astype(jnp.float32)
        weight_sum = jnp.sum(weights)
        loss, z = (jnp.where(weights == 0, 0.0, x * weights) for x in (loss, z))
    loss, z = jnp.sum(loss), jnp.sum(z)
    if loss_normalizing_factor is not None:
        factor = jnp.asarray(loss_normalizing_factor, jnp.float32)
        loss, z = loss / factor, z / factor
    return loss, z, weight_sum


def _check_shapes(logits: jax.Array, targets: jax.Array) -> None:
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {logits.shape} and targets {targets.shape} do not match; "
            f"for these logits, targets must be {logits.shape[:-1]} class ids."
        )


def _soft_cross_entropy(logits, targets, z_loss):
    logits, targets = logits.astype(jnp.float32), targets.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1, keepdims=True)  # [..., 1]
    z = z_loss * jnp.square(log_z[..., 0])
    return jnp.sum(targets * (log_z - logits), axis=-1) + z, jax.lax.stop_gradient(z)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _integer_cross_entropy(logits, targets, label_smoothing, z_loss):
    return _forward(logits, targets, label_smoothing, z_loss)[0]


def _forward(logits, targets, label_smoothing, z_loss):
    on, off = _target_values(label_smoothing, logits.shape[-1])
    # Shifted by the maximum: exp cannot overflow, and a confident prediction loses no digits.
    x = logits.astype(jnp.float32)
    max_logit = jnp.max(x, axis=-1, keepdims=True)  # [..., 1]
    shifted = x - max_logit
    sum_exp = jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True)  # [..., 1]
    log_sum = jnp.log(sum_exp)[..., 0]
    target_logit = vocab_axis.select(shifted, targets)
    loss = log_sum - (on - off) * target_logit
    if off:
        loss = loss - off * jnp.sum(shifted, axis=-1)
    z = z_loss * jnp.square(log_sum + max_logit[..., 0])
    return (loss + z, z), (logits, targets, max_logit, sum_exp)


def _backward(label_smoothing, z_loss, residuals, cotangents):
    logits, targets, max_logit, sum_exp = residuals
    on, off = _target_values(label_smoothing, logits.shape[-1])
    softmax = jnp.exp(logits.astype(jnp.float32) - max_logit) / sum_exp  # [..., vocab]
    log_z = jnp.log(sum_exp) + max_logit  # [..., 1]
    is_target = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)  # fused by XLA, never an array
    gradient = (1 + 2 * z_loss * log_z) * softmax - jnp.where(is_target, on, off)
    return (cotangents[0][..., None] * gradient).astype(logits.dtype), None


_integer_cross_entropy.defvjp(_forward, _backward)


def _target_values(label_smoothing: float, vocab: int) -> tuple[float, float]:
    """Returns a smoothed target's value on the target class and on each other class."""
    return 1.0 - label_smoothing, label_smoothing / max(vocab - 1, 1)


def _target_entropy(label_smoothing: float, vocab: int) -> float:
    on, off = _target_values(label_smoothing, vocab)
    return -(on * math.log(on) + (vocab - 1) * off * math.log(off)) if off else 0.0


@enum.unique
class SpecialLossNormalizingFactor(enum.Enum):
    """Loss normalizing factors that depend on the batch.

    NUM_REAL_TARGET_TOKENS: the sum of the loss weights, so the loss is a mean over tokens that count.
    NUM_TOTAL_TARGET_TOKENS: batch * length, padding included.
    AVERAGE_PER_SEQUENCE: the mean over sequences of each sequence's mean, so short ones count as much as long.
    """

    NUM_REAL_TARGET_TOKENS = 1
    NUM_TOTAL_TARGET_TOKENS = 2
    AVERAGE_PER_SEQUENCE = 3


def convert_special_loss_normalizing_factor_to_enum(x: str) -> SpecialLossNormalizingFactor:
    """Converts a name as gin files write it; raises ValueError for an unknown one."""
    try:
        return SpecialLossNormalizingFactor[x.upper()]
    except KeyError:
        known = ", ".join(SpecialLossNormalizingFactor.__members__)
        raise ValueError(f"loss_normalizing_factor is {x!r}; use a number, None or one of {known}.") from None


def get_loss_normalizing_factor_and_weights(
    loss_normalizing_factor: float | int | str | SpecialLossNormalizingFactor | None,
    batch: Mapping[str, jax.Array],
) -> tuple[float | jax.Array | None, jax.Array | None]:
    """Returns what `compute_weighted_cross_entropy` takes as (loss_normalizing_factor, weights).

    Weights are the batch's `decoder_loss_weights`. For a special factor they default to 1 where
    `decoder_target_tokens` is not padding (0); AVERAGE_PER_SEQUENCE divides them by their sum per sequence,
    which in packed batches (those with `decoder_segment_ids`) is a run of one segment id.
    """
    special = loss_normalizing_factor
    weights = batch.get("decoder_loss_weights")
    if isinstance(special, str):
        special = convert_special_loss_normalizing_factor_to_enum(special)
    if not isinstance(special, SpecialLossNormalizingFactor):
        return special, weights

    targets = batch["decoder_target_tokens"]
    weights = targets > 0 if weights is None else weights
    weights = weights.astype(jnp.float32)  # [batch, length]
    if special is SpecialLossNormalizingFactor.NUM_TOTAL_TARGET_TOKENS:
        return float(targets.size), weights
    if special is SpecialLossNormalizingFactor.AVERAGE_PER_SEQUENCE:
        if "decoder_segment_ids" in batch:
            sums = jax.vmap(_sum_weights_per_segment)(batch["decoder_segment_ids"], weights)
        else:
            sums = jnp.sum(weights, axis=-1, keepdims=True)
        weights = jnp.where(sums > 0, weights / jnp.where(sums > 0, sums, 1.0), 0.0)
    return jnp.sum(weights), weights


def _sum_weights_per_segment(segment_ids: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums one row's weights over each run of equal segment ids; [length] -> [length], 0 where padded."""
    is_new = jnp.diff(segment_ids, prepend=segment_ids[:1]) != 0
    run = jnp.cumsum(is_new)  # counts from 0, whatever ids were dropped on the way here
    sums = jax.ops.segment_sum(weights, run, num_segments=run.shape[0])
    return jnp.where(segment_ids == 0, 0.0, sums[run])
