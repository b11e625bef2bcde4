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
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self._most:
                del self._values[next(iter(self._values))]

    def close(self) -> None:
        """Lets go of all values, and of those that are yet put."""
        with self._lock:
            self._most = 0
            self._values.clear()

    def take(self, key: Key) -> Value | None:
        with self._lock:
            return self._values.pop(key, None)
