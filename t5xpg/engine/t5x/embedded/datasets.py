"""SeqIO tasks and mixtures as batches: the dataset configuration, its datasets, and the training iterator."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from jax.experimental import multihost_utils

from t5x.embedded import console
from t5x.embedded.packing import pack_by_batches
from t5x.embedded.vocabulary_check import import_task_module


@dataclasses.dataclass
class DatasetConfig:
    """What to read from a SeqIO task or mixture, and how.

    Attributes:
      mixture_or_task_name: a registered name, or the task or mixture itself.
      task_feature_lengths: {feature: maximum length in tokens}.
      split: "train", "validation", …
      batch_size: examples in a global batch.
      shuffle: whether to shuffle files and examples.
      seed: for shuffling and for random preprocessors; None takes the time.
      use_cached: whether to read SeqIO's offline cache rather than the source.
      pack: whether to pack several examples into one row.
      use_custom_packing_ops: tensor2tensor's packing op, where it is built.
      module: imported first, where it is what registers the task (gin's `import` does the same).
      use_memory_cache: whether evaluation batches stay in memory between rounds.
      trim_output_features: whether features are cut to task_feature_lengths.
    """

    mixture_or_task_name: str | seqio.Task | seqio.Mixture
    task_feature_lengths: Mapping[str, int]
    split: str
    batch_size: int
    shuffle: bool
    seed: int | None
    use_cached: bool = False
    pack: bool = False
    use_custom_packing_ops: bool = False
    module: str | None = None
    use_memory_cache: bool = True
    trim_output_features: bool = True

    def __post_init__(self):
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size!r}; set BATCH_SIZE to a whole number above 0.")
        if not isinstance(self.task_feature_lengths, Mapping | None):
            raise ValueError(
                f"task_feature_lengths is {self.task_feature_lengths!r}, which is no dict; write it so that the shell "
                "leaves the quotes: \"TASK_FEATURE_LENGTHS={'inputs': 256, 'targets': 48}\"."
            )


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
    if cfg.batch_size % num_shards:
        raise ValueError(
            f"batch_size {cfg.batch_size} must be a multiple of the {num_shards} processes' data shards."
        )
    seed = cfg.seed
    if seed is None:
        # One seed for all processes, or they would not agree on what is whose share.
        seed = int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
    logging.info("Reading %s, split %s, with seed %d", cfg.mixture_or_task_name, cfg.split, seed)
    converter = feature_converter_cls(pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops)
    return without_autograph(
        seqio.get_dataset,
        mixture_or_task_name=cfg.mixture_or_task_name,
        task_feature_lengths=cfg.task_feature_lengths,
        dataset_split=cfg.split,
        shuffle=cfg.shuffle,
        num_epochs=num_epochs,
        feature_converter=pack_by_batches(converter),
        shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
        use_cached=cfg.use_cached,
        seed=seed,
        trim_output_features=cfg.trim_output_features,
        batch_size=cfg.batch_size // num_shards,
    )


def without_autograph(build: Callable, *args, **kwargs) -> Any:
    """Calls `build`, which maps functions over datasets, without AutoGraph: converting them takes seconds a dataset.

    Nearly all have nothing to convert. One that has (an `if` or `for` over tensors) raises; then all is built again,
    converted.
    """
    try:
        return tf.autograph.experimental.do_not_convert(build)(*args, **kwargs)
    except (TypeError, RuntimeError) as error:
        logging.info("Building the dataset again, by AutoGraph: %s", error)
    return build(*args, **kwargs)


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
    provider = cfg.mixture_or_task_name
    if isinstance(provider, str):
        provider = seqio.get_mixture_or_task(provider)
    sources = [task for task in seqio.get_subtasks(provider) if has_split(task, cfg.split)]
    if isinstance(provider, seqio.Mixture):
        sources.append(provider)
    datasets = {}
    for source in sources:
        rows = get_dataset(
            dataclasses.replace(cfg, mixture_or_task_name=source.name, batch_size=1),
            shard_id=0,
            num_shards=1,
            feature_converter_cls=feature_converter_cls,
            # Finite, so that a split whose examples are all filtered away ends instead of spinning.
            num_epochs=eval_steps * cfg.batch_size,
        )
        batches = (
            rows.unbatch()
            .repeat()
            .shard(num_shards, shard_id)
            .batch(cfg.batch_size // num_shards, drop_remainder=True)
            .take(eval_steps)
        )
        datasets[source.name] = batches.cache() if cfg.use_memory_cache else batches
    return datasets


def has_split(task: seqio.Task, split: str) -> bool:
    if split not in task.splits:
        logging.warning("Task %s has no split %r, so it is not evaluated; it has %s", task.name, split, task.splits)
    return split in task.splits


class TrainIterator:
    """Sharded global batches from a tf.data.Dataset, with a state that can be saved and restored.

    Args:
      dataset: batches of this process's share.
      partitioner: places them on the devices.
    """

    def __init__(self, dataset: tf.data.Dataset, partitioner):
        self._iterator = iter(dataset)
        self._partitioner = partitioner
        self._first: Future | None = None
        num_shards = partitioner.get_data_layout().num_shards
        self.element_spec = {
            name: jax.ShapeDtypeStruct((spec.shape[0] * num_shards, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
            for name, spec in dataset.element_spec.items()
        }

    def warm_up(self) -> None:
        """Starts computing the first batch in the background. Save and restore before, or after it is taken."""
        pool = ThreadPoolExecutor(max_workers=1)
        self._first = pool.submit(next, self._iterator)
        pool.shutdown(wait=False)

    def __iter__(self) -> TrainIterator:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        first, self._first = self._first, None
        if first and wait([first], timeout=60).not_done:
            console.say("No batch after a minute of reading. `t5xpg check` tells whether any row makes an example.")
        batch = first.result() if first else next(self._iterator)
        return self._partitioner.shard_batch({name: x.numpy() for name, x in batch.items()})

    def zeros(self) -> dict[str, jax.Array]:
        """Returns an all-zero global batch, to compile for."""
        num_shards = self._partitioner.get_data_layout().num_shards
        local = {k: (s.shape[0] // num_shards, *s.shape[1:]) for k, s in self.element_spec.items()}
        return self._partitioner.shard_batch({k: np.zeros(local[k], s.dtype) for k, s in self.element_spec.items()})

    def save(self, path: str) -> None:
        """Writes the position in the data to `path` (a tf.train.Checkpoint prefix)."""
        tf.train.Checkpoint(ds=self._iterator).write(path)

    def restore(self, path: str) -> None:
        tf.train.Checkpoint(ds=self._iterator).read(path).assert_consumed()

    def skip(self, num_batches: int) -> None:
        """Reads and drops `num_batches`, to reach the position of an earlier run without its saved state."""
        for _ in range(num_batches):
            next(self._iterator)
