"""Where a path leads: the local disk, or what fsspec reaches at gs://, s3://, https:// and hf://; and its errors.

Local paths and `file://` URLs never load fsspec. An object store lists what it holds now, not what it held before:
fsspec's cache of listings is off, for our own calls and for those that Orbax makes through etils.epath.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pathlib
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

WRITABLE = ("gs", "s3")
READABLE = (*WRITABLE, "https", "http", "hf")
_PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # scheme: (module, this package's extra that brings it)

_LIBRARIES = ("aiohttp", "botocore", "gcsfs", "google", "requests", "s3fs", "urllib3")
_STATUSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "ABORTED", "INTERNAL")

# epath goes through fsspec too, which reads STORAGE_EMULATOR_HOST and AWS_ENDPOINT_URL; tf.io.gfile does not.
os.environ.setdefault("EPATH_USE_TF", "false")
# Otherwise gcsfs asks for the bucket's type by gRPC before the first request; without the API enabled that takes 60 s.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

Path = str | os.PathLike
_WAITS = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4)  # seconds between attempts, and at random up to as much again
_PATIENCE = 60.0  # seconds, after which no other attempt begins: gcsfs and s3fs made some of their own
_PASSING = {"ConnectionError", "TimeoutError", "Timeout", "ChunkedEncodingError"}  # Python's and requests'
_PASSING |= {"ClientConnectionError", "ClientPayloadError", "TransportError", "HTTPClientError"}  # aiohttp, httpx, boto


class StoreError(OSError):
    """What a store answered, in one line: `URL: what was found. What to do`."""


class MissingError(StoreError, FileNotFoundError):
    """There is no such object, or no such bucket."""


class DeniedError(StoreError, PermissionError):
    """There are no credentials, or they do not allow it."""


def scheme(path: Path) -> str:
    """Returns "gs", "s3", "https", "http" or "hf"; "" for a path on the local disk, also one written file://…

    Raises:
      ValueError: another scheme, or a URL that lost a slash (pathlib does that).
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)", os.fspath(path))
    if not found or found[1] == "file":
        return ""
    name, slashes = found[1], found[2]
    if name not in READABLE:
        known = ", ".join(f"{each}://" for each in READABLE)
        raise ValueError(f"{path}: {name}:// cannot be read or written; take a local path, file:// or one of {known}.")
    if len(slashes) != 2:
        raise ValueError(f"{path}: a URL has two slashes; write {name}://{os.fspath(path)[found.end() :]}.")
    return name


def is_url(path: Path) -> bool:
    """Whether the path is on another machine's store; `file://` is not."""
    return bool(scheme(path))


def absolute(path: Path) -> str:
    """Returns the one name of a path: a URL without slashes at its end, an absolute local path without file://."""
    return os.fspath(path).rstrip("/") if is_url(path) else os.path.abspath(plain(path))


def plain(path: Path) -> str:
    """Returns a local path without file://, relative where it is; a URL without slashes at its end."""
    text = os.fspath(path)
    if is_url(text):
        return text.rstrip("/")
    if text.startswith("file:"):
        text = re.sub(r"^file:(//(localhost)?(?=/))?", "", text)
        if text.startswith("//"):
            raise ValueError(f"{path}: file:// takes a path on this machine; write file:///folder/file.")
    return text


def path_of(path: Path, name: str = "") -> pathlib.Path:
    """Returns a path to write at, to be taken apart and put together (/, name, stem, with_suffix).

    It is for names alone; `files` opens, lists and removes.

    Args:
      path: local, gs:// or s3://.
      name: what the user calls it.

    Raises:
      ValueError: as `check_writable`.
    """
    check_writable(path, name)
    if not is_url(path):
        return pathlib.Path(plain(path))
    from etils import epath

    return cast(pathlib.Path, epath.Path(absolute(path)))


def name(path: Path) -> str:
    """Returns the last part of a path; of a web address without what follows a question mark."""
    text = os.fspath(path)
    return os.path.basename((text.split("?")[0] if scheme(text) in ("https", "http") else text).rstrip("/"))


def parent(path: Path) -> str:
    """Returns the folder that a path is in; a bucket is in itself."""
    text = os.fspath(path).rstrip("/")
    folder = os.path.dirname(text) or "."
    return text if folder.endswith(":/") else folder


