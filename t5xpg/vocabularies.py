"""Vocabularies: UTF-8 bytes, SentencePiece models, byte-level BPE, and training one on a corpus of your own.

A *sentinel* is an id that stands for a masked span and never for text. Sentinels count down from
the last id, so what matters is how many ids at the end no text can produce: `sentinels`.
A *piece* is a string with an id of its own; "▁" in a piece stands for the space before a word.
"""

from __future__ import annotations

import heapq
import io
import json
import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import seqio
import tensorflow as tf
from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tqdm import tqdm

from t5xpg import byte_level_bpe as bpe
from t5xpg import compressed, sources

# 0xF5 to 0xFF occur nowhere in UTF-8; after the 3 special ids they are the ids 248 to 258.
_BYTES_NOT_IN_UTF8 = 11
# At most 1000 characters, cut before a space if there is one: SentencePiece passes over a sentence
# of more than 4192 bytes.
_SENTENCE = re.compile(r"\S.{0,998}(?!\S)|\S{1,1000}", re.DOTALL)
# SentencePiece passes over a sentence with "▅" in it. And were the parts of a sentinel's name
# frequent text, they would become pieces, and SeqIO would read the name as those.
_NOT_TEXT = re.compile("▅|<extra_id_[0-9]+>")
# Characters that become pieces in any case, so that text which spells the name of a special id,
# "</s>", "<pad>", "<unk>" or "<0xE6>", can be told from that id in a tokenizer.json.
_REQUIRED = "</>0123456789ABCDEFadknpsux"
# Log probabilities become multiples of 1/256. SentencePiece adds them as float32, `tokenizers` as
# float64; now both are exact up to 65536, and ties, as in "......", fall alike.
_SCORE_STEPS = 256


def byte_vocabulary(extra_ids: int = 100) -> seqio.ByteVocabulary:
    """UTF-8 bytes: 3 special ids, 256 bytes, `extra_ids` sentinels. ByT5 has extra_ids=0.

    Raises:
      ValueError: extra_ids is not a count.
    """
    return seqio.ByteVocabulary(extra_ids=_checked_extra_ids(extra_ids))


def sentencepiece(path: str, extra_ids: int = 100) -> seqio.SentencePieceVocabulary:
    """A SentencePiece model with `extra_ids` sentinels after its own pieces.

    Text that holds a sentinel's name, as in " <extra_id_0>", is encoded as that sentinel: SeqIO's
    own behaviour.

    Args:
      path: the .model file; whatever TensorFlow can open.
      extra_ids: sentinels to add; 0 for a model that brings its own, as T5X's
        cc_all.32000.100extra does.

    Raises:
      FileNotFoundError: nothing at `path`.
      ValueError: not a SentencePiece model, ids that SeqIO cannot use, or sentinels both in it and
        asked for.
    """
    _checked_extra_ids(extra_ids)
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise FileNotFoundError(
            f"{path}: no SentencePiece model there. Pass the path of a .model file, "
            "or use vocabularies.byte_vocabulary()"
        )
    try:
        own = seqio.SentencePieceVocabulary(path, extra_ids=0)
        tokenizer = own.tokenizer
    except (DecodeError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{path}: not a SentencePiece model ({error}). Pass the path of a .model file"
        ) from error
    if tokenizer.pad_id() != 0 or tokenizer.eos_id() < 0 or tokenizer.unk_id() < 0:
        raise ValueError(
            f"{path}: pad_id={tokenizer.pad_id()}, eos_id={tokenizer.eos_id()}, "
            f"unk_id={tokenizer.unk_id()}; SeqIO pads with 0 and needs the others. "
            "Train it with pad_id=0, eos_id=1, unk_id=2, bos_id=-1"
        )
    if extra_ids and sentinels(own):
        raise ValueError(
            f"{path}: the model brings {sentinels(own)} sentinels of its own. Pass extra_ids=0"
        )
    return seqio.SentencePieceVocabulary(path, extra_ids=extra_ids)


def byte_level_bpe(path: str) -> bpe.ByteLevelBPEVocabulary:
    """RoBERTa's kind of vocabulary: a tokenizer.json that `train_byte_level_bpe` wrote.

    Raises:
      FileNotFoundError: nothing at `path`.
      ValueError: not a tokenizer.json, or ids that SeqIO cannot use.
    """
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise FileNotFoundError(
            f"{path}: no tokenizer there. Pass the path of a tokenizer.json, made by "
            "t5xpg tokenizer train --model_type byte_level_bpe"
        )
    try:
        vocabulary = bpe.ByteLevelBPEVocabulary(path)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"{path}: not a tokenizer.json ({error}). Pass the path of one") from error
    found = {name: token for token, name in vocabulary.specials.items()}
    if found.get("<pad>") != 0 or len(found) < len(bpe.SPECIALS):
        raise ValueError(
            f"{path}: the special ids are {found}; SeqIO pads with 0 and the masking needs all of "
            f"{' '.join(bpe.SPECIALS)}. Train one with t5xpg tokenizer train --model_type byte_level_bpe"
        )
    return vocabulary


