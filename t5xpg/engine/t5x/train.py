"""The training program: `python -m t5xpg.t5x train --gin_file=… --gin.MODEL_DIR=…`, and `train` for Python.

The order of a round is: train up to the next stop, save, evaluate. What is evaluated has then been saved,
and an evaluation that fails loses nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import seqio
from absl import logging
from jax.experimental import multihost_utils

from t5x import checkpoints, models, utils
from t5x import trainer as trainer_lib
from t5x.embedded import (
    best_checkpoints,
    console,
    data_position,
    datasets,
    evaluation,
    folder_lock,
    initialization,
    learning_rates,
    loss_watch,
    model_info,
    peers,
    run_changes,
    run_starts,
    signals,
    trackers,
    waiting,
)
from t5x.embedded.checkpoint_configs import CheckpointConfig, SaveCheckpointConfig
from t5x.embedded.contract import refuse_missing
from t5x.embedded.initialization import TrainStateInitializer
from t5x.embedded.periods import Schedule, manual_gc
from t5x.embedded.predictions import Predictions
from t5x.embedded.resuming import Restorer, is_finished
from t5xpg.base import garbage, memory, run_settings, stores

refuse_missing(globals(), "train")

TRAIN_METRIC_KEY = "train"
EVAL_RESULTS_NAME = "eval_results.json"


def train(
    *,
    model: models.BaseModel,
    train_dataset_cfg: datasets.DatasetConfig,
    train_eval_dataset_cfg: datasets.DatasetConfig | None,
    infer_eval_dataset_cfg: datasets.DatasetConfig | None,
    checkpoint_cfg: CheckpointConfig,
    partitioner,
    trainer_cls: Callable[..., trainer_lib.BaseTrainer],
    model_dir: str,
    total_steps: int | None,
    eval_steps: int,
    eval_period: int,
    relative_steps: int | None = None,
    stats_period: int | None = None,
    random_seed: int | None,
    use_hardware_rng: bool = False,
    summarize_config_fn: Callable,
    inference_evaluator_cls: Callable[..., seqio.Evaluator] = seqio.Evaluator,
    get_dataset_fn: Callable = utils.get_dataset,
    concurrent_metrics: bool = True,
    train_eval_get_dataset_fn: Callable = utils.get_training_eval_datasets,
    actions: Mapping[str, Sequence[trainer_lib.BaseAction]] | None = None,
    run_eval_before_training: bool = False,
    train_state_initializer_cls: type[TrainStateInitializer] = TrainStateInitializer,
    use_orbax: bool = True,
    verify_matching_vocabs_fn: Callable | None = utils.verify_matching_vocabs,
    gc_period: int = 0,
    num_predictions: int = 5,
    wandb: str | None = None,
    allow_changes: bool = False,
) -> tuple[int, object]:
    """Trains a model, or goes on where an earlier run in `model_dir` stopped.

    Args:
      model: what to train.
      train_dataset_cfg, train_eval_dataset_cfg: data to train on, and to evaluate on with teacher forcing.
      infer_eval_dataset_cfg: data to evaluate on by decoding, with the task's own metrics.
      checkpoint_cfg: when to save, and where a new run starts from.
      partitioner: partitioning.PjitPartitioner.
      trainer_cls: trainer.Trainer with its own arguments bound; made of the state's shapes, it gets its arrays as its
        attribute `train_state` (T5X gives them to the constructor).
      model_dir: where everything is written, on a disk, gs:// or s3://.
      total_steps: the step to stop at; with relative_steps None.
      relative_steps: how many steps to train beyond the checkpoint that the run began at. Started again, a run still
        counts from there: T5X counts from the step that it has come to, and so trains a finished run on and on.
      eval_steps, eval_period: batches of an evaluation, and steps between two.
      stats_period: steps between metrics (default: the shortest of the other periods).
      random_seed: for initialization and dropout; None takes the time.
      use_hardware_rng: fast random bits that depend on hardware and sharding.
      summarize_config_fn: (model_dir, summary writer, step) -> None, writes the configuration.
      inference_evaluator_cls: seqio.Evaluator with its loggers bound.
      get_dataset_fn, train_eval_get_dataset_fn: replace SeqIO as the source of data.
      concurrent_metrics: whether training goes on while decoded text is scored. INFER_EVAL actions wait for the
        scores all the same; T5X leaves these actions out.
      actions: {"TRAIN" | "TRAIN_EVAL" | "INFER_EVAL": the actions to run after such a round}.
      run_eval_before_training: whether to evaluate first.
      train_state_initializer_cls: replaces initialization.TrainStateInitializer.
      use_orbax: accepted for T5X's gin files; checkpoints are always written by Orbax.
      verify_matching_vocabs_fn: (dataset config, model) -> None, raises where vocabularies differ.
      gc_period: steps between garbage collections, where they should not come at other times.
      num_predictions: examples of each evaluated task that are predicted at each evaluation, and at the end, into
        predictions.jsonl; 0 for none. The embedded engine's own: a gin file for T5X too leaves it to the command line.
      wandb: a project of Weights & Biases that gets the numbers too; also the flag --wandb. The embedded engine's own.
      allow_changes: go on in `model_dir` although its config.gin has other data, lengths, batch size, vocabulary or
        network; the embedded engine's own, T5X compares nothing.

    Returns:
      (last step, last train state).

    Raises:
      ValueError: a number cannot be meant, or the run in `model_dir` cannot go on so.
    """
    model_dir = stores.plain(model_dir)
    run_settings.check_training(locals())
    with contextlib.ExitStack() as start, folder_lock.lock_folder(model_dir) as lock, waiting.meanwhile() as submit:
        start.enter_context(garbage.not_collecting())
        changes = run_changes.review(model_dir, allow_changes)
        started, (init_rng, trainer_rng) = time.time(), make_rngs(random_seed, use_hardware_rng)
        verify_vocabularies(verify_matching_vocabs_fn, model, train_dataset_cfg, train_eval_dataset_cfg)
        layout = partitioner.get_data_layout(train_dataset_cfg.batch_size)
        shard, converter_cls = (layout.shard_id, layout.num_shards), model.FEATURE_CONVERTER_CLS
        data = data_position.TrainingData(
            *(model_dir, train_dataset_cfg, layout, allow_changes),
            get_dataset=lambda *shard: get_dataset_fn(train_dataset_cfg, *shard, converter_cls),
            make_iterator=functools.partial(
                utils.prepare_train_iter, partitioner=partitioner, checkpoint_cfg=checkpoint_cfg, data_layout=layout
            ),
        )
        train_iter = data.make_iterator(data.get_dataset(*shard))
        initializer = make_initializer(train_state_initializer_cls, model, layout, train_iter, partitioner)
        describe_run(model_dir, initializer, partitioner, train_dataset_cfg)
        restorer = Restorer(initializer, partitioner, checkpoint_cfg, model_dir, train_iter, init_rng)
        restorer.compile_ahead(submit)
        reads = functools.partial(train_eval_get_dataset_fn, train_eval_dataset_cfg)
        eval_datasets = reads(*shard, eval_steps, converter_cls) if train_eval_dataset_cfg else {}
        evaluator = evaluation.make_evaluator(
            infer_eval_dataset_cfg, inference_evaluator_cls, model, partitioner, model_dir, verify_matching_vocabs_fn
        )
        closing = contextlib.closing(evaluator) if evaluator else contextlib.nullcontext()
        shapes, axes = initializer.global_train_state_shape, initializer.train_state_axes
        made_of = dict(model=model, partitioner=partitioner, summary_dir=model_dir, rng=trainer_rng)
        trainer = trainer_cls(train_state=shapes, train_state_axes=axes, eval_names=eval_datasets.keys(), **made_of)
        if restorer.is_new():
            begin_new_run(trainer, train_iter, checkpoint_cfg.save, submit)
        state, checkpoint, began = restorer.initialize()
        step = int(state.step)
        total_steps = began + relative_steps if relative_steps else total_steps
        if is_finished(model_dir, step, total_steps) and not run_eval_before_training:
            with closing:
                return step, state
        train_iter = data.go_to(train_iter, step, checkpoint, began, changes, restorer.restores_data())
        eval_period = eval_period if eval_datasets or evaluator else 0
        schedule = Schedule.of(step, total_steps, checkpoint_cfg.save, eval_period, stats_period, gc_period)
        trainer.train_state = state
        del state  # the trainer's steps reuse its memory
        tracking = trackers.weights_and_biases(wandb, model_dir, is_new=checkpoint is None)
        saving = make_manager(checkpoint_cfg.save, model_dir, train_iter, initializer, partitioner)
        with tracking, trainer, saving as manager:
            run_changes.keep_config(model_dir, step)
            summarize_config_fn(model_dir, trainer.train_metrics_manager.summary_writer, step)
            trainer.train_metrics_manager.write_scalar("timing/init_or_restore_seconds", time.time() - started, step)
            run = TrainingRun(trainer, manager, schedule, train_iter, eval_datasets, actions or {}, model_dir, lock)
            run.save_cfg = checkpoint_cfg.save
            shown = (train_eval_dataset_cfg, num_predictions, model, partitioner, axes, model_dir)
            run.predictions = Predictions(*shown, trainer.eval_metrics_managers)
            if get_dataset_fn is utils.get_dataset:
                run.explain_waits(train_dataset_cfg, layout, train_eval_dataset_cfg)
            with closing, peers.reporting():
                if evaluator:
                    run.decode_with(evaluator, axes, concurrent_metrics)
                start.close()
                return run.run(step, run_eval_before_training)


def verify_vocabularies(verify: Callable | None, model, *cfgs: datasets.DatasetConfig | None) -> None:
    if verify and isinstance(model, models.BaseTransformerModel):
        for cfg in filter(None, cfgs):
            verify(cfg, model)


class TrainingRun:
    """The rounds of training, saving and evaluating."""

    def __init__(self, trainer, manager, schedule, train_iter, eval_datasets, actions, model_dir, lock=None):
        unknown = set(actions) - set(trainer_lib.ActionMode.__members__)
        if unknown:
            raise ValueError(f"actions has keys {sorted(unknown)}; use {list(trainer_lib.ActionMode.__members__)}.")
        self._trainer, self._manager, self._schedule = trainer, manager, schedule
        self._train_iter, self._eval_datasets = train_iter, eval_datasets
        self._actions = {trainer_lib.ActionMode[mode]: chosen for mode, chosen in actions.items()}
        self._model_dir = model_dir
        self._check_lock = getattr(lock, "check", lambda: None)  # raises once another run has taken MODEL_DIR
        self._check_lock_now = getattr(lock, "check_now", lambda: None)
        self.save_cfg: SaveCheckpointConfig | None = SaveCheckpointConfig()
        self.predictions: Predictions | None = None
        self._why_no_example: Callable[[], str | None] | None = None
        self._decode: Callable | None = None
        self._loss_watch = loss_watch.LossWatch()

    def explain_waits(self, train_cfg: datasets.DatasetConfig, layout, eval_cfg: datasets.DatasetConfig | None) -> None:
        """Lets the run look into its data, as utils.get_dataset reads them, where a first batch does not come."""
        why = functools.partial(datasets.why_no_example, train_cfg, layout.shard_id, layout.num_shards)
        self._train_iter.wait_as("the training data", why)
        if eval_cfg is not None:
            self._why_no_example = functools.partial(datasets.why_no_example, eval_cfg, 0, 1)

    def decode_with(self, evaluator: evaluation.InferenceEvaluator, train_state_axes, concurrent: bool) -> None:
        """Makes evaluations decode too; unless `concurrent`, training waits for the scores."""
        self._decode = functools.partial(evaluator.evaluate, train_state_axes=train_state_axes)
        self._waits_for_metrics = not concurrent or bool(self._actions.get(trainer_lib.ActionMode.INFER_EVAL))

    def run(self, step: int, evaluate_first: bool) -> tuple[int, object]:
        """Runs all rounds from `step` on; returns (last step, last train state)."""
        trainer, schedule = self._trainer, self._schedule
        run_starts.add(self._model_dir, step)
        if evaluate_first:
            self._evaluate(step)
        if step == schedule.total_steps:
            return step, trainer.train_state
        rate = getattr(trainer, "_learning_rate_fn", None)  # a trainer of a user's may have none
        if line := learning_rates.why_still_rising(rate, step, schedule.total_steps):
            console.say(line)
        if schedule.save_period:
            self._save(step)
        self._train_iter.start()
        trainer.compile_train(self._train_iter.zeros())
        self._train_iter.peek()

        first, started = step, time.time()
        progress = console.Progress(schedule.total_steps, step)
        with signals.finishing(), contextlib.closing(progress), manual_gc(schedule), self._saving_if_preempted():

            def on_step(done: int, metrics: Mapping) -> None:
                self._check_lock()
                progress.on_step(done, metrics)
                trainer.stop_training |= signals.stops_after(done)

            trainer.on_step = on_step
            try:
                while step < schedule.total_steps and not trainer.stop_training:
                    step = self._run_round(step, progress)
                if self.predictions and not signals.stopping():
                    self.predictions.write(trainer.train_state)
            except signals.Interrupted:
                if jax.process_count() > 1:  # the others are in a step that they cannot finish alone
                    raise
            step = int(trainer.train_state.step)
            if trainer.stop_training or signals.stopping():  # perhaps before a save was due
                self._save(step)
            self._report_end(step, step - first, time.time() - started)
        return step, trainer.train_state

    def _run_round(self, step: int, progress: console.Progress) -> int:
        """Trains up to the next stop and does what is due there; returns the step."""
        trainer, schedule = self._trainer, self._schedule
        summary = trainer.train(self._train_iter, schedule.next_stop(step) - step, step)
        step = int(trainer.train_state.step)
        progress.on_round(step, summary)
        trainer.train_metrics_manager.write_scalars(step, memory.in_use())
        self._loss_watch.look(summary, trainer.train_state, step)
        self._run_actions("TRAIN", {TRAIN_METRIC_KEY: summary})
        if schedule.collects_garbage_at(step):
            gc.collect()
        if schedule.saves_at(step) or trainer.stop_training:
            self._save(step)
        if schedule.evaluates_at(step) and not signals.stopping():
            if jax.process_count() > 1:  # they cannot give up together; where the step is saved, they may end at once
                with signals.finishing(lambda: not schedule.saves_at(step) or self._is_saving()):
                    self._evaluate(step)
            else:
                waiting.run(functools.partial(self._evaluate, step))
        return step

    def _is_saving(self) -> bool:
        return self._manager is not None and self._manager.is_saving_in_progress()

    def _save(self, step: int) -> None:
        if self._manager is None or self.save_cfg is None:
            return
        if self.save_cfg.save_dataset and self._train_iter.reading:
            return  # a signal ended the wait for a batch, and where that leaves the data cannot be known
        self._check_lock_now()
        self._loss_watch.check(self._trainer.train_state, step)
        tick = time.time()
        best_checkpoints.send_metrics(self._trainer, self._manager)
        if self._manager.save(self._trainer.train_state, self.save_cfg.state_transformation_fns):
            self._trainer.train_metrics_manager.write_scalar("timing/checkpoint_seconds", time.time() - tick, step)
            logging.info("Saving %s", checkpoints.checkpoint_path(self._model_dir, step))

    @contextlib.contextmanager
    def _saving_if_preempted(self):
        """Saves the state when the trainer or its data raise PreemptionError, and raises it again."""
        try:
            yield
        except trainer_lib.PreemptionError:
            self._save(int(self._trainer.train_state.step))
            raise

    def _evaluate(self, step: int) -> None:
        if self._eval_datasets:
            state = self._trainer.train_state
            metrics_by_task = evaluation.evaluate_with_teacher(
                self._trainer, state, self._eval_datasets, self._why_no_example
            )
            evaluation.write_results(os.path.join(self._model_dir, EVAL_RESULTS_NAME), step, metrics_by_task)
            self._run_actions("TRAIN_EVAL", metrics_by_task)
        if self.predictions:
            self.predictions.write(self._trainer.train_state)
        if self._decode:
            tick = time.time()
            metrics = self._decode(self._trainer.train_state)
            if self._waits_for_metrics:
                self._run_actions("INFER_EVAL", metrics.result() or {})
            self._trainer.train_metrics_manager.write_scalar("timing/evaluate_seconds", time.time() - tick, step)

    def _run_actions(self, mode: str, metrics_by_task: Mapping) -> None:
        key, state = trainer_lib.ActionMode[mode], self._trainer.train_state
        if self._actions.get(key):
            self._trainer.stop_training |= run_actions(key, self._actions, state, metrics_by_task)

    def _report_end(self, step: int, num_steps: int, seconds: float) -> None:
        if self._manager is not None:
            self._manager.wait_until_finished()
        saved = checkpoints.latest_step(self._model_dir)
        kept = f"step {saved:,} is in {self._model_dir}" if saved is not None else "no checkpoint is there"
        if number := signals.stopping():
            path = checkpoints.checkpoint_path(self._model_dir, step)
            told = f" at step {step:,}: saved {path}; the same command continues from there."
            signals.say_once("Stopped" + (told if saved == step else f"; the last steps were not saved, and {kept}."))
            signals.end_within(30, 128 + number)  # for the last scores, and for what was left behind
            raise SystemExit(128 + number)
        lost = "" if saved == step else "the last of them were not saved, and "
        console.say(f"Trained {num_steps:,} steps in {seconds:,.0f} s; {lost}{kept}")
        run_starts.add_end(self._model_dir, step)


def run_actions(
    mode: trainer_lib.ActionMode,
    actions: Mapping[trainer_lib.ActionMode, Sequence[trainer_lib.BaseAction]],
    train_state,
    metrics_by_task: Mapping,
) -> bool:
    """Runs the actions of `mode` on process 0; returns, in every process, whether one of them stops the run."""
    resolved = {task: m.result() if hasattr(m, "result") else m for task, m in metrics_by_task.items()}
    chosen = actions.get(mode, ()) if jax.process_index() == 0 else ()
    stop = any([action.run(train_state, resolved) for action in chosen])
    return bool(multihost_utils.broadcast_one_to_all(np.array(stop)))


def make_rngs(random_seed: int | None, use_hardware_rng: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the keys for initialization and for training, split from the seed as T5X splits them."""
    if use_hardware_rng or random_seed is None:
        jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    if random_seed is None:
        random_seed = int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
        logging.info("RANDOM_SEED is None; using %d", random_seed)
    # One program instead of one for each of its functions.
    return jax.jit(lambda: tuple(jax.random.split(jax.random.PRNGKey(random_seed))))()


