"""Rows in random order, dealt out to many files: any number of rows, and a bounded part of them in memory.

Every row gets a *key*, a random number of 128 bits made from the seed and its place in the corpus, or from the row
itself where duplicates are to be dropped: then equal rows have equal keys. The files hold the rows in the order of
their keys, in turns; so the order is random, and the same seed gives the same bytes. Rows are sorted as a large list is
sorted on a disk: first into *buckets*, ranges of keys, and then each bucket in memory.

Any number of processes may fill buckets at a time, and sort one each.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from t5xpg.base import stores
from t5xpg.data.workers import Workers

MOST_SHARDS = 512  # all are open at a time
_MEMORY = 16 * 1024 * 1024  # bytes of rows that wait in a process to be written to their buckets
_BUCKET = 16 * 1024 * 1024  # bytes of rows that are sorted at a time, about
_DEEPEST = 6  # digits of a bucket. 16⁶ × 16 MiB are more than any disk holds: what is larger there is duplicates
KEY = 32  # hexadecimal digits


class Bucket(NamedTuple):
    """Rows whose keys begin alike."""

    digits: str
    paths: tuple[str, ...]  # a file for each process that had such rows
    size: int  # bytes


class Dealt(NamedTuple):
    """The rows of a bucket, in order: of each split their number, and what goes to each file in turn."""

    rows: dict[str, int]
    parts: dict[str, list[bytes]]


def shard_paths(folder: str | os.PathLike, name: str, shards: int) -> list[Path]:
    """Returns the paths of a split's files: folder/name-00003-of-00064.jsonl."""
    place = stores.path_of(folder, "--output_dir")
    return [place / f"{name}-{shard:05d}-of-{shards:05d}.jsonl" for shard in range(shards)]


def key_of(source: bytes, seed: int) -> bytes:
    """Returns KEY hexadecimal digits, the same for the same source and seed."""
    return hashlib.blake2b(source, digest_size=KEY // 2, key=str(seed).encode()).hexdigest().encode()


class Writer:
    """Puts rows into the buckets of a folder.

    Args:
      folder: a local one that is there; a row takes its own size, and that of its key, and one byte.
      digits: of a key, that say which bucket; there are 16 times as many with each.
    """

    def __init__(self, folder: str, digits: int):
        self._folder, self._digits = folder, digits
        self._waiting: dict[bytes, list[bytes]] = {}
        self._size = 0

    def add(self, row: bytes) -> None:
        """Takes a row, which begins with its key and ends with a line end, its only one."""
        self._waiting.setdefault(row[: self._digits], []).append(row)
        self._size += len(row)
        if self._size > _MEMORY:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        for digits, rows in self._waiting.items():
            with open(os.path.join(self._folder, f"{digits.decode()}-{os.getpid()}"), "ab") as file:
                file.writelines(rows)
        self._waiting, self._size = {}, 0


def buckets(folder: str, workers: Workers) -> list[Bucket]:
    """Returns a folder's buckets, in the order of their keys, once those too large are divided."""
    while large := [each for each in _found(folder) if each.size > _BUCKET and len(each.digits) < _DEEPEST]:
        for _ in workers.map(functools.partial(_divide, folder), large):
            pass
    return _found(folder)


def _found(folder: str) -> list[Bucket]:
    names = sorted(os.listdir(folder))
    grouped = itertools.groupby(names, lambda name: name.split("-")[0])
    paths = {digits: tuple(os.path.join(folder, name) for name in own) for digits, own in grouped}
    return [Bucket(digits, own, sum(map(os.path.getsize, own))) for digits, own in paths.items()]


def _divide(folder: str, bucket: Bucket) -> None:
    writer = Writer(folder, len(bucket.digits) + 1)
    for row in _taken(bucket):
        writer.add(row)
    writer.flush()


def _taken(bucket: Bucket) -> Iterator[bytes]:
    """Yields a bucket's rows, and removes it."""
    for path in bucket.paths:
        with open(path, "rb") as rows:
            yield from rows
        os.remove(path)


def count_different(bucket: Bucket) -> int:
    """Returns how many different rows a bucket has, and removes it."""
    return len(set(_taken(bucket)))


def deal(shards: Mapping[str, int], bucket: Bucket) -> Dealt:
    """Returns a bucket's rows, equal ones once, without their keys, and removes it.

    Args:
      shards: {split: number of files}. Behind a row's key stands the first letter of its split.
      bucket: of rows that all have a key of their own, or equal keys where they are equal.
    """
    ordered = sorted(set(_taken(bucket)))
    rows, parts = {}, {}
    for split, count in shards.items():
        letter = ord(split[0])
        own = [row[KEY + 1 :] for row in ordered if row[KEY] == letter]
        rows[split] = len(own)
        parts[split] = [b"".join(own[turn::count]) for turn in range(min(count, len(own)))]
    return Dealt(rows, parts)


def write(dealt: Iterable[Dealt], files: Mapping[str, Sequence[IO[bytes]]]) -> dict[str, int]:
    """Writes rows to the files of their splits, a row to each in turn; returns how many."""
    rows = dict.fromkeys(files, 0)
    for each in dealt:
        for split, parts in each.parts.items():
            own = files[split]
            for turn, part in enumerate(parts, rows[split]):
                own[turn % len(own)].write(part)
            rows[split] += each.rows[split]
    return rows
