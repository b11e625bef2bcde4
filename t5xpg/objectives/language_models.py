"""Language models: t5's own `prefix_lm` and `full_lm`, with the checks that they lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg.objectives.base import Example, Features, Lengths, Objective, Restored, Step, without_eos


@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
    """Documents, cut to the inputs length and split at random: inputs before, targets after.

    Of a document beyond 65,536 tokens each epoch sees one 65,536-token piece.
    """

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

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """t5's `prefix_lm`, after `check`."""
        self._checked(sequence_length, output_features)
        return t5_preprocessors.prefix_lm(dataset, sequence_length, output_features)

    def convert_example(self, example: Example, seed: tf.Tensor, output_features: Features) -> Example:
        """One example, as `SpanCorruption.convert_example`."""
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
class FullLM(Objective):
    """Predict every token, for decoder-only models: targets alone, EOS after each document.

    Documents are concatenated 128 at a time and cut to the targets length. Of one beyond 65,536
    tokens each epoch sees one 65,536-token piece.
    """

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
        """t5's `full_lm`, after `check`."""
        self._checked(sequence_length, output_features)
        return t5_preprocessors.full_lm(dataset, sequence_length, output_features)
