"""Python's syntax trees, for the tests that look at the sources."""

import ast
import gc


def parse(text: str) -> ast.Module:
    """Returns ast.parse(text), without garbage collection.

    A finalizer that runs on the way, such as of what TensorFlow and JAX left of other tests, may let another thread
    compile; of the two, CPython 3.11 then raises "SystemError: AST constructor recursion depth mismatch".
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collects:
            gc.enable()
