"""Many texts at a time as ids, the same as a vocabulary's `encode_tf` gives one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from t5xpg import objectives
from t5xpg.batchwise.ragged import Ragged
from t5xpg.batchwise.stages import THREADS
from t5xpg.vocabularies.bpe import ByteLevelBPEVocabulary
from t5xpg.vocabularies.stored import StoredSentencePieceVocabulary

_TEXTS = 256  # that a thread takes at a time


def texts_of(rows: Mapping[str, list[str]], objective: objectives.Objective) -> dict[str, list[str]]:
    """Returns {feature: texts} of rows {column: texts}, as they are tokenized, of the features that have a column."""
    texts = {feature: rows[column] for feature, column in objective.key_map.items() if column}
    if isinstance(objective, objectives.Supervised) and objective.prefix:
        texts["inputs"] = [objective.prefix + text for text in texts["inputs"]]
    return texts


def encode(texts: Sequence[str], vocabulary: seqio.Vocabulary) -> Ragged:
    """Returns the ids of texts, int32, without EOS; the vocabulary's kind is one of those in `KINDS`."""
    return KINDS[type(vocabulary)](texts, vocabulary)


def _bytes(texts: Sequence[str], _: seqio.ByteVocabulary) -> Ragged:
    encoded = [text.encode() for text in texts]
    values = np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32)
    values += 3  # ids of padding, EOS and what is unknown come first
    return Ragged(values, np.array([len(text) for text in encoded], np.int64))


def _sentencepiece(texts: Sequence[str], vocabulary: seqio.SentencePieceVocabulary) -> Ragged:
    """By `encode_tf`'s own operation: of two divisions of a text that score the same, sentencepiece takes another."""

    def part(start: int) -> Ragged:
        with tf.device("CPU"):
            ids = vocabulary.tf_tokenizer.tokenize(tf.constant(texts[start : start + _TEXTS], tf.string))
            return Ragged(ids.values.numpy(), ids.row_lengths().numpy())

    return Ragged.joined(THREADS.map(part, range(0, max(len(texts), 1), _TEXTS)))


def _byte_level_bpe(texts: Sequence[str], vocabulary: ByteLevelBPEVocabulary) -> Ragged:
    made = vocabulary.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    values = [np.array(encoding.ids, np.int32) for encoding in made]
    return Ragged(np.concatenate([np.zeros(0, np.int32), *values]), np.array([len(ids) for ids in values], np.int64))


KINDS: dict[type, Callable[[Sequence[str], seqio.Vocabulary], Ragged]] = {
    seqio.ByteVocabulary: _bytes,
    seqio.SentencePieceVocabulary: _sentencepiece,
    StoredSentencePieceVocabulary: _sentencepiece,
    ByteLevelBPEVocabulary: _byte_level_bpe,
}