def sentinels(vocabulary: seqio.Vocabulary) -> int:
    """How many ids, counted down from the last, are free for sentinels."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return vocabulary.extra_ids or _BYTES_NOT_IN_UTF8
    if isinstance(vocabulary, seqio.SentencePieceVocabulary) and not vocabulary.extra_ids:
        tokenizer, count = vocabulary.tokenizer, 0
        while "<extra_id_" in tokenizer.id_to_piece(vocabulary.vocab_size - 1 - count):
            count += 1
        return count
    return vocabulary.extra_ids


def describe(vocabulary: seqio.Vocabulary) -> str:
    """What tells one from another: "ByteVocabulary(vocab_size=359, extra_ids=100)"."""
    file = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "tokenizer_file", None))
    of_file = f"{file!r}, " if file else ""
    name = type(vocabulary).__name__
    return f"{name}({of_file}vocab_size={vocabulary.vocab_size}, extra_ids={vocabulary.extra_ids})"


def _checked_extra_ids(extra_ids: int) -> int:
    if not isinstance(extra_ids, int) or isinstance(extra_ids, bool) or extra_ids < 0:
        raise ValueError(
            f"extra_ids is a whole number, 0 or more; found {extra_ids!r}. T5 has 100, ByT5 0"
        )
    return extra_ids


# --- training ----------------------------------------------------------------------------------


def train_sentencepiece(
    inputs: sources.Files,
    output: str | os.PathLike,
    vocab_size: int = 32000,
    *,
    model_type: str = "unigram",
    text_key: str = "text",
    lowercase: bool = False,
    byte_fallback: bool = False,
    character_coverage: float = 0.9995,
    sample_bytes: int = 100_000_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Trains a SentencePiece model with T5's ids: pad 0, eos 1, unk 2, no bos. Says what it does.

    The corpus may be larger than memory: its rows are read once, cut into sentences of at most
    1000 characters, and an even sample of these is kept. The same corpus, settings and seed give
    the same bytes. A corpus that cannot carry `vocab_size` pieces gives a smaller model.

    Args:
      inputs: JSONL files and text files (.txt), either also .gz, .bz2 or .xz; as for
        `sources.find_files`.
      output: the files to write are `output` with .model and .vocab (piece, tab, log probability).
      vocab_size: pieces, without the sentinels that `sentencepiece` adds: 32000 makes 32100.
      model_type: "unigram" as T5's, or "bpe".
      text_key: the key of a JSONL row that holds its text.
      lowercase: fold case, beside T5's normalization (NFKC, and control characters dropped).
      byte_fallback: 256 of the pieces are bytes, so that no character is unknown.
      character_coverage: share of the text's characters, the most frequent first, that become
        pieces; 0.98 to 1. The others are unknown, or bytes.
      sample_bytes: the most text to train on, which takes about 25 times that in memory.
      seed: decides which sentences make the sample.
      overwrite: replace a model that is there already.

    Returns:
      The path of the .model file.

    Raises:
      FileExistsError: the model is there already.
      ValueError: settings that cannot work, input that cannot be read (sources.JsonlError), or no
        text in it. Then nothing is written.
    """
    output = Path(f"{os.fspath(output).removesuffix('.model')}.model")
    _check_settings(output, vocab_size, model_type, character_coverage, overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    model = _train(
        _sample(_sentences(_texts(inputs, text_key)), sample_bytes, seed),
        vocab_size=vocab_size,
        model_type=model_type,
        normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
    )
    if len(model.pieces) < vocab_size:
        print(
            f"asked for {vocab_size:,} pieces, got {len(model.pieces):,}: this text carries no "
            "more. A larger vocabulary needs more text"
        )
    table = "".join(f"{piece.piece}\t{piece.score}\n" for piece in model.pieces)
    _write_whole(output.with_suffix(".vocab"), table.encode())
    _write_whole(output, model.SerializeToString())
    return output


def train_byte_level_bpe(
    inputs: sources.Files,
    output: str | os.PathLike,
    vocab_size: int = 50265,
    *,
    min_frequency: int = 2,
    text_key: str = "text",
    overwrite: bool = False,
) -> Path:
    """Trains byte-level BPE as RoBERTa has it, with Hugging Face's tokenizers. Says what it does.

    The corpus may be larger than memory, its different words may not. The same corpus and settings give the same
    bytes. A corpus that cannot carry `vocab_size` pieces gives fewer.

    Args:
      inputs: as for `train_sentencepiece`.
      output: a folder, where tokenizer.json and tokenizer_config.json are written, for
        AutoTokenizer.from_pretrained as for `byte_level_bpe`.
      vocab_size: ids, the 5 special ones and the 256 bytes included; RoBERTa has 50265.
      min_frequency: how often two pieces must stand side by side to become one.
      text_key: the key of a JSONL row that holds its text.
      overwrite: replace a tokenizer that is there already.

    Returns:
      The path of tokenizer.json.

    Raises:
      FileExistsError: the tokenizer is there already.
      ValueError: settings that cannot work, input that cannot be read (sources.JsonlError), or no text in it. Then
        nothing is written.
    """
    path = Path(output) / "tokenizer.json"
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path}: there already, and runs may depend on it. Pass another output, or overwrite"
        )
    if vocab_size < bpe.SMALLEST or min_frequency < 1:
        raise ValueError(
            f"vocab_size is {vocab_size} and min_frequency {min_frequency}; the special ids and the bytes alone are "
            f"{bpe.SMALLEST}, and a frequency is 1 or more. RoBERTa has 50265 and 2"
        )
    texts = tqdm(filter(str.strip, _texts(inputs, text_key)), "reading the corpus", unit="text")
    tokenizer = bpe.train(texts, vocab_size, min_frequency)
    if not texts.n:
        raise ValueError("no text in the input. Look at the files and at text_key")
    pieces = tokenizer.get_vocab_size()
    fewer = "" if pieces == vocab_size else f" of the {vocab_size:,} asked for: this text carries no more"
    print(f"trained on {texts.n:,} texts: {pieces:,} ids{fewer}", flush=True)
    _write_whole(path.with_name("tokenizer_config.json"), json.dumps(bpe.tokenizer_config(), indent=2).encode())
    _write_whole(path, tokenizer.to_str(pretty=True).encode())
    return path