def check_writable(path: Path, name: str = "") -> None:
    """Refuses a path that cannot be written to by its scheme; nothing is asked of the store.

    Args:
      path: where something is to be written.
      name: what the user calls it, such as MODEL_DIR.

    Raises:
      ValueError: https://, hf:// and unknown schemes; or the package for the scheme is missing.
    """
    found = scheme(path)
    if found and found not in WRITABLE:
        where = f"{name} {path}" if name else f"{path}"
        raise ValueError(f"{where}: {found}:// can only be read; write to a local path, gs:// or s3://.")
    if found:
        file_system(path)


def file_system(path: Path) -> Any:
    """Returns the fsspec file system of a URL (see `scheme`), one for each scheme and process."""
    return _file_system(scheme(path), os.getpid())


@functools.cache
def _file_system(name: str, process: int) -> Any:  # noqa: ARG001, a forked process needs connections of its own
    module, extra = _PACKAGES.get(name, ("", ""))
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"{name}:// needs the package {module}; pip install 't5xpg[{extra}]'.") from error
    import aiohttp
    import fsspec

    if name == "gs":
        from t5xpg.base import gcs

        gcs.register()
    timeout = aiohttp.ClientTimeout(sock_connect=30, sock_read=60)  # s3fs has one of its own
    for protocol in ("gs", "gcs", "s3"):
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    fsspec.config.conf["gs"].setdefault("requests_timeout", timeout)
    if name in ("https", "http"):
        return fsspec.filesystem("https", client_kwargs={"trust_env": True, "timeout": timeout})
    return fsspec.filesystem(name)


def ask(path: Path, call: Callable[[], Any]) -> Any:
    """Returns `call()`, which may be repeated: it is, for up to a minute, where a failure may pass.

    Raises:
      MissingError, DeniedError, StoreError: see `named_errors`.
    """
    begun = time.monotonic()
    with named_errors(path):
        for wait in _WAITS:
            try:
                return call()
            except Exception as error:  # noqa: PERF203
                if not _may_pass(error) or time.monotonic() - begun > _PATIENCE:
                    raise
                time.sleep(wait * (1 + random.random()))
        return call()


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later; the libraries have an exception of their own for each trouble."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    answer = getattr(error, "response", None)
    for code in (getattr(error, "status", None), getattr(error, "code", None), getattr(answer, "status_code", None)):
        if str(code).isdigit():
            return int(str(code)) in (408, 429) or int(str(code)) >= 500
    return not kinds.isdisjoint(_PASSING)


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Says in one line, with the URL, what a store's library raises; errors of a local path pass as they are.

    Raises:
      MissingError, DeniedError: see there.
      FileExistsError: as the library says it.
      StoreError: everything else, such as a server that still fails after the library's retries.
    """
    try:
        yield
    except (StoreError, FileExistsError):
        raise
    except Exception as error:
        if not is_url(path):
            raise
        raise named(path, error) from error


def is_failure(error: BaseException) -> bool:
    """Whether an error, or one that it came from, is a store's or the network's, and not the content of its files."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FileNotFoundError):
            return False
        library = type(cause).__module__.partition(".")[0]
        if library in _LIBRARIES or isinstance(cause, StoreError | ConnectionError | TimeoutError | PermissionError):
            return True
        if re.search(rf"\b({'|'.join(_STATUSES)}): ", str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def named(path: Path, error: Exception) -> StoreError:
    """Returns what a store's library, or TensorStore, raised about a URL in one line."""
    path = os.fspath(path)
    if isinstance(error, StoreError):
        return error
    kind, detail = type(error).__name__, " ".join(str(error).split())[:200]
    bucket = re.sub(r"(?<=\w)/.*", "", path)
    if isinstance(error, FileNotFoundError):
        if scheme(path) in WRITABLE and not _has_bucket(bucket):
            return MissingError(f"{path}: there is no bucket {bucket}, or none that you may see. Check its name.")
        return MissingError(f"{path}: there is no such file. Check its name.")
    if kind in ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "TokenRetrievalError"):
        return DeniedError(f"{path}: there are no credentials for {bucket} ({kind}). Log in to the store or set them.")
    if isinstance(error, PermissionError) or re.search(r"\b(401|403)\b|Forbidden|Unauthorized|denied", detail):
        return DeniedError(f"{path}: access was denied ({detail or kind}). Log in, or ask for access to {bucket}.")
    return StoreError(f"{path}: the store failed ({kind}: {detail}). Try again.")


def _has_bucket(bucket: str) -> bool:
    try:
        return bool(file_system(bucket).exists(bucket))
    except Exception:
        return True  # what was asked for stays the error to report
