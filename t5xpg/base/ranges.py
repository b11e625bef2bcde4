"""Files at URLs read by ranges: a block at a time, the next one fetched while one is read, tried again if it fails.

A file is read as it was when it was first looked at, or not at all: its size and the store's name for its content
(GCS's generation, an ETag) go with every request.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from t5xpg.base import stores
from t5xpg.base.stores import Path, StoreError, file_system, scheme

BLOCK = 2 * 1024 * 1024  # bytes of one request
_OVERHANG = 64 * 1024  # bytes fetched with a part of a file, so that its last row is whole
_TIMEOUT = 60.0  # seconds for one request


class Status(NamedTuple):
    """What a file is known by while it is in use."""

    size: int  # bytes
    version: str  # the store's name for this content, "" where it has none; on a disk its time, in nanoseconds


class ChangedError(StoreError):
    """The file is not what it was when it was first looked at."""


class _ShortError(ConnectionError):
    """Fewer bytes came than were asked for."""


def status(path: Path) -> Status:
    """Returns what a URL's file is known by, with one request.

    Raises:
      MissingError, DeniedError, StoreError: see `stores.ask`; also where a server does not answer with ranges.
    """
    return stores.ask(path, lambda: _STATUS.get(scheme(path), _http_status)(os.fspath(path)))


def fetch(path: Path, found: Status, start: int, stop: int) -> bytes:
    """Returns bytes `start` to `stop` of a URL's file.

    Raises:
      ChangedError: it is not `found` any more.
      MissingError, DeniedError, StoreError: see `stores.ask`.
    """

    def attempt() -> bytes:
        content = _FETCH.get(scheme(path), _http_fetch)(os.fspath(path), found, start, stop)
        if len(content) != stop - start:
            raise _ShortError(f"{len(content)} bytes came instead of {stop - start}")
        return content

    return stores.ask(path, attempt)


def _changed(path: str, what: str = "its content") -> ChangedError:
    return ChangedError(f"{path}: {what} changed while in use. Start again")


def _sync(system: Any, coroutine: Callable, *arguments) -> Any:
    from fsspec.asyn import sync

    return sync(system.loop, coroutine, *arguments, timeout=_TIMEOUT)


# --- gs:// -------------------------------------------------------------------------------------------------


def _gs_status(path: str) -> Status:
    info = file_system(path).info(path)
    if info["type"] != "file":
        raise FileNotFoundError(path)
    return Status(int(info["size"]), str(info.get("generation", "")))


def _gs_fetch(path: str, found: Status, start: int, stop: int) -> bytes:
    system = file_system(path)

    async def get() -> tuple[Any, bytes]:
        url = system.url(path, generation=found.version)
        return await system._call("GET", url, headers={"Range": f"bytes={start}-{stop - 1}"})

    try:
        headers, content = _sync(system, get)
    except FileNotFoundError:  # of this generation
        raise _changed(path) from None
    _check_size(path, found, headers)
    return content


# --- s3:// -------------------------------------------------------------------------------------------------


def _s3_status(path: str) -> Status:
    info = file_system(path).info(path)
    if info["type"] != "file":
        raise FileNotFoundError(path)
    return Status(int(info["size"]), str(info.get("ETag", "")))


def _s3_fetch(path: str, found: Status, start: int, stop: int) -> bytes:
    system = file_system(path)
    bucket, key, _ = system.split_path(path)

    async def get() -> bytes:
        condition = {"IfMatch": found.version} if found.version else {}
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{stop - 1}", **condition}
        answer = await system._call_s3("get_object", asked)
        async with answer["Body"] as body:
            return await body.read()

    try:
        return _sync(system, get)
    except FileNotFoundError:
        raise _changed(path) from None
    except OSError as error:
        answer = getattr(error.__cause__, "response", {})
        if answer.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
            raise _changed(path) from None
        raise


# --- https:// and hf:// ------------------------------------------------------------------------------------


def _http_status(path: str) -> Status:
    code, headers, _ = _http_get(path, 0, 1)
    if code == 416:  # no first byte
        return Status(0, "")
    total = _total(headers)
    if code != 206 or total is None:
        raise StoreError(f"{path}: the server sends no ranges of a file (HTTP {code}). Download it and name the copy")
    return Status(total, headers.get("ETag", headers.get("Last-Modified", "")))


def _http_fetch(path: str, found: Status, start: int, stop: int) -> bytes:
    code, headers, content = _http_get(path, start, stop)
    if code != 206:
        raise _changed(path, f"the server's answer to a range (HTTP {code})")
    _check_size(path, found, headers)
    if headers.get("ETag", headers.get("Last-Modified", "")) != found.version:
        raise _changed(path)
    return content


def _http_get(path: str, start: int, stop: int) -> tuple[int, Any, bytes]:
    """Returns (status, headers, content); the content of a 206 alone is read."""
    url, headers = path, {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    if scheme(path) == "hf":
        from huggingface_hub.utils import build_hf_headers

        hub = file_system(path)
        url = hub.url(path)
        headers |= build_hf_headers(token=hub.token)
    system = file_system("https://")

    async def get() -> tuple[int, Any, bytes]:
        session = await system.set_session()
        async with session.get(system.encode_url(url), headers=headers) as answer:
            if answer.status == 404:
                raise FileNotFoundError(path)
            if answer.status != 416:
                answer.raise_for_status()
            return answer.status, answer.headers, await answer.read() if answer.status == 206 else b""

    return _sync(system, get)


def _total(headers: Any) -> int | None:
    """Returns the size of the whole file, as the answer to a range has it."""
    found = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _check_size(path: str, found: Status, headers: Any) -> None:
    if _total(headers) not in (None, found.size):
        raise _changed(path, f"{found.size} bytes became {_total(headers)}; it")


_STATUS = {"gs": _gs_status, "s3": _s3_status}
_FETCH = {"gs": _gs_fetch, "s3": _s3_fetch}


# --- the file object ---------------------------------------------------------------------------------------


class RangeReader(io.RawIOBase):
    """A URL's file as Python's file object: seekable, unbuffered; one block in memory, and one that is on its way.

    Args:
      path: of the file.
      found: what it is known by.
      start: bytes; where reading begins.
      stop: bytes; nothing beyond is fetched before it is asked for. None is the file's end.
      block: bytes of a request.
    """

    def __init__(self, path: Path, found: Status, start: int = 0, stop: int | None = None, block: int = BLOCK):
        self.name = os.fspath(path)
        self._found, self._block_size = found, block
        self._stop = found.size if stop is None else min(stop, found.size)
        self._position = 0
        self._block, self._block_start = b"", start  # reading on from its end is what the next block is fetched for
        self._ahead: concurrent.futures.Future[bytes] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._found.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def close(self) -> None:
        self._ahead = None
        super().close()

    def readinto(self, buffer) -> int:
        if self._position >= self._found.size or not len(buffer):
            return 0
        if not self._block_start <= self._position < self._block_end:
            self._load()
        begin = self._position - self._block_start
        part = self._block[begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    @property
    def _block_end(self) -> int:
        return self._block_start + len(self._block)

    def _load(self) -> None:
        """Gets the block that begins at the position; begins to fetch the one after it if reading goes straight on."""
        start, straight_on = self._position, self._position == self._block_end
        ahead, self._ahead = self._ahead, None
        self._block = ahead.result() if ahead and straight_on else self._fetch(start)
        self._block_start = start
        if straight_on and self._block_end < self._stop:
            self._ahead = in_background(self._fetch, self._block_end)

    def _fetch(self, start: int) -> bytes:
        stop = start + self._block_size
        if start < self._stop:
            stop = min(stop, self._stop + _OVERHANG)
        return fetch(self.name, self._found, start, min(stop, self._found.size))


def in_background(call: Callable, *arguments) -> concurrent.futures.Future:
    """Calls in a thread of its own, for which no exiting Python waits."""
    future: concurrent.futures.Future = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="t5xpg reads ahead").start()
    return future
