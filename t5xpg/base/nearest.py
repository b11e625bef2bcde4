"""The name that a misspelt one was probably meant to be, for the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean NEAREST?" of the known names, whatever the case of letters; "" where none is near."""
    cases = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), cases, n=1)
    return f"; did you mean {cases[near[0]]}?" if near else ""
