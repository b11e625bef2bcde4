"""The embedded engine: T5X's module names, gin names, parameter tree and numbers, on one machine.

Submodules load when they are first asked for: `import t5x; t5x.models`.
"""

import importlib

if __name__ != "t5x":
    # A second copy of the modules would make gin bindings silently apply to the wrong one.
    raise ImportError(f"The embedded engine was imported as {__name__!r}; write `import t5xpg` and then `import t5x`.")

from t5x.embedded import contract

contract.install()


def __getattr__(name: str):
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"t5x.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"t5x.{name}":
                raise
    raise AttributeError(f"module 't5x' has no attribute {name!r}")