def _check_settings(
    output: Path, vocab_size: int, model_type: str, character_coverage: float, overwrite: bool
) -> None:
    if output.exists() and not overwrite:
        raise FileExistsError(
            f"{output}: there already, and runs may depend on it. Pass another output, or overwrite"
        )
    if vocab_size < 4:
        raise ValueError(f"vocab_size is {vocab_size}; pad, eos and unk alone are 3. T5 has 32000")
    if model_type not in ("unigram", "bpe"):
        raise ValueError(f"model_type is {model_type!r}; it must be 'unigram' (T5's) or 'bpe'")
    if not 0.98 <= character_coverage <= 1:
        raise ValueError(f"character_coverage is {character_coverage}; it must be 0.98 to 1")


def _texts(inputs: sources.Files, text_key: str) -> Iterator[str]:
    for path in sources.find_files(inputs):
        stem, suffix = os.path.splitext(path)
        if (stem if suffix in compressed.SUFFIXES else path).endswith(".txt"):
            yield from _lines(path)
        else:
            yield from (row["text"] for row in sources.read_rows(path, text_key))


def _lines(path: str) -> Iterator[str]:
    """A text file's lines; one of more than 1 Mi characters in parts, so that memory is bounded."""
    try:
        with io.TextIOWrapper(compressed.open_binary(path), encoding="utf-8-sig") as file:
            yield from iter(lambda: file.readline(1 << 20), "")
    except (*compressed.READ_ERRORS, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: cannot be read as text ({error}). Save it as UTF-8 or fetch it again"
        ) from error


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _SENTENCE.findall(_NOT_TEXT.sub(" ", text))


