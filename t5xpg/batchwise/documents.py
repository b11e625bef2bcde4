"""Documents, and the texts and examples that objectives cut from them, as `t5xpg.objectives.documents` does in tf.data.

All of it is arithmetic with sizes: the tokens stay one after the other as they came.
"""

from __future__ import annotations

import numpy as np

from t5xpg.batchwise.ragged import Ragged, places
from t5xpg.batchwise.random_numbers import Seeds, dataset_stream, integers, split_seeds
from t5xpg.batchwise.stages import Stage

_DOCUMENTS = 128  # in a text


class SeedStream(Stage):
    """The seeds that SeqIO gives the preprocessor of a task that is the `number`-th to ask for some, from 0.

    A call gives those of the next examples.

    Args:
      seed: of the task's preprocessors; see `seqio.map_over_dataset`.
      number: of the preprocessor.
    """

    kept = ("_given",)

    def __init__(self, seed: int, number: int):
        self._streams, self._given = [dataset_stream(seed + 2 * number + part) for part in (0, 1)], 0

    def __call__(self, examples: int) -> Seeds:
        start, self._given = self._given, self._given + examples
        return [stream.words(start, examples) for stream in self._streams]


class Chunks(Stage):
    """Documents -> chunks of at most `length` tokens, of all of each document or of one chunk at random.

    Documents without tokens are left out. A chunk is chosen as t5's `single_example_select_random_chunk` does.

    Args:
      length: of a chunk.
      seeds: to choose a chunk with; None takes all.
    """

    def __init__(self, length: int, seeds: SeedStream | None):
        self._length, self._seeds = length, seeds
        self.parts = [seeds] if seeds else []

    def __call__(self, documents: Ragged) -> Ragged:
        documents = nonempty(documents)
        if self._seeds is None:
            return split(documents, self._length)
        seeds = self._seeds(len(documents.sizes))
        if documents.sizes.max(initial=0) <= self._length:
            return documents
        chunks = np.ceil(documents.sizes.astype(np.float32) / np.float32(self._length)).astype(np.int64)  # t5's count
        begin = self._length * integers(split_seeds(seeds, 2)[1], 1, 0, chunks[:, None])[:, 0]
        kept = np.minimum(documents.sizes - begin, self._length)
        place = places(documents.sizes) - np.repeat(begin, documents.sizes)
        return Ragged(documents.values[(place >= 0) & (place < np.repeat(kept, documents.sizes))], kept)


class Joined(Stage):
    """Chunks -> texts of 128 each, without id 0, which is padding to `t5`."""

    kept = ("_values", "_sizes")

    def __init__(self):
        self._values, self._sizes = np.zeros(0, np.int32), np.zeros(0, np.int64)

    def __call__(self, chunks: Ragged) -> Ragged:
        chunks = Ragged.joined([Ragged(self._values, self._sizes), without_zeros(chunks)])
        texts, (self._values, self._sizes) = chunks.cut(len(chunks.sizes) // _DOCUMENTS * _DOCUMENTS)
        return Ragged(texts.values, texts.sizes.reshape(-1, _DOCUMENTS).sum(1))


def nonempty(sequences: Ragged) -> Ragged:
    return Ragged(sequences.values, sequences.sizes[sequences.sizes > 0])


def without_zeros(sequences: Ragged) -> Ragged:
    if sequences.values.all():
        return sequences
    total = np.concatenate([[0], np.cumsum(sequences.values != 0)])
    ends = np.cumsum(sequences.sizes)
    return Ragged(sequences.values[sequences.values != 0], total[ends] - total[ends - sequences.sizes])


def without_padding(sequences: Ragged) -> Ragged:
    """Cuts off as many tokens at the end of each as it has zeros, which `PrefixLM` takes for padding."""
    if sequences.values.all():
        return sequences
    return sequences.first(without_zeros(sequences).sizes)[0]


def split(texts: Ragged, tokens: int) -> Ragged:
    """Cuts texts into examples of `tokens` tokens; a text's last one may be shorter."""
    sizes = nonempty(texts).sizes
    count = -(-sizes // tokens)
    cut = np.full(count.sum(), tokens)
    cut[np.cumsum(count) - 1] = sizes - (count - 1) * tokens
    return Ragged(texts.values, cut)
