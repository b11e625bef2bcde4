"""What a user should know about a split before training on it: whether it can be shuffled, which rows are long.

Both look at a bounded part of the files, so that a run's start does not take longer for a larger corpus.
"""

from __future__ import annotations

import itertools
import shlex
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from t5xpg.base import stores
from t5xpg.data import compressed, jsonl
from t5xpg.data.jsonl import Columns

SHARDS = 64  # to recommend
_READ_AS_ROWS = (*compressed.packed(".jsonl"), *compressed.packed(".json"))  # by `t5xpg prepare text`
_MOST_BYTES_OF_A_CHARACTER = 4
_TOKENIZED = 64 * 1024  # characters that are tokenized at most, for each window that is looked at


def poor_shuffling(paths: Sequence[str], columns: Columns, interleaved: int) -> str | None:
    """Returns why shuffling will leave rows near their neighbours; None where it will not.

    A compressed file can only be read from its start. Up to `interleaved` files are read at once, and rows move
    within a window: where there are fewer files, and one has several windows, their order remains.
    """
    pieces = jsonl.cut(paths)
    whole = [piece for piece in pieces if stores.name(piece.path).endswith(compressed.SUFFIXES)]
    if len(pieces) >= interleaved or not any(_has_two_windows(piece, columns) for piece in whole):
        return None
    files = "1 compressed file" if len(whole) == 1 else f"{len(whole)} compressed files"
    return f"{files} cannot be shuffled well: each is read from its start, and rows stay near their neighbours"


def _has_two_windows(piece: jsonl.Piece, columns: Columns) -> bool:
    return len(list(itertools.islice(jsonl.windows(piece, columns), 2))) == 2


def reshard_command(name: str, paths: Sequence[str], columns: Columns) -> str | None:
    """Returns the command that writes the files' rows anew, all of them, shuffled, in files that can be shuffled.

    None where it would not read a file as the source does: by their names these are not JSON.
    """
    if not all(stores.name(path).endswith(_READ_AS_ROWS) for path in paths):
        return None
    key = next(iter(columns.values()))
    settings = ["--name", name, "--shards", str(SHARDS), "--validation_fraction", "0", "--min_length", "0"]
    if columns != {"text": "text"}:
        settings += ["--text_key", key, "--whole_rows"]
    return shlex.join(["t5xpg", "prepare", "text", *paths, *settings])


class LongRows(NamedTuple):
    """Rows beyond a limit of tokens.

    Attributes:
      beyond: how many there are.
      longest: tokens of the longest.
      looked_at: rows that were looked at.
      all_rows: whether these are all rows of the split.
    """

    beyond: int
    longest: int
    looked_at: int
    all_rows: bool


def find_long_rows(
    paths: Sequence[str], columns: Columns, limit: int, count_tokens: Callable[[str], int], windows: int
) -> LongRows:
    """Returns the rows of more than `limit` tokens in an even sample of at most `windows` windows.

    Rows that are too short for that are not tokenized: no character makes more than four tokens, its bytes, once
    NFKC, SentencePiece's usual normalizer, has expanded it.
    """
    pieces = jsonl.cut(paths)
    chosen = _evenly(pieces, windows)
    share = windows // len(chosen)  # windows of each
    found, looked_at, to_tokenize = [], 0, windows * _TOKENIZED
    all_rows = len(chosen) == len(pieces)
    for piece in chosen:
        for number, window in enumerate(jsonl.windows(piece, columns)):
            if number == share or to_tokenize <= 0:
                all_rows = False
                break
            looked_at += len(window[0])
            for text in window[0]:
                if _may_have(limit, text):
                    to_tokenize -= len(text)
                    found.append(count_tokens(text))
    long = [tokens for tokens in found if tokens > limit]
    return LongRows(len(long), max(long, default=0), looked_at, all_rows)


def _may_have(tokens: int, text: str) -> bool:
    characters = max(len(text), len(unicodedata.normalize("NFKC", text)))
    return characters * _MOST_BYTES_OF_A_CHARACTER >= tokens  # SentencePiece may put one more before all


def _evenly(pieces: list[jsonl.Piece], count: int) -> list[jsonl.Piece]:
    places = np.linspace(0, len(pieces) - 1, min(count, len(pieces))).round().astype(int)
    return [pieces[place] for place in places]
