"""Tokenizers: a vocabulary as Hugging Face's files, and how many sentinels such files add."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import seqio
from tokenizers import Tokenizer

from t5xpg import vocabularies
from t5xpg.base.files import local_copy, write_whole
from t5xpg.hf import compare
from t5xpg.hf.checkpoints import Trained
from t5xpg.hf.folder import blamed_on, file_in, read_json
from t5xpg.roberta import Roberta
from t5xpg.vocabularies import bpe, sentinels, tokenizer_json

FILES = ("spiece.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Texts that transformers' own tokenizers of T5 read as SeqIO does; with NAMED all but ByT5's.
PLAIN = ("", "The quick fox, 3.14!", " Größe\t中文 🙂\n and so on ")
NAMED = ("The quick <extra_id_0> fox, <extra_id_1> 3.14!",)


def write(
    trained: Trained, folder: Path, check: Callable[[Path, seqio.Vocabulary], None] | None = None
) -> seqio.Vocabulary:
    """Writes the tokenizer of a trained model to `folder`, which exists; returns its vocabulary.

    The files are tokenizer.json and tokenizer_config.json, and for SentencePiece the model as spiece.model.

    Args:
      trained: a model with its vocabulary.
      folder: exists.
      check: raises ValueError where the files give other ids than the vocabulary; None for `compare_tokenizer`.

    Raises:
      ValueError: this model cannot be exported with this kind of vocabulary, or the tokenizer gives other ids.
    """
    vocabulary, rows = trained.vocabulary, trained.module.config.vocab_size
    if vocabulary.vocab_size > rows:
        raise ValueError(
            f"{vocabulary} has {vocabulary.vocab_size:,} ids, and the model {rows:,}; it is another one's."
        )
    if isinstance(trained.module, Roberta):
        return write_byte_level_bpe(trained, folder)
    if isinstance(vocabulary, seqio.ByteVocabulary):
        tokenizer_json.write_bytes(folder, vocabulary.extra_ids)
    elif isinstance(vocabulary, seqio.SentencePieceVocabulary):
        with local_copy(vocabulary.sentencepiece_model_file) as path:
            tokenizer_json.write(path, folder, vocabulary.extra_ids)
            shutil.copyfile(path, folder / "spiece.model")
    else:
        raise ValueError(f"A {type(vocabulary).__name__} cannot be exported; only bytes and SentencePiece can.")
    (check or compare.compare_tokenizer)(folder, vocabulary)
    return vocabulary


def write_byte_level_bpe(trained: Trained, folder: Path) -> bpe.ByteLevelBPEVocabulary:
    """As `write`, for RoBERTa."""
    vocabulary = trained.vocabulary
    if not isinstance(vocabulary, bpe.ByteLevelBPEVocabulary):
        raise ValueError(f"A RoBERTa with a {type(vocabulary).__name__}; only byte-level BPE can be exported.")
    config = bpe.tokenizer_config(trained.module.config.max_length)
    write_whole(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_whole(folder / "tokenizer.json", vocabulary.tokenizer.to_str(pretty=True))
    return vocabulary


def read(folder: Path, part: Path) -> seqio.Vocabulary:
    """Returns the vocabulary of a Hugging Face T5, whose ids are the tokenizer's own; a SentencePiece model is put
    into `part` as spiece.model, and made from tokenizer.json where the folder has none.

    Raises:
      ValueError: there is no tokenizer, a file of it is damaged, or no SeqIO vocabulary has its ids.
    """
    files = {name: file_in(folder, name) for name in FILES}
    for name in FILES[1:]:
        read_json(files[name])
    extra_ids = byte_extra_ids(files)
    if extra_ids is not None:
        vocabulary: seqio.Vocabulary = vocabularies.byte_vocabulary(extra_ids)
    elif not any(files[name].is_file() for name in FILES[:2]):
        raise ValueError(f"{folder}: no spiece.model or tokenizer.json there; put the model's tokenizer there, too.")
    if files["tokenizer.json"].is_file():
        with blamed_on(files["tokenizer.json"]):
            Tokenizer.from_file(str(files["tokenizer.json"]))
    if extra_ids is None and files["spiece.model"].is_file():
        with blamed_on(files["spiece.model"]):
            vocabularies.sentencepiece(str(files["spiece.model"]), 0)
    theirs = compare.load_tokenizer(folder)
    if extra_ids is None:
        vocabulary = read_sentencepiece(files, part / "spiece.model", theirs)
        check_pieces(folder, vocabulary, theirs.get_vocab())
        compare.compare_tokenizer(folder, vocabulary, words_of(vocabulary))
    compare.compare_tokenizer(folder, vocabulary, PLAIN if "ByT5" in type(theirs).__name__ else PLAIN + NAMED)
    return vocabulary


def read_sentencepiece(files: Mapping[str, Path], target: Path, theirs) -> seqio.SentencePieceVocabulary:
    """Copies or makes `target`; returns it with as many sentinels as transformers' tokenizer adds."""
    if files["spiece.model"].is_file():
        shutil.copyfile(files["spiece.model"], target)
    else:
        with blamed_on(files["tokenizer.json"]):
            model = tokenizer_json.to_sentencepiece(files["tokenizer.json"], theirs.pad_token, theirs.eos_token)
            target.write_bytes(model)
            vocabularies.sentencepiece(str(target), 0)
    own = vocabularies.sentencepiece(str(target), 0).vocab_size
    added = [name for name, i in theirs.get_vocab().items() if i >= own and sentinels.NAME.fullmatch(name)]
    return vocabularies.sentencepiece(str(target), len(added))


