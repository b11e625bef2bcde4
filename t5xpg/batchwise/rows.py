"""The rows of JSONL files, over and over, in the order in which SeqIO reads them from a JsonlDataSource."""

from __future__ import annotations

import numpy as np

from t5xpg.batchwise.random_numbers import WordStream, kernel_seeds
from t5xpg.batchwise.stages import Stage
from t5xpg.data.sources import INTERLEAVED_PIECES, INTERLEAVED_ROWS, WindowReader

Texts = dict[str, list[str]]  # {column: texts}
_ROWS = 512  # of a block, about
_CLOSED = (-1, 0, 0)


class Rows(Stage):
    """Blocks of rows, endlessly; a block may be empty.

    Args:
      reader: of the pieces' windows.
      seed: of each epoch's order; None for that of the files.
      share: (index, number of shares): the rows are dealt out in turn.
      keep: whether all epochs have the rows of the first, in its order, from memory.
    """

    kept = ("_epoch", "_opened", "_open", "_turn", "_dealt", "_remembered")

    def __init__(self, reader: WindowReader, seed: int | None, share: tuple[int, int], keep: bool):
        self._reader, self._share, self._keep = reader, share, keep
        self._words = None if seed is None else WordStream(*kernel_seeds(seed))
        self._memory: Texts | None = None
        self._remembered = 0  # rows given of those in memory
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._opened, self._turn, self._dealt = 0, 0, 0  # pieces; the slot whose turn it is; rows, to all shares
        # Of the piece in each slot: its number, the window that is read, and how many of its rows are given.
        self._open = [list(_CLOSED) for _ in range(INTERLEAVED_PIECES if self._words else 1)]
        self._loaded: dict[int, tuple[tuple[int, int, int], list[np.ndarray]]] = {}  # {slot: its window}

    def __call__(self) -> Texts:
        return self._from_memory() if self._keep else self._from_files()

    def _from_memory(self) -> Texts:
        if self._memory is None:
            self._begin(0)
            blocks = []
            while self._epoch == 0:
                blocks.append(self._from_files())
            self._memory = {name: [text for block in blocks for text in block[name]] for name in self._reader.columns}
        start = self._remembered
        block = {name: texts[start : start + _ROWS] for name, texts in self._memory.items()}
        rows = len(next(iter(block.values())))
        self._remembered = start + rows if rows == _ROWS else 0
        return block

    def _from_files(self) -> Texts:
        salt = self._salt()
        order = self._reader.order(salt)
        block: Texts = {name: [] for name in self._reader.columns}
        texts = next(iter(block.values()))
        while len(texts) < _ROWS:
            if self._open[self._turn][0] >= 0:
                self._take(block, salt)
            elif self._opened < len(order):
                self._open[self._turn] = [int(order[self._opened]), 0, 0]
                self._opened += 1
            elif any(piece >= 0 for piece, _, _ in self._open):
                self._turn = (self._turn + 1) % len(self._open)
            else:
                epoch = self._epoch + 1
                block = self._share_of(block)
                self._begin(epoch)
                return block
        return self._share_of(block)

    def _salt(self) -> int:
        """Returns the random number of the epoch, as tf.data draws it anew for each iterator over a source."""
        if self._words is None:
            return 0
        return int(WordStream(*self._words.words(2 * self._epoch, 2).tolist()).words(0, 1)[0])

    def _take(self, block: Texts, salt: int) -> None:
        """Adds the rows that the piece in turn gives before the next one; fewer where it ends."""
        piece, window, given = self._open[self._turn]
        wanted = INTERLEAVED_ROWS if self._words else _ROWS
        while wanted and piece >= 0:
            columns = self._window(piece, window, salt)
            rows = min(wanted, len(columns[0]) - given)
            for texts, column in zip(block.values(), columns, strict=True):
                texts += column[given : given + rows].tolist()
            wanted, given = wanted - rows, given + rows
            if not len(columns[0]):
                piece, window, given = _CLOSED
            elif given == len(columns[0]):
                window, given = window + 1, 0
        self._open[self._turn] = [piece, window, given]
        self._turn = (self._turn + 1) % len(self._open)

    def _window(self, piece: int, window: int, salt: int) -> list[np.ndarray]:
        if window >= self._reader.windows(piece):
            return [np.array([], object)] * len(self._reader.columns)
        name, columns = self._loaded.get(self._turn, (None, []))
        if name != (piece, window, salt):
            columns = self._reader(np.int64(piece), np.int64(window), np.int64(salt))
            self._loaded[self._turn] = (piece, window, salt), columns
        return columns

    def _share_of(self, block: Texts) -> Texts:
        index, shares = self._share
        start = (index - self._dealt) % shares
        self._dealt += len(next(iter(block.values())))
        return {name: texts[start::shares] for name, texts in block.items()}
