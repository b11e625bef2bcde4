"""Opens, lists, renames and removes files and folders, on a disk and at URLs; the only module that does.

What is written appears whole under its name, or not at all. Object stores have no folders and no rename: a folder
is what names begin with, an object appears when its last byte is sent, and what must be one thing (a checkpoint, an
exported model) counts from its marker on, which is written last.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from t5xpg.base import conditional, ranges
from t5xpg.base.ranges import BLOCK, ChangedError, RangeReader, Status
from t5xpg.base.stores import (
    WRITABLE,
    MissingError,
    absolute,
    ask,
    check_writable,
    file_system,
    is_url,
    name,
    named_errors,
    plain,
    scheme,
)

_BLOCK = 8 * 1024 * 1024  # bytes of one request to write; S3 takes no smaller part than 5 MiB
_BUFFER = 128 * 1024  # bytes read from a file at a time


def open_binary(
    path: str | os.PathLike,
    block_size: int = BLOCK,
    found: Status | None = None,
    start: int = 0,
    stop: int | None = None,
) -> IO[bytes]:
    """Opens a file to read bytes. The result can seek; of a URL, it fetches a block while another is read.

    Args:
      path: of the file.
      block_size: bytes of one request, for a URL.
      found: what `status` returned, to open that very file.
      start: bytes; where reading is to begin. Nothing is skipped: seek.
      stop: bytes; where reading is likely to end; None is the end of the file.

    Raises:
      ChangedError: the file is not `found` any more; for a URL also raised by reading.
    """
    if is_url(path):
        reader = RangeReader(path, found or status(path), start, stop, block_size)
        return io.BufferedReader(reader, _BUFFER)
    file = open(absolute(path), "rb", _BUFFER)  # noqa: SIM115, the caller closes it
    if found and (size := os.fstat(file.fileno()).st_size) != found.size:
        file.close()
        raise ChangedError(f"{path}: {found.size} bytes became {size} while in use. Start again")
    return file


def read_bytes(path: str | os.PathLike) -> bytes:
    if not is_url(path):
        return Path(absolute(path)).read_bytes()

    def read() -> bytes:
        return file_system(path).cat_file(os.fspath(path))

    if scheme(path) not in WRITABLE:
        return ask(path, read)
    with named_errors(path):  # gcsfs and s3fs try again by themselves
        return read()


def read_text(path: str | os.PathLike) -> str:
    """Returns a UTF-8 file's text."""
    return read_bytes(path).decode("utf-8")


def exists(path: str | os.PathLike) -> bool:
    """Whether there is a file or a folder; a store's folder is there while it holds something."""
    return bool(_kind(path)) if is_url(path) else os.path.exists(absolute(path))


def is_file(path: str | os.PathLike) -> bool:
    return _kind(path) == "file" if is_url(path) else os.path.isfile(absolute(path))


def is_folder(path: str | os.PathLike) -> bool:
    return _kind(path) == "directory" if is_url(path) else os.path.isdir(absolute(path))


def _kind(path: str | os.PathLike) -> str:
    """Returns "file" or "directory", "" for nothing; what else goes wrong is raised (fsspec takes it for "no")."""
    if scheme(path) in ("https", "http"):
        try:
            return "file" if ranges.status(path) else ""
        except MissingError:
            return ""

    def look() -> str:
        try:
            return file_system(path).info(absolute(path))["type"]
        except FileNotFoundError:
            return ""

    return ask(path, look)


def size(path: str | os.PathLike) -> int:
    """Returns a file's size in bytes."""
    return status(path).size


def status(path: str | os.PathLike) -> Status:
    """Returns what a file is known by while it is in use: size, and the store's name for its content or its time."""
    if is_url(path):
        return ranges.status(path)
    found = os.stat(absolute(path))
    return Status(found.st_size, str(found.st_mtime_ns))


def names_in(folder: str | os.PathLike) -> list[str]:
    """Returns the sorted names of what a folder holds; none where there is no such folder."""
    if not is_url(folder):
        return sorted(os.listdir(absolute(folder))) if is_folder(folder) else []
    return sorted({os.path.basename(each["name"].rstrip("/")) for each in _listed(folder)})


def files_in(folder: str | os.PathLike) -> list[str]:
    """Returns the sorted paths of the files, not the folders, that a folder holds; none where there is no such one."""
    if not is_url(folder):
        found = (os.path.join(plain(folder), each) for each in names_in(folder))
        return [path for path in found if os.path.isfile(path)]
    found = (os.path.basename(each["name"]) for each in _listed(folder) if each["type"] == "file")
    return sorted(f"{absolute(folder)}/{each}" for each in found)


