"""What to read from a SeqIO task or mixture, and batches of it for training, placed on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seqio
import tensorflow as tf
from clu.data.dataset_iterator import DatasetIterator, PeekableDatasetIterator, TfDatasetIterator

from t5x.embedded import waiting
from t5xpg.base import run_settings


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
      module: imported first, to register the task (gin's `import` does the same).
      use_memory_cache: whether evaluation batches stay in memory between rounds.
      trim_output_features: whether features are cut to task_feature_lengths.
      runtime_preprocessors, num_prefetch_threads, num_workers: accepted for T5X's gin files; they configure AirIO,
        T5X's alternative to SeqIO; SeqIO does not need them.
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
    runtime_preprocessors: Sequence[Any] | None = None
    num_prefetch_threads: int | None = None
    num_workers: int | None = 0

    def __post_init__(self):
        run_settings.check_whole("BATCH_SIZE", self.batch_size)
        if not isinstance(self.task_feature_lengths, Mapping | None):
            raise ValueError(
                f"task_feature_lengths is {self.task_feature_lengths!r}, which is not a dict; write it so that the "
                "shell leaves the quotes: \"TASK_FEATURE_LENGTHS={'inputs': 256, 'targets': 48}\"."
            )


class ShardedDatasetIterator(DatasetIterator):
    """Sharded global batches from an iterator over this process's share of them.

    Args:
      iterator: gives {feature: [local batch, length]}.
      partitioner: places them on the devices.
      global_shapes: {feature: [global batch, length]}.

    `element_spec` is that of the share.
    """

    def __init__(self, iterator: DatasetIterator, partitioner, global_shapes: Mapping[str, tuple[int, ...]]):
        self._iterator, self._partitioner, self._global_shapes = iterator, partitioner, global_shapes

    def __next__(self) -> dict[str, jax.Array]:
        batch = self._partitioner.shard_batch(next(self._iterator))
        found = {name: x.shape for name, x in batch.items()}
        if found != self._global_shapes:
            raise ValueError(f"A batch has the shapes {found}, where {self._global_shapes} were announced.")
        return batch

    def reset(self) -> None:
        self._iterator.reset()

    @property
    def element_spec(self):
        return self._iterator.element_spec

    @property
    def iterator(self):
        """The iterator below: tf.data's, where there is one."""
        return self._iterator.iterator if isinstance(self._iterator, TfDatasetIterator) else self._iterator

    def save(self, filename: str) -> None:
        """Writes the position in the data to `filename` (a tf.train.Checkpoint prefix)."""
        self._iterator.save(filename)

    def restore(self, filename: str) -> None:
        self._iterator.restore(filename)

    def zeros(self) -> dict[str, jax.Array]:
        """Returns an all-zero global batch, to compile for."""
        return self._partitioner.shard_batch({k: np.zeros(x.shape, x.dtype) for k, x in self.element_spec.items()})


class TrainIterator(PeekableDatasetIterator):
    """A ShardedDatasetIterator that is waited for by `waiting.Batches`, and can start on its first batch early.

    Save before `start`, or when it is not `reading`.
    """

    def __init__(self, batches: ShardedDatasetIterator):
        super().__init__(batches)
        self.zeros = batches.zeros
        self._local = batches.iterator
        self._batches = waiting.Batches(super().__next__, "the training data")

    def wait_as(self, what: str, explain: Callable[[], str | None] | None = None) -> None:
        """Names the data where a batch does not come, and says how to find out why; see `waiting.Batches`."""
        self._batches.name(what, explain)

    def __next__(self) -> dict[str, jax.Array]:
        return next(self._batches)

    def start(self) -> None:
        """Begins to read the next batch."""
        self._batches.start()

    @property
    def reading(self) -> bool:
        """Whether a batch is being read, so that the position cannot be saved."""
        return self._batches.reading

    def skip(self, num_batches: int) -> None:
        """Reads and drops `num_batches`, to reach the position of an earlier run without its saved state."""
        batches = waiting.Batches(self._local.__next__, "the training data, to read past what is done")
        for _ in range(num_batches):
            next(batches)


