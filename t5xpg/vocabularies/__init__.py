"""Vocabularies: UTF-8 bytes, SentencePiece models, byte-level BPE.

`training` trains one on a corpus of your own, `sentinels` has the numbering of the ids that stand for masked spans,
`tokenizer_json` gives a vocabulary to Hugging Face. Gin files write `@vocabularies.byte_vocabulary()`.
"""

from __future__ import annotations

import seqio
from google.protobuf.message import DecodeError

from t5xpg.base import files, stores
from t5xpg.vocabularies import bpe, sentinels
from t5xpg.vocabularies.stored import StoredSentencePieceVocabulary


def byte_vocabulary(extra_ids: int = 100) -> seqio.ByteVocabulary:
    """Returns a vocabulary of UTF-8 bytes: 3 special ids, 256 bytes, `extra_ids` sentinels. ByT5 has extra_ids=0.

    Raises:
      ValueError: extra_ids is not a count.
    """
    return seqio.ByteVocabulary(extra_ids=_checked_extra_ids(extra_ids))


def sentencepiece(path: str, extra_ids: int = 100) -> seqio.SentencePieceVocabulary:
    """Returns a SentencePiece model with `extra_ids` sentinels after its own pieces.

    Text that holds a sentinel's name, as in " <extra_id_0>", is encoded as that sentinel: SeqIO's
    own behaviour.

    Args:
      path: the .model file; local, file://, gs://, s3://, https:// or hf://.
      extra_ids: sentinels to add; 0 for a model that brings its own, as T5X's
        cc_all.32000.100extra does.

    Raises:
      FileNotFoundError: nothing at `path`.
      ValueError: not a SentencePiece model, ids that SeqIO cannot use, or sentinels both in it and
        asked for.
    """
    _checked_extra_ids(extra_ids)
    path = stores.plain(path)
    if not files.is_file(path):
        raise FileNotFoundError(
            f"{path}: no SentencePiece model there. Pass the path of a .model file (`t5xpg tokenizer train` makes "
            "one), or use vocabularies.byte_vocabulary()"
        )
    kind = StoredSentencePieceVocabulary if stores.is_url(path) else seqio.SentencePieceVocabulary
    try:
        own = kind(path, extra_ids=0)
        tokenizer = own.tokenizer
    except stores.StoreError:
        raise
    except (DecodeError, RuntimeError, OSError) as error:
        raise ValueError(f"{path}: not a SentencePiece model ({error}). Pass the path of a .model file") from error
    if tokenizer.pad_id() != 0 or tokenizer.eos_id() < 0 or tokenizer.unk_id() < 0:
        raise ValueError(
            f"{path}: pad_id={tokenizer.pad_id()}, eos_id={tokenizer.eos_id()}, "
            f"unk_id={tokenizer.unk_id()}; SeqIO pads with 0 and needs the others. "
            "Train it with pad_id=0, eos_id=1, unk_id=2, bos_id=-1"
        )
    if extra_ids and sentinels.count(own):
        raise ValueError(f"{path}: the model brings {sentinels.count(own)} sentinels of its own. Pass extra_ids=0")
    return kind(path, extra_ids=extra_ids)


def byte_level_bpe(path: str) -> bpe.ByteLevelBPEVocabulary:
    """Returns RoBERTa's kind of vocabulary: a tokenizer.json that `train_byte_level_bpe` wrote.

    Raises:
      FileNotFoundError: nothing at `path`.
      ValueError: not a tokenizer.json, or ids that SeqIO cannot use.
    """
    path = stores.plain(path)
    if not files.is_file(path):
        if files.is_file(inside := f"{path}/tokenizer.json"):
            raise FileNotFoundError(f"{path} is a folder; pass {inside}")
        raise FileNotFoundError(
            f"{path}: no tokenizer there. Pass the path of a tokenizer.json, made by "
            "t5xpg tokenizer train --model_type byte_level_bpe"
        )
    try:
        vocabulary = bpe.ByteLevelBPEVocabulary(path)
    except stores.StoreError:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise ValueError(f"{path}: not a tokenizer.json ({error}). Pass the path of one") from error
    found = {name: token for token, name in vocabulary.specials.items()}
    if found.get("<pad>") != 0 or len(found) < len(bpe.SPECIALS):
        raise ValueError(
            f"{path}: the special ids are {found}; SeqIO pads with 0 and the masking needs all of "
            f"{' '.join(bpe.SPECIALS)}. Train one with t5xpg tokenizer train --model_type byte_level_bpe"
        )
    return vocabulary


def describe(vocabulary: seqio.Vocabulary) -> str:
    """Returns what tells one from another: "ByteVocabulary(vocab_size=359, extra_ids=100)".

    A model on another machine is not fetched to know its size.
    """
    file = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "tokenizer_file", None))
    parts = [repr(file)] if file else []
    if not stores.is_url(file or ""):
        parts.append(f"vocab_size={vocabulary.vocab_size}")
    return f"{type(vocabulary).__name__}({', '.join([*parts, f'extra_ids={vocabulary.extra_ids}'])})"


def _checked_extra_ids(extra_ids: int) -> int:
    if not isinstance(extra_ids, int) or isinstance(extra_ids, bool) or extra_ids < 0:
        raise ValueError(f"extra_ids is a whole number, 0 or more; found {extra_ids!r}. T5 has 100, ByT5 0")
    return extra_ids
