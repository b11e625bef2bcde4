"""JSONL files in plain Python: found, cut into pieces and parsed; an error names the line.

A *piece* is the unit of sharing and shuffling: a byte range of a plain file, or a compressed file as a whole. A line
belongs to the piece that holds its first byte. A *window* is what is parsed at a time: all lines of a byte range, or
about 1 MiB of lines of a compressed file.
"""

from __future__ import annotations

import functools
import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
import orjson

from t5xpg.data.compressed import READ_ERRORS, SUFFIXES, open_binary

Files = str | os.PathLike | Sequence[str | os.PathLike]
Columns = Mapping[str, str]  # {column: key of the row}

DATA_DIR_VARIABLE = "T5XPG_DATA_DIR"
UNBOUNDED = 2**62  # bytes or windows of a compressed file, known only at its end
MAX_PIECES = 1024  # looked into one by one; SeqIO's Beam jobs start one worker item per listed shard
_BOM = b"\xef\xbb\xbf"
_WINDOW = 1024 * 1024  # bytes; also the longest byte range
_MIN_RANGE = 64 * 1024  # bytes; 1.2 MB still makes 19 pieces
_PIECES_WANTED = 64  # of a corpus that is large enough for them


class JsonlError(ValueError):
    """What is wrong with the input, in one line: `file:line: what was found. What to do`."""


class MissingFileError(JsonlError, FileNotFoundError):
    """An entry of files= matches no file; the message names every place looked at."""


def original_error(error: BaseException) -> str | None:
    """Returns the one line of the JsonlError behind `error`, which tf.data wraps in many; None if none."""
    if isinstance(error, JsonlError):
        return str(error)
    if found := re.search(r"\bJsonlError: (.*)", str(error)):
        return found[1]
    cause = error.__cause__ or error.__context__
    return original_error(cause) if cause else None


def find_files(files: Files) -> list[str]:
    """Returns the paths that `files` stands for, in reading order.

    Args:
      files: a path, a glob (also `**`), a folder (its *.jsonl, *.jsonl.gz, .bz2 and .xz), or a list
        of these. A relative one is looked up in the working directory, then in $T5XPG_DATA_DIR.
        What a folder or a glob finds is sorted; a list keeps its order.

    Raises:
      MissingFileError: an entry finds nothing.
    """
    paths = [path for entry in listed(files) for path in _find_entry(os.path.expanduser(entry))]
    if not paths:
        raise MissingFileError("files=[] names no file. Pass a path, a glob, a folder or a list")
    return paths


def listed(files: Files) -> list[str]:
    entries = [files] if isinstance(files, (str, os.PathLike)) else files
    return [os.fspath(entry) for entry in entries]


def _find_entry(entry: str) -> list[str]:
    data_dir = os.environ.get(DATA_DIR_VARIABLE)
    places = [entry]
    if data_dir and not os.path.isabs(entry):
        places.append(os.path.join(data_dir, entry))
    for place in places:
        patterns = [glob.escape(place) if os.path.exists(place) else place]
        if os.path.isdir(place):
            patterns = [os.path.join(patterns[0], f"*.jsonl{suffix}") for suffix in ("", *SUFFIXES)]
        found = {path for pattern in patterns for path in glob.glob(pattern, recursive=True)}
        if paths := sorted(path for path in found if os.path.isfile(path)):
            return paths
    looked = " and ".join(os.path.abspath(place) for place in places)
    raise MissingFileError(
        f"no JSONL file for {entry!r}; looked at {looked}. Make it with `t5xpg prepare`, set "
        f"{DATA_DIR_VARIABLE} to the folder that holds it, or pass files="
    )


def split_files(files: Files, splits: Sequence[str]) -> dict[str, list[str]]:
    """Returns {split: files} for files with "{split}" in each name; ValueError where one lacks it."""
    names = listed(files)
    if not all("{split}" in name for name in names):
        raise ValueError(f"files={files!r} does not say for which split. Pass {{'train': …}}{_text_advice(names[0])}")
    return {split: [name.replace("{split}", split) for name in names] for split in splits}