def check_pieces(folder: Path, vocabulary: seqio.SentencePieceVocabulary, theirs: Mapping[str, int]) -> None:
    """Raises ValueError where a piece has another id, or only one of the two has it."""
    pieces = map(vocabulary.tokenizer.id_to_piece, range(vocabulary.vocab_size))
    ours = {plain(piece): i for i, piece in enumerate(pieces)}
    theirs = {plain(piece): i for piece, i in theirs.items()}
    if other := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        name = other[0]
        raise ValueError(
            f"{folder}: its tokenizer has the id {theirs.get(name)} for {name!r}, and its SentencePiece model "
            f"{ours.get(name)}; {len(other)} such pieces, and T5X has none but SentencePiece's."
        )


def words_of(vocabulary: seqio.SentencePieceVocabulary, count: int = 1000) -> list[str]:
    """Returns two texts of words that the scores of pieces decide on: pieces, and two of them in one word."""
    pieces = [vocabulary.tokenizer.id_to_piece(i).lstrip("▁") for i in range(vocabulary.vocab_size)]
    words = [piece for piece in pieces if piece.isascii() and piece.isalpha()][:count]
    return [" ".join(words), " ".join(first + second for first, second in itertools.pairwise(words))]


def plain(piece: str) -> str:
    """Returns a sentinel's name without the space that SentencePiece writes before it; other pieces as they are."""
    name = piece.removeprefix("▁")
    return name if sentinels.NAME.fullmatch(name) else piece


def byte_extra_ids(files: Mapping[str, Path]) -> int | None:
    """Returns a byte tokenizer's number of sentinels as SeqIO counts them; None for any other tokenizer."""
    if read_json(files["tokenizer_config.json"]).get("tokenizer_class") == "ByT5Tokenizer":
        return 0  # what ByT5 was trained with: its sentinels are the last bytes' ids, whatever that class calls them
    model = read_json(files["tokenizer.json"]).get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(ids, dict) and ids.get("a") == 3 + ord("a") and ids.get("z") == 3 + ord("z"):
        last = ids.get(sentinels.name(0))
        if not isinstance(last, int) or last < 258:
            raise ValueError(
                f"{files['tokenizer.json']}: bytes, and {sentinels.name(0)} has the id {last}, not the last."
            )
        return last - 258
    return None
