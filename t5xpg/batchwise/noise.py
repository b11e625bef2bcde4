"""Masks over many examples at a time, t5's from the same seeds, and what it makes of them.

A mask is bool, [all tokens] of a `Ragged`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from t5xpg.batchwise.ragged import Ragged, places
from t5xpg.batchwise.random_numbers import FLOAT_BITS, Seeds, floats, integers, split_seeds, stateless_words


def span_mask(sizes: np.ndarray, counts: np.ndarray, seeds: Seeds) -> np.ndarray:
    """Returns which tokens are noise: segments of text and of noise by turns, text first, as many of each.

    Args:
      sizes: tokens of each example, at least 1: int [examples].
      counts: noise tokens and segments of an example of each size: int [most tokens + 1, 2].
      seeds: of each example.
    """
    noise_tokens, segments = counts[sizes].T
    most, most_noise = len(counts) - 1, int(counts[-1, 0])
    for_noise, for_text = split_seeds(seeds, 2)  # of six; t5 uses no more
    text = _cut(np.maximum(sizes, 2) - noise_tokens, segments, for_text, max(most, 2) - most_noise)
    noise = _cut(noise_tokens, segments, for_noise, most_noise)
    noise[np.repeat(sizes, segments) < 2] = 0  # t5 cuts a token off the mask of two that it makes for an example of one
    return np.repeat(np.tile([False, True], len(text)), np.stack([text, noise], 1).reshape(-1))


def _cut(tokens: np.ndarray, segments: np.ndarray, seeds: Seeds, most: int) -> np.ndarray:
    """Cuts `tokens` of each example, at most `most`, into `segments` at random; returns their lengths, int [segments].

    t5 shuffles a one for each start but the first among zeros, by sorting uniform floats. Sorted are the bits that
    TensorFlow makes a float from, with the place behind them, so that floats that tie keep their order.
    """
    bits = (most - 1).bit_length()
    kind: Any = np.uint32 if 23 + bits <= 32 else np.uint64
    numbers = np.arange(most - 1, dtype=kind)
    drawn = stateless_words(seeds, most - 1).astype(kind, copy=False)
    drawn &= FLOAT_BITS
    drawn <<= bits
    drawn |= numbers
    drawn[numbers >= (tokens[:, None] - 1).astype(kind)] = np.iinfo(kind).max
    drawn.sort(axis=1)
    drawn &= 2**bits - 1
    chosen = np.flatnonzero(drawn < (segments[:, None] - 1).astype(kind))  # segments - 1 in each row
    begins = np.cumsum(tokens) - tokens  # of the examples, as if they were in one row
    is_first = places(segments) == 0
    starts = np.repeat(begins, segments)  # of the segments, there
    starts[~is_first] += chosen + 1 - np.repeat(np.arange(len(tokens)) * len(drawn[0]), segments - 1)
    return np.diff(starts, append=tokens.sum())


def iid_mask(sizes: np.ndarray, density: float, seeds: Seeds) -> np.ndarray:
    """Returns which tokens are noise, each on its own with chance `density`; arguments as for `span_mask`."""
    exists = np.arange(sizes.max()) < sizes[:, None]
    return (floats(split_seeds(seeds, 1)[0], exists.shape[1]) < np.float32(density))[exists]


def prefix_sizes(sizes: np.ndarray, seeds: Seeds) -> np.ndarray:
    """Returns how many tokens begin an example, at least one of several but never all; arguments as for `span_mask`."""
    return integers(split_seeds(seeds, 1)[0], 1, np.minimum(sizes - 1, 1)[:, None], sizes[:, None])[:, 0]


def with_sentinels(examples: Ragged, masked: np.ndarray, sentinel: int) -> Ragged:
    """Puts a sentinel for each run of masked tokens: `sentinel` for an example's first, the next ones count down."""
    goes_on = np.empty(len(masked), bool)  # the token before it, in the same example, is masked too
    goes_on[1:] = masked[1:] & masked[:-1]
    goes_on[examples.starts] = False
    kept = np.flatnonzero(~goes_on)
    sizes = np.add.reduceat(~goes_on, examples.starts, dtype=np.int64) if len(kept) else examples.sizes
    ids, begins = Ragged(examples.values[kept], sizes), masked[kept]
    runs = np.add.reduceat(begins, ids.starts, dtype=np.int64) if len(begins) else ids.sizes
    ids.values[begins] = sentinel - places(runs)
    return ids