def prepare_train_iter(
    train_iter: tf.data.Dataset | DatasetIterator, *, partitioner, checkpoint_cfg, data_layout
) -> TrainIterator:
    """Returns the iterator over global batches that training reads from.

    Args:
      train_iter: batches of this process's share.
      partitioner: places them on the devices.
      checkpoint_cfg: part of T5X's interface.
      data_layout: has the size of a global batch.
    """
    del checkpoint_cfg
    if isinstance(train_iter, tf.data.Dataset):
        train_iter = TfDatasetIterator(train_iter, checkpoint=True)
    elif not isinstance(train_iter, DatasetIterator):
        raise ValueError(
            f"get_dataset_fn returned a {type(train_iter).__name__}; return a tf.data.Dataset or a clu.data "
            "DatasetIterator."
        )
    spec = train_iter.element_spec
    shapes = {name: (data_layout.batch_size, *x.shape[1:]) for name, x in spec.items()}
    return TrainIterator(ShardedDatasetIterator(train_iter, partitioner, shapes))


def check_split(cfg: DatasetConfig) -> None:
    """Raises ValueError where no source has the split.

    Nothing is said of a cache, which says so itself, of TFDS, whose splits may be slices, or of sources that name none.
    """
    provider = cfg.mixture_or_task_name
    provider = seqio.get_mixture_or_task(provider) if isinstance(provider, str) else provider
    tasks = seqio.get_subtasks(provider)
    if cfg.use_cached or any(isinstance(task.source, seqio.TfdsDataSource) for task in tasks):
        return
    splits = sorted({split for task in tasks for split in task.source.splits or ()})  # the task's own raise for none
    if splits and cfg.split not in splits:
        raise ValueError(
            f"{provider.name} has no split {cfg.split!r}, only {', '.join(splits)}; bind utils.DatasetConfig.split, "
            "in its scope where it has one (train/, train_eval/, infer_eval/)."
        )


def why_no_example(cfg: DatasetConfig, shard_id: int, num_shards: int) -> str | None:
    """Returns a line on the first task none of whose rows makes an example; None where each makes one.

    Reads each task until its first example; without one, all of its rows, and those once more to count them.
    """
    provider = cfg.mixture_or_task_name
    provider = seqio.get_mixture_or_task(provider) if isinstance(provider, str) else provider
    shard = seqio.ShardInfo(index=shard_id, num_shards=num_shards)
    for task in seqio.get_subtasks(provider):
        examples = task.get_dataset(
            sequence_length=cfg.task_feature_lengths,
            split=cfg.split,
            use_cached=cfg.use_cached,
            shuffle=False,
            shard_info=shard,
            num_epochs=1,
            seed=cfg.seed,
            trim_output_features=cfg.trim_output_features,
        )
        if next(iter(examples), None) is not None:
            continue
        rows = "no row" if cfg.use_cached else f"none of {count_rows(task, cfg.split, shard):,} rows"
        return (
            f"{task.name}: {rows} of its split {cfg.split!r} makes an example. Are FILES, the keys and "
            "TASK_FEATURE_LENGTHS those that are meant, and what do its preprocessors leave out?"
        )
    return None


def count_rows(task: seqio.Task, split: str, shard: seqio.ShardInfo) -> int:
    rows = task.source.get_dataset(split=split, shuffle=False, shard_info=shard)
    return int(rows.reduce(np.int64(0), lambda count, _: count + 1))


def get_zeros_batch_like_spec(batch_spec: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    return {name: jnp.zeros(x.shape, x.dtype) for name, x in batch_spec.items()}


def get_zeros_batch_like_dataset(dataset: tf.data.Dataset, batch_size: int | None = None) -> dict[str, jax.Array]:
    """Returns a batch of zeros with a dataset's shapes and dtypes; `batch_size` replaces its first dimension."""
    lead = () if batch_size is None else (batch_size,)
    return {
        name: jnp.zeros((*lead, *x.shape[len(lead) :]), x.dtype.as_numpy_dtype)
        for name, x in dataset.element_spec.items()
    }
