"""A gin file is code: what the config.gin of somebody else's run may name before anything of it is imported or called.

gin imports the modules that a file imports, and calls the functions that it refers to. `only_known` holds a file to the
packages that a run is made of. This is no sandbox: what those packages can be told to do, such as to write a
file, a config.gin can still tell them.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

PACKAGES = ("t5x", "t5xpg", "seqio", "t5", "flax", "optax")
# Of t5xpg, what recipes name.
OURS = ("mlm", "objectives", "qa", "roberta", "schedules", "tasks", "vocabularies")
# T5X's functions that import or parse what a string names, which is not looked at here.
RUN_WHAT_A_STRING_NAMES = ("import_module", "import_task_module", "parse_gin_flags")
GINS = tuple(f"gin.config.{name}" for name in ("macro", "singleton", "_retrieve_constant", "_GinBuiltins"))


@contextlib.contextmanager
def only_known(path: str) -> Iterator[None]:
    """Lets gin import and bind names of PACKAGES alone, in whatever it parses in the block, included files too.

    Names are judged by where their modules, classes and functions are defined, so that `seqio.os.system` is not one of
    seqio's. `__main__` stands for T5X's programs, as `recipes.parsing` puts them there.

    Args:
      path: what is parsed, for messages.

    Raises:
      ValueError: something else is imported or bound; nothing has been imported or called then but PACKAGES.
    """
    from gin import config

    def refuse(name: str) -> ValueError:
        return ValueError(
            f"{path}: names {name}, and a config.gin is code; without --trust (trust=True) it may name only what is in "
            f"{', '.join(PACKAGES)}."
        )

    class Guarded(config.ParseContext):
        """gin's context of one file, which resolves the names in it."""

        def process_import(self, statement):
            if not statement.module.startswith("__gin__.") and not is_known_module(statement.module):
                raise refuse(statement.module)
            super().process_import(statement)

        def get_configurable(self, selector):
            if self._dynamic_registration:
                parts = self._resolve_selector(selector)[1]
            else:
                parts = [super().get_configurable(selector).wrapped]
            if not all(map(is_known, parts)) or isinstance(parts[-1], types.ModuleType):
                raise refuse(selector)
            return super().get_configurable(selector)

    original, config.ParseContext = config.ParseContext, Guarded
    try:
        yield
    finally:
        config.ParseContext = original


def is_known_module(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package == "t5xpg":
        return rest.partition(".")[0] in OURS
    return package in PACKAGES or name == "__main__"


def is_known(thing: Any) -> bool:
    """Whether a module, class or function is one of PACKAGES, or JAX's under one of their names, or gin's own."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__ == "t5xpg" or is_known_module(thing.__name__)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    name = f"{named.__module__}.{named.__qualname__}"
    if name.endswith(RUN_WHAT_A_STRING_NAMES):
        return False
    return is_known_module(name) or name.startswith("jax.") or name in GINS
