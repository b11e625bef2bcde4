"""Training and evaluation metrics: T5X's additions to clu.metrics, and the metrics of a batch under T5X's names.

A metric is a flax dataclass of partial sums: made on the device for one batch, merged over batches, computed at
the end. Two numbers are known only then and are set on the host: the seconds that passed (`Time`) and the steps taken
(`Step`; merging microbatches would count each of them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from clu import metrics as clu_metrics

from t5x.embedded import vocab_axis
from t5x.embedded.contract import refuse_missing

refuse_missing(globals(), "metrics")

MetricsMap = dict[str, clu_metrics.Metric]
Scalar = Any  # int, float, or an array without dimensions


@flax.struct.dataclass
class Sum(clu_metrics.Metric):
    """The sum of all values."""

    total: Scalar

    @classmethod
    def from_model_output(cls, values, **_) -> Sum:
        return cls(total=jnp.sum(jnp.asarray(values)))

    def merge(self, other: Sum) -> Sum:
        return type(self)(total=self.total + other.total)

    def compute(self):
        return jnp.asarray(self.total)


@flax.struct.dataclass
class Step(clu_metrics.Metric):
    """A metric that counts steps; `replace_steps` before computing it."""

    steps: Scalar | None = 1

    def replace_steps(self, steps: int):
        return self.replace(steps=steps)

    def compute(self):
        return jnp.asarray(_known(self, "steps"))


@flax.struct.dataclass
class AveragePerStep(Step):
    """The sum of all values divided by the number of steps."""

    total: Scalar | None = None

    @classmethod
    def from_model_output(cls, values, steps: int = 1, **_) -> AveragePerStep:
        return cls(total=jnp.sum(jnp.asarray(values)), steps=steps)

    def merge(self, other: AveragePerStep) -> AveragePerStep:
        return type(self)(total=_sum(self, other, "total"), steps=_sum(self, other, "steps"))

    def compute(self):
        return _ratio(_known(self, "total"), _known(self, "steps"))


@flax.struct.dataclass
class Time(clu_metrics.Metric):
    """Seconds that passed. Compiled code cannot read a clock: `replace_duration` before computing it."""

    duration: Scalar | None = None

    def merge(self, other: Time) -> Time:
        return self

    def replace_duration(self, duration: float):
        return self.replace(duration=duration)

    def compute(self):
        return jnp.asarray(_known(self, "duration"), jnp.float32)


@flax.struct.dataclass
class TimeRate(Time):
    """The sum of `numerator` per second."""

    numerator: Scalar | None = None

    @classmethod
    def from_model_output(cls, numerator, **_) -> TimeRate:
        return cls(numerator=numerator)

    def merge(self, other: TimeRate) -> TimeRate:
        if self.duration is not None or other.duration is not None:
            raise ValueError("TimeRate: merge first, then set the duration of the result.")
        return type(self)(numerator=_sum(self, other, "numerator"))

    def compute(self):
        return _ratio(_known(self, "numerator"), _known(self, "duration"))


@flax.struct.dataclass
class StepsPerTime(Step, Time):
    """Steps per second."""

    @classmethod
    def from_model_output(cls, steps: int = 1, **_) -> StepsPerTime:
        return cls(steps=steps)

    def merge(self, other: StepsPerTime) -> StepsPerTime:
        return type(self)(steps=_sum(self, other, "steps"))

    def compute(self):
        return _ratio(_known(self, "steps"), _known(self, "duration"))


@flax.struct.dataclass
class Perplexity(clu_metrics.Average):
    """exp of the mean: `total` nats over `count` tokens."""

    def compute(self):
        return jnp.exp(_ratio(self.total, self.count))


@flax.struct.dataclass
class BitsPerByte(clu_metrics.Average):
    """The mean in bits: `total` nats over `count` tokens of a byte vocabulary (a sentinel counts as a byte)."""

    def compute(self):
        return _ratio(self.total, self.count) / math.log(2)


def _known(metric: clu_metrics.Metric, field: str):
    value = getattr(metric, field)
    if value is None:
        raise ValueError(
            f"{type(metric).__name__}: `{field}` is not set; set it before merging or computing the metric."
        )
    return value


def _sum(metric: clu_metrics.Metric, other: clu_metrics.Metric, field: str) -> Scalar:
    return _known(metric, field) + _known(other, field)


def _ratio(numerator, denominator):
    return jnp.asarray(numerator, jnp.float32) / jnp.asarray(denominator, jnp.float32)


def is_metric_obj(obj: Any) -> bool:
    return isinstance(obj, clu_metrics.Metric)


def is_time_metric(obj: Any) -> bool:
    return isinstance(obj, Time)


def set_time_metrics_duration(metrics, duration: float):
    """Sets the seconds of every time metric in a tree of metrics."""
    return jax.tree.map(
        lambda m: m.replace_duration(duration) if is_time_metric(m) else m, metrics, is_leaf=is_metric_obj
    )


def set_step_metrics_num_steps(metrics, num_steps: int):
    """Sets the steps of every step metric in a tree of metrics."""
    return jax.tree.map(
        lambda m: m.replace_steps(num_steps) if isinstance(m, Step) else m, metrics, is_leaf=is_metric_obj
    )


def create_metrics_dict(float_metrics_dict: Mapping[str, Scalar]) -> MetricsMap:
    """Turns every number into a `Sum`."""
    return {name: Sum(total=value) for name, value in float_metrics_dict.items()}


def shape_obj_to_defined_obj(obj: clu_metrics.Metric) -> clu_metrics.Metric:
    """Turns a metric made of shapes (from jax.eval_shape) into one of zeros."""
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), obj)


def compute_weighted_accuracy(logits: jax.Array, targets: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    """Sums the weights [batch, length], or ones, where the largest logit [batch, length, vocab] is the target's."""
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {logits.shape} and targets {targets.shape} do not match; "
            f"for these logits, targets must be {logits.shape[:-1]} class ids."
        )
    is_correct = (vocab_axis.argmax(logits) == targets.astype(jnp.int32)).astype(jnp.float32)
    return jnp.sum(is_correct if weights is None else is_correct * weights.astype(jnp.float32))


