"""Training, inference and evaluation on examples typed by hand, as in T5X's notebook tutorials."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf
from jax.sharding import NamedSharding

from t5x import models, train, utils
from t5x import trainer as trainer_lib
from t5x.embedded.contract import refuse_missing
from t5x.embedded.natural_text import (
    Example,
    Preprocessors,
    as_batches,
    get_batches_from_seqio,
    get_dataset_from_natural_text_examples,
    get_seqio_task_from_examples,
    repeated,
)
from t5x.embedded.notebook_gin import T5XScriptType, get_gin_config_from_interactive_model
from t5xpg.base import files, stores

refuse_missing(globals(), "interactive_model")

__all__ = [
    "InferenceType",
    "InteractiveModel",
    "T5XScriptType",
    "get_batches_from_seqio",
    "get_dataset_from_natural_text_examples",
    "get_gin_config_from_interactive_model",
    "get_seqio_task_from_examples",
]

DEFAULT_PREPROCESSORS = (seqio.preprocessors.tokenize, seqio.preprocessors.append_eos)
METRIC_ARGUMENTS = (("targets", "predictions"), ("targets", "predictions", "aux_values"), ("targets", "scores"))


class InferenceType(enum.Enum):
    PREDICT_WITH_AUX = 1
    SCORE = 2


class InteractiveModel:
    """A model with its trainer and checkpoints.

    It starts from the checkpoint it is given, else from the latest in `output_dir`, else from scratch, and saves one
    after every step, in Orbax's layout, where T5X writes its older one. Random numbers are those of
    `use_hardware_rng`, as in T5X.

    An example is a text, the input, or {"input": …, "target": …}.

    Args:
      batch_size: examples of a batch.
      task_feature_lengths: {"inputs": …, "targets": …} in tokens; longer ones are cut.
      output_dir: for checkpoints, event files and model-info.txt; made if need be.
      partitioner: a partitioning.PjitPartitioner.
      model: a models.BaseTransformerModel.
      dtype: parameters are restored and saved in it; None as they are.
      restore_mode: "specific", or "latest" of a folder; see utils.RestoreCheckpointConfig.
      checkpoint_path: what to restore; "" for nothing.
      input_shapes, input_types: {feature: shape} and {feature: dtype} of a batch.
      init_random_seed: for parameters and dropout.
      add_eos: whether the features "inputs" and "targets" say that they end in EOS.
      eval_names: for the trainer's `eval`.

    Raises:
      ValueError: the devices cannot be divided as the partitioner says, or `checkpoint_path` names several
        checkpoints.
    """

    def __init__(
        self,
        batch_size: int,
        task_feature_lengths: Mapping[str, int],
        output_dir: str,
        partitioner,
        model: models.BaseTransformerModel,
        dtype: str | None,
        restore_mode: str,
        checkpoint_path: str,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
        init_random_seed: int = 42,
        add_eos: bool = True,
        eval_names: Sequence[str] | None = None,
    ):
        self._batch_size, self._task_feature_lengths = batch_size, task_feature_lengths
        self._output_dir = re.sub(r"(?<!:)/{2,}", "/", stores.plain(output_dir))
        files.make_folder(self._output_dir)
        self._model, self._partitioner = model, partitioner
        self._feature_converter = model.FEATURE_CONVERTER_CLS(pack=False)
        vocabularies = {"inputs": model.input_vocabulary, "targets": model.output_vocabulary}
        self._features = {name: seqio.Feature(v, add_eos=add_eos) for name, v in vocabularies.items()}
        self._infer_fns: dict[tuple, Callable] = {}
        self._train_summary = None

        init_rng, trainer_rng = train.make_rngs(init_random_seed, use_hardware_rng=True)
        initializer = utils.TrainStateInitializer(
            optimizer_def=model.optimizer_def,
            init_fn=model.get_initial_variables,
            input_shapes={name: tuple(map(int, shape)) for name, shape in input_shapes.items()},
            input_types=input_types,
            partitioner=partitioner,
        )
        self._train_state_axes = initializer.train_state_axes
        self._save_checkpoint_cfg = utils.SaveCheckpointConfig(dtype=dtype, keep=5, save_dataset=False, period=1000)
        self._restore_checkpoint_cfg = None
        if checkpoint_path:
            self._restore_checkpoint_cfg = utils.RestoreCheckpointConfig(checkpoint_path, restore_mode, dtype=dtype)
        cfg, path = self._find_checkpoint()
        self._train_state, self._checkpoint_manager = utils.create_checkpoint_manager_and_restore(
            train_state_initializer=initializer,
            partitioner=partitioner,
            restore_checkpoint_cfg=cfg,
            restore_path=path,
            fallback_init_rng=None,
            save_checkpoint_cfg=self._save_checkpoint_cfg,
            model_dir=self._output_dir,
        )
        if self._train_state is None:
            self._train_state = initializer.from_scratch(init_rng)
        info = os.path.join(self._output_dir, "model-info.txt")
        utils.log_model_info(info, initializer.global_train_state_shape, partitioner)
        self._trainer = trainer_lib.Trainer(
            model=model,
            train_state=self._train_state,
            partitioner=partitioner,
            eval_names=eval_names or [],
            summary_dir=self._output_dir,
            train_state_axes=self._train_state_axes,
            rng=trainer_rng,
            learning_rate_fn=utils.create_learning_rate_scheduler(),
            num_microbatches=None,
        )

    def _find_checkpoint(self) -> tuple[utils.RestoreCheckpointConfig, str | None]:
        """Returns (how to restore, the checkpoint or None)."""
        latest = utils.RestoreCheckpointConfig(self._output_dir, "latest", dtype=self._save_checkpoint_cfg.dtype)
        for cfg in filter(None, (self._restore_checkpoint_cfg, latest)):
            paths = cfg.checkpoint_paths()
            if len(paths) > 1:
                raise ValueError(f"InteractiveModel starts from one checkpoint, and {cfg.path} has {len(paths)}.")
            if paths:
                return cfg, paths[0]
        return latest, None

    @property
    def trainer(self):
        return self._trainer

    @property
    def partitioner(self):
        return self._partitioner

    @property
    def model(self):
        return self._model

    @property
    def train_state(self):
        return self._train_state

    @property
    def train_state_axes(self):
        return self._train_state_axes

    @property
    def train_summary(self) -> Mapping[str, Any]:
        """The last step's metrics, {name: clu.values.Value}."""
        if self._train_summary is None:
            raise ValueError("There is no train_summary before the first train_step.")
        return self._train_summary.result()

    @property
    def step(self) -> int:
        return int(self._train_state.step)

    # ---- Training ----

    def train_step(self, examples: Sequence[Example]) -> None:
        """Takes a step on the first batch_size examples, tokenized and with EOS, and saves a checkpoint."""
        self.train_step_with_preprocessors(examples, DEFAULT_PREPROCESSORS)

    def train_step_with_preprocessors(self, examples: Sequence[Example], preprocessors: Preprocessors) -> None:
        """As `train_step`, with preprocessors that make the features "inputs" and "targets" of the examples.

        Raises:
          ValueError: there are fewer than batch_size examples.
        """
        if len(examples) < self._batch_size:
            raise ValueError(f"{len(examples)} examples do not make a batch of {self._batch_size}; pass more.")
        _, features = self._datasets(examples, preprocessors)
        if self._trainer.stop_training:
            return
        batches = features.padded_batch(self._batch_size, drop_remainder=True)
        self.train_step_from_batch_iterator(batches.as_numpy_iterator())
        self.save_checkpoint()

    def train_step_from_batch_iterator(self, iterator: Iterator[Mapping[str, Any]]) -> None:
        """Takes a step on the next batch, {feature: [batch_size, length]}, the same in every process."""
        sharding = NamedSharding(self._partitioner.mesh, self._partitioner.data_partition_spec)

        def place(x) -> jax.Array:
            return jax.make_array_from_callback(x.shape, sharding, lambda index: np.asarray(x)[index])

        placed = (jax.tree.map(place, dict(batch)) for batch in iterator)
        self._train_summary = self._trainer.train(placed, 1, start_step=self.step)
        self._train_state = self._trainer.train_state

    def save_checkpoint(self) -> None:
        """Saves the trainer's state as output_dir/checkpoint_<step>, and keeps the last five."""
        self._checkpoint_manager.save(self._trainer.train_state)
        self._checkpoint_manager.wait_until_finished()

    def train_loop(
        self,
        num_steps: int,
        eval_period: int | None = 1,
        train_batches: Sequence | None = None,
        predict_batches: Sequence | None = None,
        score_batches: Sequence | None = None,
        eval_batches: Sequence | None = None,
        metrics_fns: Sequence[Callable] | None = None,
    ) -> tuple[Any, Any, Any]:
        """Trains, and every `eval_period` steps (counted from the first) predicts, scores and evaluates.

        Args:
          num_steps: how many times to go round.
          eval_period: see above.
          train_batches: trained on in turns; T5X stops early where num_steps is not a multiple of their number.
            Without any, nothing is trained.
          predict_batches, score_batches, eval_batches: gone through each time. Each may be a single batch.
          metrics_fns: for `evaluate`.

        Returns:
          (predictions, scores, metrics) of the last batch of each; None without any.
        """
        predictions = scores = metrics = None
        for number, batch in enumerate(repeated(train_batches, num_steps)):
            if batch:
                self.train_step(batch)
            if number % eval_period:
                continue
            for examples in as_batches(predict_batches):
                predictions, _ = self.predict_with_aux(examples)
            for examples in as_batches(score_batches):
                scores = self.score(examples)
            for examples in as_batches(eval_batches):
                metrics = self.evaluate(examples, metrics_fns)
        return predictions, scores, metrics

    # ---- Inference ----

    def predict_with_aux(self, examples: Sequence[Example]) -> tuple[list[tuple[dict, bytes]], dict[str, list]]:
        """Returns ([(features of the example, prediction)], {"scores": […]})."""
        return self.infer_with_preprocessors(InferenceType.PREDICT_WITH_AUX, examples, DEFAULT_PREPROCESSORS)

    def score(self, examples: Sequence[Example]) -> list[tuple[dict, float]]:
        """Returns [(features of the example, log likelihood of its target in nats)]."""
        return self.infer_with_preprocessors(InferenceType.SCORE, examples, DEFAULT_PREPROCESSORS)[0]

    def infer_with_preprocessors(
        self, mode: InferenceType, examples: Sequence[Example], preprocessors: Preprocessors, **inference_kwargs
    ) -> tuple[list[tuple[dict, Any]], dict[str, list]]:
        """Predicts or scores the preprocessed examples.

        Args:
          mode: which of the two.
          examples: any number.
          preprocessors: as in `train_step_with_preprocessors`.
          **inference_kwargs: further arguments of the model's predict_batch_with_aux or score_batch.

        Returns:
          ([(the example's features, prediction as bytes or score)], {name: a value for each example}).

        Raises:
          ValueError: the mode is unknown.
        """
        infer_fn = self._infer_fn(mode, inference_kwargs)
        batches = tf.data.Dataset.zip(self._datasets(examples, preprocessors)).padded_batch(self._batch_size)
        pairs, aux = [], {}
        for number, (inputs, features) in enumerate(batches):
            indexed = tf.data.Dataset.from_tensor_slices(features).enumerate()
            rng = jax.random.fold_in(jax.random.PRNGKey(0), number)
            result = infer_fn(indexed, train_state=self._train_state, rng=rng)
            outputs, more = result if isinstance(result, tuple) else (result, {})
            rows = tf.data.Dataset.from_tensor_slices(inputs).as_numpy_iterator()
            for row, (_, output) in zip(rows, outputs, strict=True):
                pairs.append((row, self._decode(output) if mode is InferenceType.PREDICT_WITH_AUX else output))
            aux = {name: aux.get(name, []) + list(values) for name, values in more.items()}
        return pairs, aux

    def _infer_fn(self, mode: InferenceType, inference_kwargs: Mapping[str, Any]) -> Callable:
        """Returns the compiled step of a mode, made once for the same arguments."""
        steps = {InferenceType.PREDICT_WITH_AUX: "predict_batch_with_aux", InferenceType.SCORE: "score_batch"}
        if mode not in steps:
            raise ValueError(f"mode is {mode!r}; use InferenceType.PREDICT_WITH_AUX or InferenceType.SCORE.")
        key = (mode, *seqio.utils.flatten_dict(inference_kwargs).items())
        if key not in self._infer_fns:
            step = functools.partial(getattr(self._model, steps[mode]), **inference_kwargs)
            self._infer_fns[key] = utils.get_infer_fn(
                infer_step=step,
                batch_size=self._batch_size,
                train_state_axes=self._train_state_axes,
                partitioner=self._partitioner,
            )
        return self._infer_fns[key]

    def _decode(self, ids: Sequence[int]) -> bytes:
        return self._features["targets"].vocabulary.decode_tf(tf.constant(ids)).numpy()

    def _datasets(self, examples, preprocessors) -> tuple[tf.data.Dataset, tf.data.Dataset]:
        """Returns (the examples preprocessed, the model's features), unbatched."""
        lengths = self._task_feature_lengths
        ds = get_dataset_from_natural_text_examples(examples, preprocessors, lengths, self._features)
        return ds, self._feature_converter(ds, task_feature_lengths=lengths)

    # ---- Evaluation ----

    def evaluate(self, examples: Sequence[Example], metric_fns: Sequence[Callable]) -> dict[str, Any]:
        """As `evaluate_with_preprocessors`, on examples tokenized and with EOS."""
        return self.evaluate_with_preprocessors(examples, DEFAULT_PREPROCESSORS, metric_fns)

    def evaluate_with_preprocessors(
        self,
        examples: Sequence[Example],
        preprocessors: Preprocessors,
        metric_fns: Sequence[Callable],
        postprocessor: Callable | None = None,
    ) -> dict[str, Any]:
        """Returns {metric: value} of the model's predictions, or scores, for the examples.

        Args:
          examples: with targets.
          preprocessors: as in `train_step_with_preprocessors`; they keep "targets_pretokenized".
          metric_fns: (targets, predictions), (targets, predictions, aux_values) or (targets, scores) -> {name: value}.
          postprocessor: (text, example=features, is_target=bool) -> what the metrics take, as in a seqio.Task. Here
            predictions go through it too, and targets are texts; on T5X only targets do, as bytes.

        Raises:
          ValueError: a metric function takes other arguments, or two give the same name.
        """
        arguments = [metric_arguments(fn) for fn in metric_fns]

        def process(output: bytes, example: Mapping[str, Any], is_target: bool):
            text = output.decode("utf-8")
            return text if postprocessor is None else postprocessor(text, example=example, is_target=is_target)

        rows = self._datasets(examples, preprocessors)[0].as_numpy_iterator()
        known: dict[str, Any] = {"targets": [process(row["targets_pretokenized"], row, True) for row in rows]}
        if any("predictions" in names for names in arguments):
            pairs, known["aux_values"] = self.infer_with_preprocessors(
                InferenceType.PREDICT_WITH_AUX, examples, preprocessors
            )
            known["predictions"] = [process(output, row, False) for row, output in pairs]
        if any("scores" in names for names in arguments):
            pairs, _ = self.infer_with_preprocessors(InferenceType.SCORE, examples, preprocessors)
            known["scores"] = [score for _, score in pairs]
        metrics: dict[str, Any] = {}
        for fn, names in zip(metric_fns, arguments, strict=True):
            found = fn(*(known[name] for name in names))
            if twice := metrics.keys() & found.keys():
                raise ValueError(f"Two metric functions give {sorted(twice)}; leave one of them out.")
            metrics |= found
        return metrics


def metric_arguments(metric_fn: Callable) -> tuple[str, ...]:
    """Returns the names of the arguments without default; raises ValueError where they are not a metric's."""
    parameters = inspect.signature(metric_fn).parameters
    names = tuple(name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty)
    if names not in METRIC_ARGUMENTS:
        raise ValueError(f"A metric function takes {names}; it has to be one of {METRIC_ARGUMENTS}.")
    return names