def make_initializer(
    cls: type[TrainStateInitializer], model: models.BaseModel, layout, train_iter, partitioner
) -> TrainStateInitializer:
    spec = train_iter.element_spec
    return cls(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: (layout.batch_size, *x.shape[1:]) for name, x in spec.items()},
        input_types={name: x.dtype for name, x in spec.items()},
        partitioner=partitioner,
    )


def begin_new_run(trainer, train_iter, save_cfg: SaveCheckpointConfig | None, submit: Callable) -> None:
    """Begins to read the data and to compile the step."""
    if not (save_cfg and save_cfg.save_dataset):  # its position at step 0 is not saved yet
        train_iter.start()
    trainer.compile_ahead(train_iter.zeros(), submit)


@contextlib.contextmanager
def make_manager(cfg: SaveCheckpointConfig | None, model_dir: str, train_iter, initializer, partitioner):
    """Yields the run's checkpoint manager, or None where nothing is to be saved; waits for it at the end."""
    if cfg is None or not (cfg.period or cfg.checkpoint_steps):
        yield None
        return
    manager = initialization.create_orbax_checkpoint_manager(
        save_cfg=cfg,
        train_state=initializer.global_train_state_shape,
        partitioner=partitioner,
        ds_iter=train_iter,
        model_dir=model_dir,
    )
    with contextlib.closing(manager):
        yield manager


def describe_run(model_dir: str, initializer, partitioner, cfg: datasets.DatasetConfig) -> None:
    """Writes model-info.txt, says what is about to be trained and on what; raises ValueError if it cannot fit."""
    shape = initializer.global_train_state_shape
    initialization.check_divisible(initializer, partitioner.mesh)
    utils.log_model_info(os.path.join(model_dir, "model-info.txt"), shape, partitioner)
    devices = partitioner.mesh.devices
    name = cfg.mixture_or_task_name
    console.say(
        f"{model_info.count_parameters(shape):,} parameters on {devices.size} {devices.flat[0].platform} device"
        f"{'s' * (devices.size > 1)}; task {name if isinstance(name, str) else name.name}, "
        f"batches of {cfg.batch_size}, lengths {dict(cfg.task_feature_lengths)}"
    )
    parts = memory.state_parts(shape, initializer.train_state_axes, partitioner.mesh)
    logging.info("Memory: %s", memory.check_state(parts, partitioner.mesh))


if __name__ == "__main__":
    from t5x.embedded import programs

    programs.define_gin_flags()
    programs.define_distributed_flags()
    programs.define_train_flags()
    programs.run(train, overriding_flags=("allow_changes", "wandb"))
