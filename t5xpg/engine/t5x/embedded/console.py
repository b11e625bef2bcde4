"""What a person at the terminal sees: one progress line and short messages. The rest goes to a log file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import jax
import numpy as np
from absl import logging as absl_logging
from tqdm import tqdm

from t5x.embedded.store_log import StoreLogHandler
from t5xpg.base import files, stores


def quiet_terminal() -> None:
    """Keeps log records and warnings off the terminal; what stops a program is raised as an exception."""
    absl_logging.use_absl_handler()
    absl_logging.get_absl_handler().setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # where the disk is too full for the log file
    sys.unraisablehook = unraisablehook


def unraisablehook(unraisable) -> None:
    """Prints an exception that nobody can catch, but not those of the writes that a failed checkpoint leaves behind.

    Orbax raises for the first write that fails and closes its event loop; TensorStore's native threads then report
    every other one to that loop, and Python would print a traceback for each.
    """
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)


def log_to_file(path: str) -> contextlib.AbstractContextManager:
    """Sends this process's log records and warnings to `path`; at a URL, the rest of them when the result is closed.

    Of several processes, each has a file of its own: process 2's is run.process_2.log where the first's is run.log.
    """
    if index := jax.process_index():
        base, extension = os.path.splitext(path)
        path = f"{base}.process_{index}{extension}"
    handler: logging.Handler
    if stores.is_url(path):
        handler = StoreLogHandler(path)
    else:
        files.make_folder(os.path.dirname(path))
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    warnings.simplefilter("default")
    return contextlib.closing(handler) if stores.is_url(path) else contextlib.nullcontext()


def say(message: str, everywhere: bool = False) -> None:
    """Prints one line above the progress line, from process 0 or from every one, and logs it."""
    absl_logging.info(message)
    if everywhere or jax.process_index() == 0:
        tqdm.write(message, file=sys.stderr)


def name_some(names: Sequence[str], shown: int = 3) -> str:
    """Returns the first names and how many more there are; all of them are logged."""
    more = len(names) - shown
    if more <= 0:
        return ", ".join(names)
    absl_logging.info("All %d: %s", len(names), ", ".join(names))
    return f"{', '.join(names[:shown])} and {more:,} more, which the log names"


def counter(name: str, total: int | None = None, unit: str = "example") -> tqdm:
    """A progress line that counts to `total`, where that is known; it shows on a terminal, from process 0."""
    shown = jax.process_index() == 0 and sys.stderr.isatty()
    return tqdm(total=total, desc=name, unit=unit, disable=not shown, dynamic_ncols=True, leave=False)


class Progress:
    """The progress line on a terminal: steps done, nats per target token, tokens per second, time left.

    A step's loss is looked at only once the next step has been started, and twice a second at most, so that
    watching costs no time. Where the output is not a terminal, each round's numbers are a line of their own; the log
    file gets these lines in any case.

    Args:
      total, initial: steps of the whole run, and those already done.
      name: the line's heading.
    """

    def __init__(self, total: int, initial: int, name: str = "train"):
        shown = jax.process_index() == 0 and sys.stderr.isatty()
        self._bar = tqdm(
            total=total, initial=initial, desc=name, unit="step", disable=not shown, dynamic_ncols=True, leave=False
        )
        self._shown, self._total, self._initial = shown, total, initial
        self._previous: dict | None = None
        self._started, self._last_step = time.time(), initial
        self._last_look = self._started

    def on_step(self, step: int, metrics: dict) -> None:
        """Called after each step was started, with the number of steps done and that step's metrics."""
        if not self._shown:
            return
        self._bar.update(step - self._bar.n)
        now, previous, self._previous = time.time(), self._previous, metrics
        if previous is None or now - self._last_look < 0.5:
            return
        tokens = float(previous["nats_per_token"].count) * (step - self._last_step) / (now - self._last_look)
        self._last_look, self._last_step = now, step
        loss = float(previous["nats_per_token"].compute())
        self._bar.set_postfix_str(f"loss {loss:.3f} nats/token, {tokens:,.0f} target tokens/s", refresh=False)

    def on_round(self, step: int, summary: Future) -> None:
        """Called after a round of steps with the future of its metrics: says them once they are known.

        An error in computing them is left to whoever waits for the future.
        """

        def report(done: Future) -> None:
            if done.exception() is None:
                seconds = (time.time() - self._started) / (step - self._initial) * (self._total - step)
                line = f"step {step:>7,}  {describe_round(done.result())}, {tqdm.format_interval(seconds)} left"
                if self._shown:
                    absl_logging.info(line)
                else:
                    say(line)

        summary.add_done_callback(report)

    def close(self) -> None:
        self._bar.close()


def describe_round(metrics: Mapping) -> str:
    """Returns the loss, learning rate and speed of a training round, of {name: clu.values.Value}; what it has of them.

    The loss is that of a token, where the model gives it, as in the progress line.
    """
    formats = {
        "nats_per_token": "loss {:.4f} nats/token",
        "learning_rate/current": "learning rate {:.3g}",
        "timing/target_tokens_per_second": "{:,.0f} target tokens/s",
    }
    if "nats_per_token" not in metrics:
        formats = {"loss": "loss {:.4f}", **formats}
    return ", ".join(
        text.format(float(np.asarray(metrics[name].value))) for name, text in formats.items() if name in metrics
    )