def files_below(folder: str | os.PathLike) -> list[str]:
    """Returns the sorted paths of all files in a folder and in the folders below it; none where it is not a folder."""
    if not is_url(folder):
        return sorted(os.path.join(place, each) for place, _, found in os.walk(plain(folder)) for each in found)
    own = absolute(folder).split("://")[1]
    found = ask(folder, lambda: file_system(folder).find(absolute(folder)))
    return sorted(f"{scheme(folder)}://{path}" for path in found if path != own and not path.endswith("/"))


def _listed(folder: str | os.PathLike) -> list[dict]:
    own = absolute(folder).split("://")[1]  # a store may hold an object for the folder itself

    def look() -> list[dict]:
        try:
            return file_system(folder).ls(absolute(folder), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []

    return [each for each in ask(folder, look) if each["name"].rstrip("/") != own]


def matching(pattern: str) -> list[str]:
    """Returns the sorted paths, also of folders, that a glob (`*`, `?`, `[…]`, `**`) matches; URLs where it is one."""
    return sorted(_matching(pattern))


def files_matching(pattern: str) -> list[str]:
    """Returns the sorted paths of the files, not the folders, that a glob matches."""
    return sorted(path for path, is_file in _matching(pattern).items() if is_file)


def _matching(pattern: str) -> dict[str, bool]:
    if not is_url(pattern):
        import glob

        return {path: os.path.isfile(path) for path in glob.glob(plain(pattern), recursive=True)}
    found = ask(pattern, lambda: file_system(pattern).glob(pattern, detail=True))
    return {f"{scheme(pattern)}://{path}": info["type"] == "file" for path, info in found.items()}


def make_folder(path: str | os.PathLike) -> None:
    """Makes a folder and those above it; a store needs none."""
    check_writable(path)
    if not is_url(path):
        os.makedirs(absolute(path), exist_ok=True)


def remove(path: str | os.PathLike) -> None:
    """Removes a file, or a folder with all it holds; nothing happens where there is neither."""
    if not is_url(path):
        local = absolute(path)
        if os.path.isdir(local) and not os.path.islink(local):
            shutil.rmtree(local)
        else:
            Path(local).unlink(missing_ok=True)
        return
    with named_errors(path), contextlib.suppress(FileNotFoundError):
        file_system(path).rm(absolute(path), recursive=True)


def move(path: str | os.PathLike, target: str | os.PathLike) -> None:
    """Renames a file or a folder within one disk or store; on a store everything is copied, then removed."""
    if not is_url(path):
        os.replace(absolute(path), absolute(target))
        return
    system, start = file_system(path), absolute(path).split("://")[1]
    with named_errors(path):
        found = system.find(start) or [start]
        for each in found:
            system.cp_file(each, absolute(target).split("://")[1] + each[len(start) :])
    remove(path)


def create(path: str | os.PathLike, content: bytes) -> None:
    """Writes a small file that must not be there yet.

    Args:
      path: of the file.
      content: what nobody else would write: where an answer was lost, it tells whether the file is ours.

    Raises:
      FileExistsError: it is. A store that knows conditions (GCS, S3) decides between two that try at once.
    """
    if not is_url(path):
        with open(absolute(path), "xb") as file:
            file.write(content)
    elif not _write_on_condition(path, content, None):
        raise FileExistsError(f"{path}: another process has written it")


def replace(path: str | os.PathLike, content: bytes, found: Status) -> None:
    """Overwrites a small file at gs:// or s3:// that nobody else may have written since.

    Args:
      path: of the file.
      content: as that of `create`.
      found: what `status` returned.

    Raises:
      ChangedError: the file is not `found` any more, or is gone.
    """
    if not _write_on_condition(path, content, found.version):
        raise ChangedError(f"{path}: another process has written or removed it. Start again")


def _write_on_condition(path: str | os.PathLike, content: bytes, version: str | None) -> bool:
    """Whether an object now is what it was to be; see `conditional.write`."""
    with named_errors(path):
        if conditional.write(absolute(path), content, version):
            return True
        with contextlib.suppress(MissingError):
            return read_bytes(path) == content
    return False


def append(path: str | os.PathLike, text: str) -> None:
    """Adds text to the end of a small file, which is made if need be; what others add meanwhile stays.

    An object cannot be added to: it is read and replaced, up to five times where another process has just done so.

    Args:
      path: of the file, on a disk, gs:// or s3://.
      text: as the content of `create`; what UTF-8 cannot say of it is escaped.

    Raises:
      FileExistsError, ChangedError: others did so each time.
    """
    content = text.encode(errors="backslashreplace")
    if not is_url(path):
        with open(absolute(path), "ab") as file:
            file.write(content)
            return

    def attempt() -> None:
        try:
            found = status(path)
        except MissingError:
            create(path, content)
        else:
            replace(path, read_bytes(path) + content, found)

    for _ in range(4):
        with contextlib.suppress(FileExistsError, ChangedError):
            return attempt()
    return attempt()


@contextlib.contextmanager
def open_whole(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Opens a file that appears under its name if the block succeeds; if it fails, what was there stays.

    On a disk that is a temporary file beside it, whose content is on the disk before it gets its name, so that a
    power cut leaves the old file or the new one; its name does not match *.jsonl or *.json. The folder is made if need
    be. To a store the content is sent as it is written, and committed at the end.

    Args:
      path: of the file.
      mode: "w" (UTF-8) or "wb".
    """
    check_writable(path)
    opened = _open_object(path) if is_url(path) else _open_beside(Path(absolute(path)))
    with opened as file:
        if "b" in mode:
            yield file
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="\n", write_through=True)
            try:
                yield text
            finally:
                text.detach()


@contextlib.contextmanager
def _open_beside(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _beside(path)
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _open_object(path: str | os.PathLike) -> Iterator[Any]:
    with named_errors(path):
        file = file_system(path).open(os.fspath(path), "wb", block_size=_BLOCK, autocommit=False)
    write = file.write

    def write_or_name(content: bytes) -> int:
        with named_errors(path):
            return write(content)

    file.write = write_or_name  # where a part is full it is sent
    try:
        yield file
        with named_errors(path):
            file.close()
            file.commit()
    except BaseException:
        _discard(file)
        raise


def _discard(file: Any) -> None:
    """Ends an upload; one that cannot be ended is never visible, and the store drops it in time."""
    file.closed = True  # closing it again, as Python may, would send the rest
    with contextlib.suppress(Exception):
        file.discard()


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes `content` with `open_whole`; text as UTF-8."""
    if is_url(path):  # one request, no upload in parts
        check_writable(path)
        with named_errors(path):
            file_system(path).pipe_file(os.fspath(path), content.encode() if isinstance(content, str) else content)
        return
    with open_whole(path, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)


@contextlib.contextmanager
def make_folder_whole(path: str | os.PathLike, last: str = "config.json") -> Iterator[Path]:
    """Yields a local folder that becomes `path` if the block succeeds and is removed if it fails.

    Args:
      path: of a folder that is not there yet; on a disk the one yielded is beside it and is renamed. To a store its
        files are sent one by one, and removed again if one cannot be.
      last: the name of the file that readers look for first; it is sent last.

    Raises:
      FileExistsError: `path` exists.
    """
    check_writable(path)
    if exists(path):
        raise FileExistsError(f"{path}: exists already; pass a folder that does not exist yet.")
    if is_url(path):
        with tempfile.TemporaryDirectory(prefix="t5xpg-") as part:
            yield Path(part)
            send_folder(part, path, last)
        return
    target = Path(absolute(path))
    beside = _beside(target)
    beside.mkdir(parents=True)
    try:
        yield beside
        os.replace(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def send_folder(folder: str, path: str | os.PathLike, last: str = "") -> None:
    """Copies a local folder's files to a URL, the one named `last` after all others; all or none of them stay."""
    local = [os.path.join(place, each) for place, _, found in os.walk(folder) for each in found]
    local.sort(key=lambda file: (os.path.relpath(file, folder) == last, file))
    try:
        for file in local:
            with named_errors(path):
                file_system(path).put_file(file, f"{absolute(path)}/{os.path.relpath(file, folder)}")
    except BaseException:
        remove(path)
        raise


@contextlib.contextmanager
def local_result(path: str | os.PathLike) -> Iterator[str]:
    """Yields a local path for a library that knows no URLs to write a file at; it is sent if the block succeeds.

    A local `path` is yielded itself.
    """
    check_writable(path)
    if not is_url(path):
        yield absolute(path)
        return
    with tempfile.TemporaryDirectory(prefix="t5xpg-") as folder:
        local = os.path.join(folder, name(path))
        yield local
        with named_errors(path):
            file_system(path).put_file(local, absolute(path))


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[str]:
    """Yields a local path with a file's or a folder's content, for libraries that know no URLs; removed afterwards."""
    if not is_url(path):
        yield absolute(path)
        return
    with tempfile.TemporaryDirectory(prefix="t5xpg-") as folder:
        local = os.path.join(folder, name(path))
        if is_folder(path):
            with named_errors(path):
                file_system(path).get(absolute(path), local, recursive=True)
        else:
            with open_binary(path) as source, open(local, "wb") as target:
                shutil.copyfileobj(source, target, BLOCK)
        yield local


def _beside(path: Path) -> Path:
    """A name that no other process or thread takes; in a container a killed run may have had the same process id."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
