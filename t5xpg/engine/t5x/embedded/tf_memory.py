"""What TensorFlow and its libraries write to a URL, kept in TensorFlow's own memory (ram://) until it is sent.

TensorFlow knows no s3://, no emulator of gs://, and none of fsspec's ways to log in. A file that never was on the disk
cannot be left there either.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from t5xpg.base import files, stores

SEND_PERIOD = 60.0  # seconds; TensorBoard looks for news every half a minute
FULL = 8 * 2**20  # bytes of an event file, which is sent whole each time


class Mirror:
    """A folder in memory whose files are copied to a URL.

    Args:
      url: of the folder.

    Attributes:
      folder: the one in memory, for TensorFlow to write to.
    """

    def __init__(self, url: str):
        self._url, self._sent = url, dict[str, int]()
        self.folder = f"ram://{uuid.uuid4().hex}"
        tf.io.gfile.makedirs(self.folder)

    def paths(self) -> list[str]:
        """Returns the files in memory, in the folder and the folders in it."""
        # Not by tf.io.gfile.walk: for ram:// it takes what begins with a folder's name to be in that folder.
        found = [path for pattern in ("*", "*/*") for path in tf.io.gfile.glob(f"{self.folder}/{pattern}")]
        return [path for path in found if not (path.endswith(".tmp") or tf.io.gfile.isdir(path))]

    def fetch(self, path: str) -> str:
        """Copies a file into memory; returns its path there. `path` begins with the mirror's URL."""
        local = self.folder + path.removeprefix(self._url)
        tf.io.gfile.makedirs(os.path.dirname(local))
        content = files.read_bytes(path)
        with tf.io.gfile.GFile(local, "wb") as file:
            file.write(content)
        self._sent[local] = zlib.crc32(content)
        return local

    def send(self) -> None:
        """Copies the files that have changed to the URL."""
        for path in self.paths():
            with tf.io.gfile.GFile(path, "rb") as file:
                content = file.read()
            checksum = zlib.crc32(content)
            if self._sent.get(path) != checksum:
                files.write_whole(self._url + path.removeprefix(self.folder), content)
                self._sent[path] = checksum

    def forget(self) -> None:
        """Frees the memory."""
        tf.io.gfile.rmtree(self.folder)


@contextlib.contextmanager
def sent(prefix: str) -> Iterator[str]:
    """Yields a path in memory; the files whose names begin with it are at `prefix` when the block has ended."""
    url, name = os.path.split(prefix)
    mirror = Mirror(url)
    try:
        yield os.path.join(mirror.folder, name)
        mirror.send()
    finally:
        mirror.forget()


@contextlib.contextmanager
def fetched(prefix: str) -> Iterator[str]:
    """Yields a path in memory with the content of the files whose names begin with the URL `prefix`."""
    url, name = os.path.split(prefix)
    mirror = Mirror(url)
    try:
        for each in files.names_in(url):
            if each.startswith(name):
                mirror.fetch(os.path.join(url, each))
        yield os.path.join(mirror.folder, name)
    finally:
        mirror.forget()


class EventWriter:
    """clu's writer of TensorBoard's files for a folder at a URL: sent at `flush`, and at a write after a minute.

    It has all of `clu.metric_writers.SummaryWriter`'s methods.
    """

    def __init__(self, url: str):
        self._url = url
        self._begin()

    def _begin(self) -> None:
        from clu import metric_writers

        self._mirror, self._last = Mirror(self._url), time.monotonic()
        self._writer = metric_writers.SummaryWriter(self._mirror.folder)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._writer, name)

        def write(*args: Any, **kwargs: Any) -> None:
            method(*args, **kwargs)
            if time.monotonic() - self._last > SEND_PERIOD:
                self._try_to_flush()

        return write

    def _try_to_flush(self) -> None:
        self._last = time.monotonic()
        try:
            self.flush()
        except stores.StoreError as error:  # the next flush sends all of it
            logging.warning("%s was not sent: %s", self._url, error)

    def flush(self) -> None:
        """Sends what was written; a large file is left behind then, and another one begun."""
        self._writer.flush()
        self._mirror.send()
        self._last = time.monotonic()
        if sum(tf.io.gfile.stat(path).length for path in self._mirror.paths()) > FULL:
            self.close()
            self._begin()

    def close(self) -> None:
        self._writer.close()
        self._mirror.send()
        self._mirror.forget()
