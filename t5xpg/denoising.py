"""What an objective is, and T5's own: span corruption, i.i.d. denoising, prefix and full LM.

Span corruption (T5, arXiv:1910.10683, section 3.1.4): documents are concatenated 128 at a time
without a separator and cut into examples of equal length; in each, random spans are replaced by one
sentinel each; the targets are the sentinels, each followed by what it replaced. Sentinels count
down from the vocabulary's last id. The preprocessing is t5's own code, but for the masks, which are
t5's and made by `span_masks`; here are its lengths and the checks that it lacks.

**Long documents.** As in t5, a document beyond 65,536 tokens gives each epoch only one of its
65,536-token pieces, at random.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Mapping
from typing import ClassVar

import seqio
import tensorflow as tf
from absl import logging
from t5.data import preprocessors as t5_preprocessors

from t5xpg import vocabularies
from t5xpg.lengths import (
    IidDenoisingLengths,
    SpanCorruptionLengths,
    iid_denoising_lengths,
    mask_counts,
    span_corruption_lengths,
)
from t5xpg.span_masks import corrupt_spans

CHUNK = 65_536  # tokens that t5 takes of one document in an epoch

Lengths = Mapping[str, int]
Features = Mapping[str, seqio.Feature]
Example = Mapping[str, tf.Tensor]
Step = Callable[..., tf.data.Dataset]


class Objective:
    """What the objectives share.

    Attributes:
      key_map: {feature: column of a row}, as `seqio.preprocessors.rekey` takes it; None is "".
      features: the names of the features that a task with this objective has.
    """

    key_map: ClassVar[Mapping[str, str | None]] = {"inputs": None, "targets": "text"}
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    @property
    def text_steps(self) -> list[Step]:
        """The preprocessors between `rekey` and tokenization."""
        return []

    @property
    def steps(self) -> list[Step]:
        """The preprocessors that follow tokenization."""
        return [self.convert, seqio.preprocessors.append_eos_after_trim]

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths, and a vocabulary of the targets, that would lose tokens.

        Raises:
          ValueError: what is wrong, with numbers that work.
        """
        raise NotImplementedError

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """After `check`, the objective's features, without EOS where a later step appends it.

        Args:
          dataset: {"targets": int32 [tokens], ...}, one document each.
          sequence_length: {feature: length}, EOS included.
          output_features: those of `features`; inputs and targets with one vocabulary.

        Returns:
          {feature: int32 [<= its length]}.
        """
        raise NotImplementedError

    def _lengths(self, sequence_length: Lengths | None) -> list[int]:
        """The lengths of `features`, in their order."""
        found = dict(sequence_length or {})
        missing = [n for n in self.features if not isinstance(found.get(n), numbers.Integral)]
        if missing:
            raise ValueError(
                f"{self}: needs a length for each of {list(self.features)}; found {found}. "
                f"Add {missing} to TASK_FEATURE_LENGTHS"
            )
        return [found[name] for name in self.features]

    def _check_targets(self, inputs_length: int, targets_length: int, needed: int) -> None:
        """Refuses targets that would be cut; says once where they are needlessly long."""
        fix = f"Set the feature lengths to {{'inputs': {inputs_length}, 'targets': {needed}}}"
        found = f"{self}: inputs of length {inputs_length} make targets of length {needed}"
        if targets_length < needed:
            raise ValueError(f"{found}, which {targets_length} would cut. {fix}")
        if targets_length > needed:
            _warn_once(f"{found}; {targets_length} spends decoder time on padding. {fix}")

    def _checked(self, sequence_length: Lengths, output_features: Features) -> seqio.Vocabulary:
        """The one vocabulary of inputs and targets, after `check`."""
        if missing := [name for name in self.features if name not in output_features]:
            raise ValueError(
                f"{self}: output_features lacks {missing}; found {sorted(output_features)}. "
                "Take objectives.output_features(objective, vocabulary)"
            )
        names = [name for name in ("inputs", "targets") if name in self.features]
        found = [output_features[name].vocabulary for name in names]
        if found[0] != found[-1]:
            raise ValueError(
                f"{self}: inputs and targets come from one text and need one vocabulary; "
                f"found {' and '.join(map(vocabularies.describe, found))}"
            )
        self.check(sequence_length, found[-1])
        return found[-1]


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
    """T5's pretraining: sentinels stand for masked spans in the inputs; the targets fill them in.

    Of a document beyond 65,536 tokens each epoch sees one 65,536-token piece.

    Attributes:
      noise_density: share of the tokens that is masked, between 0 and 1.
      mean_noise_span_length: tokens per masked span, at least 1; T5 has 3, ByT5 20.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # gin files say 3 as well as 3.0
            object.__setattr__(self, field.name, float(getattr(self, field.name)))
        if not 0 < self.noise_density < 1:
            raise ValueError(
                f"noise_density is a share between 0 and 1; found {self.noise_density}. T5 has 0.15"
            )
        if not self.mean_noise_span_length >= 1:
            raise ValueError(
                "mean_noise_span_length is in tokens, at least 1; "
                f"found {self.mean_noise_span_length}. T5 has 3, ByT5 20"
            )

    def lengths(self, inputs_length: int) -> SpanCorruptionLengths:
        """See `lengths.span_corruption_lengths`."""
        return span_corruption_lengths(
            inputs_length, self.noise_density, self.mean_noise_span_length
        )

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
                f"{self}: too few tokens stay unmasked to part the spans. "
                f"Use mean_noise_span_length={works}, or a smaller noise_density"
            )

    def _check_sentinels(self, inputs_length: int, vocabulary: seqio.Vocabulary) -> None:
        spans = self.lengths(inputs_length).spans
        available = vocabularies.sentinels(vocabulary)
        if spans <= available:
            return
        fix = more_sentinels(vocabulary, spans)
        if available:
            first = math.floor(self.mean_noise_span_length) + 1
            longer = (
                (n, span_corruption_lengths(inputs_length, self.noise_density, n))
                for n in itertools.count(first)
            )
            works, made = next((n, made) for n, made in longer if made.spans <= available)
            fix += f", or mean_noise_span_length={works} with targets of length {made.targets}"
        raise ValueError(
            f"{self}: inputs of length {inputs_length} have {spans} spans, and of "
            f"{vocabularies.describe(vocabulary)} only {available} ids are free for sentinels; the "
            f"rest stand for text. {fix}"
        )

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """After `check`, what t5's `span_corruption` makes from the same seeds."""
        vocabulary = self._checked(sequence_length, output_features)
        texts = t5_preprocessors.select_random_chunk(dataset, output_features, CHUNK)
        return corrupt_spans(
            t5_preprocessors.reduce_concat_tokens(texts),
            self.noise_density,
            self.mean_noise_span_length,
            tokens=self.lengths(sequence_length["inputs"]).tokens,
            sentinel=vocabulary.vocab_size - 1,
        )

    def convert_example(
        self, example: Example, seed: tf.Tensor, output_features: Features
    ) -> Example:
        """One example of at most `lengths(...).tokens` tokens; seed is int32 [2]."""
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


