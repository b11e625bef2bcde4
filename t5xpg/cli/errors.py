"""Turns an exception into the one line a user can act on."""

from __future__ import annotations

import os
import re
import sys
import warnings

import t5xpg


def one_line(error: BaseException) -> str:
    """Returns the first line of the error's message, or the line of a data source's error inside tf.data."""
    text = str(error)
    if "tensorflow" in sys.modules:  # only then can it wrap a source's error, and importing it takes seconds
        from t5xpg.data import jsonl

        text = jsonl.original_error(error) or text
    missing = re.match(r"(\w+)/macro\.value set to `%gin\.REQUIRED`", text)
    if missing:
        return f"{missing[1]} is not set; add {missing[1]}=VALUE to the command line."
    # gin appends lines that say through which configurables the error came.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Prints a warning of this package as one line; in place of `warnings.showwarning`, which shows others' as ever."""
    if filename.startswith(os.path.dirname(t5xpg.__file__)):
        print(f"t5xpg: warning: {message}", file=file or sys.stderr)
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
