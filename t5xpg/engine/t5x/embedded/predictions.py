"""predictions.jsonl: what the model makes of the same few examples at each evaluation, so that one sees it learn."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from jax.experimental import multihost_utils

from t5x.embedded import console, json_lines, signals
from t5x.embedded.inference import get_infer_fn
from t5x.embedded.packing import make_converter
from t5xpg.base import sentinels

LONGEST = 256  # tokens that are decoded for an example


class Examples(NamedTuple):
    """Of one task: `task`'s features {name: ids [their length]}, and the model's {name: [examples, length]}."""

    task: seqio.Task
    rows: list[dict[str, np.ndarray]]
    batch: dict[str, np.ndarray]


class Predictions:
    """Predicts the first examples of each task's split, unshuffled, and writes texts to a run's predictions.jsonl.

    A line is {"time", "step", "task", "index", "inputs", "targets", "prediction"}, where `index` counts the examples
    of the split, and sentinels are ⟨0⟩, ⟨1⟩, …. TensorBoard gets the same as the text "predictions". The model's own
    `predict_batch` predicts, with its decode function, 256 tokens at most. Where batches have no decoder_input_tokens
    the model predicts in place, as a masked language model: its prediction is the targets, but for what it is asked.

    What cannot be predicted or written is said in one line, with the rest in the log, and ends no run; but where one of
    several processes fails in what all compute together, the run ends as by any other such failure.

    Args:
      cfg: a datasets.DatasetConfig of what is evaluated, or None; its packing is left out, and no seed is 0.
      count: examples of each task; 0 predicts nothing.
      model, partitioner, train_state_axes: as `inference.get_infer_fn` takes them. It is compiled for the first
        evaluation.
      model_dir: where predictions.jsonl is.
      managers: {task: MetricsManager}, whose event files get the texts.
    """

    def __init__(
        self, cfg, count: int, model, partitioner, train_state_axes, model_dir: str, managers: Mapping[str, Any]
    ):
        self._cfg, self._count, self._model = cfg, count, model
        self._partitioner, self._axes = partitioner, train_state_axes
        self._model_dir, self._managers = model_dir, managers
        self._is_on, self._last_step = cfg is not None and count > 0, -1
        self._examples: list[Examples] = []

    def write(self, train_state) -> None:
        """Predicts with a state, unless that has been done; from all processes together."""
        step = int(train_state.step)
        if not self._is_on or step == self._last_step:
            return
        self._last_step = step
        try:
            self._examples = self._examples or read_everywhere(self._cfg, self._count, self._model)
            found = [self._predict(examples, train_state) for examples in self._examples]
        except signals.Interrupted:
            raise
        except Exception as error:
            if jax.process_count() > 1 and isinstance(error, jax.errors.JaxRuntimeError):
                raise  # the others may be in a step that they cannot finish alone
            self._is_on = False
            say_why_not(f"There will be no {json_lines.PREDICTIONS_NAME} (train.num_predictions = 0 says so)", error)
            return
        if jax.process_index() == 0:
            try:
                self._keep(step, found)
            except Exception as error:
                say_why_not(f"Step {step:,} is not in {json_lines.PREDICTIONS_NAME}", error)

    @functools.cached_property
    def _infer(self) -> Callable:
        shards = self._partitioner.get_data_layout().batch_size
        batch_size = -(-self._count // shards) * shards
        return get_infer_fn(self._model.predict_batch, batch_size, self._axes, self._partitioner)

    def _predict(self, examples: Examples, train_state) -> list[list[int]]:
        dataset = tf.data.Dataset.from_tensor_slices(examples.batch).enumerate()
        pairs = self._infer(dataset, train_state, jax.random.PRNGKey(0))
        return [ids for _, ids in pairs]

    def _keep(self, step: int, found: list[list[list[int]]]) -> None:
        lines = json_lines.lines_in(self._model_dir, json_lines.PREDICTIONS_NAME)
        for examples, predicted in zip(self._examples, found, strict=True):
            name = examples.task.name
            texts = [texts_of(examples, index, ids) for index, ids in enumerate(predicted)]
            for index, text in enumerate(texts):
                lines.add({"time": time.time(), "step": step, "task": name, "index": index, **text})
            if name in self._managers:
                self._managers[name].summary_writer.write_texts(step, {"predictions": as_table(texts)})
        lines.flush()


def read_everywhere(cfg, count: int, model) -> list[Examples]:
    """Returns the examples of each task; where one process cannot read them, all raise, as they predict together."""
    examples, failure = [], None
    try:
        provider = cfg.mixture_or_task_name
        provider = seqio.get_mixture_or_task(provider) if isinstance(provider, str) else provider
        tasks = [task for task in seqio.get_subtasks(provider) if cfg.split in task.splits]
        examples = [read(task, cfg, count, model) for task in tasks]
    except Exception as error:
        failure = error
    if not np.all(multihost_utils.process_allgather(np.array(failure is None))):
        raise failure or ValueError("another process could not read the examples")
    return examples


def read(task: seqio.Task, cfg, count: int, model) -> Examples:
    lengths = cfg.task_feature_lengths
    rows = task.get_dataset(
        sequence_length=lengths,
        split=cfg.split,
        use_cached=cfg.use_cached,
        shuffle=False,
        num_epochs=1,
        seed=cfg.seed or 0,
        trim_output_features=cfg.trim_output_features,
    )
    rows = rows.take(count).cache()  # what is random in them is drawn once
    examples = list(rows.as_numpy_iterator())
    converted = list(make_converter(model.FEATURE_CONVERTER_CLS, pack=False)(rows, lengths).as_numpy_iterator())
    if not examples:
        raise ValueError(f"{task.name} has no example in its split {cfg.split!r}")
    if len(converted) != len(examples):
        raise ValueError(f"{task.name}: the feature converter makes {len(converted)} rows of {len(examples)} examples")
    batch = {name: np.stack([row[name] for row in converted]) for name in converted[0]}
    if predicts_in_place(batch):
        return Examples(task, examples, batch)
    if "inputs" not in lengths:
        raise ValueError(f"{task.name} has no inputs for a model to go on from")
    longest = LONGEST + (0 if "encoder_input_tokens" in batch else lengths["inputs"])  # a decoder alone reads both
    cut = {name: x[:, :longest] if name.startswith("decoder_") else x for name, x in batch.items()}
    return Examples(task, examples, cut)


def predicts_in_place(batch: Mapping[str, np.ndarray]) -> bool:
    return "decoder_input_tokens" not in batch


def texts_of(examples: Examples, index: int, ids: list[int]) -> dict[str, str]:
    """Returns {"inputs", "targets", "prediction"} of one example."""
    row, features = examples.rows[index], examples.task.output_features
    vocabulary, targets = features["targets"].vocabulary, row["targets"]
    predicted = np.array(ids)
    if predicts_in_place(examples.batch):
        asked = examples.batch["decoder_loss_weights"][index, : len(targets)] > 0
        predicted = np.where(asked, predicted[: len(targets)], targets)
    elif (predicted == vocabulary.eos_id).any():
        predicted = predicted[: np.argmax(predicted == vocabulary.eos_id)]
    return {
        "inputs": sentinels.readable(row["inputs"], features["inputs"].vocabulary) if "inputs" in row else "",
        "targets": sentinels.readable(targets, vocabulary),
        "prediction": sentinels.readable(predicted, vocabulary),
    }


def as_table(texts: list[dict[str, str]]) -> str:
    """Returns a table in Markdown, which TensorBoard shows; what would be Markdown or HTML in a text is no such."""
    signs = {ord(sign): f"&#{ord(sign)};" for sign in "&<>|\\`*_[]~#!"} | {ord("\n"): "⏎", ord("\r"): "␍"}
    names = list(texts[0]) if texts else []
    cells = [[text[name].translate(signs) for name in names] for text in texts]
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *cells])


def say_why_not(what: str, error: Exception) -> None:
    logging.info("%s", what, exc_info=error)
    told = f"{error}".strip().splitlines() or [""]
    console.say(f"{what}: {type(error).__name__}: {told[0]}")
