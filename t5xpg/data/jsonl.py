"""JSONL and Parquet files in plain Python: cut into pieces and parsed; an error names the line.

A *piece* is the unit of sharing and shuffling: a byte range of a plain file, a compressed file as a whole, or a row
group of a Parquet file. A line belongs to the piece that holds its first byte. A *window* is what is parsed at a time:
all lines of a byte range, or about 1 MiB of rows of another piece.

Files called .json hold lines too, or one object, written over as many lines as it takes, which is their only row.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, NamedTuple

import numpy as np
import orjson

from t5xpg.base import files as base_files
from t5xpg.base import stores
from t5xpg.data import parquet
from t5xpg.data.compressed import READ_ERRORS, SUFFIXES, decompressed, open_binary, packed
from t5xpg.data.finding import Files, JsonlError, find_files, text_advice

Columns = Mapping[str, str]  # {column: key of the row}

UNBOUNDED = 2**62  # bytes or windows of a file that is read as a stream, known only at its end
MAX_PIECES = 1024  # looked into one by one; SeqIO's Beam jobs start one worker item per listed shard
_JSON = packed(".json")
_BOM = b"\xef\xbb\xbf"
_LINE_ENDS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
_WINDOW = 1024 * 1024  # bytes; also the longest byte range
_MIN_RANGE = 64 * 1024  # bytes; 1.2 MB still makes 19 pieces
_PIECES_WANTED = 64  # of a corpus that is large enough for them
_LOOK = 32 * 1024  # bytes fetched at a time to see where a line begins
_REQUESTS = 32  # to a store at a time
_DOCUMENT = 64 * 1024 * 1024  # bytes of one object that has a file for itself, at most
_COUNTED = 256 * 1024 * 1024  # bytes of a URL read again at most, to say which line is wrong


def original_error(error: BaseException) -> str | None:
    """Returns the one line of the JsonlError behind `error`, which tf.data wraps in many; None if none."""
    if isinstance(error, JsonlError):
        return str(error)
    if found := re.search(r"\bJsonlError: (.*)", str(error)):
        return found[1]
    cause = error.__cause__ or error.__context__
    return original_error(cause) if cause else None


class Piece(NamedTuple):
    """A byte range of a plain file, a whole compressed one, or row groups of a Parquet file."""

    path: str
    start: int  # bytes; row groups of Parquet
    end: int  # likewise; UNBOUNDED for a compressed file, and for all row groups
    status: base_files.Status  # of the file, when it was first looked at

    @classmethod
    def whole(cls, path: str) -> Piece:
        status = _status(path)
        if status.size == 0:
            raise _empty(path)
        is_stream = stores.name(path).endswith((*SUFFIXES, parquet.SUFFIX))
        return cls(path, 0, UNBOUNDED if is_stream else status.size, status)

    @property
    def is_parquet(self) -> bool:
        return stores.name(self.path).endswith(parquet.SUFFIX)

    @property
    def is_stream(self) -> bool:
        """Whether it has several windows, which can only be read one after the other."""
        return self.end == UNBOUNDED or self.is_parquet

    @property
    def is_remote(self) -> bool:
        return stores.is_url(self.path)


def _empty(path: str) -> JsonlError:
    return JsonlError(f"{path}: the file is empty. Prepare it again or leave it out")


def _status(path: str) -> base_files.Status:
    try:
        return base_files.status(path)
    except stores.StoreError as error:
        raise JsonlError(str(error)) from error


def cut(paths: Iterable[str]) -> list[Piece]:
    """Returns the pieces of the files, in reading order, without those that lie within one long row.

    Above MAX_PIECES they are not looked into: it takes time, and any host's share of them has rows.
    """
    whole = _each(Piece.whole, paths, lambda path: stores.is_url(path))
    total = sum(file.status.size for file in whole)
    length = min(max(total // _PIECES_WANTED, _MIN_RANGE), _WINDOW)
    pieces = [piece for part in _each(functools.partial(_cut_file, length=length), whole) for piece in part]
    if len(pieces) > MAX_PIECES:
        return pieces
    return [piece for piece, has_line in zip(pieces, _each(_has_line, pieces), strict=True) if has_line]


def _each(function: Callable, items: Iterable, is_remote: Callable = lambda piece: piece.is_remote) -> list:
    """Returns `function` of each item; of those at URLs many at a time."""
    items = list(items)
    if not any(map(is_remote, items)):
        return [function(item) for item in items]
    with concurrent.futures.ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(function, items))


def _cut_file(file: Piece, length: int) -> list[Piece]:
    if file.is_parquet:
        return [file._replace(start=group, end=group + 1) for group in _row_groups(file)]
    if file.end == UNBOUNDED or (length < file.end and _is_document(file)):
        return [file._replace(end=UNBOUNDED)]
    starts = range(0, file.end, length)
    return [file._replace(start=start, end=min(start + length, file.end)) for start in starts]


@functools.lru_cache(MAX_PIECES)
def _group_sizes(file: Piece) -> list[int]:
    """Returns how many rows each row group of a Parquet file has."""
    with _named(file), base_files.open_binary(file.path, found=file.status) as content:
        return parquet.group_sizes(content)


def _row_groups(file: Piece) -> list[int]:
    """Returns the row groups of a Parquet file that have rows; JsonlError if none has."""
    groups = [group for group, rows in enumerate(_group_sizes(file)) if rows]
    if not groups:
        raise _empty(file.path)
    return groups


def _is_document(file: Piece) -> bool:
    """Whether a plain file is one JSON value over several lines; only of files called .json is it asked."""
    if not _is_called_json(file.path):
        return False
    with _named(file), base_files.open_binary(file.path, found=file.status, stop=1) as content:
        return _is_over_lines(file.path, content)


def _has_line(piece: Piece) -> bool:
    """Whether a line starts in the piece."""
    if piece.start == 0 or piece.is_stream:
        return True
    return _looked_for_line(piece) if piece.is_remote else _look_for_line(piece)


def _look_for_line(piece: Piece) -> bool:
    start = piece.start - 1
    with _named(piece), base_files.open_binary(piece.path, _LOOK, piece.status, start, stop=start + 1) as file:
        return _seek_line(file, piece) < piece.end


_looked_for_line = functools.lru_cache(8 * MAX_PIECES)(_look_for_line)


def read_rows(files: Files, text_key: str | Columns = "text") -> Iterator[dict[str, str]]:
    """Yields the files' rows once, in order, as {column: text}; plain Python, no tf.data.

    Args:
      files: see `find_files`; looked up when the first row is asked for.
      text_key: the key of a row that becomes the column "text", or {column: key} for several.

    Raises:
      JsonlError: names the first line that is not such a row.
    """
    columns = columns_of(text_key)
    for path in find_files(files):
        for window in windows(Piece.whole(path), columns):
            for row in zip(*window, strict=True):
                yield dict(zip(columns, row, strict=True))


def count_rows(path: str, enough: int | None = None) -> int:
    """Returns how many rows a file has, lines that are not blank; or `enough` once there are so many.

    Remembered while the file's size and time, or the store's name for its content, stay the same.
    """
    return _count_rows(Piece(path, 0, UNBOUNDED, _status(path)), enough)


@functools.cache
def _count_rows(file: Piece, enough: int | None) -> int:
    if file.is_parquet:
        rows = sum(_group_sizes(file))
        return rows if enough is None else min(rows, enough)
    with _named(file), open_binary(file.path) as content:
        return sum(1 for _ in itertools.islice(filter(bytes.strip, unfolded(content, file.path)), enough))


def columns_of(text_key: str | Columns) -> Columns:
    columns = {"text": text_key} if isinstance(text_key, str) else dict(text_key)
    if not columns:
        raise ValueError("text_key={} names no column. Pass text_key='text' or {column: key}")
    return columns


def windows(piece: Piece, columns: Columns) -> Iterator[list[np.ndarray]]:
    """Yields each window that has rows: per column, an array of str, [rows], dtype object.

    Raises:
      JsonlError: names the line that is not such a row, or the file that is damaged, cannot be read or has changed.
    """
    with _named(piece):
        if piece.is_parquet:
            yield from _parquet_windows(piece, columns)
        else:
            yield from _line_windows(piece, columns)


@contextlib.contextmanager
def _named(piece: Piece) -> Iterator[None]:
    """Makes a JsonlError of what goes wrong while the piece is read."""
    try:
        yield
    except GeneratorExit:  # abandoned, perhaps as Python exits, with READ_ERRORS gone already
        raise
    except parquet.ParquetError as error:
        raise JsonlError(f"{piece.path}: {error}") from error
    except stores.StoreError as error:
        raise JsonlError(str(error)) from error
    except READ_ERRORS as error:
        raise _unreadable(piece.path, error) from error


def _parquet_windows(piece: Piece, columns: Columns) -> Iterator[list[np.ndarray]]:
    with base_files.open_binary(piece.path, found=piece.status) as file:
        for group in range(piece.start, piece.end) if piece.end != UNBOUNDED else _row_groups(piece):
            for window in parquet.windows(file, group, columns, _WINDOW):
                if len(window[0]):
                    yield window


def _line_windows(piece: Piece, columns: Columns) -> Iterator[list[np.ndarray]]:
    first = max(piece.start - 1, 0)
    stop = None if piece.is_stream else piece.end
    opened = base_files.open_binary(piece.path, found=piece.status, start=first, stop=stop)
    with decompressed(opened, piece.path) as file:
        position = _seek_line(file, piece)
        while lines := _take_lines(file, min(_WINDOW, piece.end - position)):
            length = sum(map(len, lines))
            if position == 0:
                lines[0] = lines[0].removeprefix(_BOM)
                lines = _document(lines, file, piece.path) or lines
            window = _parse(lines, columns, piece.path, position)
            position += length
            if len(window[0]):
                yield window


def unfolded(file: IO[bytes], path: str) -> Iterator[bytes]:
    """Yields an open file's lines; where it is called .json and is one object over several lines, that as one line."""
    lines = [file.readline().removeprefix(_BOM)]
    while lines[-1] and not lines[-1].strip():
        lines.append(file.readline())
    yield from _document(lines, file, path) or lines
    yield from file


