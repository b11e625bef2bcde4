"""What a verb begins with that trains or asks a model: the imports that take seconds, and JAX's kept programs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from t5xpg.cli.quiet import import_tensorflow


def load() -> None:
    """Imports TensorFlow, JAX and T5X, and lets JAX keep what it compiles; see base.compilation_cache."""
    with not_collecting():
        import_tensorflow()
        import t5x.trainer
        import t5x.utils  # noqa: F401
    from t5xpg.base import compilation_cache

    compilation_cache.keep()


@contextlib.contextmanager
def not_collecting() -> Iterator[None]:
    """Inside, Python looks for no garbage, and later not among what was made in here.

    Imports make hardly any, and so many objects that looking through them over and over is a quarter of their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
