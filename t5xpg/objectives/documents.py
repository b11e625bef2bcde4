"""Documents of any length, cut into chunks that fit in memory 128 at a time, as t5's objectives read them."""

from __future__ import annotations

import functools

import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg.objectives.base import Example, Features, Lengths, Objective

CHUNK = 65_536  # tokens of a document that are read as one


class DocumentObjective(Objective):
    """An objective over documents.

    Deviation from t5: a document beyond 65,536 tokens is cut into chunks of that length, and each epoch sees all of
    them, as if they were documents. t5 takes one chunk at random. Shorter documents give t5's examples to the bit.

    Attributes:
      select_random_chunk: t5's way with documents beyond 65,536 tokens.
    """

    select_random_chunk: bool

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """After `check`, returns what t5's objective of the same name makes from the same seeds."""
        self._checked(sequence_length, output_features)
        texts = self.texts(dataset, output_features)
        examples = t5_preprocessors.split_tokens_to_inputs_length(texts, sequence_length, output_features)
        convert_example = functools.partial(self.convert_example, output_features=output_features)
        return seqio.map_over_dataset(convert_example, num_seeds=1)(examples)

    def convert_example(self, example: Example, seed: tf.Tensor, output_features: Features) -> Example:
        """{"targets": int32 [tokens of one example]} -> {"inputs", "targets"}; seed is int32 [2]."""
        raise NotImplementedError

    def texts(self, dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
        """Returns what examples are cut from, {"targets": int32 [tokens]}: 128 chunks at a time, concatenated."""
        return t5_preprocessors.reduce_concat_tokens(self.chunks(dataset, output_features))

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
