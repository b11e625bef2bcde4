"""Sentinels by their names in texts; which ids they are says `base.sentinels`, whose names are here too."""

from __future__ import annotations

from collections.abc import Sequence

import seqio

from t5xpg.base.sentinels import BYTES_NOT_IN_UTF8, NAME, count, first, readable, sign, to_id, to_number

__all__ = [
    "BYTES_NOT_IN_UTF8",
    "NAME",
    "count",
    "decode",
    "encode",
    "first",
    "name",
    "readable",
    "sign",
    "to_id",
    "to_number",
]


def name(number: int) -> str:
    """Returns `<extra_id_7>` for sentinel 7."""
    return f"<extra_id_{number}>"


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
