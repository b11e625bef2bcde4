"""What a corpus is made of: rows, characters, scripts, the longest row, rows without text and rows that repeat."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

# Unicode's scripts that are in general use today; it has 170.
SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Bopomofo", "Arabic", "Hebrew", "Thaana"),
    *("Armenian", "Georgian", "Ethiopic", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu"),
    *("Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Mongolian"),
)
_NO_SCRIPT = "digits, spaces and signs"
_OTHER = "other scripts"
_AT_A_TIME = 256  # rows looked into
_LONG = 64 * 1024  # characters; rows that are longer do not wait
_SHARE_SHOWN = 0.0005  # of the characters; less would be 0.0%


@dataclasses.dataclass
class Tally:
    """Counts of rows; those of parts of a corpus add up by `|=`.

    Attributes:
      taken: rows by the suffix of their file.
      short: rows that were left out because they are short, likewise.
      characters: of the rows taken.
      blank: rows of white space or nothing, taken or not.
      repeated: rows taken that repeat another's text; known when all are counted.
      longest: characters of the longest row.
      longest_in: the file that has it; the first of several.
      sample: {character: count} of the rows that were looked into for their scripts, but for those that wait.
      waiting: rows to look into.
    """

    taken: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    short: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    characters: int = 0
    blank: int = 0
    repeated: int = 0
    longest: int = 0
    longest_in: str = ""
    sample: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    waiting: list[str] = dataclasses.field(default_factory=list)

    def __ior__(self, other: Tally) -> Tally:
        other.look_into()
        self.taken.update(other.taken)
        self.short.update(other.short)
        self.sample.update(other.sample)
        self.characters += other.characters
        self.blank += other.blank
        if other.longest > self.longest:
            self.longest, self.longest_in = other.longest, other.longest_in
        return self

    def add(self, text: str, where: str, looked_into: bool) -> None:
        """Adds a row's characters.

        Args:
          text: the row.
          where: it comes from.
          looked_into: for the scripts of its characters.
        """
        length = len(text)
        self.characters += length
        if length > self.longest:
            self.longest, self.longest_in = length, where
        if looked_into:
            self.waiting.append(text)
            if len(self.waiting) >= _AT_A_TIME or length > _LONG:
                self.look_into()

    def look_into(self) -> None:
        """Adds the characters of what waits to the sample."""
        import numpy as np

        codes = np.frombuffer("".join(self.waiting).encode("utf-32-le"), np.uint32)
        counts = np.bincount(codes)
        seen = np.flatnonzero(counts)
        self.sample.update(dict(zip(map(chr, seen.tolist()), counts[seen].tolist(), strict=True)))
        self.waiting = []

    def report(self) -> Iterator[str]:
        """Yields two lines, about the rows and about their scripts."""
        self.look_into()
        rows = self.taken.total()
        repeated = f"; {counted(self.repeated, 'row')} repeating another's text" if self.repeated else ""
        blank = f"; {counted(self.blank, 'row')} without text" if self.blank else ""
        longest = f"the longest has {self.longest:,}, in {self.longest_in}"
        yield f"in all: {counted(rows, 'row')} of {counted(self.characters, 'character')}; {longest}{blank}{repeated}"
        looked_at = self.sample.total()
        if looked_at:
            part = "" if looked_at == self.characters else f" (of {looked_at / self.characters:.1%} of them, drawn)"
            yield f"characters{part}: {in_shares(scripts_of(self.sample))}"


def scripts_of(characters: dict[str, int]) -> dict[str, int]:
    """Returns {script: count} for {character: count}, by Unicode's property Script."""
    import regex

    pattern = regex.compile("|".join(rf"(?P<{script}>\p{{Script={script}}})" for script in SCRIPTS))
    letter = regex.compile(r"[\p{Letter}--\p{Script=Common}]", regex.VERSION1)
    found: collections.Counter[str] = collections.Counter()
    for character, count in characters.items():
        match = pattern.match(character)
        rest = _OTHER if letter.match(character) else _NO_SCRIPT
        found[match.lastgroup if match else rest] += count
    return dict(found)


def in_shares(counts: dict[str, int]) -> str:
    """Returns "Latin 80.1%, Han 0.3%, digits, spaces and signs 19.6%", the most first."""
    total = sum(counts.values())
    last = [name for name in (_OTHER, _NO_SCRIPT) if name in counts]
    names = [*sorted(counts.keys() - {*last}, key=lambda name: (-counts[name], name)), *last]
    shown = [f"{name} {counts[name] / total:.1%}" for name in names if counts[name] / total >= _SHARE_SHOWN]
    return ", ".join(shown)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
