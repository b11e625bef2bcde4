"""Python's garbage collector, which a start does not need.

Imports and traced programs make hardly any garbage, and so many objects that looking through them over and over is a
quarter of the imports' time, and a third of a second of what follows.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def not_collecting() -> Iterator[None]:
    """Inside, Python looks for no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Inside, Python looks for no garbage, and later not among what was made in here."""
    with not_collecting():
        try:
            yield
        finally:
            gc.freeze()
