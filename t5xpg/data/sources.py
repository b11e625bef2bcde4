"""JSONL files as a SeqIO source: a share for every host, shuffled by seed, counted, errors by line.

`jsonl` finds and parses; here its pieces and windows become a tf.data.Dataset. A window is a pure function of the
piece, its number and the epoch's random number, so tf.train.Checkpoint can save an iterator and resume it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf
from tqdm import tqdm

from t5xpg.base import nearest
from t5xpg.base.files import size
from t5xpg.base.ranges import in_background
from t5xpg.data import finding, jsonl
from t5xpg.data.finding import Files
from t5xpg.data.jsonl import UNBOUNDED, Columns, Piece
from t5xpg.data.kept import Kept
from t5xpg.data.tf_functions import numpy_function

INTERLEAVED_PIECES, INTERLEAVED_ROWS = 16, 16  # pieces open at once, rows taken from each
_PIECES_AHEAD = 4  # fetched from a store before it is their turn, where they are read one after the other

_Window = list[np.ndarray]  # per column, [rows]
_Windows = Iterator[_Window]


class JsonlDataSource(seqio.FunctionDataSource):
    """JSONL files as a SeqIO source: a finite dataset of {column: scalar string tensor}.

    Files are looked up when rows are asked for, never when a task is registered.

    **Shards.** Every host reads only its own pieces. With more hosts than pieces, SeqIO has each
    host read everything and keep its share.

    **Order.** Without shuffle, that of the files. With shuffle, the pieces are permuted, interleaved
    16 at a time, and the rows of each window permuted: differently in every epoch of `.repeat()` and
    every new iterator, as a TFDS source does with its files. The whole sequence is a function of the seed
    and, as for tf.data's own shuffle, of tf.random.set_seed; without a seed it is new each time.
    Rows of a compressed file move within their window only; SeqIO's shuffle buffer follows. SeqIO
    keeps a split of fewer than 10,000 rows per host in memory, in its first epoch's order; see JsonlTask.

    **Errors.** `get_dataset` raises JsonlError for missing or empty files and for what is wrong in
    the first window. Later errors come from the iterator as a tf.errors.OpError, in which
    `jsonl.original_error` finds the one line.

    Attributes:
      files: {split: files} as given; the method `find_files` has the paths.
      columns: {column: key of the row}.
    """

    MOST_BYTES_IN_MEMORY = 128 * 1024 * 1024  # compressed or not

    def __init__(
        self,
        files: Mapping[str, Files] | Files,
        splits: Sequence[str] = ("train", "validation"),
        text_key: str | Columns = "text",
        num_input_examples: Mapping[str, int] | None = None,
    ):
        """Notes the files; touches none.

        Args:
          files: {split: files} (see `finding.find_files`), or files with "{split}" in each name.
          splits: what "{split}" stands for; a mapping names its own.
          text_key: the key of a row that becomes the column "text", or {column: key} for several.
          num_input_examples: {split: rows} where known; others are counted, by reading all files.
        """
        self.files = dict(files) if isinstance(files, Mapping) else finding.split_files(files, splits)
        self.columns = jsonl.columns_of(text_key)
        super().__init__(self._all_rows, self.files, num_input_examples)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.files}, text_key={self.columns})"

    @property
    def performs_internal_shuffling(self) -> bool:
        return True

    def find_files(self, split: str) -> list[str]:
        """Returns the paths of a split's files, in reading order."""
        if split not in self.files:
            hint = nearest.hint(split, self.files) or ". Name it in files="
            raise ValueError(f"no split {split!r}; found {list(self.files)}{hint}")
        return finding.find_files(self.files[split])

    def num_input_examples(self, split: str) -> int:
        """Returns the number of rows of the split, over all hosts."""
        if split in (self._num_input_examples or {}):
            return self._num_input_examples[split]
        paths = self.find_files(split)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            counts = pool.map(jsonl.count_rows, paths)
            return sum(tqdm(counts, f"counting {split} rows", len(paths), unit="file", delay=5))

    def fits_in_memory(self, split: str, most_rows: int) -> bool:
        """Whether the split has fewer than `most_rows` rows, in files of MOST_BYTES_IN_MEMORY at most.

        Reads no more than it takes to know.
        """
        if split in (self._num_input_examples or {}):
            return self._num_input_examples[split] < most_rows
        paths, rows = self.find_files(split), 0
        if sum(map(size, paths)) > self.MOST_BYTES_IN_MEMORY:
            return False
        for path in paths:
            rows += jsonl.count_rows(path, most_rows - rows)
            if rows >= most_rows:
                return False
        return True

    def list_shards(self, split: str) -> list[str]:
        shards = min(len(jsonl.cut(self.find_files(split))), jsonl.MAX_PIECES)
        return [f"{split}-{shard:05d}-of-{shards:05d}" for shard in range(shards)]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused_by_sources,
    ) -> tf.data.Dataset:
        """Returns the rows of one shard, or all of them without shard_info, once."""
        return _dataset(self.pieces(split, shard_info), self.columns, shuffle, seed)

    def pieces(self, split: str, shard_info: seqio.ShardInfo | None = None) -> list[Piece]:
        """Returns what one shard reads, in the files' order; raises as `get_dataset`."""
        index, shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        paths = self.find_files(split)
        pieces = jsonl.cut(paths)
        if len(pieces) < shards:
            found = f"split {split!r}: {len(pieces)} pieces are too few for {shards} shards"
            raise ValueError(f"{found}. Use dataset.shard(num_shards, index)")
        pieces = pieces[index::shards]
        if not any(next(jsonl.windows(piece, self.columns), None) for piece in pieces):
            found = f"split {split!r}, shard {index} of {shards}: no rows begin in its share"
            raise jsonl.JsonlError(f"{found} of {paths[:3]}. Prepare them again, or use fewer shards")
        return pieces

    def _all_rows(self, split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        """The function that a FunctionDataSource needs; `get_dataset` divides it among hosts."""
        return self.get_dataset(split, shuffle_files, seed)


class WindowReader:
    """Called by tf.data for window `number` of piece `index`: per column an array, [rows].

    A pure function of its arguments. The streams it keeps, each open at its next window, only save reading a
    compressed file from its start again; the pieces it reads ahead, waiting for a store. A stream that was read ahead
    is kept with its first window until that is asked for.
    """

    def __init__(self, pieces: Sequence[Piece], columns: Columns, shuffle: bool):
        self._pieces, self.columns, self._shuffle = pieces, columns, shuffle
        self._streams: Kept[tuple[int, int], _Windows] = Kept(2 * INTERLEAVED_PIECES)
        self._ahead: Kept[int, concurrent.futures.Future[tuple[_Window, _Windows]]] = Kept(2 * INTERLEAVED_PIECES)
        self._places = functools.lru_cache(2)(self._places_by)

    def __call__(self, index: np.int64, number: np.int64, salt: np.int64) -> _Window:
        if number == 0 and self._pieces[int(index)].is_remote:
            self._read_ahead(int(index), int(salt))
        window = self._window(int(index), int(number))
        if not self._shuffle:
            return window
        order = np.random.default_rng([salt, index, number]).permutation(len(window[0]))
        return [column[order] for column in window]

    def windows(self, index: int) -> int:
        """Returns how many windows a piece has, at most."""
        return UNBOUNDED if self._pieces[index].is_stream else 1

    def order(self, salt: int) -> np.ndarray:
        """Returns the epoch's order of the pieces, [pieces]."""
        count = len(self._pieces)
        return np.random.default_rng(salt).permutation(count) if self._shuffle else np.arange(count)

    def _places_by(self, salt: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of the pieces and each piece's place in it."""
        order = self.order(salt)
        return order, np.argsort(order)

    def _read_ahead(self, index: int, salt: int) -> None:
        """Begins to fetch the pieces whose turn comes after this one's."""
        order, places = self._places(salt)
        count = INTERLEAVED_PIECES if self._shuffle else _PIECES_AHEAD
        for following in map(int, order[places[index] + 1 : places[index] + 1 + count]):
            if following not in self._ahead and self._pieces[following].is_remote:
                self._ahead.put(following, in_background(self._read, following, 0))

    def _window(self, index: int, number: int) -> _Window:
        ahead = self._ahead.take(index) if number == 0 else None
        window, stream = ahead.result() if ahead else self._read(index, number)
        if self._pieces[index].is_stream and len(window[0]):
            self._streams.put((index, number + 1), stream)
        return window

    def _read(self, index: int, number: int) -> tuple[_Window, _Windows]:
        """Returns the window, without rows beyond the piece's end, and the stream of those that follow."""
        stream = self._streams.take((index, number))
        if stream is None:
            stream = itertools.islice(jsonl.windows(self._pieces[index], self.columns), number, None)
        return next(stream, [np.array([], dtype=object)] * len(self.columns)), stream


def _dataset(pieces: Sequence[Piece], columns: Columns, shuffle: bool, seed: int | None) -> tf.data.Dataset:
    reader = WindowReader(pieces, columns, shuffle)
    first = next(iter(columns))
    windows = tf.constant([reader.windows(index) for index in range(len(pieces))], tf.int64)

    def piece_rows(index: tf.Tensor, salt: tf.Tensor) -> tf.data.Dataset:
        def read(number: tf.Tensor) -> dict[str, tf.Tensor]:
            types = [tf.string] * len(columns)
            window = numpy_function(reader, [index, number, salt], types)
            window = [tf.ensure_shape(texts, [None]) for texts in window]
            return dict(zip(columns, window, strict=True))

        ds = tf.data.Dataset.range(windows[index]).map(read)  # {column: [rows]}
        return ds.take_while(lambda window: tf.size(window[first]) > 0).unbatch()  # {column: []}

    def epoch(salt: tf.Tensor) -> tf.data.Dataset:
        order = numpy_function(reader.order, [salt], tf.int64)
        order = tf.data.Dataset.from_tensor_slices(tf.ensure_shape(order, [len(pieces)]))
        return order.interleave(lambda i: piece_rows(i, salt), INTERLEAVED_PIECES, INTERLEAVED_ROWS)

    if not shuffle:
        return tf.data.Dataset.range(len(pieces)).flat_map(lambda i: piece_rows(i, np.int64(0)))
    # One random number an epoch decides the order of everything.
    return tf.data.Dataset.random(seed, rerandomize_each_iteration=True).take(1).flat_map(epoch)
