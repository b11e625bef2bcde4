"""Many sequences of different lengths in two arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


def places(sizes: np.ndarray) -> np.ndarray:
    """Returns the places of values in their sequences, which are of these sizes: int32 0, 1, 2, 0, 1 for 3 and 2."""
    starts = np.cumsum(sizes, dtype=np.int32) - sizes.astype(np.int32)
    return np.arange(sizes.sum(), dtype=np.int32) - np.repeat(starts, sizes)


class Ragged(NamedTuple):
    """Sequences one after the other.

    Attributes:
      values: [values of all].
      sizes: of each: int64 [sequences].
    """

    values: np.ndarray
    sizes: np.ndarray

    @classmethod
    def joined(cls, parts: Iterable[Ragged]) -> Ragged:
        values, sizes = zip(*parts, strict=True)
        return cls(np.concatenate(values), np.concatenate(sizes))

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.sizes) - self.sizes

    def cut(self, count: int) -> tuple[Ragged, Ragged]:
        """Returns the first `count` sequences, and the others."""
        end = self.sizes[:count].sum()
        return Ragged(self.values[:end], self.sizes[:count]), Ragged(self.values[end:], self.sizes[count:])

    def of(self, chosen: np.ndarray) -> Ragged:
        """Returns the chosen sequences, bool [sequences]."""
        return Ragged(self.values[np.repeat(chosen, self.sizes)], self.sizes[chosen])

    def first(self, sizes: np.ndarray) -> tuple[Ragged, Ragged]:
        """Returns the first values of each sequence, as many as `sizes`, and the others."""
        is_first = places(self.sizes) < np.repeat(sizes, self.sizes)
        return Ragged(self.values[is_first], sizes), Ragged(self.values[~is_first], self.sizes - sizes)

    def trimmed(self, length: int) -> Ragged:
        """Returns at most `length` values of each."""
        if not len(self.sizes) or self.sizes.max() <= length:
            return self
        return Ragged(self.values[places(self.sizes) < length], np.minimum(self.sizes, length))

    def padded(self, length: int) -> np.ndarray:
        """Returns them as rows, [sequences, length], with zeros behind; none is longer."""
        rows = np.zeros([len(self.sizes), length], self.values.dtype)
        rows[np.arange(length) < self.sizes[:, None]] = self.values
        return rows

    def framed(self, before: Sequence[int] = (), after: Sequence[int] = ()) -> Ragged:
        """Returns them with the same values before and after each."""
        sizes = self.sizes + len(before) + len(after)
        ends = np.cumsum(sizes)
        values = np.empty(sizes.sum(), self.values.dtype)
        is_own = np.ones(len(values), bool)
        for place, ids in ((ends - sizes, before), (ends - len(after), after)):
            where = place[:, None] + np.arange(len(ids))
            values[where], is_own[where] = ids, False
        values[is_own] = self.values
        return Ragged(values, sizes)
