"""Ids made readable: the text of each token, and the text that inputs and targets were made of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import seqio

from t5xpg import vocabularies

Ids = Sequence[int] | np.ndarray


class Token(NamedTuple):
    """One id, readable."""

    text: str  # "" for the second and later bytes of a character
    id: int
    kind: str  # "text", "noise" (text that the model predicts), "sentinel" or "special"


def first_sentinel(vocabulary: seqio.Vocabulary) -> int:
    """The lowest id that can be a sentinel; vocab_size where the vocabulary has none."""
    return vocabulary.vocab_size - vocabularies.sentinels(vocabulary)


def fill_in(inputs: Ids, targets: Ids, first: int) -> tuple[list[int], list[bool]] | None:
    """Puts the targets' spans where the inputs have sentinels; ids from `first` on are sentinels.

    The n-th span of the targets belongs to the n-th sentinel of the inputs. Targets begin with a
    sentinel, or, where t5 masked the first token (i.i.d. denoising), with the first span itself.

    Returns:
      (ids, which of them are noise), or None where the sentinels do not pair.
    """
    spans: list[list[int]] = [[]]
    for token in targets:
        if token >= first:
            spans.append([])
        else:
            spans[-1].append(token)
    if not spans[0]:
        spans = spans[1:]
    if sum(token >= first for token in inputs) > len(spans):
        return None
    ids, noise, unused = [], [], iter(spans)
    for token in inputs:
        span = next(unused) if token >= first else [token]
        ids += span
        noise += [token >= first] * len(span)
    return ids, noise


def tokens(ids: Ids, vocabulary: seqio.Vocabulary) -> list[Token]:
    """Makes ids readable.

    Sentinels count up from ⟨0⟩, T5's `<extra_id_0>`. Of a character that takes several byte tokens
    the first has the text; bytes that are no character are shown as \\xe2.
    """
    ids, first = [int(i) for i in ids], first_sentinel(vocabulary)
    named = {vocabulary.pad_id: "<pad>", vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}
    named |= getattr(vocabulary, "specials", {})
    special = {i: f"⟨{vocabulary.vocab_size - 1 - i}⟩" for i in ids if i >= first} | named
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
    """The text of each id of a ByteVocabulary: byte b has id b + 3."""
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
