"""Rows, over and over, in the order in which SeqIO reads them: pieces by turns, 16 rows of each."""

from __future__ import annotations

import bisect
import itertools

from t5xpg.batchwise.readers import Reader, Window
from t5xpg.batchwise.stages import Stage
from t5xpg.data.jsonl import JsonlError
from t5xpg.data.sources import INTERLEAVED_ROWS

Texts = dict[str, list]  # {column: texts, str, or what a cache has in place of them, bytes}
# Of a block, until one is reached: rows, characters, and tokens if each row makes an example of the full lengths.
_ROWS, _CHARACTERS, _TOKENS = 4096 - INTERLEAVED_ROWS, 2**21, 2**23
_CLOSED = (-1, 0, 0, INTERLEAVED_ROWS)


class Rows(Stage):
    """Blocks of rows, endlessly; a block may be empty. JsonlError where an epoch has no row.

    Args:
      name: of the data, for errors.
      reader: of the pieces.
      share: (index, number of shares): the rows are dealt out in turn.
      keep: whether all epochs have the rows of the first, in its order, from memory.
      longest: how many tokens an example may have, of all features; wide ones come in smaller blocks.
    """

    kept = ("_rows", "_characters", "_epoch", "_opened", "_open", "_turn", "_dealt", "_remembered")

    def __init__(self, name: str, reader: Reader, share: tuple[int, int], keep: bool, longest: int = 1):
        self._name, self._reader, self._share, self._keep = name, reader, share, keep
        # In the place too: how much of a block is given, or which block comes next, says nothing without its size.
        self._rows, self._characters = min(_ROWS, -(-_TOKENS // longest)), _CHARACTERS
        self._memory: list[Texts] = []
        self._remembered = 0  # which of these blocks is the next
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._opened, self._turn, self._dealt = 0, 0, 0  # pieces; the slot whose turn it is; rows, to all shares
        # Of the piece in each slot: its place in the order, the window that is read, how many of its rows are given,
        # and how many it gives yet before the turn is the next slot's.
        self._open = [list(_CLOSED) for _ in range(self._reader.slots)]
        self._loaded: dict[int, tuple[tuple[int, int], Window]] = {}  # {slot: ((place, number), its window)}
        self._order: list[tuple[int, int]] | None = None  # of the epoch, once it is asked for

    def __call__(self) -> Texts:
        return self._from_memory() if self._keep else self._from_files()

    def _from_memory(self) -> Texts:
        if not self._memory:
            self._begin(0)
            while self._epoch == 0:
                self._memory.append(self._from_files())
            if len(self._memory) == 1:  # a block of as many epochs as it has room for: few rows take as long as many
                rows, characters = filling([*self._memory[0].values()], self._characters)
                epochs = max(1, min(self._rows // max(rows, 1), self._characters // max(characters, 1)))
                self._memory = [{name: texts * epochs for name, texts in self._memory[0].items()}]
        block = self._memory[self._remembered]
        self._remembered = (self._remembered + 1) % len(self._memory)
        return block

    def _from_files(self) -> Texts:
        self._order = self._reader.epoch(self._epoch) if self._order is None else self._order
        block: Texts = {name: [] for name in self._reader.columns}
        texts, characters = next(iter(block.values())), 0
        while len(texts) < self._rows and characters < self._characters:
            if self._open[self._turn][0] >= 0:
                characters += self._take(block, self._order, self._characters - characters)
            elif self._opened < len(self._order):
                self._put([self._opened, 0, 0, INTERLEAVED_ROWS])
                self._opened += 1
            elif any(place >= 0 for place, *_ in self._open):
                self._turn = (self._turn + 1) % len(self._open)
            else:
                block = self._share_of(block)
                if self._dealt <= self._share[0]:
                    raise JsonlError(
                        f"{self._name}: this process's share has no row. Take fewer processes or more rows"
                    )
                self._begin(self._epoch + 1)
                return block
        return self._share_of(block)

    def _take(self, block: Texts, order: list[tuple[int, int]], room: int) -> int:
        """Adds the rows that the piece in turn gives before the next one, fewer where it ends or they fill the room.

        Returns their characters, as `room` counts them.
        """
        place, number, given, left = self._open[self._turn]
        characters = 0
        while left and characters < room:
            columns = self._window(place, number, *order[place])
            found = [column[given : given + left].tolist() for column in columns]
            rows, filled = filling(found, room - characters)
            for texts, added in zip(block.values(), found, strict=True):
                texts += added[:rows]
            left, given, characters = left - rows, given + rows, characters + filled
            if not len(columns[0]):
                place, number, given, left = _CLOSED
                break
            if given == len(columns[0]):
                number, given = number + 1, 0
        self._put([place, number, given, left or INTERLEAVED_ROWS])
        if not left or place < 0:
            self._turn = (self._turn + 1) % len(self._open)
        return characters

    def _put(self, slot: list[int]) -> None:
        """Replaces the slot in turn, in a list of its own: a place may hold the one before."""
        self._open = [*self._open[: self._turn], slot, *self._open[self._turn + 1 :]]

    def _window(self, place: int, number: int, piece: int, salt: int) -> Window:
        name, columns = self._loaded.get(self._turn, (None, []))
        if name != (place, number):
            columns = self._reader.window(piece, number, salt)
            self._loaded[self._turn] = (place, number), columns
        return columns

    def _share_of(self, block: Texts) -> Texts:
        index, shares = self._share
        start = (index - self._dealt) % shares
        self._dealt += len(next(iter(block.values())))
        return {name: texts[start::shares] for name, texts in block.items()}


def filling(columns: list[list], room: int) -> tuple[int, int]:
    """Returns how many of the rows fill the room, all where they do not, and their characters."""
    characters = sum(sum(map(len, texts)) for texts in columns)
    if characters <= room:
        return len(columns[0]), characters
    ends = list(itertools.accumulate(sum(map(len, row)) for row in zip(*columns, strict=True)))
    rows = bisect.bisect_left(ends, room) + 1
    return rows, ends[rows - 1]
