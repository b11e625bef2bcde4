"""A proxy before a store's emulator that fails, delays or cuts requests, and adds what the emulator of gs:// lacks.

    with faulty_store(stores, "gs", every=10) as proxy:  # every 10th request, each kind of FAULTS in turn
        files.write_whole(f"{bucket}/x", "…")

The requests are counted from 1, whoever makes them; `requests` has them all, `asked` each one's path and
range, and `faults` those that were spoilt.
What it adds for gs:// is reading by generation and the DELETE of an upload.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import http.client
import http.server
import itertools
import json
import socket
import struct
import threading
import time
import types
import urllib.parse
from collections.abc import Callable, Iterator, Sequence

import emulators
import pytest

# 503: answered so, unseen by the store. reset: the connection, before the store sees it. lost: the store does it, and
# the connection is reset. cut: half of the answer's body is sent. delay: the store does it after `delay` seconds.
FAULTS = ("503", "reset", "lost", "cut", "delay")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"}


class FaultyProxy(http.server.ThreadingHTTPServer):
    """Passes requests to `upstream` (http://host:port), and spoils every `every`-th of those that `only` chooses.

    A context manager. Its attributes may be changed while it runs.

    Args:
      upstream: an emulator's address.
      every: which of the requests are spoilt; 0 is none of them, 1 all.
      faults: the kinds to take in turn, of FAULTS; or a status such as "403", with which all are answered.
      only: (method, path with query) -> whether the request counts.
      delay: seconds.
    """

    daemon_threads = True

    def __init__(
        self,
        upstream: str,
        every: int = 10,
        faults: Sequence[str] = FAULTS,
        only: Callable[[str, str], bool] = lambda method, path: True,
        delay: float = 0.2,
    ):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.every, self.only, self.delay = every, only, delay
        self.requests: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.faults: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_port}"
        self._kinds = itertools.cycle(faults)
        self._counted = 0
        self._lock = threading.Lock()

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address) -> None:
        """Says nothing: clients that were cut off hang up."""

    def fault_for(self, method: str, path: str) -> str:
        """Counts the request; returns the kind of fault that it is to have, "" for none."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            if not self.every or not self.only(method, path):
                return ""
            self._counted += 1
            if self._counted % self.every:
                return ""
            kind = next(self._kinds)
            self.faults.append(f"{kind}: {method} {path}")
            return kind


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def do_GET(self) -> None:
        body = self._body()
        self.server.asked.append((self.path, self.headers.get("Range", "")))
        fault = self.server.fault_for(self.command, self.path)
        if fault.isdigit():
            self._send(int(fault), [], json.dumps({"error": {"code": int(fault), "message": "as asked"}}).encode())
        elif fault == "reset":
            self._reset()
        else:
            if fault == "delay":
                time.sleep(self.server.delay)
            status, headers, content = self._answer(body)
            if fault == "lost":
                self._reset()
            else:
                self._send(status, headers, content, cut=fault == "cut")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def log_message(self, *args) -> None:
        """Keeps the test's output clean; `FaultyProxy.requests` has the record."""

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            if self.headers.get("Expect") == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _answer(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if self.command == "DELETE" and "upload_id" in query:
            return 499, [], b""  # as Google's servers say that an upload was ended
        if "generation" in query and not self._is_current(query["generation"][0]):
            return 404, [], b""
        return self._forward(self.command, self.path, body)

    def _is_current(self, generation: str) -> bool:
        """Whether the object is of this generation; the store keeps no older ones."""
        path = urllib.parse.urlsplit(self.path).path.replace("/download/", "/", 1)
        status, _, content = self._forward("GET", path, b"")
        return status == 200 and str(json.loads(content)["generation"]) == generation

    def _forward(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Returns the store's (status, headers, content); the Host stays the proxy's, so that its links lead here."""
        connection = http.client.HTTPConnection(self.server.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {*_HOP_BY_HOP, "content-length"}:
                    connection.putheader(name, value)
            if body or method in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP_BY_HOP]
            return answer.status, headers, answer.read()

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command == "HEAD" and any(name.lower() == "content-length" for name, _ in headers):
            content = b""
        elif status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.wfile.flush()
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


@contextlib.contextmanager
def faulty_store(stores: dict[str, str], scheme: str, **settings) -> Iterator[FaultyProxy]:
    """Leads this process, and programs it starts, to a store by way of a FaultyProxy with these settings.

    Args:
      stores: the fixture of that name, {scheme: address of its emulator}.
      scheme: "gs" or "s3".
      settings: of FaultyProxy.
    """
    environments = {"gs": emulators.gcs_environment, "s3": emulators.s3_environment}
    with FaultyProxy(stores[scheme], **settings) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in environments[scheme](proxy.address).items():
            patch.setenv(name, value)
        # They otherwise wait for seconds before they try again.
        hurried = types.SimpleNamespace(sleep=lambda _: asyncio.sleep(0.05))
        patch.setattr({"gs": "gcsfs.retry.asyncio", "s3": "aiobotocore.endpoint.asyncio"}[scheme], hurried)
        patch.setattr("t5xpg.base.stores._WAITS", (0.05,) * 6)
        emulators.forget_connections()
        try:
            yield proxy
        finally:
            emulators.forget_connections()


@contextlib.contextmanager
def lost_removals(stores: dict[str, str], scheme: str) -> Iterator[FaultyProxy]:
    """A faulty_store that does each removal and loses the answer to it; the same request again is answered."""
    lost: dict[str, bool] = collections.defaultdict(bool)

    def is_to_be_lost(method: str, path: str) -> bool:
        if method == "DELETE" or "?delete" in path:
            lost[path] = not lost[path]
        return lost.get(path, False)

    with faulty_store(stores, scheme, every=1, faults=["lost"], only=is_to_be_lost) as proxy:
        yield proxy
