"""Decides which package answers `import t5x`: an installed T5X first, the embedded engine otherwise.

The environment variable T5XPG_ENGINE chooses: `auto` (the default), `embedded` or `installed`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

ENGINE_DIR = Path(__file__).parent / "engine" / "t5x"
CHOICES = ("auto", "embedded", "installed")


class EmbeddedT5XFinder:
    """A meta-path finder for the single top-level name `t5x`; submodules follow through `__path__`.

    It stands in front of the other finders, and asks them at every first import, so that what is
    installed or put on `sys.path` later still wins.
    """

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        if name != "t5x":
            return None
        choice = engine_choice()
        if choice == "installed" or (choice == "auto" and installed_spec() is not None):
            return None
        return importlib.util.spec_from_file_location(
            "t5x", ENGINE_DIR / "__init__.py", submodule_search_locations=[str(ENGINE_DIR)]
        )


def engine_choice() -> str:
    """Returns the value of T5XPG_ENGINE; raises ImportError when it is none of CHOICES."""
    choice = os.environ.get("T5XPG_ENGINE", "auto")
    if choice not in CHOICES:
        raise ImportError(f"T5XPG_ENGINE is {choice!r}; set it to one of {', '.join(CHOICES)}.")
    return choice


def installed_spec() -> ModuleSpec | None:
    """Returns the spec of a real, installed T5X, or None.

    A bare folder named t5x (a clone's top level in the working directory) is a namespace package
    without code: its spec has no origin, and it does not count.
    """
    for finder in sys.meta_path:
        if isinstance(finder, EmbeddedT5XFinder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec("t5x", None)
        if spec is not None and spec.origin is not None:
            return spec
    return None


def install() -> None:
    """Makes `import t5x` work. Calling it again changes nothing."""
    if not any(isinstance(finder, EmbeddedT5XFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, EmbeddedT5XFinder())


def is_embedded() -> bool:
    """Whether `import t5x` answers, or would answer, with the embedded engine."""
    if "t5x" in sys.modules:
        return getattr(sys.modules["t5x"], "__file__", None) == str(ENGINE_DIR / "__init__.py")
    choice = engine_choice()
    return choice == "embedded" or (choice == "auto" and installed_spec() is None)
