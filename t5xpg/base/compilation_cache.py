"""Programs that JAX has compiled, kept for the next command in a folder of the user's.

It is JAX's own cache (https://docs.jax.dev/en/latest/persistent_compilation_cache.html) with other files. JAX's keys
cover the program, the compiler and its options, and the devices, but not what a CPU can do: the folder's name does. JAX
does not check its files: a flipped bit ended a run by an illegal instruction, and one that was cut off stays so. To
bound the folder's size it takes a lock for every small function, and waits ten seconds for each if a process hangs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat
import tempfile
import threading
from pathlib import Path

from t5xpg.base import files, private

LIMIT = 2**30  # bytes; a tiny model's training step takes 0.3 MB, that of a large one on a GPU 100
HIT = "/jax/compilation_cache/cache_hits"

_here = threading.local()  # JAX reports what it finds in the thread that asked for it


def keep() -> None:
    """Makes JAX keep what takes it a second to compile, unless its own settings say where, or that it should not.

    Nothing is kept where that folder cannot be made, belongs to another user, or can be written by others: what is in
    it runs as this user's code.
    """
    import jax

    if folder_in_use() is None and jax.config.values["jax_enable_compilation_cache"]:
        try:
            root = make_root()
            folder = root / describe_cpu()
            folder.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # a folder may be there and its disk be read-only or full
                pass
        except OSError as error:
            logging.info("What JAX compiles is not kept: %s", error)
            return
        remove_oldest(root, LIMIT)
        if private.keep_programs(Programs(folder)):
            jax.config.update("jax_compilation_cache_dir", str(folder))


def folder_in_use() -> str | None:
    """Returns where JAX keeps what it compiles; None where it has not been told."""
    import jax

    return jax.config.values["jax_compilation_cache_dir"]


def make_root() -> Path:
    """Returns the folder, which nobody but this user can write to.

    Raises:
      OSError: there is none.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # which the XDG specification says to ignore
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise OSError("this user has no home folder")
    root = Path(base, "t5xpg", "jax")
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{root} belongs to another user, or others may write there")
    return root


class Programs:
    """What JAX asks for programs: a file each, with the SHA-256 of its content in front, written whole or not at all.

    A file that is not what was written is removed, and JAX compiles that program again.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        path = self._folder / key
        if not path.exists():
            return None
        content = path.read_bytes()
        digest, program = content[:32], content[32:]
        if hashlib.sha256(program).digest() != digest:
            logging.warning("%s is damaged, and is removed", path)
            path.unlink(missing_ok=True)
            return None
        os.utime(path)  # see remove_oldest
        return program

    def put(self, key: str, program: bytes) -> None:
        files.write_whole(self._folder / key, hashlib.sha256(program).digest() + program)


def describe_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns a name that CPUs share on which the same machine code runs, and runs best."""
    known = [platform.machine(), platform.processor()]
    if cpuinfo.exists():
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if not name.strip():  # the next processor
                    break
                if name.strip() in ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part"):
                    known.append(value.strip())
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def remove_oldest(root: Path, limit: int) -> None:
    """Removes the files that were not used for longest until the rest takes `limit` bytes; others may do so as well."""
    found = []
    for path in root.rglob("*"):
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit:
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logging.info("%s stays: %s", path, error)
        total -= size


def listen() -> None:
    """Makes `hits` count from now on; calling it again changes nothing."""
    from jax import monitoring

    if not _State.listening:
        monitoring.register_event_listener(_on_event)
        _State.listening = True


def hits() -> int:
    """Returns how many programs JAX has found for this thread; see `listen`."""
    return getattr(_here, "hits", 0)


class _State:
    listening = False


def _on_event(event: str, **_) -> None:
    if event == HIT:
        _here.hits = hits() + 1
