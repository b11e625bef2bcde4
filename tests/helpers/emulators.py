"""Object stores on the loopback: gcp-storage-emulator for gs://, moto's server for s3://, each a process of its own."""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 120.0  # seconds for a server to start on a busy machine
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anyone", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_DEFAULT_REGION": "us-east-1"}


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def server(*command: str, path: str = "/"):
    """Runs `python command` with {port} filled in; yields its http:// address once it answers."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *(word.format(port=port) for word in command)], stdout=log, stderr=log
        )
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + PATIENCE
            while not _answers(address + path):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    ended = f"does not answer within {PATIENCE} s; its exit status is {process.poll()}"
                    raise RuntimeError(f"{command} {ended}: {log.read().decode()[-500:]}")
                time.sleep(0.1)
            yield address
        finally:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def gcs():
    """Runs an emulator of Google Cloud Storage; yields its address."""
    program = str(Path(__file__).with_name("gcs_server.py"))
    return server(program, "start", "--host=127.0.0.1", "--port={port}", "--in-memory")


def s3():
    """Runs an emulator of S3; yields its address."""
    return server("-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}")


def gcs_environment(address: str) -> dict[str, str]:
    """Returns what leads gcsfs, etils.epath and TensorStore to the server at `address`."""
    return {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}


def s3_environment(address: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": address, **CREDENTIALS}


@contextlib.contextmanager
def store(scheme: str) -> Iterator[tuple[str, str]]:
    """Runs an emulator that this process and those it starts find; yields (its address, the URL of a bucket in it)."""
    running, environment = {"gs": (gcs, gcs_environment), "s3": (s3, s3_environment)}[scheme]
    with running() as address:
        os.environ |= environment(address)
        yield address, new_bucket(scheme)


def new_bucket(scheme: str) -> str:
    """Makes a bucket on the server that the environment names; returns its URL."""
    from t5xpg.base import stores

    url = f"{scheme}://bucket-{uuid.uuid4().hex[:8]}"
    stores.file_system(url).mkdir(url.split("://")[1])
    return url


def forget_connections() -> None:
    """Makes the next request read the environment again, which may lead to another server now."""
    from etils.epath import backend

    from t5xpg.base import stores

    stores._file_system.cache_clear()
    backend.fsspec_backend._get_filesystem.cache_clear()
    for system in ("t5xpg.base.gcs.GCSFileSystem", "s3fs.S3FileSystem"):
        module, _, name = system.rpartition(".")
        getattr(importlib.import_module(module), name).clear_instance_cache()
