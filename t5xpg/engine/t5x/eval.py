"""Evaluates checkpoints: `python -m t5xpg.t5x eval --gin_file=… --gin.CHECKPOINT_PATH=…`, and `evaluate` for Python."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable

import jax
import seqio
from jax.experimental import multihost_utils

from t5x import gin_utils, models, utils
from t5x.embedded import console, datasets, evaluation, initialization, peers
from t5x.embedded.checkpoint_configs import RestoreCheckpointConfig
from t5x.embedded.contract import refuse_missing
from t5x.embedded.evaluation import InferenceEvaluator
from t5x.embedded.initialization import TrainStateInitializer
from t5x.embedded.vocabulary_check import import_task_module
from t5xpg.base import files, stores

refuse_missing(globals(), "eval")


def evaluate(
    *,
    model: models.BaseTransformerModel,
    dataset_cfg: datasets.DatasetConfig,
    restore_checkpoint_cfg: RestoreCheckpointConfig,
    partitioner,
    output_dir: str,
    inference_evaluator_cls: Callable[..., seqio.Evaluator] = seqio.Evaluator,
    training_evaluator_cls: Callable | None = None,
    summarize_config_fn: Callable = gin_utils.summarize_gin_config,
    train_state_initializer_cls: type[TrainStateInitializer] = TrainStateInitializer,
    train_eval_get_dataset_fn: Callable = utils.get_training_eval_datasets,
    fallback_init_rng: int | None = None,
    use_orbax: bool = True,
) -> None:
    """Evaluates what the model of each checkpoint generates, with a task's own metrics.

    Writes inference_eval/<task>-metrics.jsonl and <task>-<step>.jsonl, TensorBoard's files next to them, and the
    paths of the evaluated checkpoints to eval.<task>.ckpt.

    Args:
      model: what to evaluate.
      dataset_cfg: the task and split.
      restore_checkpoint_cfg: one checkpoint ("specific"), or a folder's ("latest", "all"). With "all", those that
        an earlier run evaluated are left out.
      partitioner: partitioning.PjitPartitioner.
      output_dir: where everything is written.
      inference_evaluator_cls: seqio.Evaluator with its loggers bound.
      training_evaluator_cls: trainer.Trainer, to evaluate with teacher forcing as well.
      summarize_config_fn: (model_dir=, summary_writer=, step=) -> None, writes the configuration.
      train_state_initializer_cls: replaces initialization.TrainStateInitializer.
      train_eval_get_dataset_fn: data for training_evaluator_cls. The default needs `eval_steps`; in gin, bind
        @utils.get_training_eval_datasets and its eval_steps.
      fallback_init_rng: a seed for parameters that the checkpoint lacks, where restoring may fall back to scratch.
      use_orbax: accepted for T5X's gin files.

    Raises:
      ValueError: there is no checkpoint, or the task has no metrics or no such split.
    """
    output_dir = stores.plain(output_dir)
    files.make_folder(output_dir)
    import_task_module(dataset_cfg.module)
    summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
    evaluator = InferenceEvaluator(dataset_cfg, inference_evaluator_cls, model, partitioner, output_dir)
    if not evaluator.eval_tasks:
        raise ValueError(nothing_to_evaluate(dataset_cfg))
    batch_size = dataset_cfg.batch_size
    initializer = train_state_initializer_cls(
        optimizer_def=None,
        init_fn=model.get_initial_variables,
        input_shapes={name: (batch_size, *shape) for name, shape in evaluator.model_feature_shapes.items()},
        partitioner=partitioner,
    )
    axes = initializer.train_state_axes
    initialization.check_divisible(initializer, partitioner.mesh)
    utils.log_model_info(os.path.join(output_dir, "model-info.txt"), initializer.global_train_state_shape, partitioner)
    with contextlib.closing(evaluator), contextlib.ExitStack() as stack:
        teacher = None
        if training_evaluator_cls is not None:
            layout = partitioner.get_data_layout(batch_size)
            eval_datasets = train_eval_get_dataset_fn(
                dataset_cfg, layout.shard_id, layout.num_shards, feature_converter_cls=model.FEATURE_CONVERTER_CLS
            )
            teacher = stack.enter_context(
                training_evaluator_cls(
                    model=model,
                    train_state=None,
                    partitioner=partitioner,
                    train_state_axes=axes,
                    eval_names=eval_datasets.keys(),
                    summary_dir=output_dir,
                    rng=jax.random.PRNGKey(0),
                    learning_rate_fn=None,
                    num_microbatches=None,
                )
            )
        done_file = os.path.join(output_dir, f"eval.{dataset_cfg.mixture_or_task_name}.ckpt")
        init_rng = None if fallback_init_rng is None else jax.random.PRNGKey(fallback_init_rng)
        stack.enter_context(peers.reporting())
        for path in checkpoints_to_evaluate(restore_checkpoint_cfg, done_file):
            console.say(f"Evaluating {path}")
            state, _ = utils.create_checkpoint_manager_and_restore(
                initializer, partitioner, restore_checkpoint_cfg, path, init_rng, model_dir=output_dir
            )
            if teacher is not None:
                evaluation.evaluate_with_teacher(teacher, state, eval_datasets)
            evaluator.evaluate(state, axes).result()
            multihost_utils.sync_global_devices(f"evaluated {path}")
            if jax.process_index() == 0:
                note_done(done_file, path)


def nothing_to_evaluate(dataset_cfg: datasets.DatasetConfig) -> str:
    """Returns what its tasks lack, which SeqIO leaves out without a word."""
    provider, split = dataset_cfg.mixture_or_task_name, dataset_cfg.split
    provider = seqio.get_mixture_or_task(provider) if isinstance(provider, str) else provider
    splits = sorted({each for task in seqio.get_subtasks(provider) for each in task.splits})
    if split in splits:
        return f"{provider.name} has no metrics to evaluate {split!r} with; give the task metric_fns."
    return f"{provider.name} has no split {split!r}, only {', '.join(splits)}; bind utils.DatasetConfig.split."


def checkpoints_to_evaluate(cfg: RestoreCheckpointConfig, done_file: str) -> list[str]:
    """Returns the checkpoints of `cfg`, oldest first; with mode "all", those that `done_file` does not name."""
    paths = cfg.found_checkpoint_paths()
    if cfg.mode != "all":
        return paths
    done = read_done(done_file)
    left = [path for path in paths if path not in done]
    if len(left) < len(paths):
        console.say(f"{len(paths) - len(left)} of {len(paths)} checkpoints have been evaluated already ({done_file})")
    return left


def read_done(done_file: str) -> list[str]:
    return files.read_text(done_file).split() if files.exists(done_file) else []


def note_done(done_file: str, path: str) -> None:
    """Adds `path` to the checkpoints that are evaluated, in the order of their steps."""
    done = {*read_done(done_file), path}
    in_order = sorted(done, key=lambda name: (int(re.search(r"(\d+)/?$", name)[1]), name))
    files.write_whole(done_file, "\n".join(in_order))


if __name__ == "__main__":
    from t5x.embedded import programs

    programs.define_gin_flags()
    programs.define_distributed_flags()
    programs.run(evaluate, "EVAL_OUTPUT_DIR")