def compute_metrics(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None,
    loss: jax.Array,
    weight_sum: jax.Array,
    additional_metrics: MetricsMap,
) -> MetricsMap:
    """The metrics of T5X's early models, each a sum over batches; `compute_base_metrics` has more, and averages."""
    sums = {
        "loss": loss,
        "accuracy": compute_weighted_accuracy(logits, targets, weights),
        "weight_sum": weight_sum,
        "num_examples": targets.shape[0],
        "num_tokens": targets.size,
    }
    return create_metrics_dict(sums) | additional_metrics


def compute_base_metrics(
    logits: jax.Array,
    targets: jax.Array,
    mask: jax.Array | None,
    loss: jax.Array,
    z_loss: jax.Array | None = None,
    segment_ids: Mapping[str, jax.Array | None] | None = None,
) -> MetricsMap:
    """Computes the metrics of one batch, under T5X's names and two of our own.

    T5X's `loss` is whatever was minimized: a sum over the batch or a mean, smoothed, with z-loss. Ours are
    comparable between runs: `nats_per_token` is the plain cross entropy averaged over the tokens that the mask
    keeps, computed from the logits; `perplexity` is its exponential.

    Args:
      logits: [batch, length, vocab] float array.
      targets: [batch, length] class ids.
      mask: [batch, length] loss weights, 0 where padded, or None.
      loss: scalar, z-loss included.
      z_loss: scalar, or None to leave its metrics out.
      segment_ids: {feature: [batch, length] segment ids, 0 where padded}.
    """
    weights = jnp.ones(targets.shape, jnp.float32) if mask is None else mask.astype(jnp.float32)
    counted = (weights != 0).astype(jnp.float32)
    return {
        **_loss_metrics(loss, z_loss, num_real=jnp.sum(weights), num_all=jnp.float32(targets.size)),
        **_prediction_metrics(logits, targets, counted),
        **_timing_metrics(*targets.shape),
        **_packing_metrics(segment_ids or {}),
    }