def _document(lines: list[bytes], file: IO[bytes], path: str) -> list[bytes]:
    """Returns the one object that a file holds over several lines, as one line; nothing where its lines are the rows.

    Args:
      lines: the first, without a byte order mark.
      file: open behind them; read on only where it seems to hold one object.
      path: of the file.

    Raises:
      JsonlError: the object is too long to be read at once.
    """
    if not _is_over_lines(path, lines):
        return []
    whole = b"".join(lines)
    whole += file.read(max(_DOCUMENT + 1 - len(whole), 0))
    if len(whole) > _DOCUMENT and _begins_object(whole.rpartition(b"\n")[0].strip()):
        found = f"one object of more than {_DOCUMENT // 1024**2} MiB over several lines"
        raise JsonlError(f"{path}: {found}. Write it, or the rows in it, as .jsonl, an object a line (jq -c)")
    with contextlib.suppress(orjson.JSONDecodeError):
        if isinstance(orjson.loads(whole), dict):
            return [whole.translate(_LINE_ENDS_TO_SPACES)]
    return []


def _begins_object(lines: bytes) -> bool:
    """Whether nothing but the end is missing to one object."""
    try:
        return isinstance(orjson.loads(lines), dict)
    except orjson.JSONDecodeError as error:
        return lines.startswith(b"{") and error.pos == len(error.doc)


