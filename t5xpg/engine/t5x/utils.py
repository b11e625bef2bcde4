"""What gin files bind as `utils.…`: a run's data, and T5X's names for configurations, restoring and inference."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from clu.data.dataset_iterator import DatasetIterator
from flax import traverse_util
from flax.core import freeze
from flax.linen import partitioning as flax_partitioning
from jax.experimental import multihost_utils
from seqio import TensorBoardLogger

from t5x.checkpoints import get_local_data
from t5x.embedded.checkpoint_configs import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from t5x.embedded.contract import refuse_missing
from t5x.embedded.datasets import (
    DatasetConfig,
    ShardedDatasetIterator,
    check_split,
    get_zeros_batch_like_dataset,
    get_zeros_batch_like_spec,
    prepare_train_iter,
)
from t5x.embedded.inference import get_infer_fn
from t5x.embedded.initialization import (
    TrainStateInitializer,
    create_checkpoint_manager_and_restore,
    create_orbax_checkpoint_manager,
    get_fallback_state,
    get_first_valid_restore_config_and_paths,
    restore,
)
from t5x.embedded.learning_rates import create_learning_rate_scheduler
from t5x.embedded.model_info import model_info_lines
from t5x.embedded.packing import make_converter
from t5x.embedded.vocabulary_check import get_vocabulary, import_module, import_task_module, verify_matching_vocabs
from t5xpg.base.files import open_whole

refuse_missing(globals(), "utils")

__all__ = [
    "CheckpointConfig",
    "DatasetConfig",
    "EvaluatorConstructor",
    "GetDatasetCallable",
    "GetEvalDatasetCallable",
    "InferFnCallable",
    "InferStepCallable",
    "InitFnCallable",
    "LearningRateCallable",
    "RestoreCheckpointConfig",
    "SaveCheckpointConfig",
    "ShardedDatasetIterator",
    "TensorBoardLogger",
    "TrainStateInitializer",
    "create_checkpoint_manager_and_restore",
    "create_learning_rate_scheduler",
    "create_orbax_checkpoint_manager",
    "flatten_dict_string_keys",
    "get_dataset",
    "get_dataset_inner",
    "get_fallback_state",
    "get_first_valid_restore_config_and_paths",
    "get_infer_fn",
    "get_local_data",
    "get_training_eval_datasets",
    "get_vocabulary",
    "get_zeros_batch_like_dataset",
    "get_zeros_batch_like_spec",
    "import_module",
    "log_model_info",
    "multihost_assert_equal",
    "override_params_axes_names",
    "prepare_train_iter",
    "restore",
    "round_vocab_size_to_multiple",
    "set_hardware_rng_ops",
    "sync_global_devices",
    "verify_matching_vocabs",
]

# T5X's names for what programs are given; the functions of these roles in this module show their arguments.
EvaluatorConstructor = Callable[..., seqio.Evaluator]
GetDatasetCallable = Callable[..., tf.data.Dataset | DatasetIterator]
GetEvalDatasetCallable = Callable[..., Mapping[str, tf.data.Dataset]]
InferFnCallable = InferStepCallable = InitFnCallable = Callable[..., Any]
LearningRateCallable = Callable[[jax.Array], jax.Array]


def get_dataset(
    cfg: DatasetConfig,
    shard_id: int,
    num_shards: int,
    feature_converter_cls: Callable[..., seqio.FeatureConverter],
    num_epochs: int | None = None,
    continue_from_last_checkpoint: bool = False,
) -> tf.data.Dataset:
    """Returns shard `shard_id` of `num_shards` as batches of batch_size / num_shards examples.

    Repeats forever unless `num_epochs` is given. `continue_from_last_checkpoint` is part of the interface of
    dataset functions; this one starts at the beginning, and the train program restores its iterator.
    """
    import_task_module(cfg.module)
    if continue_from_last_checkpoint:
        raise ValueError("get_dataset cannot continue by itself; bind SaveCheckpointConfig.save_dataset = True.")
    check_batch_size(cfg.batch_size, num_shards)
    seed = cfg.seed
    if seed is None:
        # One seed for all processes, or they would not agree on their shares.
        seed = int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
    return get_dataset_inner(cfg, seqio.ShardInfo(shard_id, num_shards), feature_converter_cls, seed, num_epochs)


def get_dataset_inner(
    cfg: DatasetConfig,
    shard_info: seqio.ShardInfo,
    feature_converter_cls: Callable[..., seqio.FeatureConverter],
    seed: int | None = None,
    num_epochs: int | None = None,
) -> tf.data.Dataset:
    """Returns get_dataset's batches; the seed, which all processes must share, is given."""
    check_split(cfg)
    logging.info("Reading %s, split %s, with seed %s", cfg.mixture_or_task_name, cfg.split, seed)
    provider = cfg.mixture_or_task_name
    provider = seqio.get_mixture_or_task(provider) if isinstance(provider, str) else provider
    if make_batches := getattr(provider, "batches", None):
        batches = make_batches(cfg, shard_info, feature_converter_cls, seed, num_epochs)
        if batches is not None:
            return batches
    return seqio.get_dataset(
        mixture_or_task_name=cfg.mixture_or_task_name,
        task_feature_lengths=cfg.task_feature_lengths,
        dataset_split=cfg.split,
        shuffle=cfg.shuffle,
        num_epochs=num_epochs,
        feature_converter=make_converter(
            feature_converter_cls, pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops
        ),
        shard_info=shard_info,
        use_cached=cfg.use_cached,
        seed=seed,
        trim_output_features=cfg.trim_output_features,
        batch_size=cfg.batch_size // shard_info.num_shards,
    )


