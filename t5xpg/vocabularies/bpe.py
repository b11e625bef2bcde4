"""Byte-level BPE as RoBERTa has it: a Hugging Face tokenizer.json, trained, and read by SeqIO.

A *piece* stands for a run of bytes, so no text is unknown. Of RoBERTa's special ids the first two change places,
because SeqIO pads with 0: <pad> 0, <s> 1, </s> 2, <unk> 3, <mask> 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import seqio
import tensorflow as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from t5xpg.base import files
from t5xpg.data.tf_functions import numpy_function

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SMALLEST = len(SPECIALS) + 256  # the special ids and the bytes


class ByteLevelBPEVocabulary(seqio.Vocabulary):
    """The ids of a tokenizer.json, for SeqIO.

    A special id's name in a text, "<mask>", is spelled out like any text, so that no corpus can hold padding by
    accident; transformers does so with split_special_tokens=True. For tf.data, texts are tokenized in Python: a
    pipeline runs in the process that made it, and tf.data cannot store its place there.

    Args:
      tokenizer_file: its path or URL; see `vocabularies.byte_level_bpe` for one that is checked.
    """

    def __init__(self, tokenizer_file: str):
        super().__init__(extra_ids=0)
        self.tokenizer_file = tokenizer_file
        self.tokenizer = Tokenizer.from_str(files.read_text(tokenizer_file))
        self.tokenizer.encode_special_tokens = True
        ids = {name: self.tokenizer.token_to_id(name) for name in SPECIALS}
        self.specials = {token: name for name, token in ids.items() if token is not None}
        self._bos_id, self._eos_id, self._unk_id, self.mask_id = (ids[name] for name in SPECIALS[1:])

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    @property
    def eos_id(self) -> int | None:
        return self._eos_id

    @property
    def unk_id(self) -> int | None:
        return self._unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    def _encode(self, s: str) -> list[int]:
        return self.tokenizer.encode(s, add_special_tokens=False).ids

    def _decode(self, ids: Sequence[int]) -> str:
        """Special ids become nothing; bytes that are not a character become "\\ufffd"."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        """A scalar string -> int32 [tokens]."""

        def encode(texts: np.ndarray) -> np.ndarray:
            return np.array(self._encode(texts[0].decode("utf-8", "replace")), np.int32)

        # As one of several, a text arrives as an array; alone, as an array or as bytes.
        ids = numpy_function(encode, [tf.reshape(s, [1])], tf.int32)
        return tf.ensure_shape(ids, [None])

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """int32 [..., tokens] -> strings [...]."""

        def decode(rows: np.ndarray) -> np.ndarray:
            texts = [self._decode(row).encode() for row in rows.reshape(-1, rows.shape[-1]).tolist()]
            return np.array(texts, object).reshape(rows.shape[:-1])

        return tf.ensure_shape(numpy_function(decode, [ids], tf.string), ids.shape[:-1])

    def __eq__(self, other) -> bool:
        return isinstance(other, ByteLevelBPEVocabulary) and self.tokenizer.to_str() == other.tokenizer.to_str()

    def __str__(self) -> str:
        return f"ByteLevelBPEVocabulary({self.tokenizer_file!r}, vocab_size={self.vocab_size})"

    __repr__ = __str__


def train(texts: Iterable[str], vocab_size: int, min_frequency: int) -> Tokenizer:
    """Trains on any number of texts: only the different words and their counts are kept in memory.

    Returns:
      A tokenizer of at most `vocab_size` ids, which puts <s> before a text and </s> after it as RoBERTa's does. The
      same texts in any order give the same one.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        # RoBERTa's mask takes the space before it.
        special_tokens=[AddedToken(name, lstrip=name == "<mask>", normalized=False) for name in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    eos, bos = (("</s>", SPECIALS.index("</s>")), ("<s>", SPECIALS.index("<s>")))  # special ids come first
    tokenizer.post_processor = processors.RobertaProcessing(eos, bos, add_prefix_space=False)
    return tokenizer


def tokenizer_config(max_length: int | None = None) -> dict[str, object]:
    """Returns the tokenizer_config.json that transformers' AutoTokenizer needs besides tokenizer.json.

    Args:
      max_length: tokens that a model takes, if it is known.
    """
    names = {"pad": "<pad>", "bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": name for role, name in names.items()},
        "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "special": True},
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **({} if max_length is None else {"model_max_length": max_length}),
    }
