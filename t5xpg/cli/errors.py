"""Turns an exception into the one line a user can act on."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterable

import t5xpg
from t5xpg import recipes
from t5xpg.base import nearest


def one_line(error: BaseException) -> str:
    """Returns the first line of the error's message, or the line of a data source's error inside tf.data."""
    text = str(error)
    if "tensorflow" in sys.modules:  # only then can it wrap a source's error, and importing it takes seconds
        from t5xpg.data import jsonl

        text = jsonl.original_error(error) or text
    if re.match(r"\w+/macro\.value set to `%gin\.REQUIRED`", text):  # gin names the first alone
        return recipes.how_to_give(recipes.macros_not_set())
    # gin appends lines that say through which configurables the error came.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return with_hint(lines[0]) if lines else type(error).__name__


def with_hint(line: str) -> str:
    """Adds the nearest name to what gin or SeqIO says of one that there is not, and what needs less memory to XLA's."""
    if line.startswith("RESOURCE_EXHAUSTED: Out of memory"):  # of a device, as where another program uses it too
        from t5xpg.base import memory  # JAX is loaded by then

        return f"{line.rstrip('.')}. Others may use the device too; else {memory.LESS}, or {memory.MORE_DEVICES}."
    for pattern, known in UNKNOWN.items():
        if found := re.match(pattern, line):
            hint = nearest.hint(found["name"], known(found))
            return line.rstrip(".") + hint if hint else line
    return line


def parameters(found: re.Match[str]) -> Iterable[str]:
    from gin import config

    functions = [known.wrapped for _, known in config._REGISTRY.items() if known.name == found["function"]]
    return [name for function in functions for name in inspect.signature(function).parameters]


def configurables(found: re.Match[str]) -> Iterable[str]:
    """Returns the ends of gin's full names, of as many words as the name that was found has."""
    from gin import config

    words = found["name"].count(".") + 1
    return [".".join(full.split(".")[-words:]) for full, _ in config._REGISTRY.items()]


def attributes(found: re.Match[str]) -> Iterable[str]:
    return [name for name in dir(sys.modules.get(found["module"])) if not name.startswith("_")]


def tasks(_: re.Match[str]) -> Iterable[str]:
    import seqio

    return [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]


UNKNOWN = {  # {what begins gin's or SeqIO's message: the names that there are}
    r"Configurable '(.*[./])?(?P<function>\w+)' doesn't have a parameter named '(?P<name>\w+)'": parameters,
    r"No configurable matching (reference )?'@?(.*/)?(?P<name>[\w.]+)(\(\))?'": configurables,
    r"Couldn't resolve selector \S+; <module '(?P<module>[\w.]+)'.*> has no attribute (?P<name>\w+)": attributes,
    r"No Task or Mixture found with name '(?P<name>.+)'": tasks,
}


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Prints a warning of this package as one line; in place of `warnings.showwarning`, which shows others' as ever."""
    if filename.startswith(os.path.dirname(t5xpg.__file__)):
        print(f"t5xpg: warning: {message}", file=file or sys.stderr)
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
