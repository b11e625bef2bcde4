"""Evaluation of what a model generates, with SeqIO's Evaluator and a task's own metrics; and metrics in words."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import seqio

from t5x import models
from t5x.embedded import console, waiting
from t5x.embedded.inference import get_infer_fn
from t5x.embedded.metrics_manager import number_writers
from t5x.embedded.packing import make_converter
from t5x.embedded.vocabulary_check import verify_matching_vocabs
from t5xpg.base import files, stores

FOLDER = "inference_eval"  # T5X's


class InferenceEvaluator:
    """Decodes and scores the tasks of a dataset configuration with their own metric functions.

    Args:
      infer_eval_dataset_cfg: what to evaluate on. Without task_feature_lengths the longest examples set them.
      inference_evaluator_cls: seqio.Evaluator, with its loggers bound.
      model: a models.BaseModel.
      partitioner: a partitioning.PjitPartitioner.
      log_dir: the loggers write to its folder inference_eval; None turns them off.
      verify_matching_vocabs_fn: raises where the task's vocabulary is not the model's.
    """

    def __init__(
        self,
        infer_eval_dataset_cfg,
        inference_evaluator_cls: Callable[..., seqio.Evaluator],
        model: models.BaseModel,
        partitioner,
        log_dir: str | None = None,
        verify_matching_vocabs_fn: Callable | None = verify_matching_vocabs,
    ):
        cfg = infer_eval_dataset_cfg
        if verify_matching_vocabs_fn and isinstance(model, models.BaseTransformerModel):
            verify_matching_vocabs_fn(cfg, model)
        self._logs = EvaluationLogs.of(log_dir)
        make = functools.partial(
            inference_evaluator_cls,
            mixture_or_task_name=cfg.mixture_or_task_name,
            feature_converter=make_converter(model.FEATURE_CONVERTER_CLS, pack=False),
            eval_split=cfg.split,
            use_cached=cfg.use_cached,
            seed=cfg.seed,
            sequence_length=cfg.task_feature_lengths,
            use_memory_cache=cfg.use_memory_cache,
            **({"log_dir": self._logs.folder} if self._logs else {"logger_cls": ()}),
        )
        self._evaluator = waiting.run(make, "the data to evaluate")  # it reads all of them
        self._model, self._partitioner, self._batch_size = model, partitioner, cfg.batch_size
        self._infer_fns: dict[str, Callable] = {}
        self._bar = None
        self._pending: Future | None = None

    @property
    def eval_tasks(self) -> list[seqio.Task]:
        """The tasks that have the split and metrics."""
        return self._evaluator.eval_tasks

    @property
    def model_feature_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns {feature: shape of one example}."""
        return self._evaluator.model_feature_shapes

    def evaluate(self, train_state, train_state_axes) -> Future:
        """Runs the model over all tasks; returns a future of {task: {metric: value}}, or None but for process 0.

        Metrics are computed and logged in the background. An error there is raised by the future, by the
        next evaluation, or by `close`.
        """
        step = int(train_state.step)
        if not self._infer_fns:
            self._infer_fns = {
                "predict_fn": self._infer_fn(self._model.predict_batch, train_state_axes),
                "predict_with_aux_fn": self._infer_fn(self._model.predict_batch_with_aux, train_state_axes),
                "score_fn": self._infer_fn(self._model.score_batch, train_state_axes),
            }
        rng = jax.random.PRNGKey(0)
        fns = {name: functools.partial(fn, train_state=train_state, rng=rng) for name, fn in self._infer_fns.items()}
        with console.counter("evaluate", self._count_examples()) as self._bar:
            metrics, _ = self._evaluator.evaluate(compute_metrics=jax.process_index() == 0, step=step, **fns)
        if self._logs:
            metrics = self._logs.kept_after(metrics, step)
        self._pending = metrics
        metrics.add_done_callback(functools.partial(say_metrics, step))
        return metrics

    def close(self) -> None:
        """Waits until metrics are written; raises the last evaluation's error."""
        self._evaluator.close()
        if self._pending is not None:
            self._pending.result()
        if self._logs:
            self._logs.close()

    def _infer_fn(self, infer_step: Callable, train_state_axes) -> Callable:
        return get_infer_fn(
            infer_step,
            self._batch_size,
            train_state_axes,
            self._partitioner,
            on_examples=lambda count: self._bar.update(count),
        )

    def _count_examples(self) -> int:
        """Counts each task's examples, once for each kind of output that its metrics need."""
        return sum(
            len(self._evaluator.cached_model_datasets[task.name])
            * len({metric.model_output_type for metric in task.metric_objs})
            for task in self.eval_tasks
        )


