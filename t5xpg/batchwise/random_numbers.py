"""TensorFlow's random numbers in NumPy, for arrays of seeds (Philox 4x32-10, Salmon et al., SC 2011).

A *word* is what the generator gives: 32 random bits. `stateless_words` has those of tf.random's stateless functions,
which make a float of a word's lowest 23 bits; a `WordStream` those of tf.data, one after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

Seeds = Sequence[np.ndarray]  # two, int64 [examples]: the seed of tf.random's stateless functions
FLOAT_BITS = 0x7FFFFF
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)  # x & _LOW and x >> _HIGH are its halves


def stateless_words(seeds: Seeds, count: int) -> np.ndarray:
    """Returns what TensorFlow's stateless functions draw for each pair of seeds, before they shape it.

    Returns:
      uint32 [examples, count].
    """
    first, second = (np.asarray(seed).astype(np.uint64)[:, None] for seed in seeds)
    seed = [first & _LOW, first >> _HIGH, second & _LOW, second >> _HIGH]
    mixed = _philox(seed, [np.array(key, np.uint64) for key in (0x3EC8F720, 0x02461E29)])
    number = np.arange(-(-count // 4), dtype=np.uint64)[None]
    return _in_order(_philox([number, np.zeros_like(number), *mixed[2:]], mixed[:2]))[:, :count]


def floats(seeds: Seeds, count: int) -> np.ndarray:
    """Returns tf.random.stateless_uniform([count]) of each pair of seeds: float32 [examples, count]."""
    return (stateless_words(seeds, count) & FLOAT_BITS).astype(np.float32) / np.float32(2**23)


def integers(seeds: Seeds, count: int, low: np.ndarray | int, high: np.ndarray | int) -> np.ndarray:
    """Returns tf.random.stateless_uniform([count], seed, low, high, tf.int32) of each pair: int64 [examples, count]."""
    return low + stateless_words(seeds, count).astype(np.int64) % (np.asarray(high) - low)


def categorical(seeds: Seeds, count: int, logits: np.ndarray) -> np.ndarray:
    """Returns tf.random.stateless_categorical([logits], count) of each pair of seeds: int64 [examples, count].

    Args:
      seeds: of each.
      count: numbers to draw.
      logits: float32 [classes].
    """
    logits = logits.astype(np.float64)
    sums = list(itertools.accumulate(math.exp(logit - logits.max()) for logit in logits))
    words = stateless_words(seeds, 2 * count).astype(np.uint64)
    mantissas = (words[:, ::2] & np.uint64(0xFFFFF)) << _HIGH | words[:, 1::2]
    return np.searchsorted(sums, mantissas / 2.0**52 * sums[-1], side="right")


def split_seeds(seeds: Seeds, count: int) -> list[list[np.ndarray]]:
    """Returns the first `count` pairs that tf.random.experimental.stateless_split makes of each pair."""
    halves = stateless_words(seeds, 4 * count).view("<u8")
    return [[halves[:, 2 * i], halves[:, 2 * i + 1]] for i in range(count)]


class WordStream:
    """The words of a generator of tf.data's, of which any part can be asked for.

    Args:
      seed, seed2: as TensorFlow's kernels have them.
    """

    def __init__(self, seed: int, seed2: int):
        self._seeds = [np.array([[value % 2**64]], np.uint64) for value in (seed, seed2)]

    def words(self, start: int, count: int) -> np.ndarray:
        """Returns words start … start + count - 1, int64 [count]."""
        key, counter = self._seeds
        first = start // 4
        number = np.arange(first, -(-(start + count) // 4), dtype=np.uint64)[None]
        made = _philox([number, np.zeros_like(number), counter & _LOW, counter >> _HIGH], [key & _LOW, key >> _HIGH])
        return _in_order(made)[0, start - 4 * first :][:count].astype(np.int64)

    def of_iterator(self, number: int) -> WordStream:
        """Returns those of the `number`-th iterator over a dataset with these, which are its iterators' seeds."""
        return WordStream(*self.words(2 * number, 2).tolist())


def dataset_stream(seed: int) -> WordStream:
    """Returns the elements of tf.data.Dataset.random(seed), under the global seed of this moment."""
    first, second = tf.compat.v1.get_seed(seed)
    return WordStream(*(int(first), int(second)) if (first, second) != (0, 0) else (0, 2**31 - 1))


def _in_order(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """[rows, blocks] of four words each -> uint32 [rows, 4 * blocks]."""
    rows, count = blocks[0].shape
    return np.stack(blocks, -1, dtype="<u4", casting="unsafe").reshape(rows, 4 * count)


def _philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays that broadcast against each other; the results are new ones, of their shape."""
    a, b, c, d = (np.array(part, order="C") for part in np.broadcast_arrays(*counter, *key)[:4])  # copies
    left, right = key
    high = np.empty_like(a)
    # (a, b, c, d) <- (high(C c) ^ b ^ left, low(C c), high(A a) ^ d ^ right, low(A a)), in place: new arrays would take
    # longer than what is done with them.
    for _ in range(10):
        a *= np.uint64(0xD2511F53)
        c *= np.uint64(0xCD9E8D57)
        b ^= np.right_shift(c, _HIGH, out=high)
        b ^= left
        c &= _LOW
        d ^= np.right_shift(a, _HIGH, out=high)
        d ^= right
        a &= _LOW
        a, b, c, d = b, c, d, a
        left = (left + np.uint64(0x9E3779B9)) & _LOW
        right = (right + np.uint64(0xBB67AE85)) & _LOW
    return [a, b, c, d]
