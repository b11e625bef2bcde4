"""What a part of an offline cache holds: its tf.train.Examples, and what is counted of them.

For any task tf.data makes them, one after the other. Of a `JsonlTask` as `tasks.jsonl_task` registers it, texts and
their ids are known: these are made many at a time, and are the same, byte for byte, in the same order.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg import objectives
from t5xpg.batchwise import reading, tokens
from t5xpg.batchwise.ragged import Ragged
from t5xpg.batchwise.random_numbers import dataset_stream
from t5xpg.data import sources
from t5xpg.data.jsonl_task import JsonlTask
from t5xpg.data.workers import advance

_SHUFFLE_BUFFER = 1000  # rows, as SeqIO's when it reads


@dataclasses.dataclass
class Tally:
    """What the files info.<split>.json and stats.<split>.json say, of one part.

    Attributes:
      features: {feature: {"shape", "dtype"}}; none where there is no example.
      stats: {"examples": …, "targets_tokens": …, "targets_max_tokens": …}; tokens are ids that are neither padding nor
        EOS.
    """

    features: dict[str, Any] = dataclasses.field(default_factory=dict)
    stats: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def count(self, feature: str, sequences: Ragged, vocabulary: seqio.Vocabulary) -> None:
        """Adds the tokens of a feature of many examples."""
        special = [i for i in (vocabulary.eos_id, vocabulary.pad_id) if i is not None]
        total = np.concatenate([[0], np.cumsum(~np.isin(sequences.values, special))])  # before each id, and in all
        found = total[sequences.starts + sequences.sizes] - total[sequences.starts]
        self.stats[f"{feature}_tokens"] += int(found.sum())
        name = f"{feature}_max_tokens"
        self.stats[name] = max(self.stats[name], int(found.max()))


def records(
    task: seqio.Task, split: str, share: seqio.ShardInfo, seed: int, size: int, tally: Tally
) -> Iterator[bytes]:
    """Yields the part's records in the order in which they are dealt out to its files.

    Args:
      task: a cacheable one.
      split: one of its splits.
      share: the part's, of the source.
      seed: the part's.
      size: bytes of the source that count as this part's, for the progress bar.
      tally: what the records are counted in.

    Raises:
      jsonl.JsonlError, or tf.errors.OpError where tf.data reads: the source cannot be read.
    """
    return (_one_by_one if any(reading.unknown_task(task)) else _many_at_a_time)(task, split, share, seed, size, tally)


# ---- Of any task ----


def _one_by_one(
    task: seqio.Task, split: str, share: seqio.ShardInfo, seed: int, size: int, tally: Tally
) -> Iterator[bytes]:
    rows = task.source.get_dataset(split, shuffle=False, seed=seed, shard_info=share)
    examples = task.preprocess_precache(rows, seed)
    for example in examples.shuffle(_SHUFFLE_BUFFER, seed).prefetch(tf.data.AUTOTUNE):
        tally.features = tally.features or {name: _described(value) for name, value in example.items()}
        tally.stats["examples"] += 1
        for name, feature in task.output_features.items():
            value = example.get(name)
            if isinstance(value, tf.Tensor) and value.dtype in (tf.int32, tf.int64):
                ids = value.numpy().reshape(-1)
                tally.count(name, Ragged(ids, np.array([len(ids)])), feature.vocabulary)
        yield seqio.dict_to_tfexample(example).SerializeToString(deterministic=True)
        advance(0, 1)
    advance(size)


def _described(value: tf.Tensor | tf.RaggedTensor) -> dict[str, Any]:
    """Returns {"shape", "dtype"} for the info file, whatever the length."""
    shape = value.shape.as_list()
    return {"shape": [None, *shape[1:]] if shape else [], "dtype": value.dtype.name}


# ---- Of a known task ----


def _many_at_a_time(
    task: JsonlTask, split: str, share: seqio.ShardInfo, seed: int, size: int, tally: Tally
) -> Iterator[bytes]:
    for name in task.objective.key_map:
        tally.features[name] = {"shape": [None], "dtype": "int32"}
        tally.features[f"{name}_pretokenized"] = {"shape": [], "dtype": "string"}

    def records_of(rows: Mapping[str, list[str]]) -> list[bytes]:
        texts = _texts(rows, task.objective)
        ids: dict[str, Ragged] = {}
        for name, column in texts.items():
            vocabulary = task.output_features[name].vocabulary
            ids[name] = tokens.encode(column, vocabulary)
            tally.count(name, ids[name], vocabulary)
        made = _serialized(texts, ids)
        tally.stats["examples"] += len(made)
        advance(0, len(made))
        return made

    return _shuffled(map(records_of, _rows(task.source, split, share, size)), seed)


def _rows(
    source: sources.JsonlDataSource, split: str, share: seqio.ShardInfo, size: int
) -> Iterator[dict[str, list[str]]]:
    """Yields {column: texts} of a window of rows at a time, in the files' order."""
    pieces = source.pieces(split, share)
    reader = sources.WindowReader(pieces, source.columns, shuffle=False)
    for index in range(len(pieces)):
        for number in range(reader.windows(index)):
            window = reader(np.int64(index), np.int64(number), np.int64(0))
            if not len(window[0]):
                break
            yield dict(zip(source.columns, map(np.ndarray.tolist, window), strict=True))
        advance(size * (index + 1) // len(pieces) - size * index // len(pieces))


def _texts(rows: Mapping[str, list[str]], objective: objectives.Objective) -> dict[str, list[str]]:
    """Returns the texts of each feature, as they are before they are tokenized; "" where a feature has no column."""
    texts, empty = tokens.texts_of(rows, objective), [""] * len(next(iter(rows.values())))
    return {name: texts.get(name, empty) for name in objective.key_map}


def _serialized(texts: Mapping[str, Sequence[str]], ids: Mapping[str, Ragged]) -> list[bytes]:
    """Returns examples as seqio.dict_to_tfexample makes them of each row; one message is filled again and again."""
    message = tf.train.Example()
    fields, columns = [], []
    for name, column in texts.items():
        for field, values in (
            (message.features.feature[f"{name}_pretokenized"].bytes_list, [[text.encode()] for text in column]),
            (message.features.feature[name].int64_list, _lists(ids[name])),
        ):
            field.SetInParent()  # even if it stays empty
            fields.append(field.value)
            columns.append(values)
    made = []
    for row in zip(*columns, strict=True):
        for field, values in zip(fields, row, strict=True):
            field[:] = values
        made.append(message.SerializeToString(deterministic=True))
    return made


def _lists(sequences: Ragged) -> list[list[int]]:
    values, ends = sequences.values.tolist(), np.cumsum(sequences.sizes).tolist()
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _shuffled(blocks: Iterable[list[bytes]], seed: int) -> Iterator[bytes]:
    """Yields records as tf.data's `shuffle` does: one at random of those in a buffer, for which the next one comes."""
    stream = dataset_stream(seed).of_iterator(0)
    buffer: list[bytes] = []
    given = 0
    for block in blocks:
        room = _SHUFFLE_BUFFER - len(buffer)
        buffer += block[:room]
        for record, word in zip(block[room:], stream.words(given, len(block[room:])).tolist(), strict=True):
            oldest = given % _SHUFFLE_BUFFER
            chosen = (oldest + word) % _SHUFFLE_BUFFER
            yield buffer[chosen]
            buffer[chosen], buffer[oldest] = buffer[oldest], record
            given += 1
    for left, word in zip(range(len(buffer), 0, -1), stream.words(given, len(buffer)).tolist(), strict=True):
        oldest = given % _SHUFFLE_BUFFER
        chosen = (oldest + word % left) % _SHUFFLE_BUFFER
        yield buffer[chosen]
        buffer[chosen] = buffer[oldest]
        given += 1