class EvaluationLogs:
    """The folder inference_eval that SeqIO's loggers write to; its numbers go to metrics.jsonl beside it too.

    Args:
      log_dir: its parent. Where that is a URL, they write to TensorFlow's memory, and what they wrote is sent.

    Attributes:
      folder: what to give to the loggers.
    """

    def __init__(self, log_dir: str):
        self.folder, self._mirror, self._log_dir = os.path.join(log_dir, FOLDER), None, log_dir
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation logs")
        if stores.is_url(log_dir):
            from t5x.embedded import tf_memory

            self._mirror = tf_memory.Mirror(self.folder)
            for name in files.names_in(self.folder):
                if name.endswith("-metrics.jsonl"):  # they add to it
                    self._mirror.fetch(os.path.join(self.folder, name))
            self.folder = self._mirror.folder

    @classmethod
    def of(cls, log_dir: str | None) -> EvaluationLogs | None:
        return cls(log_dir) if log_dir else None

    def kept_after(self, metrics: Future, step: int) -> Future:
        """Returns `metrics`, which are there once the loggers have written, as a future that keeps and sends them."""
        return self._pool.submit(self._keep, metrics, step)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        if self._mirror:
            self._mirror.send()
            self._mirror.forget()

    def _keep(self, metrics: Future, step: int) -> Any:
        found = metrics.result()
        for task, values in (found or {}).items():
            tags = {f"eval/{name}": number for name, number in numbers(values).items()}  # so SeqIO's logger names them
            for writer in number_writers(self._log_dir, f"{FOLDER}/{task}"):
                writer.write_scalars(step, tags)
                writer.flush()
        if self._mirror:
            self._mirror.send()
        return found


def make_evaluator(cfg, evaluator_cls, model, partitioner, log_dir: str, verify_fn) -> InferenceEvaluator | None:
    """Returns the evaluator of `cfg`, or None where there is no `cfg` or none of its tasks has metrics."""
    if cfg is None:
        return None
    evaluator = InferenceEvaluator(cfg, evaluator_cls, model, partitioner, log_dir, verify_fn)
    if evaluator.eval_tasks:
        return evaluator
    console.say(f"Nothing to decode: no task of {cfg.mixture_or_task_name} has metrics and a split {cfg.split!r}.")
    evaluator.close()
    return None


def say_metrics(step: int, done: Future) -> None:
    """Prints one line per task. An error is left to whoever waits for the future."""
    if done.exception() is not None:
        return
    for task, metrics in (done.result() or {}).items():
        shown = [f"{name} {value:.5g}" for name, value in numbers(metrics).items()]
        console.say(f"step {step:>7,}  {task}: {', '.join(shown)}")


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns those of a task's metrics that are numbers, seqio.metrics.Scalar or plain; no texts, images, …"""
    values = {name: getattr(value, "value", value) for name, value in metrics.items()}
    arrays = {name: np.asarray(value) for name, value in values.items() if not isinstance(value, str)}
    return {name: float(array) for name, array in arrays.items() if array.ndim == 0 and array.dtype.kind in "biuf"}


def evaluate_with_teacher(
    trainer, train_state, eval_datasets: Mapping, why_no_example: Callable[[], str | None] | None = None
) -> dict[str, dict]:
    """Evaluates with teacher forcing; returns {task: {metric: value}} and prints one line per task.

    `why_no_example` is asked where a batch does not come; see `waiting.Batches`.
    """
    trainer.train_state = train_state
    iterators = {name: ds.as_numpy_iterator() for name, ds in eval_datasets.items()}
    metrics_by_task = trainer.eval(
        {name: waiting.Batches(it.__next__, f"{name}, to evaluate", why_no_example) for name, it in iterators.items()}
    )
    for task, metrics in metrics_by_task.items():
        console.say(f"step {int(train_state.step):>7,}  {task}: {describe_training_metrics(metrics)}")
    return metrics_by_task


def write_results(path: str, step: int, metrics_by_task: Mapping[str, Mapping]) -> None:
    """Writes {"step", task: {metric: value}} of the latest evaluation, without timing, whole; from process 0."""
    if jax.process_index() != 0:
        return
    values = {
        task: {n: float(np.asarray(v.value)) for n, v in metrics.items() if not n.startswith("timing/")}
        for task, metrics in metrics_by_task.items()
    }
    files.write_whole(path, json.dumps({"step": step, **values}, indent=1))


def describe_training_metrics(metrics: Mapping) -> str:
    """Returns the main metrics of an evaluation with teacher forcing, on one line."""
    values = {name: float(np.asarray(value.value)) for name, value in metrics.items()}
    parts = [f"{values['nats_per_token']:.4f} nats/token"] if "nats_per_token" in values else []
    if "perplexity" in values:
        parts.append(f"perplexity {values['perplexity']:.2f}")
    if "bits_per_byte" in values:
        parts.append(f"{values['bits_per_byte']:.3f} bits/byte")
    if "accuracy" in values:
        parts.append(f"accuracy {values['accuracy']:.1%}")
    return ", ".join(parts) or f"loss {values['loss']:.4f}"
