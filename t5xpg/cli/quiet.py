"""Imports TensorFlow without the lines that its C++ side prints before any log level can reach it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile


@contextlib.contextmanager
def quiet_stderr():
    """Holds back what is written to the stderr of the process, native code's too; shows it if the block fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


def import_tensorflow() -> None:
    """Imports TensorFlow quietly; whatever imports it later finds it loaded.

    gin logs every folder that it searches in vain for a file, to the root logger; with a handler there, Python
    adds none that prints.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    with quiet_stderr():
        import tensorflow  # noqa: F401
