"""What a verb begins with that trains or asks a model: the imports that take seconds, and JAX's kept programs."""

from __future__ import annotations

from t5xpg.base import garbage
from t5xpg.cli.quiet import import_tensorflow


def load() -> None:
    """Imports TensorFlow, JAX and T5X, and lets JAX keep what it compiles; see base.compilation_cache."""
    with garbage.importing():
        import_tensorflow()
        import t5x.trainer
        import t5x.utils  # noqa: F401
    from t5xpg.base import compilation_cache

    compilation_cache.keep()
