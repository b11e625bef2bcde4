"""Files and folders that appear whole under their names, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def open_whole(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file next to `path` that replaces it if the block succeeds and is removed if it fails.

    The folder is made if need be. The content is on the disk before the file gets its name, so that a power cut
    leaves the old file or the new one. The temporary name does not match *.jsonl or *.json.

    Args:
      path: of the file.
      mode: "w" (UTF-8) or "wb".
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _beside(path)
    try:
        with open(part, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes `content` with `open_whole`; text as UTF-8."""
    with open_whole(path, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)


@contextlib.contextmanager
def make_folder_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a folder next to `path` that is renamed to it if the block succeeds and removed if it fails.

    Raises:
      FileExistsError: `path` exists.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{path}: exists already; pass a folder that does not exist yet.")
    part = _beside(target)
    part.mkdir(parents=True)
    try:
        yield part
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _beside(path: Path) -> Path:
    """A name that no other process or thread takes; in a container a killed run may have had the same process id."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
