"""Work shared among processes: what is independent is done at once, and its results come in order."""

from __future__ import annotations

import collections
import concurrent.futures.process
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST = 16  # processes: one hands out what they do and takes what they give


class Workers:
    """Processes that do what they are given until the block ends; none beside this one where `count` is 1.

    They begin with nothing of this process, so that it may have threads, TensorFlow or JAX; a script that needs them
    guards what it does by `if __name__ == "__main__"`. They end with this process, however it ends.
    """

    def __init__(self, count: int):
        self.count = count
        context = multiprocessing.get_context("spawn")
        self._pool = concurrent.futures.ProcessPoolExecutor(count, context, _end_with_parent) if count > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yields `function` of each item, in order; at most one result more than there are processes is waiting.

        Raises:
          ChildProcessError: a process was killed.
        """
        if not self._pool:
            yield from map(function, items)
            return
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(function, item))
                if len(waiting) > self.count + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except concurrent.futures.process.BrokenProcessPool:
            raise ChildProcessError(f"one of {self.count} processes was killed, perhaps for lack of memory") from None


def available() -> int:
    """Returns how many processes are of use here: one for each core that this one may use."""
    return min(len(os.sched_getaffinity(0)), _MOST)


def _end_with_parent() -> None:
    """Makes a process end when its parent does, and quietly on Ctrl-C."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        with contextlib.suppress(Exception):
            parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=wait, daemon=True).start()
