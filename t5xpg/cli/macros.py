"""Macros on the command line that the recipe has no use for: gin itself lets a misspelt TRAIN_STEPS pass."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence


def check_when_parsed(bindings: Sequence[str]) -> None:
    """Makes gin check the macros of `bindings` when either engine's program has parsed its files."""
    import gin

    gin.config.register_finalize_hook(lambda config: check(bindings))


def check(bindings: Sequence[str]) -> None:
    """Checks the macros of `NAME = value` bindings against those that the parsed configuration refers to.

    Raises:
      ValueError: one is not used, and another that is has a similar name. Without such a one there is a warning.
    """
    import gin

    used = set(re.findall(r"%(\w+)", gin.config_str()))
    names = [match[1] for binding in bindings if (match := re.match(r"\s*(\w+)\s*=", binding))]
    for name in names:
        if name in used:
            continue
        if near := difflib.get_close_matches(name, used, n=1):
            raise ValueError(f"The recipe has no use for {name}; did you mean {near[0]}?")
        print(f"Warning: the recipe has no use for {name}; it uses {', '.join(sorted(used))}.", file=sys.stderr)
