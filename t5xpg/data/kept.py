"""What calls leave for later ones, in whichever threads they run."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """At most `most` values, each to be taken once; beyond, the least recently put goes: its iterator was abandoned."""

    def __init__(self, most: int):
        self._most = most
        self._values: dict[Key, Value] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: Key) -> bool:
        with self._lock:
            return key in self._values

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            values = self._values
            values.pop(key, None)
            values[key] = value
            if len(values) > self._most:
                del values[next(iter(values))]

    def close(self) -> None:
        """Lets go of all values, and of those that are yet put.

        Without the lock: the garbage collector may call this in a thread that holds it.
        """
        self._most, self._values = 0, {}

    def take(self, key: Key) -> Value | None:
        with self._lock:
            return self._values.pop(key, None)
