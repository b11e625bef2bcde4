"""Pairs of texts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import seqio
import tensorflow as tf

from t5xpg.objectives.base import Example, Lengths, Objective, Step


@dataclasses.dataclass(frozen=True)
class Supervised(Objective):
    """Pairs of texts: rows {"inputs", "targets"}, each cut to its feature's length, then EOS.

    Attributes:
      prefix: a text put before each inputs, such as "summarize: ".
    """

    prefix: str = ""

    key_map: ClassVar[Mapping[str, str | None]] = {"inputs": "inputs", "targets": "targets"}

    @property
    def text_steps(self) -> list[Step]:
        """Puts the prefix before the inputs."""
        return [functools.partial(_prepend, prefix=self.prefix)] if self.prefix else []

    @property
    def steps(self) -> list[Step]:
        """No step asks for lengths: T5X's infer_eval reads pairs without."""
        return [seqio.preprocessors.append_eos_after_trim]

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths that hold nothing but EOS.

        Raises:
          ValueError: what is wrong and what to pass.
        """
        del vocabulary  # any will do: no sentinels
        if min(self._lengths(sequence_length)) < 2:
            raise ValueError(f"{self}: feature lengths {sequence_length} hold no text besides EOS. Use 2 or more")


@seqio.map_over_dataset
def _prepend(row: Example, prefix: str) -> Example:
    return {**row, "inputs": tf.strings.join([prefix, row["inputs"]])}
