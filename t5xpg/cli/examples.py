"""What `predict` and `score` read and write, line by line, so that a pipe gets each answer as soon as it is there."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

Example = dict[str, str]  # {column: text}
LINE_ENDS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def read(path: str, columns: Mapping[str, str] | None) -> Iterator[Example]:
    """Yields the examples of a file, or as they come of "-", stdin.

    Args:
      path: compressed or not; a pipe; for rows also a folder or a glob.
      columns: {column: key} of rows, of stdin as JSONL; None for text, where each line is an "inputs".

    Raises:
      JsonlError: there is nothing to read; or it names the line that cannot be used, or read.
    """
    from t5xpg.base import files, stores
    from t5xpg.data import compressed, finding, jsonl

    is_pipe = path == "-" or (not stores.is_url(path) and _is_special(path))
    if columns and not is_pipe:
        try:
            yield from jsonl.read_rows([path], columns)
        except finding.MissingFileError as error:
            raise _missing(path, "this folder has no JSONL, JSON or Parquet") from error
        return
    if not is_pipe and not stores.is_url(path) and not files.is_file(path):
        raise _missing(path, "this is a folder")
    name, number = "stdin" if path == "-" else path, 0
    with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else compressed.open_binary(path) as file:
        try:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if columns is None:
                    yield {"inputs": jsonl.decode_line(line, f"{name}:{number}")}
                elif line.strip():
                    yield jsonl.parse_line(line, columns, f"{name}:{number}")
        except stores.StoreError:  # has the file's name
            raise
        except compressed.READ_ERRORS as error:
            found = f"cannot be read from here on ({type(error).__name__}: {error})"
            raise jsonl.JsonlError(f"{name}:{number + 1}: {found}. Fetch or prepare the file again") from error


def _is_special(path: str) -> bool:
    """Whether it is neither a file nor a folder: /dev/stdin, a named pipe, a shell's <(command)."""
    from t5xpg.base import files

    return files.exists(path) and not files.is_file(path) and not files.is_folder(path)


def _missing(path: str, of_folder: str) -> ValueError:
    from t5xpg.base import files
    from t5xpg.data import jsonl

    found = of_folder if files.is_folder(path) else "there is no such file"
    return jsonl.JsonlError(f"{path}: {found}. Name one of text, JSONL, JSON or Parquet, or - for stdin")


def batches(examples: Iterable[Example], size: int, wait: bool) -> Iterator[list[Example]]:
    """Yields the examples `size` at a time; where `wait` is False, as many as have come, one at least."""
    if wait:
        examples = iter(examples)
        while part := list(itertools.islice(examples, size)):
            yield part
        return
    arrived: queue.Queue[Example | Exception | None] = queue.Queue(size)
    threading.Thread(target=_put_all, args=(examples, arrived), daemon=True).start()
    while True:
        came = [arrived.get()]
        while len(came) < size and isinstance(came[-1], dict) and not arrived.empty():
            came.append(arrived.get())
        if part := [item for item in came if isinstance(item, dict)]:
            yield part
        if isinstance(came[-1], Exception):
            raise came[-1]
        if came[-1] is None:
            return


def _put_all(examples: Iterable[Example], arrived: queue.Queue) -> None:
    """Puts the examples, and then the error that ended them, or None."""
    try:
        for example in examples:
            arrived.put(example)
        arrived.put(None)
    except Exception as error:
        arrived.put(error)


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """Opens stdout, or a file that appears whole or not at all."""
    from t5xpg.base import files

    if path is None:
        yield sys.stdout
        return
    with files.open_whole(path) as file:
        yield file


def one_line(text: str) -> str:
    r"""Returns the text with \n, \r, \x0b and so on in place of all that Unicode ends lines with."""
    return LINE_ENDS.sub(lambda end: end[0].encode("unicode_escape").decode(), text)


def json_line(row: Mapping[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False)  # escapes control characters, and not Unicode's other line ends
    return LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text)


@contextlib.contextmanager
def warnings_named(first: int, count: int) -> Iterator[None]:
    """Prints what is warned of in the block to stderr, with the numbers of the examples that it is about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    which = f"example {first}" if count == 1 else f"examples {first} to {first + count - 1}"
    for warning in caught:
        print(f"t5xpg: {which}: {warning.message}", file=sys.stderr)
