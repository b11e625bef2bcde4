"""A task's batches for training, made in arrays, as a tf.data.Dataset; or why they cannot be.

The dataset scans: its state is the place in the data as bytes, from which Python makes the next batches and the next
place. So TensorFlow saves and restores its iterators, and any part of it is a pure function. Python keeps what it has
made a place of, so that the next call needs not begin with bytes.
"""

from __future__ import annotations

import functools
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
from flax import serialization

from t5xpg import objectives
from t5xpg.batchwise import examples, packing, stages, tokens
from t5xpg.batchwise.examples import Lengths
from t5xpg.batchwise.readers import CacheReader, JsonlReader, Reader, cached_files, parsed
from t5xpg.batchwise.rows import Rows, Texts
from t5xpg.batchwise.stages import Block, Way
from t5xpg.data.jsonl_task import MOST_ROWS_IN_MEMORY, JsonlTask
from t5xpg.data.kept import Kept
from t5xpg.data.tf_functions import numpy_function

_EXAMPLES = 4096  # shuffled and packed at a time: a block of long documents has twenty times as many
_ITERATORS = 4  # that go on without restoring their place, at most
_ID = 16  # bytes


def examples_of(task: JsonlTask, cfg: Any, lengths: Lengths, seed: int, shard_info: seqio.ShardInfo, tasks: int) -> Way:
    """Returns the way from a task's rows, or those in its cache, to its examples, shuffled if asked for.

    One of many `tasks` gives fewer at a time and makes none ahead: what waits for its turn is memory, and in the place.
    """
    vocabulary, split = task.output_features["targets"].vocabulary, cfg.split
    use_cached = cfg.use_cached and task.supports_caching
    shards = cached_files(task.cache_dir, split) if use_cached else task.source.list_shards(split)
    in_source = len(shards) >= shard_info.num_shards
    share = (0, 1) if in_source else (shard_info.index, shard_info.num_shards)
    info, order_seed = shard_info if in_source else None, seed if cfg.shuffle else None
    if use_cached:
        reader: Reader = CacheReader(shards[info.index :: info.num_shards] if info else shards, order_seed)
        keep = task.get_cached_stats(split)["examples"] < MOST_ROWS_IN_MEMORY * shard_info.num_shards
        features = [name for name, column in task.objective.key_map.items() if column]
        tokenize = functools.partial(parsed, features=features)
    else:
        reader = JsonlReader(task.source, task.source.pieces(split, info), order_seed)
        keep = task.keeps_rows(split, shard_info)
        tokenize = functools.partial(_encoded, objective=task.objective, vocabulary=vocabulary)
    wanted = examples.Wanted(task.objective, vocabulary, lengths, task.seed_after_cache(seed))
    rows = Rows(f"{task.name}, {split}", reader, share, keep, tasks * sum(lengths.values()))
    way = Way(rows, [tokenize, *examples.STEPS[type(task.objective)](wanted)])
    portions = stages.Portions(way, -(-_EXAMPLES // tasks), ahead=int(tasks == 1))
    return Way(portions, [stages.Shuffle(no_examples(lengths), task.shuffle_buffer_size, seed)] if cfg.shuffle else [])


def no_examples(lengths: Lengths) -> Block:
    return {name: np.zeros([0, length], np.int32) for name, length in lengths.items()}


def _encoded(texts: Texts, objective: objectives.Objective, vocabulary: seqio.Vocabulary) -> examples.Features:
    return {feature: tokens.encode(column, vocabulary) for feature, column in tokens.texts_of(texts, objective).items()}


def batches(
    make_examples: Callable[[], Any], lengths: Lengths, converter: packing.Converter, pack: bool, size: int
) -> tf.data.Dataset:
    """Returns endless batches of `size` rows, packed or padded, as a model reads them; all iterators have the same.

    Args:
      make_examples: gives a new way from rows to examples, at its start.
      lengths: {feature: length}.
      converter: of rows to what the model reads.
      pack: whether to pack.
      size: of a batch.
    """
    # Freed at once, which is what it is for: of memory that is freed, glibc gives the system what is beyond twice the
    # largest array freed before, if that had at most 32 MiB, and page by page takes it again, a third of the time.
    np.empty(2**25 - 2**14, np.uint8)
    nothing = no_examples(lengths)
    empty = converter(packing.pack(nothing, lengths) if pack else nothing)
    names = list(empty)

    def new() -> Way:
        packs = [packing.Pack(nothing, lengths)] if pack else []
        return Way(make_examples(), [*packs, converter])

    kept: Kept[bytes, Way] = Kept(_ITERATORS)
    kept.put(b"", new())  # which raises where the files are not as they should be

    def go_on(place: bytes) -> list:
        way = kept.take(place[:_ID])
        if way is None:
            way = new()
            if place:
                way.place = serialization.msgpack_restore(place[_ID:])
        made, name = way(), uuid.uuid4().bytes
        kept.put(name, way)
        return [name + serialization.msgpack_serialize(way.place), *(np.ascontiguousarray(made[key]) for key in names)]

    def scan(place: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        place, *made = numpy_function(go_on, [place], [tf.string, *(tf.int32 for _ in names)])
        shaped = [tf.ensure_shape(x, [None, empty[key].shape[1]]) for key, x in zip(names, made, strict=True)]
        return tf.ensure_shape(place, []), dict(zip(names, shaped, strict=True))

    blocks = tf.data.Dataset.range(2**62).scan(tf.constant(b""), scan)
    weakref.finalize(blocks, kept.close)  # TensorFlow keeps functions for as long as the process runs
    return blocks.prefetch(1).rebatch(size, drop_remainder=True)
