"""What of a task's or mixture's batches is known here to the last bit; all else is left to SeqIO.

Known is what is exactly of a kind that is listed: a class that a user derived from it is another.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import seqio
import tensorflow as tf

from t5xpg import objectives
from t5xpg.batchwise import dataset, examples, packing, tokens
from t5xpg.batchwise.mixing import Mix
from t5xpg.batchwise.stages import Way
from t5xpg.data.jsonl_task import JsonlMixture, JsonlTask
from t5xpg.data.sources import JsonlDataSource


def batches(
    provider: seqio.Task | seqio.Mixture,
    cfg: Any,
    shard_info: seqio.ShardInfo,
    converter_cls: Any,
    seed: int,
    num_epochs: int | None,
) -> tf.data.Dataset | None:
    """Returns what SeqIO would, made in arrays: batches of cfg.batch_size / num_shards examples, or None if it cannot.

    Args:
      provider: the task or mixture.
      cfg: T5X's DatasetConfig.
      shard_info: which of the shards is read.
      converter_cls: a class of seqio.FeatureConverter.
      seed: which all processes share.
      num_epochs: None repeats forever.

    Raises:
      ValueError: the lengths lose tokens, or as JsonlDataSource.get_dataset.
    """
    if unknown(provider, cfg, converter_cls, num_epochs) is not None:
        return None
    lengths = {name: int(length) for name, length in cfg.task_feature_lengths.items()}
    tasks = seqio.get_subtasks(provider)
    for task in tasks:
        if not isinstance(task.objective, objectives.Supervised):
            task.objective.check(lengths, task.output_features["targets"].vocabulary)
        if not (cfg.use_cached and task.supports_caching):
            task.say_remarks(cfg.split, cfg.shuffle, shard_info)

    def make_examples() -> Way | Mix:
        found = [dataset.examples_of(task, cfg, lengths, seed, shard_info, len(tasks)) for task in tasks]
        if len(tasks) == 1:
            return found[0]
        return Mix(found, dataset.no_examples(lengths), [provider.get_rate(task) for task in tasks], seed)

    converter = packing.CONVERTERS[converter_cls, frozenset(lengths)]
    return dataset.batches(make_examples, lengths, converter, cfg.pack, cfg.batch_size // shard_info.num_shards)


def unknown(
    provider: seqio.Task | seqio.Mixture, cfg: Any, converter_cls: Any, num_epochs: int | None = None
) -> str | None:
    """Returns what of such batches only SeqIO can make, in words; None if nothing. Arguments as for `batches`."""
    return next(_unknown(provider, cfg, converter_cls, num_epochs), None)


def _unknown(provider, cfg, converter_cls, num_epochs) -> Iterator[str]:
    lengths = cfg.task_feature_lengths or {}
    if num_epochs is not None:
        yield "data that end"
    if not cfg.trim_output_features or (cfg.pack and cfg.use_custom_packing_ops):
        yield "trim_output_features = False, or use_custom_packing_ops"
    if not all(isinstance(length, numbers.Integral) and int(length) > 0 for length in lengths.values()):
        yield f"the lengths {lengths}"
    if (converter_cls, frozenset(lengths)) not in packing.CONVERTERS:
        yield f"the converter {converter_cls} of {sorted(lengths)}"
    if type(provider) not in (JsonlTask, JsonlMixture):
        yield f"{provider.name}, a {type(provider).__name__}"
    for task in seqio.get_subtasks(provider):
        yield from _unknown_of(task, cfg)
    if isinstance(provider, JsonlMixture) and not all(provider.get_rate(task) > 0 for task in provider.tasks):
        yield f"a rate of {provider.name} that is not above 0"


def _unknown_of(task: seqio.Task, cfg: Any) -> Iterator[str]:
    yield from unknown_task(task)
    if cfg.split not in task.splits or set(cfg.task_feature_lengths) != set(task.output_features):
        yield f"{task.name}, which lacks a split or feature that is asked for"
    if cfg.use_cached and task.supports_caching and task.cache_dir is None:
        yield f"{task.name}'s cache, which is not there"
    if cfg.shuffle and task.shuffle_buffer_size is None:
        yield f"{task.name}, which has no shuffle_buffer_size"


def unknown_task(task: seqio.Task) -> Iterator[str]:
    """Yields what of a task is not known here, in words; what follows the first may be wrong."""
    if type(task) is not JsonlTask or type(task.source) is not JsonlDataSource:
        yield f"{task.name}, a {type(task).__name__} of a {type(task.source).__name__}"
        return
    vocabulary = task.output_features["targets"].vocabulary
    if type(task.objective) not in examples.STEPS:
        yield f"{task.name}'s objective, a {type(task.objective).__name__}"
    if type(vocabulary) not in tokens.KINDS:
        yield f"{task.name}'s vocabulary, a {type(vocabulary).__name__}"
    if dict(task.output_features) != objectives.output_features(task.objective, vocabulary):
        yield f"{task.name}'s features"
