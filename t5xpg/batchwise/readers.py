"""Where rows come from, JSONL files or SeqIO's offline cache: windows of rows, and each epoch's order of the pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base import files
from t5xpg.batchwise.ragged import Ragged
from t5xpg.batchwise.random_numbers import dataset_stream
from t5xpg.data.jsonl import Piece
from t5xpg.data.sources import INTERLEAVED_PIECES, JsonlDataSource, WindowReader
from t5xpg.data.stored_cache import RecordReader

Window = list[np.ndarray]  # per column, [rows]


class JsonlReader:
    """As `JsonlDataSource.get_dataset`; `seed` is None without shuffling.

    Attributes:
      columns: names of what a row has.
      slots: how many pieces are open at a time.
    """

    def __init__(self, source: JsonlDataSource, pieces: list[Piece], seed: int | None):
        self._reader = WindowReader(pieces, source.columns, seed is not None)
        self._words = None if seed is None else dataset_stream(seed)
        self.columns, self.slots = list(source.columns), 1 if seed is None else INTERLEAVED_PIECES

    def epoch(self, number: int) -> list[tuple[int, int]]:
        """Returns the pieces in the order of an epoch, each with what decides the order within it."""
        # tf.data draws a number anew for each iterator over a source.
        salt = 0 if self._words is None else int(self._words.of_iterator(number).words(0, 1)[0])
        return [(piece, salt) for piece in self._reader.order(salt).tolist()]

    def window(self, piece: int, number: int, salt: int) -> Window:
        """Returns a piece's window; beyond its last, one without rows."""
        if number >= self._reader.windows(piece):
            return [np.array([], object)] * len(self.columns)
        return self._reader(np.int64(piece), np.int64(number), np.int64(salt))


class CacheReader:
    """As SeqIO's source of cached data, of rows that have one column: the serialized example.

    Args:
      paths: of the files.
      seed: None without shuffling.
    """

    columns, slots = ("example",), 16  # SeqIO's

    def __init__(self, paths: list[str], seed: int | None):
        self._files, self._reader = paths, RecordReader()
        self._words = None if seed is None else dataset_stream(seed)

    def epoch(self, number: int) -> list[tuple[int, int]]:
        order = list(range(len(self._files)))
        if self._words is not None:  # tf.data's `shuffle` with room for all
            for place, word in enumerate(self._words.of_iterator(number).words(0, len(order)).tolist()):
                chosen = place + word % (len(order) - place)
                order[place], order[chosen] = order[chosen], order[place]
        return [(file, 0) for file in order]

    def window(self, piece: int, number: int, _: int) -> Window:
        return [self._reader(self._files[piece].encode(), np.int64(number))]


Reader = JsonlReader | CacheReader


def cached_files(folder: str | None, split: str) -> list[str]:
    """Returns the paths of a split's files in a task's cache."""
    count = json.loads(files.read_text(seqio.get_cached_info_path(folder, split)))["num_shards"]
    prefix = seqio.get_cached_tfrecord_prefix(folder, split)
    return [f"{prefix}-{shard:05d}-of-{count:05d}" for shard in range(count)]


def parsed(rows: dict[str, list[bytes]], features: Sequence[str]) -> dict[str, Ragged]:
    """Returns the tokens of cached examples, {feature: int32}."""
    with tf.device("CPU"):
        wanted = {feature: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for feature in features}
        found = tf.io.parse_example(tf.constant(rows["example"], tf.string), wanted)
        return {
            feature: Ragged(ids.values.numpy().astype(np.int32), ids.row_lengths().numpy())
            for feature, ids in found.items()
        }
