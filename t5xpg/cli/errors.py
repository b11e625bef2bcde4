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
    return with_hint(the_line(lines)) if lines else type(error).__name__


def the_line(lines: list[str]) -> str:
    """Returns the line that says what happened, of a message whose first line does not: TensorFlow's of two kinds."""
    if lines[0] == "in user code:":  # AutoGraph's, of a preprocessor: the frames, outermost first, and then the error
        frames = [line for line in lines if line.startswith("File ")]
        lines = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)] or lines[-1:]
        return f"{lines[0]} (in a preprocessor of the task: {frames[-1].rstrip(' *')})" if frames else lines[0]
    if len(lines) > 1 and lines[1].startswith("when reading "):  # of a store: the second line names the path
        return f"{lines[0]}, {lines[1]}"
    return lines[0]


def with_hint(line: str) -> str:
    """Adds the nearest name to what gin or SeqIO says of one that there is not, and what needs less memory to XLA's."""
    if line.startswith("RESOURCE_EXHAUSTED: Out of memory"):  # of a device, as where another program uses it too
        from t5xpg.base import memory  # JAX is loaded by then

        return f"{line.rstrip('.')}. Others may use the device too; else {memory.LESS}, or {memory.MORE_DEVICES}."
    if "gs://t5-data/vocabs" in line:
        return (
            f"{line}. T5X's models name this vocabulary; bind VOCABULARY to the task's own, or to a file that is here."
        )
    for pattern, known in UNKNOWN.items():
        if found := re.match(pattern, line):
            hint = nearest.hint(found["name"], known(found))
            return line.rstrip(".") + hint if hint else line + NOT_NEAR.get(pattern, "")
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


def shipped(_: re.Match[str]) -> Iterable[str]:
    from t5xpg.cli import recipes as ship

    return ship.shipped()


def tasks(_: re.Match[str]) -> Iterable[str]:
    import seqio

    return [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]


NO_TASK, NO_MODULE = r"No Task or Mixture found with name '(?P<name>.+)'", r"No module named '(?P<name>[\w.]+)'"
UNKNOWN = {  # {what begins gin's or SeqIO's message: the names that there are}
    r"Configurable '(.*[./])?(?P<function>\w+)' doesn't have a parameter named '(?P<name>\w+)'": parameters,
    r"No configurable matching (reference )?'@?(.*/)?(?P<name>[\w.]+)(\(\))?'": configurables,
    r"Couldn't resolve selector \S+; <module '(?P<module>[\w.]+)'.*> has no attribute (?P<name>\w+)": attributes,
    r"Unable to open file: (?P<name>\S+\.gin)\. Searched config paths": shipped,
    NO_TASK: tasks,
    NO_MODULE: lambda _: [],
}
NOT_NEAR = {  # what to do where no name is near
    NO_TASK: " Is its module imported, by the gin file or as MIXTURE_OR_TASK_MODULE?",
    NO_MODULE: ". A module of yours is looked for in the working directory and in PYTHONPATH, not beside the gin file.",
}


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Prints a warning of this package as one line; in place of `warnings.showwarning`, which shows others' as ever."""
    if filename.startswith(os.path.dirname(t5xpg.__file__)):
        print(f"t5xpg: warning: {message}", file=file or sys.stderr)
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
