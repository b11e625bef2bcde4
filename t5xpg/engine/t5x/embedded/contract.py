"""T5X's contract: which of T5X's names the engine has and which it lacks, both listed in contract.txt.

A missing name says so in one line instead of a bare ImportError or AttributeError: `MissingModules` does so for
modules, and a module's `__getattr__`, which `refuse_missing` sets, for the names in it.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, NoReturn

PATH = Path(__file__).with_name("contract.txt")


@functools.cache
def missing() -> dict[str, str]:
    """Returns {name below t5x, such as "export_lib" or "utils.SaveBest": why it is not there}."""
    lines = PATH.read_text(encoding="utf-8").splitlines()
    return dict(line.removeprefix("- ").split(": ", 1) for line in lines if line.startswith("- "))


def refusal(name: str) -> str:
    """The one line for a name of `missing`."""
    return f"The embedded engine has no t5x.{name} ({missing()[name]}); an installed google-research/t5x has it."


def refuse_missing(module: dict[str, Any], name: str) -> None:
    """Gives one of T5X's modules a `__getattr__` that refuses the names it lacks.

    It raises ImportError: no other error keeps its words in `from t5x.utils import name`. It is set here, not defined
    there, so that a type checker still sees which names a module has.

    Args:
      module: its globals().
      name: below t5x, "utils" or "examples.t5.layers".
    """

    def __getattr__(attribute: str) -> NoReturn:
        full = f"{name}.{attribute}"
        if full in missing():
            raise ImportError(refusal(full), name=attribute)
        raise AttributeError(f"module 't5x.{name}' has no attribute {attribute!r}")

    module["__getattr__"] = __getattr__


class MissingModules:
    """A meta-path finder that is asked last: it refuses T5X's modules that are not there, and all below them."""

    def find_spec(self, name: str, path=None, target=None) -> None:
        parts = name.split(".")
        if parts[0] != "t5x":
            return
        for end in range(2, len(parts) + 1):
            below = ".".join(parts[1:end])
            if below in missing():
                raise ImportError(refusal(below), name=name)


def install() -> None:
    """Makes the finder part of the import system. Calling it again changes nothing."""
    if not any(isinstance(finder, MissingModules) for finder in sys.meta_path):
        sys.meta_path.append(MissingModules())
