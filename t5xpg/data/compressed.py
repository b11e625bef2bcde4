"""Reads files to their last byte, compressed or not: damage is an error, never an early end.

.gz, .bz2 and .xz have checksums, .zst has one where it was asked for. `bz2.open` and `lzma.open` take anything after
the first stream that is not a stream for the end of the file. A parallel compressor's file of many streams then loses
rows without a word.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import IO, cast

from t5xpg.base import files, stores

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
_BUFFER = 128 * 1024  # bytes read from a file at a time

Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor

_DECOMPRESSORS: dict[str, Callable[[], Decompressor]] = {
    ".bz2": bz2.BZ2Decompressor,
    ".xz": functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ),
}


def packed(suffix: str) -> tuple[str, ...]:
    """Returns the suffix, and it with those of compressed files behind it."""
    return (suffix, *(suffix + packed for packed in SUFFIXES))


def open_binary(path: str | os.PathLike) -> IO[bytes]:
    """Opens the file's bytes, decompressed where its name ends in one of SUFFIXES.

    Reading it raises one of READ_ERRORS where the file is damaged or cut off.
    """
    return decompressed(files.open_binary(path), path)


def decompressed(file: IO[bytes], path: str | os.PathLike) -> IO[bytes]:
    """Returns what `file`, opened at `path`, holds; `file` itself where the name does not say that it is compressed."""
    suffix = os.path.splitext(stores.name(path))[1]
    if suffix == ".gz":
        return io.BufferedReader(_Closing(gzip.GzipFile(fileobj=file), file), _BUFFER)
    if suffix == ".zst":
        return io.BufferedReader(_Closing(_zstandard(file), file), _BUFFER)
    if suffix in _DECOMPRESSORS:
        return io.BufferedReader(_Closing(_Streams(file, _DECOMPRESSORS[suffix]), file), _BUFFER)
    return file


def _zstandard(file: IO[bytes]) -> io.RawIOBase:
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
    return cast(io.RawIOBase, stream)


class _Closing(io.RawIOBase):
    """A decompressor's stream that closes the compressed file as well."""

    def __init__(self, stream: io.RawIOBase | io.BufferedIOBase, file: IO[bytes]):
        self._stream, self._file = stream, file

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        self._file.close()
        super().close()

    def readinto(self, buffer) -> int:
        found = self._stream.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class _Streams(io.RawIOBase):
    """Compressed streams, one after the other; zeros between and after them are padding."""

    def __init__(self, file: IO[bytes], new_stream: Callable[[], Decompressor]):
        self._file = file
        self._new_stream = new_stream
        self._stream = new_stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        found = b""
        while not found:
            stream = self._stream
            data = self._file.read(_BUFFER) if stream.eof or stream.needs_input else b""
            if stream.eof:
                rest = (stream.unused_data + data).lstrip(b"\0")
                if not rest and not data:
                    return 0
                if rest:
                    self._stream = self._new_stream()
                    found = self._stream.decompress(rest, len(buffer))
                continue
            if stream.needs_input and not data:
                raise EOFError("the file ends within a compressed stream")
            found = stream.decompress(data, len(buffer))
        buffer[: len(found)] = found
        return len(found)
