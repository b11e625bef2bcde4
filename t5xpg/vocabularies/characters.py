"""The characters of a corpus, counted as SentencePiece sees them: after normalization, without spaces."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable, Iterator

import numpy as np
from sentencepiece import SentencePieceNormalizer

_BATCH = 1 << 20  # characters that are counted at a time
_SPACES = " ▁"  # SentencePiece writes "▁" for a space
_LISTED = 50  # characters that `describe_dropped` names


class CharacterCounts:
    """Counts the characters of texts that pass by.

    Args:
      rule: SentencePiece's normalization, "nmt_nfkc" or "nmt_nfkc_cf".
    """

    def __init__(self, rule: str):
        self._rule = rule
        self._normalizer = SentencePieceNormalizer(
            rule_name=rule, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        )
        self._counts = np.zeros(sys.maxunicode + 1, np.int64)

    def watch(self, texts: Iterable[str]) -> Iterator[str]:
        """Yields the texts; all of them are counted once the last was taken."""
        waiting: list[str] = []
        size = 0
        for text in texts:
            waiting.append(text)
            size += len(text)
            if size > _BATCH:
                self._add(waiting)
                waiting, size = [], 0
            yield text
        self._add(waiting)

    def found(self) -> dict[str, int]:
        """Returns {character: how often it occurs}."""
        codes = np.flatnonzero(self._counts)
        found = {chr(code): int(self._counts[code]) for code in codes}
        return {character: count for character, count in found.items() if character not in _SPACES}

    def without(self, texts: list[str]) -> str:
        """Returns the characters that do not occur in `texts`, in Unicode's order."""
        there = CharacterCounts(self._rule)
        collections.deque(there.watch(texts), maxlen=0)
        return "".join(character for character in self.found() if not there._counts[ord(character)])

    def _add(self, texts: list[str]) -> None:
        normalized = self._normalizer.normalize("\n".join(texts))  # a line end keeps marks apart from the text before
        codes = np.frombuffer(normalized.encode("utf-32-le"), np.uint32)
        self._counts += np.bincount(codes, minlength=len(self._counts))


def describe_dropped(counts: dict[str, int], pieces: set[str], byte_fallback: bool) -> str | None:
    """Returns what to print about the characters that are no piece of a vocabulary; None where there are none."""
    dropped = {character: count for character, count in counts.items() if character not in pieces}
    if not dropped:
        return None
    order = sorted(dropped, key=lambda character: (-dropped[character], character))
    named = ", ".join(f"{character!r} {dropped[character]:,}" for character in order[:_LISTED])
    others = order[_LISTED:]
    rest = f" and {len(others):,} others, {sum(dropped[c] for c in others):,} times" if others else ""
    fate = "spelled in bytes" if byte_fallback else "unknown (--byte_fallback would spell them in bytes)"
    return (
        f"{len(dropped):,} of the text's {len(counts):,} characters, {sum(dropped.values()):,} of "
        f"{sum(counts.values()):,} in all, have no piece and are {fate}: {named}{rest}"
    )