def _loss_metrics(loss, z_loss, num_real, num_all) -> MetricsMap:
    average = clu_metrics.Average
    metrics = {
        "loss": AveragePerStep(total=loss),
        "loss_per_nonpadding_target_token": average(total=loss, count=num_real),
        "loss_per_all_target_tokens": average(total=loss, count=num_all),
        "non_padding_fraction/loss_weights": average(total=num_real, count=num_all),
    }
    if z_loss is not None:
        cross_entropy = loss - z_loss
        metrics |= {
            "z_loss": AveragePerStep(total=z_loss),
            "z_loss_per_all_target_tokens": average(total=z_loss, count=num_all),
            "cross_ent_loss": AveragePerStep(total=cross_entropy),
            "cross_ent_loss_per_all_target_tokens": average(total=cross_entropy, count=num_all),
        }
    return metrics


def _prediction_metrics(logits, targets, counted) -> MetricsMap:
    logits, targets = jax.lax.stop_gradient(logits).astype(jnp.float32), targets.astype(jnp.int32)
    # The same operations as in the loss, so that XLA computes them once for both.
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    target_logit = vocab_axis.select(shifted, targets)
    nats = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1)) - target_logit  # [batch, length]
    is_correct = (vocab_axis.argmax(logits) == targets).astype(jnp.float32)  # [batch, length]
    num_counted = jnp.sum(counted)
    total_nats = jnp.sum(jnp.where(counted == 0, 0.0, nats))
    return {
        "accuracy": clu_metrics.Average(total=jnp.sum(is_correct * counted), count=num_counted),
        "nats_per_token": clu_metrics.Average(total=total_nats, count=num_counted),
        "perplexity": Perplexity(total=total_nats, count=num_counted),
    }


def _timing_metrics(num_examples: int, length: int) -> MetricsMap:
    num_tokens, num_devices = num_examples * length, jax.device_count()
    return {
        "timing/seconds": Time(),
        "timing/seqs": Sum(jnp.float32(num_examples)),
        "timing/steps_per_second": StepsPerTime.from_model_output(),
        "timing/seqs_per_second": TimeRate(numerator=jnp.float32(num_examples)),
        "timing/seqs_per_second_per_core": TimeRate(numerator=jnp.float32(num_examples / num_devices)),
        "timing/target_tokens_per_second": TimeRate(numerator=jnp.float32(num_tokens)),
        "timing/target_tokens_per_second_per_core": TimeRate(numerator=jnp.float32(num_tokens / num_devices)),
    }


def _packing_metrics(segment_ids: Mapping[str, jax.Array | None]) -> MetricsMap:
    metrics, real, size = {}, jnp.float32(0), 0
    for feature, ids in segment_ids.items():
        if ids is None or ids.shape[1] == 0:
            continue
        feature_real = jnp.sum(ids.astype(bool), dtype=jnp.float32)
        real, size = real + feature_real, size + ids.size
        metrics[f"effective_batch_size/{feature}"] = AveragePerStep(total=count_packed_examples(ids))
        metrics[f"non_padding_fraction/{feature}"] = clu_metrics.Average(
            total=feature_real, count=jnp.float32(ids.size)
        )
    if metrics:
        metrics["non_padding_fraction/overall"] = clu_metrics.Average(total=real, count=jnp.float32(size))
    return metrics


def count_packed_examples(segment_ids: jax.Array) -> jax.Array:
    """Counts the runs of equal ids, 0 (padding) aside: [[1, 1, 3, 0], [2, 2, 2, 2]] has 3.

    Deviation: T5X counts one more for each run of zeros that another segment follows.
    """
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    return jnp.sum(segment_ids.astype(bool) & (segment_ids != before), dtype=jnp.float32)
