"""What keeps a run safe: one run per folder, signals that save, and no checkpoint of a loss that is not finite."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

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


def hold_lock(model_dir: str) -> TextIO:
    """Returns the open, locked file of a folder, which is made if need be."""
    try:
        os.makedirs(model_dir, exist_ok=True)
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


@contextlib.contextmanager
def stop_on_signal(trainer) -> Iterator[list[int]]:
    """Lets the step at hand finish on SIGTERM or Ctrl-C; yields the list that gets the signal's number.

    A second Ctrl-C interrupts at once. Of several processes any may get the signal; `stop_together` then stops all.
    """
    received: list[int] = []
    asked: list[int] = []
    several = jax.process_count() > 1

    def stop(number, frame):
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        if several:
            os.kill(os.getpid(), signal.SIGTERM)  # JAX listens to it, and tells the other processes
        else:
            received.append(number)
            trainer.stop_training = True

    numbers = (signal.SIGINT,) if several else (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stop_together(trainer, received: list[int], step: int) -> None:
    """Stops all processes after the same step once one of them got SIGTERM; called after every step.

    A process that stopped by itself would leave the others waiting for its part of the next step. JAX's
    coordination service picks a step that none has passed; asking it costs no communication.
    """
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
        received.append(signal.SIGTERM)
        trainer.stop_training = True


class LossWatch:
    """Stops a run whose loss and parameters are no longer finite, before that is saved.

    A loss that is not finite while the parameters are (Adafactor's skip_nan_updates) is allowed.
    """

    def __init__(self):
        self._summary: Future | None = None

    def look(self, summary: Future, train_state, step: int) -> None:
        """Checks the round before this one, whose metrics are known by now, so that nothing waits."""
        self.check(train_state, step)
        self._summary = summary

    def check(self, train_state, step: int) -> None:
        """Checks the last round. `step` is where training is.

        Raises:
          FloatingPointError: the loss of the round and the parameters are not finite.
        """
        if self._summary is None:
            return
        loss = self._summary.result().get("loss")
        self._summary = None
        loss = 0.0 if loss is None else float(np.asarray(loss.value))
        if math.isfinite(loss) or all_finite(train_state.params):
            return
        raise FloatingPointError(
            f"The loss is {loss} by step {step:,}, and parameters are not finite either; the last checkpoint is good: "
            "the same command with a lower learning rate goes on from there."
        )


def all_finite(params) -> bool:
    """Whether every value of the parameters is finite."""
    finite = jax.jit(lambda tree: jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all())
    return bool(finite(params))
