"""Rows in random order, dealt out to many files: any number of rows, and a bounded part of them in memory.

Every row gets a *key*, a random number of 128 bits made from the seed and its number, or from the row itself where
duplicates are to be dropped: then equal rows have equal keys. The files hold the rows in the order of their keys, in
turns; so the order is random, and the same seed gives the same bytes. Rows are sorted as a large list is sorted on a
disk: first into *buckets*, ranges of keys, and then each bucket in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from t5xpg.base import files, stores
from t5xpg.data.corpora import CorpusError, no_rows

MOST_SHARDS = 512  # all are open at a time
_MEMORY = 64 * 1024 * 1024  # bytes of rows that are held at a time, about
_DEEPEST = 3  # 256³ × 64 MiB are more than any disk holds: what is larger there are duplicates
_KEY = 32  # hexadecimal digits


class Written(NamedTuple):
    """What became of a split's rows."""

    rows: int
    duplicates: int  # rows that were dropped


def shard_paths(folder: str | os.PathLike, name: str, shards: int) -> list[Path]:
    """Returns the paths of a split's files: folder/name-00003-of-00064.jsonl."""
    place = stores.path_of(folder, "--output_dir")
    return [place / f"{name}-{shard:05d}-of-{shards:05d}.jsonl" for shard in range(shards)]


def write_shards(
    paths: Mapping[str, Sequence[Path]], rows: Iterable[tuple[str, str]], seed: int, drop_duplicates: bool
) -> dict[str, Written]:
    """Writes (split, line) to the files of the splits, in random order; all files appear after the last row.

    Meanwhile the rows wait in a folder beside the files, or in the system's folder for temporary files where those
    are at a URL.

    Raises:
      CorpusError: a file would have no row.
    """
    place = os.path.dirname(next(iter(paths.values()))[0])
    files.make_folder(place or ".")
    with contextlib.ExitStack() as stack:
        beside = None if stores.is_url(place) else place or "."
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".shuffling-", dir=beside))
        shufflers = {split: Shuffler(folder, seed, drop_duplicates) for split in paths}
        for split, line in rows:
            shufflers[split].add(line)
        return {split: _deal(shufflers[split], split, paths[split], stack) for split in paths}


def _deal(shuffler: Shuffler, split: str, paths: Sequence[Path], stack: contextlib.ExitStack) -> Written:
    """Writes the rows to the files in turns; the files appear when `stack` closes."""
    handles = [stack.enter_context(files.open_whole(path, "wb")) for path in paths]
    count = 0
    for row, handle in zip(shuffler, itertools.cycle(handles), strict=False):
        handle.write(row)
        count += 1
    if not count:
        raise no_rows(paths[0], split, shuffler.rows)
    if count < len(paths):
        raise CorpusError(f"{count} rows of {split} are too few for {len(paths)} files. Pass --shards {count} or fewer")
    return Written(count, shuffler.rows - count)


class Shuffler:
    """Takes rows, and gives them back in random order, without duplicates where that is asked for.

    Args:
      folder: where rows wait; a row takes its own size and 33 bytes.
      seed: decides the order.
      drop_duplicates: of equal rows keep one. The order is then the same however the rows come.
    """

    def __init__(self, folder: str, seed: int, drop_duplicates: bool):
        self.rows = 0  # taken
        self._folder, self._seed, self._drop_duplicates = folder, str(seed).encode(), drop_duplicates
        self._buckets = _Buckets(folder, 0)

    def add(self, line: str) -> None:
        """Takes a row, without its line end."""
        content = line.encode()
        source = content if self._drop_duplicates else str(self.rows).encode()
        key = hashlib.blake2b(source, digest_size=_KEY // 2, key=self._seed).hexdigest()
        self._buckets.add(key.encode() + content + b"\n")
        self.rows += 1

    def __iter__(self) -> Iterator[bytes]:
        """Yields the rows with their line ends, once; what waited in the folder is removed on the way."""
        return (row[_KEY:] for row in self._sorted(self._buckets, 1))

    def _sorted(self, buckets: _Buckets, depth: int) -> Iterator[bytes]:
        for path in buckets.close():
            if os.path.getsize(path) > _MEMORY and depth < _DEEPEST:
                parts = _Buckets(self._folder, depth)
                with open(path, "rb") as rows:
                    for row in rows:
                        parts.add(row)
                os.remove(path)
                yield from self._sorted(parts, depth + 1)
            else:
                with open(path, "rb") as rows:
                    distinct = set(rows)
                os.remove(path)
                yield from sorted(distinct)


class _Buckets:
    """Files of rows, one for each byte that their keys may have at place `depth`."""

    def __init__(self, folder: str, depth: int):
        self._prefix = os.path.join(folder, uuid.uuid4().hex)
        self._byte = slice(2 * depth, 2 * depth + 2)
        self._waiting: dict[bytes, list[bytes]] = {}
        self._waiting_size = 0
        self._used: set[bytes] = set()

    def add(self, row: bytes) -> None:
        self._waiting.setdefault(row[self._byte], []).append(row)
        self._waiting_size += len(row)
        if self._waiting_size > _MEMORY:
            self._flush()

    def close(self) -> list[str]:
        """Returns the files, in the order of their keys."""
        self._flush()
        return [self._path(byte) for byte in sorted(self._used)]

    def _flush(self) -> None:
        for byte, rows in self._waiting.items():
            with open(self._path(byte), "ab") as file:
                file.writelines(rows)
        self._used |= self._waiting.keys()
        self._waiting, self._waiting_size = {}, 0

    def _path(self, byte: bytes) -> str:
        return f"{self._prefix}-{byte.decode()}"
