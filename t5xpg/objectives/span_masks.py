"""t5's span corruption, many examples at a time: the same masks from the same seeds, in less time.

t5 (`split_tokens`, `single_example_denoise`, `random_spans_noise_mask`) runs more than a hundred
small operations for each example, and TensorFlow takes longer to start one than to run it. Here
NumPy does the same for a batch of examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.data.tf_functions import numpy_function
from t5xpg.objectives.lengths import mask_counts

_BATCH_TOKENS = 32_768  # of a batch, which is a matter of time alone
_BEYOND = 2**29  # above any segment
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)  # x & _LOW and x >> _HIGH are its halves


def corrupt_spans(
    dataset: tf.data.Dataset, density: float, mean_span: float, tokens: int, sentinel: int
) -> tf.data.Dataset:
    """Cuts texts into examples and replaces random spans, as t5's `split_tokens` and `denoise`.

    Args:
      dataset: {"targets": int32 [any]}, texts.
      density: share of an example's tokens that is noise.
      mean_span: tokens per span of noise.
      tokens: length of an example; a text's last one may be shorter.
      sentinel: id of an example's first sentinel; the next ones count down.

    Returns:
      {"inputs", "targets": int32 [any]}.
    """
    counts = np.array([mask_counts(size, density, mean_span) for size in range(tokens + 1)])

    def cut(text: Mapping[str, tf.Tensor], seed: object) -> dict[str, tf.Tensor]:
        del seed  # t5 takes one here too: the next seeds are the same
        size = tf.size(text["targets"])
        starts = tf.range(0, size, tokens)  # [examples]
        padded = tf.pad(text["targets"], [[0, tf.size(starts) * tokens - size]])
        sizes = tf.minimum(size - starts, tokens)
        return {"tokens": tf.reshape(padded, [-1, tokens]), "size": sizes}

    def corrupt(batch: np.ndarray, sizes: np.ndarray, *seeds: np.ndarray) -> list[np.ndarray]:
        is_noise = noise_mask(sizes, counts, seeds)
        exists = np.arange(tokens) < sizes[:, None]
        inputs = with_sentinels(batch, is_noise, exists, sentinel)
        return [*inputs, *with_sentinels(batch, ~is_noise, exists, sentinel)]

    def corrupt_batch(batch: Mapping[str, tf.Tensor]) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        arguments = [batch["tokens"], batch["size"], *batch["seed"]]
        made = numpy_function(corrupt, arguments, [tf.int32] * 4)
        inputs, inputs_sizes, targets, targets_sizes = made
        for ids, sizes in ((inputs, inputs_sizes), (targets, targets_sizes)):
            ids.set_shape([None, None])
            sizes.set_shape([None])
        return {"inputs": (inputs, inputs_sizes), "targets": (targets, targets_sizes)}

    def trim(example: Mapping[str, tuple[tf.Tensor, tf.Tensor]]) -> dict[str, tf.Tensor]:
        return {name: ids[:size] for name, (ids, size) in example.items()}

    examples = seqio.map_over_dataset(cut, num_seeds=1)(dataset).unbatch()
    with_seed = seqio.map_over_dataset(lambda x, seed: {**x, "seed": seed}, num_seeds=1)
    batches = with_seed(examples).batch(max(_BATCH_TOKENS // tokens, 1))
    return batches.map(corrupt_batch, tf.data.AUTOTUNE).unbatch().map(trim)


# ---- NumPy, for a batch of examples ----


def noise_mask(sizes: np.ndarray, counts: np.ndarray, seeds: Sequence[np.ndarray]) -> np.ndarray:
    """Returns which tokens are noise: segments of text and of noise alternate, as many of each.

    Args:
      sizes: tokens of each example: int [examples].
      counts: noise tokens and spans of an example of each size: int [most tokens + 1, 2].
      seeds: two int64 [examples].

    Returns:
      bool [examples, most tokens]; False beyond an example's size.
    """
    noise, spans = counts[sizes].T
    most, most_noise = len(counts) - 1, counts[-1, 0]
    words = _random_words(seeds, 8)  # t5 splits the seed in six and takes the first two
    pairs = (words[:, ::2] | words[:, 1::2] << _HIGH).T  # [4, examples]
    text = _segments(np.maximum(sizes, 2) - noise, spans, pairs[2:], max(most, 2) - most_noise)
    noise = _segments(noise, spans, pairs[:2], most_noise)
    order = np.sort(np.concatenate([2 * text, 2 * noise + 1], 1))[:, :most]
    return (order % 2 == 1) & (order < _BEYOND)


def _segments(lengths: np.ndarray, segments: np.ndarray, seeds: Sequence[np.ndarray], most: int) -> np.ndarray:
    """Cuts `lengths` tokens into `segments` segments at random; returns each token's segment, from 0.

    t5 shuffles a one for each start but the first among zeros, by sorting uniform floats. Their
    order is that of the 23 random bits that TensorFlow makes a float from.

    Returns:
      int [examples, most]; `_BEYOND` beyond an example's length.
    """
    place = np.arange(most)
    draws = _random_words(seeds, most - 1) & np.uint64(0x7FFFFF)
    draws[place[1:] >= lengths[:, None]] = 1 << 23
    shuffled = np.sort(draws << _HIGH | place[:-1].astype(np.uint64)) & _LOW  # ties in their order
    starts = np.pad(shuffled.astype(np.int64) < segments[:, None] - 1, ((0, 0), (1, 0)))
    return np.where(place < lengths[:, None], np.cumsum(starts, 1, np.int32), _BEYOND)


def with_sentinels(
    tokens: np.ndarray, masked: np.ndarray, exists: np.ndarray, sentinel: int
) -> tuple[np.ndarray, np.ndarray]:
    """Puts one sentinel for each run of masked tokens; returns int32 [examples, any], and how many ids each has."""
    follows = np.pad(masked[:, :-1], ((0, 0), (1, 0)))
    starts = masked & ~follows
    ids = np.where(starts, sentinel + 1 - np.cumsum(starts, 1, np.int32), tokens)
    kept = exists & ~(masked & follows)
    sizes = kept.sum(1, dtype=np.int32)
    made = np.zeros([len(tokens), sizes.max()], np.int32)
    made[np.arange(made.shape[1]) < sizes[:, None]] = ids[kept]
    return made, sizes


# ---- TensorFlow's stateless random numbers (Philox 4x32-10, Salmon et al., SC 2011) ----


def _random_words(seeds: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Returns what TensorFlow's stateless functions draw from two int64 [examples], before they shape it.

    Returns:
      uint64 [examples, count], of 32 bits each.
    """
    first, second = (np.asarray(seed).astype(np.uint64)[:, None] for seed in seeds)
    zero = np.zeros_like(first)
    seed = [first & _LOW, first >> _HIGH, second & _LOW, second >> _HIGH]
    mixed = _philox(seed, [np.array(key, np.uint64) for key in (0x3EC8F720, 0x02461E29)])
    number = zero + np.arange(-(-count // 4), dtype=np.uint64)
    blocks = _philox([number, zero, *mixed[2:]], mixed[:2])  # 4 × [examples, blocks]
    return np.stack(blocks, 2).reshape(len(first), -1)[:, :count]


def _philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> list[np.ndarray]:
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        from_a, from_c = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (from_c >> _HIGH) ^ b ^ left, from_c & _LOW
        c, d = (from_a >> _HIGH) ^ d ^ right, from_a & _LOW
        left = (left + np.uint64(0x9E3779B9)) & _LOW
        right = (right + np.uint64(0xBB67AE85)) & _LOW
    return [a, b, c, d]
