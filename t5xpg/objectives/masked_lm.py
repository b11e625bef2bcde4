"""BERT's masking, for encoder-only models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg import vocabularies
from t5xpg.objectives.base import Example, Features, Lengths, Objective, Restored, Step
from t5xpg.vocabularies import sentinels


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """BERT's masking (arXiv:1810.04805, section 3.1), for encoder-only models, new in every epoch.

    Each token is selected with chance `noise_density`, never a special one; the model predicts the
    original of those selected. Of them, `mask_share` become the mask, `random_share` a random token
    of text, the others stay. Documents begin with BOS, where the vocabulary has one, and end in
    EOS; they are concatenated 128 at a time and cut to the inputs length. Deviation from BERT:
    random tokens are never special ones (0 would be padding).

    Features, of equal length: "inputs" as the model reads them, "targets" the original tokens,
    "selected" 2 where the model predicts and 1 elsewhere (SeqIO's packing would drop zeros).

    Attributes:
      noise_density: a token's chance of being selected.
      mask_share: of the selected tokens, those that become the mask.
      random_share: of the selected tokens, those that become a random one.
      mask_id: the mask; None is the vocabulary's own, or its last id where that is a sentinel.
    """

    noise_density: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    mask_id: int | None = None

    key_map: ClassVar[Mapping[str, str | None]] = {"targets": "text"}
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets", "selected")

    def __post_init__(self) -> None:
        if not 0 < self.noise_density <= 1:
            raise ValueError(f"noise_density is a share between 0 and 1; found {self.noise_density}. BERT has 0.15")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                "mask_share and random_share are shares of one whole; "
                f"found {self.mask_share} and {self.random_share}. BERT has 0.8 and 0.1"
            )

    @property
    def steps(self) -> list[Step]:
        """BOS and EOS are around documents, not examples."""
        return [_prepend_bos, seqio.preprocessors.append_eos, self.convert]

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths that differ, and a vocabulary without a mask.

        Raises:
          ValueError: what is wrong and what to pass.
        """
        lengths = self._lengths(sequence_length)
        if len(set(lengths)) > 1 or lengths[0] < 1:
            aligned = dict.fromkeys(self.features, max(*lengths, 1))
            raise ValueError(
                f"{self}: {', '.join(self.features)} stand side by side and need one length; found "
                f"{sequence_length}. Set the feature lengths to {aligned}"
            )
        self.mask_token(vocabulary)

    def mask_token(self, vocabulary: seqio.Vocabulary) -> int:
        """Returns the id of the mask.

        Raises:
          ValueError: the vocabulary has none.
        """
        last = vocabulary.vocab_size - 1
        found = getattr(vocabulary, "mask_id", None) if self.mask_id is None else self.mask_id
        if found is None and sentinels.count(vocabulary):
            found = sentinels.to_id(0, vocabulary)
        if found is None or not 0 < found <= last:
            raise ValueError(
                f"{self}: {vocabularies.describe(vocabulary)} has no id for the mask. Use "
                "extra_ids=100 in the task and the model, or set mask_id to one of its ids"
            )
        return found

    def text_ids(self, vocabulary: seqio.Vocabulary) -> np.ndarray:
        """Returns the ids that stand for text, int32: none of pad, EOS, BOS, unk, mask and sentinels."""
        stand_for_text = np.ones(vocabulary.vocab_size, bool)
        stand_for_text[sentinels.first(vocabulary) :] = False
        named = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.bos_id, vocabulary.unk_id)
        special = [i for i in named if i is not None and i >= 0]
        stand_for_text[[*special, self.mask_token(vocabulary)]] = False
        return np.flatnonzero(stand_for_text).astype(np.int32)

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """After `check`, returns {"inputs", "targets", "selected"}: int32 [<= inputs length] each."""
        vocabulary = self._checked(sequence_length, output_features)
        texts = t5_preprocessors.reduce_concat_tokens(dataset)
        examples = t5_preprocessors.split_tokens(texts, max_tokens_per_segment=sequence_length["inputs"])
        mask = functools.partial(self.convert_example, vocabulary=vocabulary)
        return seqio.map_over_dataset(mask, num_seeds=1)(examples)

    def convert_example(self, example: Example, seed: tf.Tensor, vocabulary: seqio.Vocabulary) -> Example:
        """Masks {"targets": int32 [tokens]}; seed is int32 [2]."""
        text_ids = self.text_ids(vocabulary)
        is_text = np.isin(np.arange(vocabulary.vocab_size), text_ids)
        tokens = example["targets"]  # [tokens], as all that follows
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        chance = tf.random.stateless_uniform(tf.shape(tokens), seeds[0])
        fate = tf.random.stateless_uniform(tf.shape(tokens), seeds[1])
        drawn = tf.random.stateless_uniform(tf.shape(tokens), seeds[2], 0, len(text_ids), dtype=tf.int32)
        selected = tf.gather(is_text, tokens) & (chance < self.noise_density)
        masked = selected & (fate < self.mask_share)
        replaced = selected & ~masked & (fate < self.mask_share + self.random_share)
        inputs = tf.where(masked, self.mask_token(vocabulary), tokens)
        inputs = tf.where(replaced, tf.gather(text_ids, drawn), inputs)
        return {"inputs": inputs, "targets": tokens, "selected": 1 + tf.cast(selected, tf.int32)}

    def restore(self, example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
        """Returns the original tokens; noise is what was selected."""
        special = [vocabulary.pad_id, vocabulary.eos_id, vocabulary.bos_id or 0]
        is_text = ~np.isin(example["targets"], special)
        return example["targets"][is_text].tolist(), (example["selected"] == 2)[is_text].tolist()


def _prepend_bos(dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
    """{"targets": int32 [tokens]} -> one more, where the vocabulary has a BOS."""
    bos = output_features["targets"].vocabulary.bos_id
    if bos is None or bos < 0:
        return dataset
    return dataset.map(lambda row: {**row, "targets": tf.concat([[bos], row["targets"]], 0)})
