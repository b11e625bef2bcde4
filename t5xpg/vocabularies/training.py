"""A vocabulary trained on a corpus of your own: a SentencePiece model, or byte-level BPE.

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

from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tqdm import tqdm

from t5xpg.base import files, stores
from t5xpg.data import compressed, finding, jsonl
from t5xpg.vocabularies import bpe
from t5xpg.vocabularies.characters import CharacterCounts, describe_dropped

# At most 1000 characters, cut before a space if there is one: SentencePiece skips sentences of
# more than 4192 bytes.
_SENTENCE = re.compile(r"\S.{0,998}(?!\S)|\S{1,1000}", re.DOTALL)
# SentencePiece skips sentences with "▅" in them. And if the parts of a sentinel's name were
# frequent text, they would become pieces, and SeqIO would read the name as those.
_NOT_TEXT = re.compile("▅|<extra_id_[0-9]+>")
# Characters that become pieces in any case, so that text which spells the name of a special id,
# "</s>", "<pad>", "<unk>" or "<0xE6>", can be told from that id in a tokenizer.json.
_REQUIRED = "</>0123456789ABCDEFadknpsux"
# Log probabilities become multiples of 1/256. SentencePiece adds them as float32, `tokenizers` as
# float64; now both are exact up to 65536, and ties, as in "......", are broken alike.
_SCORE_STEPS = 256


def train_sentencepiece(
    inputs: finding.Files,
    output: str | os.PathLike,
    vocab_size: int = 32000,
    *,
    model_type: str = "unigram",
    text_key: str = "text",
    lowercase: bool = False,
    byte_fallback: bool = False,
    character_coverage: float = 1.0,
    sample_bytes: int = 100_000_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Trains a SentencePiece model with T5's ids: pad 0, eos 1, unk 2, no bos. Prints what it does.

    The corpus may be larger than memory: its rows are read once, cut into sentences of at most
    1000 characters, and an even sample of these is kept. The same corpus, settings and seed give
    the same bytes. A corpus that cannot carry `vocab_size` pieces gives a smaller model.

    Args:
      inputs: JSONL files and text files (.txt), either also .gz, .bz2, .xz or .zst; as for
        `finding.find_files`.
      output: the files to write are `output` with .model and .vocab (piece, tab, log probability).
      vocab_size: pieces, without the sentinels that `vocabularies.sentencepiece` adds: 32000 makes 32100.
      model_type: "unigram" as T5's, or "bpe".
      text_key: the key of a JSONL row that holds its text.
      lowercase: fold case, in addition to T5's normalization (NFKC, and control characters dropped).
      byte_fallback: 256 of the pieces are bytes, so that no character is unknown.
      character_coverage: share of the text's characters, the most frequent first, that become
        pieces; 0.98 to 1, which is all that the corpus has (but "▅", a sign of SentencePiece's own).
        The others are unknown, or bytes; they are printed with their counts.
      sample_bytes: the most text to train on, which takes about 25 times that in memory.
      seed: decides which sentences make the sample.
      overwrite: replace a model that exists already.

    Returns:
      The path of the .model file.

    Raises:
      FileExistsError: the model exists already.
      ValueError: settings that cannot work, input that cannot be read (jsonl.JsonlError), or no
        text in it. Then nothing is written.
    """
    output = stores.path_of(f"{os.fspath(output).removesuffix('.model')}.model", "--output")
    _check_settings(output, vocab_size, model_type, character_coverage, overwrite)
    files.make_folder(output.parent)
    rule = "nmt_nfkc_cf" if lowercase else "nmt_nfkc"
    counts = CharacterCounts(rule)
    sample = _sample(_sentences(counts.watch(_texts(inputs, text_key))), sample_bytes, seed, "sentences")
    rare = counts.without(sample).replace("▅", "") if character_coverage == 1 else ""
    model = _train(
        sample,
        vocab_size=vocab_size,
        model_type=model_type,
        normalization_rule_name=rule,
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
        required_chars=_REQUIRED + rare,
    )
    if len(model.pieces) < vocab_size:
        print(
            f"asked for {vocab_size:,} pieces, got {len(model.pieces):,}: this text carries no "
            "more. A larger vocabulary needs more text"
        )
    pieces = {piece.piece for piece in model.pieces}
    if dropped := describe_dropped(counts.found(), pieces, byte_fallback):
        print(dropped, flush=True)
    table = "".join(f"{piece.piece}\t{piece.score}\n" for piece in model.pieces)
    files.write_whole(output.with_suffix(".vocab"), table)
    files.write_whole(output, model.SerializeToString())
    return output


