"""t5's span corruption, many examples at a time: the same masks from the same seeds, in less time.

t5 (`split_tokens`, `single_example_denoise`, `random_spans_noise_mask`) runs more than a hundred
small operations for each example, and TensorFlow takes longer to start one than to run it. Here
`batchwise.noise` does the same for a batch of examples; T5X and SeqIO read them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.batchwise import noise
from t5xpg.batchwise.ragged import Ragged
from t5xpg.data.tf_functions import numpy_function
from t5xpg.objectives.lengths import mask_counts

_BATCH_TOKENS = 32_768  # of a batch, which is a matter of time alone


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
        examples = Ragged(batch[np.arange(tokens) < sizes[:, None]], sizes.astype(np.int64))
        is_noise = noise.span_mask(sizes, counts, seeds)
        made = [noise.with_sentinels(examples, masked, sentinel) for masked in (is_noise, ~is_noise)]
        return [part for ids in made for part in (ids.padded(ids.sizes.max()), ids.sizes.astype(np.int32))]

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
