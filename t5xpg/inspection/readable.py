"""Ids made readable: the text of each token."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import seqio

from t5xpg.base.readable import one_line
from t5xpg.vocabularies import sentinels

Ids = Sequence[int] | np.ndarray


class Token(NamedTuple):
    """One id, readable."""

    text: str  # "" for the second and later bytes of a character
    id: int
    kind: str  # "text", "noise" (text that the model predicts), "sentinel" or "special"


def tokens(ids: Ids, vocabulary: seqio.Vocabulary) -> list[Token]:
    """Makes ids readable.

    Sentinels count up from ⟨0⟩, T5's `<extra_id_0>`. Of the byte tokens of one
    character, the first has its text; bytes that are not a character are shown as \\xe2.
    """
    ids, first = [int(i) for i in ids], sentinels.first(vocabulary)
    named = {vocabulary.pad_id: "<pad>", vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}
    named |= getattr(vocabulary, "specials", {})
    special = {i: sentinels.sign(i, vocabulary) for i in ids if i >= first} | named
    if isinstance(vocabulary, seqio.ByteVocabulary):
        texts = _byte_texts(ids, special)
    else:
        texts = [special.get(i) or _piece(i, vocabulary) for i in ids]
    kinds = ["sentinel" if i >= first else "special" if i in named else "text" for i in ids]
    return [Token(*token) for token in zip(texts, ids, kinds, strict=True)]


def _piece(token: int, vocabulary: seqio.Vocabulary) -> str:
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.tokenizer.id_to_piece(token).replace("▁", " ")
    return vocabulary.decode([token])


def _byte_texts(ids: Ids, special: Mapping[int, str]) -> list[str]:
    """Returns the text of each id of a ByteVocabulary: byte b has id b + 3."""
    texts: list[str] = []
    while len(texts) < len(ids):
        at = len(texts)
        if ids[at] in special or not 3 <= ids[at] < 259:
            texts.append(special.get(ids[at], f"#{ids[at]}"))
            continue
        follows = itertools.takewhile(lambda i: 3 <= i < 259 and i not in special, ids[at : at + 4])
        run = bytes(i - 3 for i in follows)
        lead = run[0]
        length = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
        try:
            texts += [run[:length].decode(), *[""] * (length - 1)]
        except UnicodeDecodeError:
            texts.append(f"\\x{lead:02x}")
    return texts


def visible(text: str) -> str:
    """Returns a token's text with its spaces shown too; "·" for the further bytes of a character."""
    return one_line(text).replace(" ", "␣") or "·"
