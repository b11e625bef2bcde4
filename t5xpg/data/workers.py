"""Work shared among processes: what is independent is done at once, and its results come in order."""

from __future__ import annotations

import collections
import concurrent.futures.process
import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST = 16  # processes: one hands out what they do and takes what they give
_EVERY = 0.2  # seconds, for a progress bar

_progress: Any = None  # a _Progress that is one in all processes that work together
_to_begin: Callable[[], object] | None = None  # what this process does before its first work


class _Progress(ctypes.Structure):
    """How many bytes and rows are done, and whether a process has failed."""

    _fields_ = (("bytes", ctypes.c_int64), ("rows", ctypes.c_int64), ("has_failed", ctypes.c_bool))


class Workers:
    """Processes that do what they are given until the block ends; none beside this one where `count` is 1.

    They begin with nothing of this process, so that it may have threads, TensorFlow or JAX; a script that needs them
    guards what it does by `if __name__ == "__main__"`. They end with this process, however it ends.

    Args:
      count: of the processes.
      begin: called first in each other process; what it raises, the work raises.
    """

    def __init__(self, count: int, begin: Callable[[], object] | None = None):
        self.count = count
        if count == 1:
            self._pool = None
            self._progress: Any = types.SimpleNamespace(
                bytes=0, rows=0, has_failed=False, get_lock=contextlib.nullcontext
            )
            _share(self._progress)
            return
        context = multiprocessing.get_context("spawn")
        shared = context.Value(_Progress)
        self._progress = shared.get_obj()  # without its lock, which a process that is killed may never give back
        self._pool = concurrent.futures.ProcessPoolExecutor(count, context, _begin, (shared, begin))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_) -> None:
        if self._pool:
            if error:
                self._progress.has_failed = True  # what is under way has no use
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yields `function` of each item, in order; at most one result more than there are processes is waiting.

        Raises:
          ChildProcessError: a process was killed, or could not start.
        """
        if not self._pool:
            yield from map(function, items)
            return
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        with self._deaths_named():
            for item in items:
                waiting.append(self._pool.submit(_begun, function, item))
                if len(waiting) > self.count + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def do(self, function: Callable[[Item], object], items: Iterable[Item]) -> None:
        """Calls `function` with each item; none waits for another to end. Raises as `map`."""
        if not self._pool:
            for item in items:
                function(item)
            return
        with self._deaths_named():
            for done in concurrent.futures.as_completed([self._pool.submit(_begun, function, item) for item in items]):
                done.result()

    @contextlib.contextmanager
    def _deaths_named(self) -> Iterator[None]:
        try:
            yield
        except concurrent.futures.process.BrokenProcessPool:
            raise _ended(f"one of {self.count} processes") from None

    @contextlib.contextmanager
    def progress_bar(self, description: str, total: int, done: int = 0) -> Iterator[None]:
        """Shows how much of `total` bytes the processes say, by `advance`, that they have done, and how many rows.

        Args:
          description: of the work.
          total: bytes; 0 if that is not known.
          done: bytes of the total that were done before.
        """
        from tqdm import tqdm

        has_ended = threading.Event()
        before = self._progress.bytes - done
        with tqdm(desc=description, total=total or None, initial=done, unit="B", unit_scale=True, disable=None) as bar:

            def show() -> None:
                bar.update(self._progress.bytes - before - bar.n)
                if rows := self._progress.rows:
                    bar.set_postfix_str(f"{rows:,} rows")

            def follow() -> None:
                while not has_ended.wait(_EVERY):
                    show()

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            try:
                yield
            finally:
                has_ended.set()
                thread.join()
                show()


def in_new_process(cores: int, function: Callable[..., Result], *arguments: Any) -> Result:
    """Returns what `function` does in a process that begins with nothing of this one, and ends with it.

    Args:
      cores: that it may use, and all that it imports: of those that this process may use, so many at most.
      function: of a module that is imported there.
      arguments: its own.

    Raises:
      ChildProcessError: it was killed, or could not start.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context, _begin_on, (cores,)) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except concurrent.futures.process.BrokenProcessPool:
            raise _ended("a process") from None


def advance(amount: int, rows: int = 0) -> None:
    """Adds bytes and rows to what the progress bar of this process' `Workers` shows.

    Raises:
      CancelledError: another process failed.
    """
    if _progress is not None:
        with _progress.get_lock():
            if _progress.has_failed:
                raise concurrent.futures.CancelledError
            _progress.bytes += amount
            _progress.rows += rows


def available() -> int:
    """Returns how many processes are of use where one hands out their work: one for each core, 16 at most."""
    return min(cores(), _MOST)


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ended(what: str) -> ChildProcessError:
    found = f"{what} ended before its work was done"
    return ChildProcessError(f"{found}: it was killed, perhaps for lack of memory, or could not start")


def _begin(progress: Any, begin: Callable[[], object] | None) -> None:
    global _to_begin
    _to_begin = begin
    _share(progress)
    _end_with_parent()


def _begun(function: Callable[[Item], Result], item: Item) -> Result:
    global _to_begin
    if _to_begin:
        _to_begin()
        _to_begin = None
    return function(item)


def _begin_on(count: int) -> None:
    if count < cores():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    _end_with_parent()


def _end_with_parent() -> None:
    """Makes a process end when its parent does, and quietly on Ctrl-C."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        with contextlib.suppress(Exception):
            parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _share(progress: Any) -> None:
    global _progress
    _progress = progress
