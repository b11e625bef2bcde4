"""The one numbering of sentinels: ids that stand for masked spans and never for text.

Sentinel 0, T5's `<extra_id_0>`, is the last id of the vocabulary; the others count down from there. So what matters is
how many ids at the end no text can produce: `count`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import seqio

# 0xF5 to 0xFF occur nowhere in UTF-8; after the 3 special ids they are the ids 248 to 258. ByT5 has no others.
BYTES_NOT_IN_UTF8 = 11
NAME = re.compile(r"<extra_id_(\d+)>")


def name(number: int) -> str:
    """Returns `<extra_id_7>` for sentinel 7."""
    return f"<extra_id_{number}>"


def count(vocabulary: seqio.Vocabulary) -> int:
    """Returns how many ids, counted down from the last, are free for sentinels."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return vocabulary.extra_ids or BYTES_NOT_IN_UTF8
    if isinstance(vocabulary, seqio.SentencePieceVocabulary) and not vocabulary.extra_ids:
        found = 0  # a model may bring sentinels of its own, as pieces
        while NAME.search(vocabulary.tokenizer.id_to_piece(vocabulary.vocab_size - 1 - found)):
            found += 1
        return found
    return vocabulary.extra_ids


def first(vocabulary: seqio.Vocabulary) -> int:
    """Returns the lowest id that can be a sentinel; vocab_size where the vocabulary has none."""
    return vocabulary.vocab_size - count(vocabulary)


def to_id(number: int, vocabulary: seqio.Vocabulary) -> int:
    """Returns the id of sentinel `number`."""
    return vocabulary.vocab_size - 1 - number


def to_number(token: int, vocabulary: seqio.Vocabulary) -> int:
    """Returns which sentinel an id is; the inverse of `to_id`."""
    return vocabulary.vocab_size - 1 - token


def encode(text: str | Sequence[int], vocabulary: seqio.Vocabulary) -> list[int]:
    """Returns ids that end with EOS, sentinels read by their names; ids are taken as they are.

    A SentencePiece vocabulary reads the names itself; for bytes it is done here.
    """
    if not isinstance(text, str):
        return list(text)
    if not isinstance(vocabulary, seqio.ByteVocabulary):
        return [*vocabulary.encode(text), vocabulary.eos_id]
    parts = NAME.split(text)  # text, number, text, …
    ids = list(vocabulary.encode(parts[0]))
    for number, part in zip(parts[1::2], parts[2::2], strict=True):
        known = int(number) < count(vocabulary)  # as for SentencePiece, another name is text
        ids += [to_id(int(number), vocabulary)] if known else vocabulary.encode(name(int(number)))
        ids += vocabulary.encode(part)
    return [*ids, vocabulary.eos_id]


def decode(ids: Sequence[int], vocabulary: seqio.Vocabulary) -> str:
    """Returns the text of `ids` up to EOS, with sentinels by name."""
    ids = [int(i) for i in ids]
    ids = ids[: ids.index(vocabulary.eos_id)] if vocabulary.eos_id in ids else ids
    if not isinstance(vocabulary, seqio.ByteVocabulary):
        return vocabulary.decode(ids)
    text, run = "", []
    for token in ids:
        if token < first(vocabulary):
            run.append(token)
            continue
        text += vocabulary.decode(run) + name(to_number(token, vocabulary))
        run = []
    return text + vocabulary.decode(run)
