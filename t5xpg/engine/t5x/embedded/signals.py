"""SIGTERM and Ctrl-C: the first one ends a program, whatever it is doing, with one line and 128 + its number.

Python runs a signal's handler in the main thread between two of its instructions, so not while that thread is inside
TensorFlow or JAX, waiting for data or for the compiler. A thread of our own is told of each signal too, and ends the
process where the main thread has not done so in GRACE seconds.

A training run that is under way asks for more: inside `finishing` a signal is only noted, and the run ends its step, or
what it waits for, saves and ends by itself; several processes do so after the same step.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import jax
from jax.experimental import multihost_utils

from t5x.embedded import console, store_log

GRACE = 5.0  # seconds for the main thread to end by itself
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """Raised in the main thread by the first signal, where there is nothing to finish; its code is 128 + the number."""

    code: int


class Interrupted(Exception):
    """Raised inside `finishing` where the run waits for something that a signal makes it give up."""


class _State:
    listening = False
    finishing: Callable[[], bool] = lambda: False
    agreed = False  # whether all processes have come to the step at which they end
    said = False
    received: list[int] = []  # each number once, noted by whichever thread comes first
    handled = 0  # signals that the main thread has run the handler for


def listen(tell_others: Callable[[str, int], None]) -> None:
    """Makes the first SIGTERM or Ctrl-C end this process from here on; called once, from the main thread.

    Of several processes, those that are not in `finishing` end by `tell_others`, called with a line and an exit code.
    There SIGTERM is JAX's, whose handler is not Python's: faulthandler calls it and writes to our pipe as well.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _on_signal)
    sys.unraisablehook = functools.partial(_raise_again, sys.unraisablehook)
    if jax.process_count() > 1:
        faulthandler.register(signal.SIGTERM, file=write, all_threads=False, chain=True)
    else:
        signal.signal(signal.SIGTERM, _on_signal)
    _State.listening = True
    threading.Thread(target=_watch, args=(read, tell_others), daemon=True, name="signals").start()


def received() -> int | None:
    """Returns the number of the first signal that this process got; None where it got none."""
    return _State.received[0] if _State.received else None


def gives_up_waiting() -> bool:
    """Whether a signal was noted that should end what the run waits for."""
    return _State.finishing() and received() is not None


def stopping() -> int | None:
    """Returns the signal's number once all processes are to end, and None before."""
    if jax.process_count() > 1:
        return signal.SIGTERM if _State.agreed else None
    return received()


def stops_after(step: int) -> bool:
    """Whether to end after this step; called after every step.

    A process that stopped by itself would leave the others waiting for its part of the next step. JAX's
    coordination service picks a step that none has passed; asking it costs no communication.
    """
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
        _State.agreed = True
    return stopping() is not None


@contextlib.contextmanager
def finishing(whether: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Inside, a signal is only noted; a second Ctrl-C interrupts at once. `whether` says if it is so at this moment."""
    numbers = NUMBERS[: 1 if jax.process_count() > 1 else 2]
    previous = {} if _State.listening else {number: signal.signal(number, _on_signal) for number in numbers}
    before, _State.finishing = _State.finishing, whether
    if not _State.listening:
        _State.received.clear()
        _State.handled = 0
        _State.agreed = False
    try:
        yield
    finally:
        _State.finishing = before
        for number, handler in previous.items():
            signal.signal(number, handler)


def say_once(line: str) -> None:
    """Prints and logs why this process ends, unless that has been said; it ends also where nobody can be told."""
    if not _State.said:
        _State.said = True
        with contextlib.suppress(OSError, ValueError):  # stderr is gone, or was closed
            console.say(line, everywhere=True)


def describe(number: int) -> str:
    return f"Stopped by {signal.Signals(number).name}: what is saved stays, and the same command goes on from there."


def end_now(code: int) -> None:
    """Ends the process with this exit code whatever its other threads do; only its log is still sent."""
    try:
        store_log.send_rest()
    finally:
        os._exit(code)


def end_within(seconds: float, code: int, line: str | None = None) -> None:
    """Ends the process with this exit code in so many seconds if it is still there then, however stuck it is."""

    def end():
        time.sleep(seconds)
        if line is not None:
            say_once(line)
        end_now(code)

    threading.Thread(target=end, daemon=True, name="end").start()


def leave_behind(code: int, future: Future) -> None:
    """Lets the process end with this exit code where a thread of it has not come back with `future` by then."""

    def end():  # before TensorFlow and JAX take apart what that thread uses
        if future.done():
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    atexit.register(end)


def _note(number: int) -> None:
    if number not in _State.received:
        _State.received.append(number)


def _on_signal(number: int, frame) -> None:
    _note(number)
    _State.handled += 1
    several = jax.process_count() > 1
    if _State.finishing():
        if _State.handled > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        if several:
            os.kill(os.getpid(), signal.SIGTERM)  # JAX listens to it, and tells the other processes
    elif not several:
        raise Stopped(128 + number)


def _raise_again(otherwise: Callable, unraisable) -> None:
    """Sends the signal again if its handler ran inside what drops exceptions, such as JAX's hook of the collector."""
    if isinstance(stopped := unraisable.exc_value, Stopped):
        _State.handled -= 1
        threading.Timer(0.1, _thread.interrupt_main, [signal.Signals(stopped.code - 128)]).start()  # not in here
    else:
        otherwise(unraisable)


def _watch(pipe: int, tell_others: Callable[[str, int], None]) -> None:
    seen = 0
    while data := os.read(pipe, 2**16):
        # A byte is the number of a signal; text, in as many parts as may be, is faulthandler's for SIGTERM.
        is_text = data[0] not in NUMBERS
        number = signal.SIGTERM if is_text else data[0]
        seen = max(seen, 1) if is_text else seen + len(data)
        _note(number)
        line = describe(number)
        if not _State.finishing() and jax.process_count() > 1:
            try:
                say_once(line)
                tell_others(line, 128 + number)
            finally:
                end_now(128 + number)
        if not _State.finishing() or seen > 1:
            end_within(GRACE, 128 + number, line)
