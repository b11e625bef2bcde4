"""`sentinels.encode` and `decode` as TensorFlow graphs, for models that are served without Python.

Ids and texts are the same, texts as UTF-8 in string tensors.
"""

from __future__ import annotations

import abc

import seqio
import tensorflow as tf

from t5xpg.vocabularies import sentinels

_CUT = b"\xff"  # a byte that UTF-8 does not have


def of(vocabulary: seqio.Vocabulary) -> GraphText:
    """Returns the vocabulary's; ValueError for other kinds than bytes and SentencePiece."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return Bytes(vocabulary)
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return SentencePiece(vocabulary)
    raise ValueError(f"A {type(vocabulary).__name__} has no graph of its own; only bytes and SentencePiece have.")


class GraphText(tf.Module, abc.ABC):
    """A vocabulary whose resources are saved with the tf.Module that it is an attribute of.

    Attributes:
      needs: Python modules to import before a saved graph is loaded, beside tensorflow.
      eos_id: the id that ends a text.
    """

    needs: tuple[str, ...] = ()

    def __init__(self, vocabulary: seqio.Vocabulary):
        super().__init__()
        self.eos_id, self._size = vocabulary.eos_id, vocabulary.vocab_size

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids, int32 [batch, (tokens)], of texts, string [batch]; each row ends in EOS."""
        ids = self._encode(texts)
        return tf.concat([ids, tf.fill([ids.nrows(), 1], self.eos_id)], axis=1)

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the texts, string [batch], of ids, int32 [batch, tokens], up to the first EOS of each row."""
        before_eos = tf.cumsum(tf.cast(ids == self.eos_id, tf.int32), axis=1) == 0
        return self._decode(tf.ragged.boolean_mask(ids, before_eos))

    @abc.abstractmethod
    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor: ...

    @abc.abstractmethod
    def _decode(self, ids: tf.RaggedTensor) -> tf.Tensor: ...


class Bytes(GraphText):
    """Bytes, with sentinels by their names."""

    def __init__(self, vocabulary: seqio.ByteVocabulary):
        super().__init__(vocabulary)
        count = sentinels.count(vocabulary)
        names = [sentinels.name(sentinels.to_number(i, vocabulary)).encode() for i in range(self._size)]
        first = sentinels.first(vocabulary)
        self._texts = [b"" if i < 3 else bytes([i - 3]) if i < first else names[i] for i in range(self._size)]
        numbers = "|".join(map(str, range(count)))
        self._name = rf"<extra_id_0*(?:{numbers})>"

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        texts = tf.strings.regex_replace(texts, f"({self._name})", _CUT + rb"\1" + _CUT)
        parts = tf.strings.split(texts, _CUT)  # [batch, (parts)], each a name or what is between names
        flat = parts.flat_values
        is_name = tf.strings.regex_full_match(flat, self._name)
        number = tf.strings.to_number(tf.strings.regex_replace(tf.boolean_mask(flat, is_name), r"\D", ""), tf.int32)
        of_names = tf.RaggedTensor.from_row_lengths(self._size - 1 - number, tf.cast(is_name, tf.int64))
        chars = tf.strings.bytes_split(tf.where(is_name, b"", flat))  # [all parts, (bytes)]
        codes = tf.cast(tf.reshape(tf.io.decode_raw(chars.flat_values, tf.uint8), [-1]), tf.int32) + 3
        of_bytes = chars.with_flat_values(codes)
        return parts.with_flat_values(tf.concat([of_names, of_bytes], axis=1)).merge_dims(1, 2)

    def _decode(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(tf.gather(tf.constant(self._texts), ids), axis=1)
        # Drops what is not UTF-8.
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")


class SentencePiece(GraphText):
    """A SentencePiece model, which knows its sentinels itself."""

    needs = ("tensorflow_text",)

    def __init__(self, vocabulary: seqio.SentencePieceVocabulary):
        super().__init__(vocabulary)
        self._tokenizer = vocabulary.tf_tokenizer
        self._unk_id = vocabulary.unk_id

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._tokenizer.tokenize(texts)

    def _decode(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return self._tokenizer.detokenize(tf.where(ids < self._size, ids, self._unk_id))
