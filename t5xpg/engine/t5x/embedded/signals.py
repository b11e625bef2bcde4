"""SIGTERM and Ctrl-C: a run ends after the step at hand, all of its processes after the same one, and saves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils


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
