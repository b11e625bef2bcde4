"""Span corruption (T5, arXiv:1910.10683, section 3.1.4).

Documents are concatenated 128 at a time without a separator and cut into examples of equal length; in each, random
spans are replaced by one sentinel each; the targets are the sentinels, each followed by what it replaced. Sentinels
count down from the vocabulary's last id. The preprocessing is t5's own code, except that
`span_masks` makes its masks, and `documents` keeps all of a long document; this module has its lengths and the checks
that it lacks.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg import vocabularies
from t5xpg.objectives.base import Example, Features, Lengths, Restored, more_sentinels, without_eos
from t5xpg.objectives.documents import DocumentObjective
from t5xpg.objectives.lengths import SpanCorruptionLengths, mask_counts, span_corruption_lengths
from t5xpg.objectives.span_masks import corrupt_spans
from t5xpg.vocabularies import sentinels


@dataclasses.dataclass(frozen=True)
class SpanCorruption(DocumentObjective):
    """T5's pretraining: sentinels stand for masked spans in the inputs; the targets fill them in.

    Attributes:
      noise_density: share of the tokens that is masked, between 0 and 1.
      mean_noise_span_length: tokens per masked span, at least 1; T5 has 3, ByT5 20.
      select_random_chunk: see `DocumentObjective`.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    select_random_chunk: bool = False

    def __post_init__(self) -> None:
        for name in ("noise_density", "mean_noise_span_length"):  # gin files say 3 as well as 3.0
            object.__setattr__(self, name, float(getattr(self, name)))
        if not 0 < self.noise_density < 1:
            raise ValueError(f"noise_density is a share between 0 and 1; found {self.noise_density}. T5 has 0.15")
        if not self.mean_noise_span_length >= 1:
            raise ValueError(
                "mean_noise_span_length is in tokens, at least 1; "
                f"found {self.mean_noise_span_length}. T5 has 3, ByT5 20"
            )

    def lengths(self, inputs_length: int) -> SpanCorruptionLengths:
        """See `lengths.span_corruption_lengths`."""
        return span_corruption_lengths(inputs_length, self.noise_density, self.mean_noise_span_length)

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths that would lose tokens, and more spans than there are sentinels.

        Logs one warning where the targets have more room than they can use.

        Raises:
          ValueError: what is wrong, with numbers that work.
        """
        inputs_length, targets_length = self._lengths(sequence_length)
        self._check_inputs(inputs_length)
        self.check_spans(inputs_length, vocabulary)
        needed = self.lengths(inputs_length).targets
        self._check_targets(inputs_length, targets_length, needed)

    def check_spans(self, inputs_length: int, vocabulary: seqio.Vocabulary) -> None:
        """The part of `check` that asks whether spans stay apart and each has a sentinel."""
        self._check_crowding(inputs_length)
        self._check_sentinels(inputs_length, vocabulary)

    def _check_inputs(self, inputs_length: int) -> None:
        """For few noise tokens t5 plans no span, then masks one: its sentinel does not fit."""

        def fits(length: int) -> bool:
            return length >= 3 and self.lengths(length).inputs <= length

        if not fits(inputs_length):
            works = next(n for n in itertools.count(max(inputs_length, 2) + 1) if fits(n))
            raise ValueError(
                f"{self}: inputs of length {inputs_length} are too short and would lose their "
                f"sentinel. Use inputs of length {works}, with targets of length "
                f"{self.lengths(works).targets}"
            )

    def _check_crowding(self, inputs_length: int) -> None:
        """Each span needs an unmasked token before it, in a corpus's shorter last example too."""
        tokens = self.lengths(inputs_length).tokens

        def crowded(mean_span: float) -> bool:
            counts = (mask_counts(n, self.noise_density, mean_span) for n in range(2, tokens + 1))
            return any(spans > n - noise for n, (noise, spans) in enumerate(counts, start=2))

        if crowded(self.mean_noise_span_length):
            first = math.floor(self.mean_noise_span_length) + 1
            works = next(n for n in itertools.count(first) if not crowded(n))
            raise ValueError(
                f"{self}: too few tokens stay unmasked to separate the spans. "
                f"Use mean_noise_span_length={works}, or a smaller noise_density"
            )

    def _check_sentinels(self, inputs_length: int, vocabulary: seqio.Vocabulary) -> None:
        spans = self.lengths(inputs_length).spans
        available = sentinels.count(vocabulary)
        if spans <= available:
            return
        fix = more_sentinels(vocabulary, spans)
        if available:
            first = math.floor(self.mean_noise_span_length) + 1
            longer = (
                (n, span_corruption_lengths(inputs_length, self.noise_density, n)) for n in itertools.count(first)
            )
            works, made = next((n, made) for n, made in longer if made.spans <= available)
            fix += f", or mean_noise_span_length={works} with targets of length {made.targets}"
        raise ValueError(
            f"{self}: inputs of length {inputs_length} have {spans} spans, and "
            f"{vocabularies.describe(vocabulary)} has only {available} ids free for sentinels; the "
            f"rest stand for text. {fix}"
        )

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """After `check`, returns what t5's `span_corruption` makes from the same seeds."""
        vocabulary = self._checked(sequence_length, output_features)
        return corrupt_spans(
            self.texts(dataset, output_features),
            self.noise_density,
            self.mean_noise_span_length,
            tokens=self.lengths(sequence_length["inputs"]).tokens,
            sentinel=sentinels.to_id(0, vocabulary),
        )

    def convert_example(self, example: Example, seed: tf.Tensor, output_features: Features) -> Example:
        """Masks one example of at most `lengths(...).tokens` tokens; seed is int32 [2]."""
        return t5_preprocessors.single_example_denoise(
            example,
            seed,
            output_features=output_features,
            noise_density=self.noise_density,
            noise_mask_fn=functools.partial(
                t5_preprocessors.random_spans_noise_mask,
                mean_noise_span_length=self.mean_noise_span_length,
            ),
            inputs_fn=t5_preprocessors.noise_span_to_unique_sentinel,
            targets_fn=t5_preprocessors.nonnoise_span_to_unique_sentinel,
        )

    def restore(self, example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
        """Puts the targets' spans where the inputs have sentinels."""
        return fill_in(example, vocabulary)


def fill_in(example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
    """Puts the targets' spans where the inputs have sentinels.

    The n-th span of the targets belongs to the n-th sentinel of the inputs. Targets begin with a sentinel, or, where t5
    masked the first token (i.i.d. denoising), with the first span itself.

    Returns:
      (ids, which of them are noise), or None where the inputs have no sentinel, or the sentinels do not pair.
    """
    first = sentinels.first(vocabulary)
    inputs, targets = (without_eos(example[name], vocabulary) for name in ("inputs", "targets"))
    spans: list[list[int]] = [[]]
    for token in targets:
        if token >= first:
            spans.append([])
        else:
            spans[-1].append(token)
    if not spans[0]:
        spans = spans[1:]
    if not 0 < sum(token >= first for token in inputs) <= len(spans):
        return None
    ids, noise, unused = [], [], iter(spans)
    for token in inputs:
        span = next(unused) if token >= first else [token]
        ids += span
        noise += [token >= first] * len(span)
    return ids, noise
