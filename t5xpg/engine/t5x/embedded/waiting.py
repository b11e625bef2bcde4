"""Waiting for batches, and for whatever else takes long, so that a signal is noticed and the wait has an end.

What is waited for runs in a thread of its own; the main thread looks every POLL seconds whether it should give up.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import gin
import jax

from t5x.embedded import console, signals

POLL = 0.2  # seconds
PATIENCE = 5.0  # seconds that a batch still gets after a signal: it may be all that the step at hand needs,
PATIENCE_OF_SEVERAL = 15.0  # or that the step at which several processes end together needs
EXPLAIN_AFTER = 5.0  # seconds without a batch until it is looked into


@gin.configurable(module="t5x.embedded.waiting")
def batch_limit(seconds: float = 1800) -> float:
    """Returns how many seconds a program waits for a batch before it ends with an error; bind it in gin."""
    return seconds


class Worker:
    """A thread that makes calls one after the other; unlike a pool's, it does not keep the process from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future, Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], Any]) -> Future:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="worker")
            self._thread.start()
        future: Future = Future()
        self._calls.put((future, call))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


def run(call: Callable[[], Any], what: str | None = None) -> Any:
    """Returns call(), made in a thread, unless a signal comes first where that is noted (signals.finishing).

    Args:
      call: what takes long.
      what: names it as reading data, for which there is a limit.

    Raises:
      signals.Interrupted: the signal came; the thread is left behind.
      ValueError: it took longer than the limit.
    """

    def look(seconds: float) -> None:
        if what is not None:
            check_limit(what, seconds)

    return wait_for(Worker().submit(call), 0, look)


@contextlib.contextmanager
def meanwhile() -> Iterator[Callable[[Callable[[], Any]], Future]]:
    """Yields a function that makes a call in a thread of its own, and returns its future, while the block runs.

    In the end all calls are waited for, and what they raised is raised. Where the block fails, or a signal ends the
    wait, the program ends without waiting.
    """
    futures: list[Future] = []

    def submit(call: Callable[[], Any]) -> Future:
        futures.append(Worker().submit(call))
        return futures[-1]

    try:
        yield submit
        for future in futures:
            future.result()
    except BaseException as error:
        for future in futures:
            signals.leave_behind(error.code if isinstance(error, signals.Stopped) else 1, future)
        raise


def wait_for(future: Future, patience: float, on_wait: Callable[[float], Any]) -> Any:
    """Returns the future's result; `on_wait` is called with the seconds waited, and may raise.

    Raises:
      signals.Interrupted: `patience` seconds have passed since a signal.
    """
    started = time.monotonic()
    signalled = None
    while not wait([future], POLL).done:
        now = time.monotonic()
        if signals.gives_up_waiting():
            signalled = signalled or now
            if now - signalled >= patience:
                signals.leave_behind(128 + (signals.received() or 0), future)
                raise signals.Interrupted
        try:
            on_wait(now - started)
        except Exception:
            signals.leave_behind(1, future)
            raise
    return future.result()


def check_limit(what: str, seconds: float) -> None:
    if seconds > batch_limit():
        raise ValueError(
            f"No batch of {what} in {batch_limit():,.0f} s: can its files be read, and does its preprocessing leave "
            "anything of them (`t5xpg check` looks)? Where it needs longer, bind waiting.batch_limit.seconds."
        )


class Batches(Iterator):
    """An iterator whose every item is waited for in this way.

    Args:
      read: gives the next item, or raises StopIteration.
      what: names the data in an error.
      explain: returns why there is no batch, as one line, or None where that cannot be said; it may take long.
    """

    def __init__(self, read: Callable[[], Any], what: str, explain: Callable[[], str | None] | None = None):
        self._read, self._what, self._explain = read, what, explain
        self._worker = Worker()
        self._pending: Future | None = None
        self._explanation: Future | None = None
        self._notified = False

    def name(self, what: str, explain: Callable[[], str | None] | None) -> None:
        """Replaces what the constructor was given, also while an item is being read."""
        self._what, self._explain = what, explain

    @property
    def reading(self) -> bool:
        """Whether an item is being read that nobody got."""
        return self._pending is not None

    def start(self) -> Future:
        """Begins to read the next item."""
        if self._pending is None:
            self._pending = self._worker.submit(self._read)
        return self._pending

    def __next__(self) -> Any:
        pending = self.start()
        try:
            return wait_for(pending, PATIENCE if jax.process_count() == 1 else PATIENCE_OF_SEVERAL, self._look)
        finally:
            if pending.done():
                self._pending, self._explain = None, None  # what gave a batch needs no explanation

    def _look(self, seconds: float) -> None:
        if self._explain is not None and seconds > EXPLAIN_AFTER:
            self._explanation, self._explain = Worker().submit(self._explain), None
        if self._explanation is not None and self._explanation.done():
            explanation, self._explanation = self._explanation, None
            if line := explanation.result():
                raise ValueError(line)
        if seconds > 60 and not self._notified:
            self._notified = True
            console.say(f"No batch of {self._what} for a minute; waiting on, for {batch_limit():,.0f} s at most.")
        check_limit(self._what, seconds)
