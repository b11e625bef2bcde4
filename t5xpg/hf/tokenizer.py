"""Tokenizers: a vocabulary as Hugging Face's files, and how many sentinels such files add."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import seqio

from t5xpg import vocabularies
from t5xpg.base.files import write_whole
from t5xpg.hf.checkpoints import Trained
from t5xpg.hf.compare import compare_tokenizer
from t5xpg.roberta import Roberta
from t5xpg.vocabularies import bpe, sentinels, tokenizer_json


def write(trained: Trained, folder: Path, file: str | None) -> seqio.Vocabulary:
    """Writes the tokenizer of a trained model to `folder`; returns its vocabulary.

    The files are tokenizer.json and tokenizer_config.json, and for SentencePiece the model as spiece.model.

    Args:
      trained: a model with its vocabulary.
      folder: exists.
      file: to be read in place of the file that the vocabulary was made from.

    Raises:
      ValueError: this model cannot be exported with this kind of vocabulary, or the tokenizer gives other ids.
    """
    if isinstance(trained.module, Roberta):
        return write_byte_level_bpe(trained, folder, file)
    vocabulary = trained.vocabulary
    if isinstance(vocabulary, seqio.ByteVocabulary):
        tokenizer_json.write_bytes(folder, vocabulary.extra_ids)
    elif isinstance(vocabulary, seqio.SentencePieceVocabulary):
        path = file or vocabulary.sentencepiece_model_file
        if "://" in path:
            raise ValueError(f"The vocabulary is at {path}; fetch it, and pass it as --tokenizer FILE.model.")
        tokenizer_json.write(path, folder, vocabulary.extra_ids)
        shutil.copyfile(path, folder / "spiece.model")
    else:
        raise ValueError(f"A {type(vocabulary).__name__} cannot be exported; only bytes and SentencePiece can.")
    compare_tokenizer(folder, vocabulary)
    return vocabulary


def write_byte_level_bpe(trained: Trained, folder: Path, file: str | None) -> bpe.ByteLevelBPEVocabulary:
    """As `write`, for RoBERTa."""
    vocabulary = vocabularies.byte_level_bpe(file) if file else trained.vocabulary
    if not isinstance(vocabulary, bpe.ByteLevelBPEVocabulary):
        raise ValueError(f"A RoBERTa with a {type(vocabulary).__name__}; only byte-level BPE can be exported.")
    config = bpe.tokenizer_config(trained.module.config.max_length)
    write_whole(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_whole(folder / "tokenizer.json", vocabulary.tokenizer.to_str(pretty=True))
    return vocabulary


def sentencepiece_extra_ids(folder: Path) -> int:
    """Returns how many sentinels a tokenizer adds to its spiece.model; T5's 100 where no file says."""
    if sentinels.count(vocabularies.sentencepiece(str(folder / "spiece.model"), 0)):
        return 0  # it brings its own
    config = read_json(folder / "tokenizer_config.json")
    if not config:
        return 100
    names = [*(config.get("additional_special_tokens") or ()), *(config.get("extra_special_tokens") or ())]
    return max(sum(bool(sentinels.NAME.search(str(name))) for name in names), config.get("extra_ids") or 0)


def byte_extra_ids(folder: Path) -> int | None:
    """Returns a byte tokenizer's number of sentinels as SeqIO counts them; None for any other tokenizer."""
    if read_json(folder / "tokenizer_config.json").get("tokenizer_class") == "ByT5Tokenizer":
        return 100  # T5X's; Hugging Face numbers sentinels differently
    ids = read_json(folder / "tokenizer.json").get("model", {}).get("vocab", {})
    if isinstance(ids, dict) and ids.get("a") == 3 + ord("a") and ids.get("z") == 3 + ord("z"):
        return ids[sentinels.name(0)] - 258
    return None


def read_json(path: Path) -> dict[str, Any]:
    """Returns the file's content, {} without a file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