def _is_called_json(path: str) -> bool:
    return stores.name(path).endswith(_JSON)


def _is_over_lines(path: str, lines: Iterable[bytes]) -> bool:
    """Whether a file called .json seems to be one object over several lines: the first with text is no JSON itself."""
    if not _is_called_json(path):
        return False
    first = next((line for line in (line.removeprefix(_BOM) for line in lines) if line.strip()), b"null")
    return not _is_json(first)


def _seek_line(file: IO[bytes], piece: Piece) -> int:
    """Moves to the first line that starts in the piece; returns its offset, or the piece's end if none."""
    if piece.start == 0:
        return 0
    file.seek(piece.start - 1)  # the byte before may be a line end: then a line starts here
    rest = file.readline(piece.end - piece.start)
    return piece.start - 1 + len(rest) if rest.endswith(b"\n") else piece.end


def _take_lines(file: IO[bytes], length: int) -> list[bytes]:
    """Returns the lines that start in the next `length` bytes; the last one whole, however long."""
    lines: list[bytes] = []
    while length > 0 and (line := file.readline()):
        lines.append(line)
        length -= len(line)
    return lines


def _parse(lines: list[bytes], columns: Columns, path: str, offset: int) -> list[np.ndarray]:
    """Returns an array of str per column, without blank lines; the lines start `offset` bytes in."""
    try:
        rows = [orjson.loads(line) for line in lines if line and not line.isspace()]
        texts = [[row[key] for row in rows] for key in columns.values()]
        if any(set(map(type, column)) - {str} for column in texts):
            raise TypeError("not a string")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        for number, line in enumerate(lines):
            if problem := line.strip() and _problem(line.rstrip(b"\r\n"), columns):
                if _starts_array(path):
                    problem = f"the file is one JSON array. Write an object a line: jq -c '.[]' {path}"
                where = f"{path}:{_where(path, offset, number)}"
                raise JsonlError(f"{where}: {problem}{text_advice(path)}") from None
        raise
    return [np.array(column, dtype=object) for column in texts]


