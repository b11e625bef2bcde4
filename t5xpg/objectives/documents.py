"""Documents of any length, cut into chunks that fit in memory 128 at a time, as t5's objectives read them."""

from __future__ import annotations

import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg.objectives.base import Example, Features, Objective

CHUNK = 65_536  # tokens of a document that are read as one


class DocumentObjective(Objective):
    """An objective over documents.

    Deviation from t5: a document beyond 65,536 tokens is cut into chunks of that length, and each epoch sees all of
    them, as if they were documents. t5 takes one chunk at random. Shorter documents give t5's examples to the bit.

    Attributes:
      select_random_chunk: t5's way with documents beyond 65,536 tokens.
    """

    select_random_chunk: bool

    def chunks(self, dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
        """{"targets": int32 [tokens], ...}, one document each -> {"targets": int32 [<= 65,536]}, none of it empty.

        Only a document's last chunk, where it is not the only one, may end in padding, which t5's
        `reduce_concat_tokens` drops.
        """
        if self.select_random_chunk:
            return t5_preprocessors.select_random_chunk(dataset, output_features, CHUNK)
        return cut(dataset, CHUNK)


def cut(dataset: tf.data.Dataset, length: int) -> tf.data.Dataset:
    """As `DocumentObjective.chunks`, in chunks of any length."""

    @seqio.map_over_dataset(num_seeds=1)
    def reshape(row: Example, seed: tf.Tensor) -> Example:
        """`seed` is not used: t5's select_random_chunk draws one here, and those that follow depend on that."""
        del seed
        size = tf.size(row["targets"])
        count = -(-size // length)
        padding = count * tf.minimum(size, length) - size
        return {"targets": tf.reshape(tf.pad(row["targets"], [[0, padding]]), [count, -1])}

    return reshape(dataset.filter(lambda row: tf.size(row["targets"]) > 0)).unbatch()