def _sample(sentences: Iterable[str], sample_bytes: int, seed: int) -> list[str]:
    """An even sample, in the corpus's order: every sentence draws a number, and the lowest stay."""
    rng = random.Random(seed)
    kept: list[tuple[float, int, str]] = []  # a heap of (-draw, position, sentence)
    bound = 1.0  # the lowest draw that had to go
    count = kept_bytes = all_bytes = 0
    with tqdm(desc="reading the corpus", unit="B", unit_scale=True) as bar:
        for count, sentence in enumerate(sentences, 1):
            draw, length = rng.random(), len(sentence.encode())
            bar.update(length)
            all_bytes += length
            if draw < bound:
                heapq.heappush(kept, (-draw, count, sentence))
                kept_bytes += length
            while kept_bytes > sample_bytes:
                negative_draw, _, dropped = heapq.heappop(kept)
                bound = -negative_draw
                kept_bytes -= len(dropped.encode())
    if not count:
        raise ValueError("no text in the input. Look at the files and at text_key")
    if not kept:
        raise ValueError(f"sample_bytes={sample_bytes} holds no sentence. Pass a million or more")
    megabytes = f"{kept_bytes / 1e6:,.1f} of {all_bytes / 1e6:,.1f} MB"
    drawn = ", drawn evenly" if len(kept) < count else ""
    print(f"training on {len(kept):,} of {count:,} sentences, {megabytes}{drawn}", flush=True)
    return [sentence for _, _, sentence in sorted(kept, key=lambda item: item[1])]


def _train(sentences: list[str], **settings) -> ModelProto:
    model_file = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model_file,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            hard_vocab_limit=False,
            required_chars=_REQUIRED,
            minloglevel=2,
            **settings,
        )
    except RuntimeError as error:
        raise ValueError(_in_our_words(str(error), settings["vocab_size"])) from error
    model = ModelProto.FromString(model_file.getvalue())
    for piece in model.pieces:
        piece.score = round(piece.score * _SCORE_STEPS) / _SCORE_STEPS
    return model


def _in_our_words(error: str, vocab_size: int) -> str:
    if needed := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        return (
            f"vocab_size={vocab_size} is too small: the text's characters alone need {needed[1]} "
            f"pieces. Pass {needed[1]} or more, or a lower character_coverage"
        )
    return f"SentencePiece cannot train on this text: {error.rpartition('] ')[2] or error}"


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


# --- for Hugging Face --------------------------------------------------------------------------


def to_tokenizer_json(
    model_path: str | os.PathLike, out_dir: str | os.PathLike, extra_ids: int = 100
) -> Path:
    """Writes tokenizer.json and tokenizer_config.json, for AutoTokenizer.from_pretrained(out_dir).

    Its ids are SeqIO's for the same text, sentinels included, and EOS; `tokenizer_json` names what
    is known to differ. Like SeqIO it takes "<extra_id_0>" for a sentinel at the start of a word
    only, and "</s>" in a text for text; unlike SeqIO, a text that is nothing but "</s>", "<pad>" or
    "<unk>" for that id.

    Args:
      model_path: a SentencePiece model, unigram or BPE, with T5's normalization.
      out_dir: a folder, made if need be; files of these names are replaced.
      extra_ids: as for `sentencepiece`.

    Returns:
      The path of tokenizer.json.

    Raises:
      FileNotFoundError: no model at `model_path`.
      ValueError: as `sentencepiece`, or a model that treats text otherwise than T5's.
    """
    from t5xpg import tokenizer_json

    vocabulary = sentencepiece(os.fspath(model_path), extra_ids)
    model, count = ModelProto.FromString(vocabulary.sp_model), sentinels(vocabulary)
    specials = [model.pieces[i].piece for i in (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id)]
    return _write_tokenizer(out_dir, tokenizer_json.convert(model, count), specials, count)


def bytes_to_tokenizer_json(out_dir: str | os.PathLike, extra_ids: int = 100) -> Path:
    """As `to_tokenizer_json`, for `byte_vocabulary(extra_ids)`.

    Hugging Face's ByT5Tokenizer has other ids for the sentinels, and takes "</s>" in a text for EOS.
    """
    from t5xpg import tokenizer_json

    count = sentinels(byte_vocabulary(extra_ids))
    tokenizer = tokenizer_json.convert_bytes(extra_ids)
    return _write_tokenizer(out_dir, tokenizer, ["<pad>", "</s>", "<unk>"], count)


def _write_tokenizer(out_dir: str | os.PathLike, tokenizer, specials: list[str], sentinel_count: int) -> Path:
    """Writes a tokenizers.Tokenizer whose pad, EOS and unknown tokens are `specials`."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict(zip(("pad_token", "eos_token", "unk_token"), specials, strict=True)),
        "additional_special_tokens": [f"<extra_id_{i}>" for i in range(sentinel_count)],
        "clean_up_tokenization_spaces": False,
    }
    path = Path(out_dir) / "tokenizer.json"
    _write_whole(path.with_name("tokenizer_config.json"), json.dumps(config, indent=2).encode())
    _write_whole(path, tokenizer.to_str(pretty=True).encode())
    return path