def check_batch_size(batch_size: int, num_shards: int) -> None:
    if batch_size % num_shards:
        raise ValueError(f"batch_size {batch_size} must be a multiple of the {num_shards} processes' data shards.")


def get_training_eval_datasets(
    cfg: DatasetConfig,
    shard_id: int,
    num_shards: int,
    eval_steps: int,
    feature_converter_cls: Callable[..., seqio.FeatureConverter],
) -> dict[str, tf.data.Dataset]:
    """Returns {task: `eval_steps` batches} for the task, or for each task of a mixture and the mixture.

    Small splits repeat until the batches are full. Every process reads the whole split and takes its rows of
    each batch, so that uneven files cannot leave one of them without a batch.
    """
    import_task_module(cfg.module)
    check_batch_size(cfg.batch_size, num_shards)
    provider = cfg.mixture_or_task_name
    if isinstance(provider, str):
        provider = seqio.get_mixture_or_task(provider)
    sources = {task.name: task.name for task in seqio.get_subtasks(provider) if has_split(task, cfg.split)}
    if isinstance(provider, seqio.Mixture):
        sources[provider.name] = cfg.mixture_or_task_name
    datasets = {}
    for name, source in sources.items():
        rows = get_dataset(
            dataclasses.replace(cfg, mixture_or_task_name=source, batch_size=1),
            shard_id=0,
            num_shards=1,
            feature_converter_cls=feature_converter_cls,
            # Finite, so that a split whose examples are all filtered away ends instead of spinning.
            num_epochs=eval_steps * cfg.batch_size,
            continue_from_last_checkpoint=False,
        )
        batches = (
            rows.unbatch()
            .repeat()
            .shard(num_shards, shard_id)
            .batch(cfg.batch_size // num_shards, drop_remainder=True)
            .take(eval_steps)
        )
        datasets[name] = batches.cache() if cfg.use_memory_cache else batches
    return datasets


def has_split(task: seqio.Task, split: str) -> bool:
    if split not in task.splits:
        logging.warning("Task %s has no split %r, so it is not evaluated; it has %s", task.name, split, task.splits)
    return split in task.splits


def log_model_info(log_file: str | None, full_train_state, partitioner) -> None:
    """Logs every variable's size, shape and sharding, and writes them to `log_file` if given; from process 0.

    Args:
      log_file: usually MODEL_DIR/model-info.txt.
      full_train_state: the train state, by values or by shapes.
      partitioner: knows the variables' axes.
    """
    if jax.process_index() != 0:
        return
    lines = model_info_lines(full_train_state, partitioner)
    for line in lines:
        logging.info("%s", line)
    if log_file is not None:
        with open_whole(log_file) as file:
            file.write("\n".join(lines) + "\n")


def round_vocab_size_to_multiple(vocabulary, divisor: int = 128) -> int:
    """Returns the vocabulary's size rounded up to a multiple that suits the hardware."""
    size = vocabulary.vocab_size
    return size + -size % divisor


def flatten_dict_string_keys(x: Mapping) -> dict:
    """Returns {"a/b/c": leaf} of nested dicts."""
    return traverse_util.flatten_dict(x, sep="/")


def override_params_axes_names(
    model_variables: Mapping, params_axes_names_override: Sequence[tuple[str, tuple[str, ...]]] = ()
) -> Mapping:
    """Returns a model's variables with other logical axis names for some parameters.

    Args:
      model_variables: {"params", "params_axes", …}.
      params_axes_names_override: (pattern, axis names) pairs. The first pattern that matches a parameter's whole name
        ("encoder/…/kernel") decides.

    Raises:
      ValueError: there are no axis names to override, or there are not as many as the parameter has axes.
    """
    if "params_axes" not in model_variables:
        raise ValueError("These variables have no 'params_axes' to override; take those of get_initial_variables.")
    axes = flatten_dict_string_keys(model_variables["params_axes"])
    for name, param in flatten_dict_string_keys(model_variables["params"]).items():
        names = next((names for pattern, names in params_axes_names_override if re.fullmatch(pattern, name)), None)
        if names is None:
            continue
        if len(names) != param.ndim:
            raise ValueError(f"{name} has {param.ndim} axes, and params_axes_names_override names {names}; name each.")
        axes[f"{name}_axes"] = flax_partitioning.AxisMetadata(names=tuple(names))
    return freeze({**model_variables, "params_axes": traverse_util.unflatten_dict(axes, sep="/")})


def set_hardware_rng_ops() -> None:
    """Makes JAX use the hardware's fast random generator, whose numbers depend on hardware and sharding."""
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")


def sync_global_devices(name: str) -> None:
    """Waits until all processes have come here."""
    multihost_utils.sync_global_devices(name)


def multihost_assert_equal(input_tree, fail_message: str = "") -> None:
    """Raises AssertionError unless all processes hold the same values."""
    multihost_utils.assert_equal(input_tree, fail_message)
