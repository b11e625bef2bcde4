"""Language models: t5's `prefix_lm` and `full_lm`, of its own parts, with the checks that they lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg.objectives.base import Example, Features, Lengths, Restored, Step, without_eos
from t5xpg.objectives.documents import CHUNK, DocumentObjective, cut


@dataclasses.dataclass(frozen=True)
class PrefixLM(DocumentObjective):
    """Documents, cut to the inputs length and split at random: inputs before, targets after.

    Attributes:
      select_random_chunk: see `DocumentObjective`.
    """

    select_random_chunk: bool = False

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses targets that cannot hold all of a text but its first token.

        Raises:
          ValueError: what is wrong, with numbers that work.
        """
        del vocabulary  # any will do: no sentinels
        inputs_length, targets_length = self._lengths(sequence_length)
        if inputs_length < 3 or targets_length < inputs_length - 1:
            inputs_length = max(inputs_length, 3)
            raise ValueError(
                f"{self}: all of a text but its first token can be targets, which "
                f"{sequence_length} would cut. Set the feature lengths to "
                f"{{'inputs': {inputs_length}, 'targets': {inputs_length - 1}}} or more targets"
            )

    def texts(self, dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
        """Returns the chunks, each for itself."""
        return self.chunks(dataset, output_features).map(_without_padding)

    def convert_example(self, example: Example, seed: tf.Tensor, output_features: Features) -> Example:
        """Splits one example; seed is int32 [2]."""
        return t5_preprocessors.single_example_denoise(
            example,
            seed,
            output_features=output_features,
            noise_density=0.5,
            noise_mask_fn=t5_preprocessors.random_prefix_noise_mask,
            inputs_fn=t5_preprocessors.drop_nonnoise_tokens,
            targets_fn=t5_preprocessors.drop_noise_tokens,
        )

    def restore(self, example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
        """Returns the inputs and then the targets, which are noise."""
        inputs, targets = (without_eos(example[name], vocabulary) for name in ("inputs", "targets"))
        return inputs + targets, [False] * len(inputs) + [True] * len(targets)


@dataclasses.dataclass(frozen=True)
class FullLM(DocumentObjective):
    """Predict every token, for decoder-only models: targets alone, EOS after each document.

    Documents are concatenated 128 at a time and cut to the targets length.

    Attributes:
      select_random_chunk: see `DocumentObjective`.
    """

    select_random_chunk: bool = False

    key_map: ClassVar[Mapping[str, str | None]] = {"targets": "text"}
    features: ClassVar[tuple[str, ...]] = ("targets",)

    @property
    def steps(self) -> list[Step]:
        """EOS ends documents, not examples: `convert` appends it."""
        return [self.convert]

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths without targets.

        Raises:
          ValueError: what is wrong and what to pass.
        """
        del vocabulary  # any will do: no sentinels
        self._lengths(sequence_length)

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """After `check`, returns what t5's `full_lm` makes."""
        self._checked(sequence_length, output_features)
        if self.select_random_chunk:
            return t5_preprocessors.full_lm(dataset, sequence_length, output_features)
        texts = dataset.filter(lambda row: tf.size(row["targets"]) > 0)
        # EOS ends a document, not each of its chunks.
        chunks = cut(seqio.preprocessors.append_eos(texts, output_features), CHUNK + 1)
        texts = t5_preprocessors.reduce_concat_tokens(chunks)
        return t5_preprocessors.split_tokens(texts, max_tokens_per_segment=sequence_length["targets"])


def _without_padding(row: Example) -> Example:
    return {"targets": row["targets"][: tf.math.count_nonzero(row["targets"])]}
