"""What an objective is, and what all of them share."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from t5xpg import vocabularies

Lengths = Mapping[str, int]
Features = Mapping[str, seqio.Feature]
Example = Mapping[str, tf.Tensor]
Step = Callable[..., tf.data.Dataset]
Restored = tuple[list[int], list[bool]]  # ids of a text, and which of them are noise


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

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """After `check`, returns the objective's features, without EOS where a later step appends it.

        Args:
          dataset: {"targets": int32 [tokens], ...}, one document each.
          sequence_length: {feature: length}, EOS included.
          output_features: those of `features`; inputs and targets with one vocabulary.

        Returns:
          {feature: int32 [<= its length]}.
        """
        raise NotImplementedError

    def restore(self, example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
        """Returns the text that an example was made from, without BOS and EOS; None if its features are not one text.

        Args:
          example: {feature: int32 [<= its length]}.
          vocabulary: of the targets.
        """
        return None

    def _lengths(self, sequence_length: Lengths | None) -> list[int]:
        """Returns the lengths of `features`, in their order."""
        found = dict(sequence_length or {})
        missing = [n for n in self.features if not isinstance(found.get(n), numbers.Integral)]
        if missing:
            raise ValueError(
                f"{self}: needs a length for each of {list(self.features)}; found {found}. "
                f"Add {missing} to TASK_FEATURE_LENGTHS"
            )
        return [found[name] for name in self.features]

    def _check_targets(self, inputs_length: int, targets_length: int, needed: int) -> None:
        """Refuses targets that would be cut; warns once if they are needlessly long."""
        fix = f"Set the feature lengths to {{'inputs': {inputs_length}, 'targets': {needed}}}"
        found = f"{self}: inputs of length {inputs_length} make targets of length {needed}"
        if targets_length < needed:
            raise ValueError(f"{found}, which {targets_length} would cut. {fix}")
        if targets_length > needed:
            _warn_once(f"{found}; {targets_length} spends decoder time on padding. {fix}")

    def _checked(self, sequence_length: Lengths, output_features: Features) -> seqio.Vocabulary:
        """Returns the one vocabulary of inputs and targets, after `check`."""
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


def more_sentinels(vocabulary: seqio.Vocabulary, count: int) -> str:
    """Returns the advice to take a vocabulary with at least `count` sentinels."""
    name = type(vocabulary).__name__
    return f"Use {name}(extra_ids={max(count, 100)}) in the task and the model"


def without_eos(ids: np.ndarray, vocabulary: seqio.Vocabulary) -> list[int]:
    """Returns the ids without padding and without the EOS they end in."""
    kept = ids[ids != vocabulary.pad_id].tolist()
    return kept[:-1] if kept and kept[-1] == vocabulary.eos_id else kept


@functools.cache
def _warn_once(message: str) -> None:
    logging.warning("%s", message)
