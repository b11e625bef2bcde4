"""Which ids stand for masked spans and never for text, and ids as a text to look at.

Sentinel 0, T5's `<extra_id_0>`, is the last id of the vocabulary; the others count down from there. So what matters is
how many ids at the end no text can produce: `count`. Vocabularies are seqio's, which base does not import.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

# 0xF5 to 0xFF occur nowhere in UTF-8; after the 3 special ids they are the ids 248 to 258. ByT5 has no others.
BYTES_NOT_IN_UTF8 = 11
NAME = re.compile(r"<extra_id_(\d+)>")


def count(vocabulary: Any) -> int:
    """Returns how many ids, counted down from the last, are free for sentinels."""
    if is_kind(vocabulary, "ByteVocabulary"):
        return vocabulary.extra_ids or BYTES_NOT_IN_UTF8
    if is_kind(vocabulary, "SentencePieceVocabulary") and not vocabulary.extra_ids:
        found = 0  # a model may bring sentinels of its own, as pieces
        while NAME.search(vocabulary.tokenizer.id_to_piece(vocabulary.vocab_size - 1 - found)):
            found += 1
        return found
    return vocabulary.extra_ids


def is_kind(vocabulary: Any, name: str) -> bool:
    """Whether it is of seqio's class of that name, or of one made from it."""
    return any(cls.__name__ == name for cls in type(vocabulary).__mro__)


def first(vocabulary: Any) -> int:
    """Returns the lowest id that can be a sentinel; vocab_size where the vocabulary has none."""
    return vocabulary.vocab_size - count(vocabulary)


def to_id(number: int, vocabulary: Any) -> int:
    """Returns the id of sentinel `number`."""
    return vocabulary.vocab_size - 1 - number


def to_number(token: int, vocabulary: Any) -> int:
    """Returns which sentinel an id is; the inverse of `to_id`."""
    return vocabulary.vocab_size - 1 - token


def sign(token: int, vocabulary: Any) -> str:
    """Returns ⟨7⟩ for the id of sentinel 7."""
    return f"⟨{to_number(token, vocabulary)}⟩"


def readable(ids: Sequence[int], vocabulary: Any) -> str:
    """Returns ids as a text to look at, "the ⟨0⟩ fox": sentinels as `sign`s, an EOS as the end of a line.

    Of other special ids a vocabulary's `specials` are named, as "<mask>", but those that only begin or fill up a text;
    an id beyond the vocabulary, which a network may have embeddings for, is "�".
    """
    lowest, specials = first(vocabulary), getattr(vocabulary, "specials", {})
    names = {token: "" if name == "<s>" else name for token, name in specials.items()}
    names |= {vocabulary.pad_id: "", vocabulary.eos_id: "\n"}

    def special(token: int) -> str | None:
        if token >= vocabulary.vocab_size:
            return "�"
        return names.get(token) if token < lowest else sign(token, vocabulary)

    text = ""
    for shown, run in itertools.groupby(map(int, ids), special):
        tokens = list(run)
        text += decoded(tokens, vocabulary) if shown is None else shown * len(tokens)
    return text.strip()


def decoded(run: list[int], vocabulary: Any) -> str:
    """Decodes ids of text, none of them special, with the space before them, which SentencePiece leaves out."""
    text = vocabulary.decode(run)
    if is_kind(vocabulary, "SentencePieceVocabulary"):
        return " " * vocabulary.tokenizer.id_to_piece(run[0]).startswith("▁") + text
    return text if isinstance(text, str) else " ".join(map(str, text))  # ids that stand for no text
