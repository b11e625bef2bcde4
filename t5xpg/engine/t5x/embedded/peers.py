"""The processes of one run end together: where one fails, or is gone, the others say which and why, and end too.

Each has a connection to process 0 for nothing else. A failure is sent over it, and a process that is killed closes it;
process 0 tells the others of the first failure. JAX by itself would wait for the missing one for minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x.embedded import console, signals

GRACE = 5.0  # seconds for processes to end by themselves; and for a lost connection to turn out to be another's fault
HELLO_LENGTH = 128  # bytes
GONE = "it ended without a word (was it killed?)"


class _Connections:
    """This process's connections: process 0 has one to each other process, and each of these one to process 0."""

    def __init__(self) -> None:
        self.sockets: dict[int, socket.socket] = {}
        self.readers: list[threading.Thread] = []
        self.lock = threading.Lock()
        self.first: dict[str, Any] | None = None
        self.known = threading.Event()  # of the first failure
        self.own: str | None = None  # the line of this process's own failure

    def send(self, index: int, message: dict) -> None:
        with contextlib.suppress(OSError):  # one that is gone is noticed by its reader
            self.sockets[index].sendall(json.dumps(message).encode() + b"\n")

    def fail(self, failure: dict[str, Any]) -> None:
        """Takes note of a failure; in process 0, the first one is passed on to all."""
        with self.lock:
            if self.first is not None:
                return
            self.first = failure
        if jax.process_index() == 0:
            for index in self.sockets:
                self.send(index, failure)
        self.known.set()

    def start_readers(self) -> None:
        for index in self.sockets:
            self.readers.append(threading.Thread(target=self.read, args=(index,), daemon=True, name=f"peer {index}"))
            self.readers[-1].start()

    def read(self, index: int) -> None:
        """Reads what one process says, until it leaves or fails; a kill may cut its last line."""
        with contextlib.suppress(OSError, json.JSONDecodeError), self.sockets[index].makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if message.get("leaves"):
                    return
                self.fail(message)
        self.fail({"process": index, "line": GONE, "code": 1})

    def end_with_the_first(self) -> None:
        """Waits for a failure of another process, and ends this one."""
        self.known.wait()
        first = self.first or {}
        if first["process"] != jax.process_index():
            line = f"process {first['process']} of {jax.process_count()} failed first: {first['line']}"
            try:
                console.say(f"t5xpg: error: {line}", everywhere=True)
                if self.own is None:
                    self.let_others_end()
            finally:
                if self.own is None:
                    signals.end_now(first["code"])

    def let_others_end(self) -> None:
        """Waits in process 0 until the others have sent their logs and ended: without it, JAX aborts them."""
        deadline = time.monotonic() + GRACE
        for reader in self.readers if jax.process_index() == 0 else ():
            reader.join(max(0, deadline - time.monotonic()))


_connections: _Connections | None = None


def join(host: str | None = None) -> None:
    """Connects the processes of a run, where there are several; called once by each, after jax.distributed.initialize.

    Args:
      host: where the others reach process 0; by default its own name.
    """
    global _connections
    if jax.process_count() == 1:
        return
    listener, meeting = None, b""
    if jax.process_index() == 0:
        listener = listen()
        meeting = json.dumps(
            {"host": host or socket.gethostname(), "port": listener.getsockname()[1], "word": secrets.token_hex(16)}
        ).encode()
    told = multihost_utils.broadcast_one_to_all(np.frombuffer(meeting.ljust(512), np.uint8))
    where = json.loads(bytes(np.asarray(told)))
    _connections = _Connections()
    if listener is None:
        connection = socket.create_connection((where["host"], where["port"]), timeout=60)
        hello = json.dumps({"word": where["word"], "process": jax.process_index()})
        connection.sendall(hello.encode().ljust(HELLO_LENGTH))
        _connections.sockets[0] = connection
    else:
        accept(listener, where["word"], _connections.sockets)
    for connection in _connections.sockets.values():
        keep_alive(connection)
    _connections.start_readers()
    threading.Thread(target=_connections.end_with_the_first, daemon=True, name="peers").start()