class Piece(NamedTuple):
    """A byte range of a plain file, or a whole compressed one."""

    path: str
    start: int  # bytes
    end: int  # bytes; UNBOUNDED for a compressed file
    file_size: int  # bytes on disk

    @classmethod
    def whole(cls, path: str) -> Piece:
        size = os.path.getsize(path)
        if size == 0:
            raise JsonlError(f"{path}: the file is empty. Prepare it again or leave it out")
        return cls(path, 0, UNBOUNDED if path.endswith(SUFFIXES) else size, size)


def cut(paths: Iterable[str]) -> list[Piece]:
    """Returns the pieces of the files, in reading order, without those that lie within one long row.

    Above MAX_PIECES they are not looked into: it takes time, and any host's share of them has rows.
    """
    files = [Piece.whole(path) for path in paths]
    total = sum(file.file_size for file in files)
    length = min(max(total // _PIECES_WANTED, _MIN_RANGE), _WINDOW)
    pieces = []
    for file in files:
        step = UNBOUNDED if file.end == UNBOUNDED else length
        starts = range(0, file.end, step)
        pieces += [file._replace(start=start, end=min(start + step, file.end)) for start in starts]
    return [p for p in pieces if len(pieces) > MAX_PIECES or _has_line(p)]


def _has_line(piece: Piece) -> bool:
    """Whether a line starts in the piece."""
    with open(piece.path, "rb") as file:
        return _seek_line(file, piece) < piece.end


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
    """Returns how many lines are not blank, or `enough` once there are so many.

    Remembered while the file's size and time stay the same.
    """
    status = os.stat(path)
    return _count_rows(path, enough, status.st_size, status.st_mtime_ns)


@functools.cache
def _count_rows(path: str, enough: int | None, size: int, mtime_ns: int) -> int:  # noqa: ARG001, of the cache's key
    try:
        with open_binary(path) as file:
            lines = itertools.chain([file.readline().removeprefix(_BOM)], file)
            return sum(1 for _ in itertools.islice(filter(bytes.strip, lines), enough))
    except READ_ERRORS as error:
        raise _unreadable(path, error) from error


def columns_of(text_key: str | Columns) -> Columns:
    columns = {"text": text_key} if isinstance(text_key, str) else dict(text_key)
    if not columns:
        raise ValueError("text_key={} names no column. Pass text_key='text' or {column: key}")
    return columns


def windows(piece: Piece, columns: Columns) -> Iterator[list[np.ndarray]]:
    """Yields each window that has rows: per column, an array of str, [rows], dtype object."""
    try:
        with open_binary(piece.path) as file:
            if (size := os.fstat(file.fileno()).st_size) != piece.file_size:
                change = f"{piece.file_size} bytes became {size} while in use"
                raise JsonlError(f"{piece.path}: {change}. Start again")
            position = _seek_line(file, piece)
            while lines := _take_lines(file, min(_WINDOW, piece.end - position)):
                length = sum(map(len, lines))
                if position == 0:
                    lines[0] = lines[0].removeprefix(_BOM)
                window = _parse(lines, columns, piece.path, position)
                position += length
                if len(window[0]):
                    yield window
    except GeneratorExit:  # abandoned, perhaps as Python exits, with READ_ERRORS gone already
        raise
    except READ_ERRORS as error:
        raise _unreadable(piece.path, error) from error


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
                where = f"{path}:{_line_at(path, offset) + number}"
                raise JsonlError(f"{where}: {problem}{_text_advice(path)}") from None
        raise
    return [np.array(column, dtype=object) for column in texts]


def _text_advice(path: str) -> str:
    """Returns what to do with a file whose name does not say JSON."""
    return "" if ".json" in os.path.basename(path) else f". If this is plain text: t5xpg prepare text {path!r}"


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
        byte = f"byte {bad.start + 1} (0x{line[bad.start]:02x})"
        return f"{byte} is not UTF-8. Save the file as UTF-8"
    found = f"broken JSON at character {error.pos + 1} ({error.msg}); the line starts {start!r}"
    return f"{found}. Each line must be one JSON object: mend or delete it"


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


def _unreadable(path: str, error: Exception) -> JsonlError:
    found = f"cannot be read from here on ({type(error).__name__}: {error})"
    return JsonlError(f"{path}:{_line_at(path)}: {found}. Fetch or prepare the file again")
