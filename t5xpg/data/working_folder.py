"""Where a corpus waits while it is written: a hidden folder beside its files, which appear together at the end.

One run at a time has it. A run that was killed leaves it behind, and the next one empties it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from t5xpg.base import files, stores
from t5xpg.data.corpora import CorpusError, full_disk_named

_SUFFIX = ".preparing"
_LOCK = "lock"
TWICE = "A corpus takes its size twice while it is written"


@contextlib.contextmanager
def working_folder(path: str | os.PathLike, name: str) -> Iterator[str]:
    """Yields an empty local folder, which is removed in the end.

    Args:
      path: of a file to be written. The folder is beside it; in the system's folder for temporary files if it is a URL.
      name: of the corpus; two runs at a time may not write the same.

    Raises:
      CorpusError: another run writes it, or the disk is full.
    """
    if stores.is_url(path):
        with tempfile.TemporaryDirectory(prefix="t5xpg-") as folder, full_disk_named(folder, TWICE):
            yield folder
        return
    folder = os.path.join(os.path.dirname(stores.absolute(path)), f".{os.path.basename(name)}{_SUFFIX}")
    lock = _locked(folder)
    try:
        for left in set(os.listdir(folder)) - {_LOCK}:
            files.remove(os.path.join(folder, left))
        with full_disk_named(folder, TWICE):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def is_inside(path: str) -> bool:
    """Whether a path leads into such a folder."""
    return any(part.startswith(".") and part.endswith(_SUFFIX) for part in path.split("/"))


def _locked(folder: str) -> int:
    """Returns an open file, which locks the folder until it is closed; makes the folder."""
    while True:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, _LOCK)
        with contextlib.suppress(FileNotFoundError):  # the run that had it has just removed it
            lock = os.open(path, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(path), os.fstat(lock)):
                    return lock
            except BlockingIOError:
                os.close(lock)
                found = "another run is writing this corpus"
                raise CorpusError(f"{folder}: {found}. Wait for it, stop it or pass another --name.") from None
            except FileNotFoundError:
                pass
            os.close(lock)


@contextlib.contextmanager
def open_together(paths: Sequence[Path], folder: str) -> Iterator[list[IO[bytes]]]:
    """Opens files that appear under their names when the block succeeds; if it fails, what was there stays.

    Args:
      paths: of the files.
      folder: what `working_folder` yielded; files on a disk are whole there, and on the disk, before the first of
        them gets its name.
    """
    with contextlib.ExitStack() as stack:
        if stores.is_url(paths[0]):
            yield [stack.enter_context(files.open_whole(path, "wb")) for path in paths]
            return
        parts = [os.path.join(folder, f"{path.name}.part") for path in paths]
        opened = [stack.enter_context(open(part, "wb")) for part in parts]
        yield list(opened)
        for file in opened:
            file.flush()
            os.fsync(file.fileno())
    for part, path in zip(parts, paths, strict=True):
        files.move(part, path)