def host_of(address: str) -> str | None:
    """Returns the host of "host:port"; of "[::1]:1234" without the brackets, as sockets take it."""
    return urllib.parse.urlsplit(f"//{address}").hostname


def listen() -> socket.socket:
    """Returns a listener at a free port, for IPv4 and, where this machine has it, IPv6."""
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)


def accept(listener: socket.socket, word: str, sockets: dict[int, socket.socket]) -> None:
    """Accepts the other processes' connections; whoever does not know the word is none of them."""
    with listener:
        listener.settimeout(60)
        while len(sockets) < jax.process_count() - 1:
            connection, _ = listener.accept()
            connection.settimeout(10)
            try:
                hello = json.loads(connection.recv(HELLO_LENGTH, socket.MSG_WAITALL))
                known = secrets.compare_digest(hello["word"], word)
            except (OSError, ValueError, KeyError, TypeError):
                known = False
            if known:
                sockets[hello["process"]] = connection
            else:
                connection.close()


def keep_alive(connection: socket.socket) -> None:
    """Lets the kernel notice within 20 s that the machine on the other side is gone, where it can be told to."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def leave(end: SystemExit | None = None) -> None:
    """Tells the others that this process ends as it should, unless `end`, by which it does, is a failure.

    The failure has been told by then, and process 0 need not wait any longer.
    """
    if _connections is None:
        return
    for index, connection in _connections.sockets.items():
        if not is_failure(end):
            _connections.send(index, {"leaves": True})
        elif jax.process_index():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)


def tell(line: str, code: int) -> None:
    """Tells the others that this process fails, and why; what was told first counts."""
    if _connections is None:
        return
    _connections.own = line
    failure = {"process": jax.process_index(), "line": line, "code": code}
    if jax.process_index():
        _connections.send(0, failure)
        _connections.known.wait(2)  # process 0 says who was first
    else:
        _connections.fail(failure)


def tell_before_the_end(line: str, code: int) -> None:
    """As `tell`, in a process that then ends at once; process 0 lets the others end first."""
    tell(line, code)
    if _connections is not None:
        _connections.let_others_end()


def is_failure(error: BaseException | None) -> bool:
    """Whether a process that ends by `error` leaves the others waiting; not by an exit that all have agreed on."""
    if not isinstance(error, SystemExit):
        return error is not None
    return bool(error.code) and error.code != 128 + (signals.stopping() or 0)


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Tells the other processes of an exception as soon as it is raised: what is closed behind it may wait for them.

    Of several processes this one then ends with one line and 1, in GRACE seconds at most. An error of JAX may be but
    the consequence of another's end, which is waited for first.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if _connections is None or os.environ.get("T5XPG_TRACEBACK") or not is_failure(error):
            raise
        if _connections.own is not None:  # told by a block within this one
            raise
        if isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(GRACE)  # whoever was first has told by then, and this process has ended
        stopped = isinstance(error, signals.Interrupted)
        code = 128 + (signals.received() or 0) if stopped else 1
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            code, error = error.code, SystemExit(f"it exited with {error.code}")
        line = signals.describe(code - 128) if stopped else f"t5xpg: error: {first_line(error)}"
        signals.end_within(GRACE, code, line)
        signals.say_once(line)
        tell(line.removeprefix("t5xpg: error: "), code)
        raise SystemExit(code) from error


def first_line(error: BaseException) -> str:
    """Returns an error's first line; of one that tf.data wraps, the first line of what was wrapped."""
    text = str(error).strip() or type(error).__name__
    if "tensorflow" in sys.modules and type(error).__module__.startswith("tensorflow"):
        wrapped = re.search(r"\b\w+Error: (.+)", text)
        text = wrapped[1] if wrapped else text
    return text.split("\n")[0]
