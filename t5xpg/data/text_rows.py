"""Text files cut into spans, and the rows of a span: what one process reads at a time.

A span is a part of a plain file, or all of a file that can only be read from its start. A row belongs to the span that
holds its beginning: a line where it is one, and where rows are paragraphs, all up to the first blank line that begins
after the span's end.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from t5xpg.base import files, stores
from t5xpg.data import compressed
from t5xpg.data.corpora import CorpusError
from t5xpg.data.workers import advance

JSON = (*compressed.packed(".json"), *compressed.packed(".jsonl"))
_SPAN = 4 * 1024 * 1024  # bytes; of a larger corpus up to _LARGEST
_LARGEST = 32 * 1024 * 1024
_SPANS_WANTED = 64  # of a corpus that is large enough for them
_TOLD = 4096  # lines, after which it is told how far they reach
_REQUESTS = 32  # to a store at a time
_BOM = b"\xef\xbb\xbf"


class Span(NamedTuple):
    """A part of a file."""

    path: str
    number: int  # of the file, among the inputs
    start: int  # bytes
    stop: int | None  # bytes; None: to the end, which is not known where the file is compressed
    size: int  # bytes, compressed where the file is
    status: files.Status  # of the file, when it was first looked at


class Row(NamedTuple):
    """A row of a file."""

    text: str
    line: bytes  # of JSON, to write; without line end
    start: int  # bytes of the file, decompressed, before the row: no two rows begin at the same


class Shape(NamedTuple):
    """What is a row."""

    rows: str  # of a .txt file: "paragraphs", "lines" or "file"
    text_key: str  # of a row of a .jsonl file
    whole_rows: bool  # such a row is written with all its keys


def tasks(paths: Sequence[str], rows: str) -> list[list[Span]]:
    """Returns the files' spans, in order, in lists that are worth handing to a process."""
    with concurrent.futures.ThreadPoolExecutor(_REQUESTS) as pool:
        found = list(pool.map(_status, paths))
    length = max(_SPAN, min(sum(status.size for status in found) // _SPANS_WANTED, _LARGEST))
    gathered: list[list[Span]] = []
    size = length
    for number, (path, status) in enumerate(zip(paths, found, strict=True)):
        for span in _cut(path, number, status, rows, length):
            if size >= length:
                gathered.append([])
                size = 0
            gathered[-1].append(span)
            size += span.size
    return gathered


def _status(path: str) -> files.Status:
    try:
        return files.status(path)
    except stores.StoreError as error:
        raise CorpusError(str(error)) from error


def _cut(path: str, number: int, status: files.Status, rows: str, length: int) -> Iterator[Span]:
    name = stores.name(path)
    is_document = rows == "file" and not name.endswith(JSON)
    if is_document or name.endswith((*compressed.SUFFIXES, ".json")):  # .json may be one object over many lines
        yield Span(path, number, 0, None, status.size, status)
        return
    for start in range(0, status.size, length):
        stop = min(start + length, status.size)
        yield Span(path, number, start, stop, stop - start, status)


def suffix(path: str) -> str:
    """Returns .txt.gz for a.txt.gz, .pdf for a.b.pdf; (no suffix) where there is none."""
    stem, last = os.path.splitext(stores.name(path))
    packed = last if last in compressed.SUFFIXES else ""
    return ((os.path.splitext(stem)[1] + packed) if packed else last).lower() or "(no suffix)"


def rows_of(span: Span, shape: Shape) -> Iterator[Row]:
    """Yields the rows that begin in a span.

    Raises:
      CorpusError: names the file, and the line, that cannot be read.
    """
    if stores.name(span.path).endswith(JSON):
        yield from _json_rows(span, shape)
    elif shape.rows == "lines":
        for start, line in _decoded(span, is_paragraph=False):
            if text := line.strip():
                yield Row(text, json_line(text), start)
    elif shape.rows == "paragraphs":
        for has_text, block in itertools.groupby(_decoded(span, is_paragraph=True), lambda item: bool(item[1].strip())):
            if has_text:
                lines = list(block)
                text = "\n".join(line.rstrip() for _, line in lines)
                yield Row(text, json_line(text), lines[0][0])
    elif text := "\n".join(line.rstrip() for _, line in _decoded(span, is_paragraph=False)).strip("\n"):
        yield Row(text, json_line(text), 0)


def json_line(text: str) -> bytes:
    """Returns a row without its line end, in UTF-8's own characters, as `json.dumps` writes it."""
    import orjson

    return b'{"text": %b}' % orjson.dumps(text)


def _json_rows(span: Span, shape: Shape) -> Iterator[Row]:
    import orjson

    key, whole_rows = shape.text_key, shape.whole_rows
    for start, line in _lines(span, is_paragraph=False):
        if line.isspace():
            continue
        try:
            text = orjson.loads(line)[key]
            written = line.strip() if whole_rows else b'{"text": %b}' % orjson.dumps(text)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            text = None
        if type(text) is str:
            yield Row(text, written, start)
        elif _decode(span, start, line).strip():
            raise CorpusError(f"{_where(span, start)}: {_why_no_row(_decode(span, start, line), key)}")


def _why_no_row(line: str, key: str) -> str:
    import orjson

    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"not a line of JSON ({error}). Mend or remove it."
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}, not an object with the key {key!r}."
    found = {name: type(value).__name__ for name, value in row.items()}
    return f"no text under {key!r}; found {found}. Name the key of the text: --text_key"


# --- lines ---------------------------------------------------------------------------------------


def _decoded(span: Span, is_paragraph: bool) -> Iterator[tuple[int, str]]:
    return ((start, _decode(span, start, line)) for start, line in _lines(span, is_paragraph))


def _decode(span: Span, start: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{_where(span, start)}: not UTF-8, byte 0x{line[error.start]:02x} at position {error.start + 1} of "
            "the line. Convert the file (iconv -t UTF-8) or mend the line."
        ) from error


def _lines(span: Span, is_paragraph: bool) -> Iterator[tuple[int, bytes]]:
    """Yields (bytes before it, line) of a span.

    Args:
      span: see above.
      is_paragraph: begin and end at a blank line, not at any.
    """
    opened = files.open_binary(span.path, found=span.status, start=max(span.start - 1, 0), stop=span.stop)
    position, stop = span.start, span.stop or math.inf
    with _named(span), compressed.decompressed(opened, span.path) as file:
        if position:
            file.seek(position - 1)  # a line begins here if this byte ends one
            position += len(file.readline()) - 1
        has_begun = not span.start
        for line in _told(_unfolded(file, span), opened, span):
            if not is_paragraph or line.isspace():
                if position >= stop:
                    return
                has_begun = True
            if has_begun:
                yield position, line if position else line.removeprefix(_BOM)
            position += len(line)


def _told(lines: Iterable[bytes], opened: IO[bytes], span: Span) -> Iterator[bytes]:
    """Yields the lines, and tells how much of the span's bytes were read from its file for them."""
    told = 0
    try:
        for number, line in enumerate(lines):
            if number % _TOLD == 0:
                read = min(max(opened.tell() - span.start, 0), span.size)
                advance(read - told)
                told = read
            yield line
    finally:
        advance(span.size - told)


@contextlib.contextmanager
def _named(span: Span) -> Iterator[None]:
    """Makes a CorpusError of what goes wrong while a span is read."""
    from t5xpg.data import jsonl  # it loads NumPy

    try:
        yield
    except (jsonl.JsonlError, stores.StoreError) as error:
        raise CorpusError(str(error)) from error
    except compressed.READ_ERRORS as error:
        raise CorpusError(f"{span.path}: cannot be read to its end ({error}). Fetch or compress it again.") from error


def _unfolded(file: IO[bytes], span: Span) -> Iterable[bytes]:
    """Returns a file's lines; of a .json file that is one object over many lines that as one line."""
    from t5xpg.data import jsonl

    is_json = stores.name(span.path).endswith(compressed.packed(".json"))
    return jsonl.unfolded(file, span.path) if is_json else file


def _where(span: Span, start: int) -> str:
    """Returns file:line of the line that begins `start` bytes into the file, which is read again up to there."""
    with compressed.open_binary(span.path) as file:
        number = 1
        for line in _unfolded(file, span):
            if start <= 0:
                break
            start -= len(line)
            number += 1
    return f"{span.path}:{number}"
