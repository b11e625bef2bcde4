"""Runs a program, module or script that begins with `import t5x`, where no T5X is installed:

    python -m t5xpg.t5x train --gin_file=…            (T5X's programs: train, eval, infer, precompile)
    python -m t5xpg.t5x t5x.train --gin_file=…        (any module, as `python -m` runs it)
    python -m t5xpg.t5x my_script.py …                (any script, as `python` runs it)

`import t5x` is answered once t5xpg is imported, and neither `python -m t5x.train` nor a script that knows of T5X alone
does that. Where T5X is installed, it answers here too. (A .pth file could do the same unasked, but runs in every Python
that starts in the environment, and exists neither in an editable install nor on PYTHONPATH.)
"""

from __future__ import annotations

import os
import runpy
import sys


def main(arguments: list[str]) -> int:
    """Runs arguments[0] with the rest as its own; returns the exit status if there is nothing to run."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before anything imports TensorFlow
    program, sys.argv = arguments[0], arguments  # runpy puts the program's path in the place of its name
    if program.endswith(".py"):
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")
    else:
        module = program if "." in program else f"t5x.{program}"
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
