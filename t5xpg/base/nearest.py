"""The name that a misspelt one was probably meant to be, for the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def find(name: str, known: Iterable[str]) -> str | None:
    """Returns the nearest of the known names, whatever the case of letters; None where none is near."""
    cases = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), cases, n=1)
    return cases[near[0]] if near else None


def hint(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean NEAREST?" of the known names; "" where none is near."""
    near = find(name, known)
    return f"; did you mean {near}?" if near else ""