def parse_line(line: bytes, columns: Columns, where: str) -> dict[str, str]:
    """Returns {column: text} of a row; JsonlError, which begins with `where`, if it is not such a row."""
    if problem := _problem(line.rstrip(b"\r\n"), columns):
        raise JsonlError(f"{where}: {problem}")
    row = orjson.loads(line)
    return {column: row[key] for column, key in columns.items()}


def decode_line(line: bytes, where: str) -> str:
    """Returns the text of a line without its end; JsonlError, which begins with `where`, if it is not UTF-8."""
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as bad:
        raise JsonlError(f"{where}: {_not_utf8(line, bad)}") from None


def _problem(line: bytes, columns: Columns) -> str | None:
    """Returns what is wrong with one line and what to do; None if nothing is."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _not_json(line, error)
    if not isinstance(row, dict):
        return f"the row is {_kind(row)}, not an object. Mend or delete the line"
    for column, key in columns.items():
        if key not in row:
            advice = "Mend or delete the row"
            texts = {name: value for name, value in row.items() if isinstance(value, str)}
            if texts:
                longest = max(texts, key=lambda name: len(texts[name]))
                advice = f"Pass {column}_key={longest!r} or mend the row"
            return f"no key {key!r}; found {sorted(row)[:10]}. {advice}"
        if not isinstance(row[key], str):
            return f"{key!r} is {_kind(row[key])}, not a string. Mend or delete the row"
    return None


def _not_json(line: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        start = line.decode()[:60].strip()
    except UnicodeDecodeError as bad:
        return _not_utf8(line, bad)
    found = f"broken JSON at character {error.pos + 1} ({error.msg}); the line starts {start!r}"
    return f"{found}. Each line must be one JSON object: mend or delete it"


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    return f"byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8. Save the file as UTF-8"


def _kind(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def _line_at(path: str, offset: int = UNBOUNDED) -> int:
    """Returns the number of the line at byte `offset`, or where reading fails; counted only for errors."""
    number = 1
    try:
        with open_binary(path) as file:
            while offset > 0 and (line := file.readline()):
                number += 1
                offset -= len(line)
    except READ_ERRORS:
        pass  # the caller reports this error
    return number


def _where(path: str, offset: int, number: int) -> str:
    """Returns the number of a line, `number` lines after byte `offset`; of a large file at a URL that byte instead."""
    if stores.is_url(path) and offset > _COUNTED:
        return f"line {number + 1} after byte {offset}"
    return str(_line_at(path, offset) + number)


def _starts_array(path: str) -> bool:
    with contextlib.suppress(*READ_ERRORS), open_binary(path) as file:
        first, rest = file.readline(_WINDOW).removeprefix(_BOM).lstrip(), file.read(_LOOK).strip()
        return first.startswith(b"[") and not (rest and _is_json(first))
    return False


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _unreadable(path: str, error: Exception) -> JsonlError:
    found = f"cannot be read from here on ({type(error).__name__}: {error})"
    return JsonlError(f"{path}:{_line_at(path)}: {found}. Fetch or prepare the file again")
