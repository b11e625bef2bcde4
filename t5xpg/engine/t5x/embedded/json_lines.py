"""What a run leaves as JSON lines, which a program can follow: metrics.jsonl and predictions.jsonl in MODEL_DIR.

Each line is an object with at least "time" (Unix seconds) and "step". Lines are added whole, so that a kill loses the
one being written at most; at a URL, those of the last minute. A run that goes on from a checkpoint first drops what is
beyond its step, and a run that begins anew drops all, so that a file holds one run. Only the step that a run went on
from may have the times of both starts (timing/init_or_restore_seconds, …): the later line counts.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from t5xpg.base import files, stores

METRICS_NAME = "metrics.jsonl"
PREDICTIONS_NAME = "predictions.jsonl"
SEND_PERIOD = 60.0  # seconds


class Lines:
    """Adds lines to a file: on a disk at once; at a URL at `flush`, and with a line that comes after a minute.

    Args:
      path: of the file.
    """

    def __init__(self, path: str):
        self._path, self._waiting = path, list[str]()
        self._lock, self._last = threading.RLock(), time.monotonic()

    def add(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        with self._lock:
            self._waiting.append(f"{line}\n")
            if not stores.is_url(self._path):
                self.flush()
            elif time.monotonic() - self._last > SEND_PERIOD:
                self._try_to_flush()

    def _try_to_flush(self) -> None:
        self._last = time.monotonic()
        try:
            self.flush()
        except OSError as error:  # the next flush sends all of it
            logging.warning("%s was not sent: %s", self._path, error)

    def flush(self) -> None:
        """Adds the lines that wait to the file."""
        with self._lock:
            if self._waiting:
                files.append(self._path, "".join(self._waiting))
                self._waiting.clear()
            self._last = time.monotonic()


@functools.cache
def lines_in(folder: str, name: str) -> Lines:
    """Returns the one `Lines` of a folder's file: several threads add to it, and an object is sent as a whole."""
    return Lines(os.path.join(folder, name))


def add_metrics(folder: str, name: str, step: int, scalars: Mapping[str, Any]) -> None:
    """Adds {"time", "step", "name", "metrics": {tag: number}} to a folder's metrics.jsonl.

    Args:
      folder: MODEL_DIR.
      name: the folder of the event files that have the same numbers, such as "training_eval/books".
      step: that they were measured at.
      scalars: {TensorBoard's tag: a number, or an array of one}; NaN and infinities become the strings "NaN",
        "Infinity" and "-Infinity", which Python's float and JavaScript's Number read.
    """
    metrics = {tag: plain_number(value) for tag, value in scalars.items()}
    line = {"time": time.time(), "step": int(step), "name": name, "metrics": metrics}
    lines_in(folder, METRICS_NAME).add(line)


def plain_number(value: Any) -> float | str:
    number = float(np.asarray(value).item())
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def go_on_from(folder: str, step: int | None) -> None:
    """Drops what the records in a folder hold beyond `step`, or all where it is None; and what is no whole line."""
    lines_in.cache_clear()  # another run of this process may have left lines
    if jax.process_index() != 0:
        return
    for path in (os.path.join(folder, name) for name in (METRICS_NAME, PREDICTIONS_NAME)):
        if files.exists(path):
            content = files.read_bytes(path)
            kept = b"".join(line for line in content.splitlines(True) if step is not None and is_until(step, line))
            if kept != content:
                files.write_whole(path, kept)


def is_until(step: int, line: bytes) -> bool:
    """Whether a line is whole and its step is not beyond `step`."""
    try:
        return line.endswith(b"\n") and json.loads(line)["step"] <= step
    except (ValueError, TypeError, KeyError):  # what a power cut left
        return False
