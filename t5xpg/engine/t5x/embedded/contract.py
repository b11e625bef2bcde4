"""T5X's contract: which of T5X's names the engine has and which it lacks, both listed in contract.txt.

A missing name says so in one line instead of a bare ImportError or AttributeError: `MissingModules` does so for
modules, and a module's `__getattr__`, which `missing_names` makes, for the names in it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PATH = Path(__file__).with_name("contract.txt")


@functools.cache
def missing() -> dict[str, str]:
    """Returns {name below t5x, such as "export_lib" or "utils.SaveBest": why it is not there}."""
    lines = PATH.read_text(encoding="utf-8").splitlines()
    return dict(line.removeprefix("- ").split(": ", 1) for line in lines if line.startswith("- "))


def refusal(name: str) -> str:
    """The one line for a name of `missing`."""
    return f"The embedded engine has no t5x.{name} ({missing()[name]}); an installed google-research/t5x has it."


def missing_names(module: str) -> Callable[[str], NoReturn]:
    """Returns the `__getattr__` of one of T5X's modules, such as "utils" or "examples.t5.layers".

    For a missing name of T5X it raises ImportError, the only error whose message `from t5x.utils import name` keeps.
    """

    def __getattr__(name: str) -> NoReturn:
        full = f"{module}.{name}"
        if full in missing():
            raise ImportError(refusal(full), name=name)
        raise AttributeError(f"module 't5x.{module}' has no attribute {name!r}")

    return __getattr__


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