@dataclasses.dataclass(frozen=True)
class IidDenoising(Objective):
    """T5's baseline: every token is masked with chance .15 on its own, runs of them together.

    t5's own function, its quirk included: where the first token is masked, its run stands in the
    targets without a sentinel, and each later run after the sentinel of the run before.
    """

    noise_density: ClassVar[float] = 0.15  # fixed in t5

    def lengths(self, inputs_length: int) -> IidDenoisingLengths:
        """See `lengths.iid_denoising_lengths`."""
        return iid_denoising_lengths(inputs_length, self.noise_density)

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses targets, and sentinels, too few for one example in a million.

        Raises:
          ValueError: what is wrong, with numbers that work.
        """
        inputs_length, targets_length = self._lengths(sequence_length)
        if inputs_length < 3:
            raise ValueError(f"{self}: inputs of length {inputs_length} are too short. Use 3")
        made, available = self.lengths(inputs_length), vocabularies.sentinels(vocabulary)
        if made.sentinels > available:
            raise ValueError(
                f"{self}: inputs of length {inputs_length} need {made.sentinels} sentinels, and of "
                f"{vocabularies.describe(vocabulary)} only {available} ids are free for them. "
                f"{more_sentinels(vocabulary, made.sentinels)}, or shorter inputs"
            )
        self._check_targets(inputs_length, targets_length, made.targets)

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """t5's `iid_denoising`, after `check`."""
        self._checked(sequence_length, output_features)
        return t5_preprocessors.iid_denoising(dataset, sequence_length, output_features)


@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
    """Documents, cut to the inputs length, parted at random: inputs before, targets after.

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
                f"{dict(sequence_length)} would cut. Set the feature lengths to "
                f"{{'inputs': {inputs_length}, 'targets': {inputs_length - 1}}} or more targets"
            )

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """t5's `prefix_lm`, after `check`."""
        self._checked(sequence_length, output_features)
        return t5_preprocessors.prefix_lm(dataset, sequence_length, output_features)

    def convert_example(
        self, example: Example, seed: tf.Tensor, output_features: Features
    ) -> Example:
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

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """t5's `full_lm`, after `check`."""
        self._checked(sequence_length, output_features)
        return t5_preprocessors.full_lm(dataset, sequence_length, output_features)


def more_sentinels(vocabulary: seqio.Vocabulary, count: int) -> str:
    """Advice: a vocabulary with at least `count` sentinels."""
    name = type(vocabulary).__name__
    return f"Use {name}(extra_ids={max(count, 100)}) in the task and the model"


@functools.cache
def _warn_once(message: str) -> None:
    logging.warning("%s", message)
