"""One run per folder: the lock on MODEL_DIR."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x.embedded import store_lock
from t5xpg.base import files, stores

LOCK_NAME = ".lock"


def lock_folder(model_dir: str) -> contextlib.AbstractContextManager:
    """Makes `model_dir` this run's until the result is closed, or the process ends in whatever way.

    Of several processes of one run, the first holds the lock; if it cannot, all of them are refused.

    Raises:
      ValueError: another run writes there, or the folder cannot be written to.
    """
    lock, refusal = contextlib.nullcontext(), None
    if jax.process_index() == 0:
        try:
            lock = hold_lock(model_dir)
        except ValueError as error:
            refusal = error
    if bool(multihost_utils.broadcast_one_to_all(np.array(refusal is None))):
        return lock
    raise refusal or ValueError(f"Process 0 could not lock MODEL_DIR {model_dir} for this run; its message says why.")


def hold_lock(model_dir: str) -> TextIO | store_lock.StoreLock:
    """Returns what `close` unlocks: a folder's open, locked file, at a URL a StoreLock; makes the folder if need be."""
    stores.check_writable(model_dir, "MODEL_DIR")
    if stores.is_url(model_dir):
        return store_lock.hold(model_dir, LOCK_NAME)
    try:
        files.make_folder(model_dir)
        lock = open(os.path.join(model_dir, LOCK_NAME), "a+", encoding="utf-8")  # noqa: SIM115, kept open
    except OSError as error:
        raise ValueError(f"MODEL_DIR {model_dir} cannot be written to ({error.strerror}); take another.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise ValueError(
            f"Another run, process {lock.read()}, writes to MODEL_DIR {model_dir}; let it end, stop it, or take "
            "another MODEL_DIR."
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
