"""Python functions inside tf.data: iterators over them can be saved, and Python can exit beside them."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def numpy_function(function: Callable, arguments: Sequence[tf.Tensor], types: Any) -> Any:
    """Returns what `function` makes of the arguments as NumPy arrays; `types` as in tf.numpy_function.

    It passes as stateless, or tf.data would refuse to save an iterator over it.
    """

    def call(*args):
        with _calls:
            return function(*args)

    return tf.numpy_function(call, arguments, types, stateful=False)


class _Calls:
    """Counts calls, and refuses them once Python exits.

    A destroyed iterator waits for the calls it has begun, and they for a lock that an exiting interpreter no longer
    gives: without this, a script that ends while a dataset is still reading ahead hangs.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._begun = self._running = 0
        self._ending = False

    def __enter__(self) -> None:
        if self._ending:
            raise StopIteration  # the only exception that TensorFlow does not print
        with self._lock:
            self._begun += 1
            self._running += 1

    def __exit__(self, *_) -> None:
        with self._lock:
            self._running -= 1

    def end(self, deadline: float = 10.0) -> None:
        """Returns when no call runs and what waits for one has been refused, or after `deadline` seconds."""
        self._ending, seen, last = True, 0, time.monotonic() + deadline
        while (self._running or self._begun != seen) and time.monotonic() < last:
            seen = self._begun
            time.sleep(0.1)


_calls = _Calls()
atexit.register(_calls.end)