def train_byte_level_bpe(
    inputs: finding.Files,
    output: str | os.PathLike,
    vocab_size: int = 50265,
    *,
    min_frequency: int = 2,
    text_key: str = "text",
    sample_bytes: int = 100_000_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Trains byte-level BPE as RoBERTa has it, with Hugging Face's tokenizers. Prints what it does.

    The corpus may be larger than memory: its texts are read once, and an even sample of these is kept. The same
    corpus, settings and seed give the same bytes. A corpus that cannot carry `vocab_size` pieces gives fewer.

    Args:
      inputs: as for `train_sentencepiece`.
      output: a folder, where tokenizer.json and tokenizer_config.json are written, for
        AutoTokenizer.from_pretrained as for `vocabularies.byte_level_bpe`.
      vocab_size: ids, the 5 special ones and the 256 bytes included; RoBERTa has 50265.
      min_frequency: how often two pieces must occur side by side to become one.
      text_key: the key of a JSONL row that holds its text.
      sample_bytes: the most text to train on, which takes up to five times that in memory.
      seed: decides which texts make the sample: rows, and lines of text files.
      overwrite: replace a tokenizer that exists already.

    Returns:
      The path of tokenizer.json.

    Raises:
      FileExistsError: the tokenizer exists already.
      ValueError: settings that cannot work, input that cannot be read (jsonl.JsonlError), or no text in it. Then
        nothing is written.
    """
    path = stores.path_of(output, "--output") / "tokenizer.json"
    if files.exists(path) and not overwrite:
        raise FileExistsError(f"{path}: exists already, and runs may depend on it. Pass another output, or overwrite")
    if vocab_size < bpe.SMALLEST or min_frequency < 1:
        raise ValueError(
            f"vocab_size is {vocab_size} and min_frequency {min_frequency}; the special ids and the bytes alone are "
            f"{bpe.SMALLEST}, and a frequency is 1 or more. RoBERTa has 50265 and 2"
        )
    sample = _sample(filter(str.strip, _texts(inputs, text_key)), sample_bytes, seed, "texts")
    tokenizer = bpe.train(sample, vocab_size, min_frequency)
    pieces = tokenizer.get_vocab_size()
    fewer = "" if pieces == vocab_size else f" of the {vocab_size:,} asked for: this text carries no more"
    print(f"trained on {len(sample):,} texts: {pieces:,} ids{fewer}", flush=True)
    files.write_whole(path.with_name("tokenizer_config.json"), json.dumps(bpe.tokenizer_config(), indent=2))
    files.write_whole(path, tokenizer.to_str(pretty=True))
    return path


def _check_settings(output: Path, vocab_size: int, model_type: str, character_coverage: float, overwrite: bool) -> None:
    if files.exists(output) and not overwrite:
        raise FileExistsError(f"{output}: exists already, and runs may depend on it. Pass another output, or overwrite")
    if vocab_size < 4:
        raise ValueError(f"vocab_size is {vocab_size}; pad, eos and unk alone are 3. T5 has 32000")
    if model_type not in ("unigram", "bpe"):
        raise ValueError(f"model_type is {model_type!r}; it must be 'unigram' (T5's) or 'bpe'")
    if not 0.98 <= character_coverage <= 1:
        raise ValueError(f"character_coverage is {character_coverage}; it must be 0.98 to 1")


def _texts(inputs: finding.Files, text_key: str) -> Iterator[str]:
    for path in finding.find_files(inputs):
        stem, suffix = os.path.splitext(stores.name(path))
        if suffix == ".txt" or (suffix in compressed.SUFFIXES and stem.endswith(".txt")):
            yield from _lines(path)
        else:
            yield from (row["text"] for row in jsonl.read_rows(path, text_key))


def _lines(path: str) -> Iterator[str]:
    """Yields a text file's lines; one of more than 1 Mi characters in parts, so that memory is bounded."""
    try:
        with io.TextIOWrapper(compressed.open_binary(path), encoding="utf-8-sig") as file:
            yield from iter(lambda: file.readline(1 << 20), "")
    except stores.StoreError as error:
        raise ValueError(str(error)) from error
    except (*compressed.READ_ERRORS, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as text ({error}). Save it as UTF-8 or fetch it again") from error


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _SENTENCE.findall(_NOT_TEXT.sub(" ", text))


def _sample(texts: Iterable[str], sample_bytes: int, seed: int, what: str) -> list[str]:
    """Returns an even sample, in the corpus's order: every text draws a number, and the lowest stay.

    Args:
      texts: read once; no more than the sample is kept in memory.
      sample_bytes: of UTF-8, at most.
      seed: of the draws.
      what: the texts are, to say how many of them were drawn.
    """
    rng = random.Random(seed)
    kept: list[tuple[float, int, str]] = []  # a heap of (-draw, position, text)
    bound = 1.0  # the lowest draw that had to go
    count = kept_bytes = all_bytes = 0
    with tqdm(desc="reading the corpus", unit="B", unit_scale=True) as bar:
        for count, text in enumerate(texts, 1):
            draw, length = rng.random(), len(text.encode())
            bar.update(length)
            all_bytes += length
            if draw < bound:
                heapq.heappush(kept, (-draw, count, text))
                kept_bytes += length
            while kept_bytes > sample_bytes:
                negative_draw, _, dropped = heapq.heappop(kept)
                bound = -negative_draw
                kept_bytes -= len(dropped.encode())
    if not count:
        raise ValueError("no text in the input. Look at the files and at text_key")
    if not kept:
        raise ValueError(f"sample_bytes={sample_bytes} holds none of the {what}. Pass a million or more")
    megabytes = f"{kept_bytes / 1e6:,.1f} of {all_bytes / 1e6:,.1f} MB"
    drawn = f" ({kept_bytes / all_bytes:.2%}), drawn evenly" if len(kept) < count else ""
    print(f"training on {len(kept):,} of {count:,} {what}, {megabytes}{drawn}", flush=True)
    return [text for _, _, text in sorted(kept, key=lambda item: item[1])]


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
            f"pieces. Pass {needed[1]} or more, or a lower character_coverage, with byte_fallback or without"
        )
    return f"SentencePiece cannot train on this text: {error.rpartition('] ')[2] or error}"
