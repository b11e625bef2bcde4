"""SeqIO's offline cache at a URL that TensorFlow cannot open: the same records, in the same order, read by ranges."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from typing import IO

import google_crc32c
import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base import files, stores
from t5xpg.data.jsonl import UNBOUNDED, JsonlError
from t5xpg.data.kept import Kept
from t5xpg.data.tf_functions import numpy_function

_WINDOW = 1024 * 1024  # bytes of records that tf.data gets at a time
_STREAMS = 64  # open at most, each at its next window


def is_needed(folder: str) -> bool:
    """Whether TensorFlow cannot read there: all URLs but Google's own service of gs://."""
    found = stores.scheme(folder)
    return bool(found) and (found != "gs" or "STORAGE_EMULATOR_HOST" in os.environ)


class StoredCache(seqio.FileDataSource):
    """A split of a task's cache, as SeqIO's own source of cached data.

    Deviation: ragged features, of which t5xpg's tasks have none, are refused.

    Args:
      cache_dir: the task's folder.
      split: one of those that were cached.
      file_shuffle_buffer_size: as for seqio.FileDataSource.

    Raises:
      StoreError: there is no such cache, or the store cannot be asked.
      ValueError: a ragged feature.
    """

    def __init__(self, cache_dir: str, split: str, file_shuffle_buffer_size: int | None = None):
        info = json.loads(files.read_text(seqio.get_cached_info_path(cache_dir, split)))
        stats = json.loads(files.read_text(seqio.get_cached_stats_path(cache_dir, split)))
        count, prefix = info["num_shards"], seqio.get_cached_tfrecord_prefix(cache_dir, split)
        self._shards = [f"{prefix}-{shard:05d}-of-{count:05d}" for shard in range(count)]
        reader = RecordReader()
        features = info["features"]
        description = {name: _described(name, **feature) for name, feature in features.items()}

        def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
            example = tf.io.parse_single_example(record, description)
            return {name: tf.cast(value, features[name]["dtype"]) for name, value in example.items()}

        def read_file(path: tf.Tensor) -> tf.data.Dataset:
            def read(number: tf.Tensor) -> tf.Tensor:
                return tf.ensure_shape(numpy_function(reader, [path, number], tf.string), [None])

            windows = tf.data.Dataset.range(UNBOUNDED).map(read)
            return windows.take_while(lambda records: tf.size(records) > 0).unbatch().map(parse)

        super().__init__(
            read_file_fn=read_file,
            split_to_filepattern={split: self._shards},
            num_input_examples={split: stats["examples"]},
            file_shuffle_buffer_size=file_shuffle_buffer_size,
        )

    def list_shards(self, split: str) -> Sequence[str]:
        return self._shards


def _described(name: str, shape: Sequence[int | None], dtype: str):
    """Returns how TensorFlow is to read a feature of this shape; integers and booleans are stored as int64."""
    if None in shape[1:]:
        raise ValueError(f"the cached feature {name!r} is ragged; copy the cache to a disk to read it.")
    stored = "int64" if dtype in ("int32", "bool") else dtype
    if shape and shape[0] is None:
        return tf.io.FixedLenSequenceFeature(shape[1:], stored, allow_missing=True)
    return tf.io.FixedLenFeature(shape, stored)


class RecordReader:
    """Called by tf.data for window `number` of a file: an array of records, [records]; empty at the end.

    A pure function of its arguments; the streams it keeps save reading a file from its start again. Only right after
    an error, which tf.data hands on and then asks for the next window, is the file at its end, once.
    """

    def __init__(self):
        self._streams: Kept[tuple[str, int], Iterator[list[bytes]]] = Kept(_STREAMS)
        self._errors: dict[str, int] = {}  # {file: window that could not be read}

    def __call__(self, path: bytes, number: np.int64) -> np.ndarray:
        url, index = path.decode(), int(number)
        if index == self._errors.pop(url, UNBOUNDED) + 1:
            return np.array([], dtype=object)
        stream = self._streams.take((url, index)) or itertools.islice(_windows(url), index, None)
        try:
            window = next(stream, [])
        except JsonlError:
            self._errors[url] = index
            raise
        if window:
            self._streams.put((url, index + 1), stream)
        return np.array(window, dtype=object)


def _windows(url: str) -> Iterator[list[bytes]]:
    try:
        with files.open_binary(url) as file:
            records, length = [], 0
            for record in _records(file, url):
                records.append(record)
                length += len(record)
                if length > _WINDOW:
                    yield records
                    records, length = [], 0
            if records:
                yield records
    except GeneratorExit:  # abandoned, perhaps as Python exits, with `stores` gone already
        raise
    except stores.StoreError as error:
        raise JsonlError(str(error)) from error


def _records(file: IO[bytes], url: str) -> Iterator[bytes]:
    """Yields a TFRecord file's records: length, its checksum, content, its checksum; all are checked."""
    while header := file.read(12):
        if len(header) < 12 or _checksum(header[:8]) != header[8:]:
            raise JsonlError(f"{url}: damaged at a record's length. Cache the task again")
        (length,) = struct.unpack("<Q", header[:8])
        content, found = file.read(length), file.read(4)
        if len(content) < length or _checksum(content) != found:
            raise JsonlError(f"{url}: a record is damaged or cut off. Cache the task again")
        yield content


def _checksum(content: bytes) -> bytes:
    """Returns TFRecord's: CRC-32C, rotated by 15 bits, plus a constant, so that a checksum is none of itself."""
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
