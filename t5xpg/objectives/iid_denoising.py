"""I.i.d. denoising, T5's baseline: of t5's own parts, with the checks that it lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg import vocabularies
from t5xpg.objectives.base import Example, Features, Lengths, Restored, more_sentinels
from t5xpg.objectives.documents import DocumentObjective
from t5xpg.objectives.lengths import IidDenoisingLengths, iid_denoising_lengths
from t5xpg.objectives.span_corruption import fill_in
from t5xpg.vocabularies import sentinels


@dataclasses.dataclass(frozen=True)
class IidDenoising(DocumentObjective):
    """T5's baseline: every token is masked on its own with chance .15; a run of them shares a sentinel.

    t5's quirk included: where the first token is masked, its run is in the
    targets without a sentinel, and each later run follows the sentinel of the run before.

    Attributes:
      select_random_chunk: see `DocumentObjective`.
    """

    select_random_chunk: bool = False

    noise_density: ClassVar[float] = 0.15  # fixed in t5

    def lengths(self, inputs_length: int) -> IidDenoisingLengths:
        """See `lengths.iid_denoising_lengths`."""
        return iid_denoising_lengths(inputs_length, self.noise_density)

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses targets, or sentinels, that are too few for more than one example in a million.

        Raises:
          ValueError: what is wrong, with numbers that work.
        """
        inputs_length, targets_length = self._lengths(sequence_length)
        if inputs_length < 3:
            raise ValueError(f"{self}: inputs of length {inputs_length} are too short. Use 3")
        made, available = self.lengths(inputs_length), sentinels.count(vocabulary)
        if made.sentinels > available:
            raise ValueError(
                f"{self}: inputs of length {inputs_length} need {made.sentinels} sentinels, and "
                f"{vocabularies.describe(vocabulary)} has only {available} ids free for them. "
                f"{more_sentinels(vocabulary, made.sentinels)}, or shorter inputs"
            )
        self._check_targets(inputs_length, targets_length, made.targets)

    def convert_example(self, example: Example, seed: tf.Tensor, output_features: Features) -> Example:
        """Masks one example; seed is int32 [2]."""
        return t5_preprocessors.single_example_denoise(
            example,
            seed,
            output_features=output_features,
            noise_density=self.noise_density,
            noise_mask_fn=t5_preprocessors.iid_noise_mask,
            inputs_fn=t5_preprocessors.noise_span_to_unique_sentinel,
            targets_fn=t5_preprocessors.nonnoise_span_to_unique_sentinel,
        )

    def restore(self, example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
        """Puts the sentinels' spans back; the first span may lack a sentinel."""
        return fill_in(example, vocabulary)
