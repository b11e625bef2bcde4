"""Actions look at the metrics after a train or evaluation round and may ask training to stop."""

from __future__ import annotations

import abc
import enum
import math
from collections.abc import Mapping
from typing import Any

from absl import logging


@enum.unique
class ActionMode(enum.Enum):
    """After which round an action runs."""

    TRAIN = 1
    TRAIN_EVAL = 2
    INFER_EVAL = 3


class BaseAction(abc.ABC):
    @abc.abstractmethod
    def run(self, train_state, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> bool:
        """Returns whether training should stop, given {task: {metric: value}}."""


class EarlyStoppingAction(BaseAction):
    """Stops when a metric has not improved over `patience` consecutive rounds.

    Args:
      metric: (task, metric name).
      mode: "min" or "max", what counts as better.
      patience: how many values in a row must fail to improve on the one before.
      atol, rtol: improvements up to atol + rtol * |previous| do not count.
    """

    def __init__(self, metric: tuple[str, str], mode: str, patience: int = 3, atol: float = 0.0, rtol: float = 0.0):
        if mode not in ("min", "max"):
            raise ValueError(f"EarlyStoppingAction.mode is {mode!r}; use 'min' or 'max'.")
        if atol < 0:
            raise ValueError(f"EarlyStoppingAction.atol is {atol}; it must not be negative.")
        if rtol < 0:
            raise ValueError(f"EarlyStoppingAction.rtol is {rtol}; it must not be negative.")
        self._task, self._metric = metric
        self._sign = 1.0 if mode == "min" else -1.0
        self._patience, self._atol, self._rtol = patience, atol, rtol
        self._history: list[float] = []

    def _improved(self, current: float, previous: float) -> bool:
        gain = self._sign * (previous - current)
        return gain > self._atol + self._rtol * abs(previous)

    def run(self, train_state, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> bool:
        value = find_metric(self, metrics_by_task, self._task, self._metric)
        if value is None:
            return False
        self._history = [*self._history, value][-self._patience :]
        pairs = zip(self._history[1:], self._history, strict=False)
        stop = len(self._history) == self._patience and not any(self._improved(*pair) for pair in pairs)
        if stop:
            logging.warning("Stopping: %s of %s stopped improving: %s", self._metric, self._task, self._history)
        return stop


class TerminateOnNanAction(BaseAction):
    """Stops when a task's metric is NaN or infinite."""

    def __init__(self, task: str, metric: str = "loss"):
        self._task, self._metric = task, metric

    def run(self, train_state, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> bool:
        value = find_metric(self, metrics_by_task, self._task, self._metric)
        stop = value is not None and not math.isfinite(value)
        if stop:
            logging.warning("Stopping: %s of %s is %s", self._metric, self._task, value)
        return stop


def find_metric(action: BaseAction, metrics_by_task: Mapping, task: str, metric: str) -> float | None:
    """Returns the metric's value; warns and returns None when there is no such task, metric or number."""
    found = metrics_by_task.get(task, {}).get(metric)
    value = getattr(found, "value", found)
    if isinstance(value, (list, dict, str, type(None))):
        logging.warning(
            "%s did not run: no number %r for task %r; tasks are %s",
            type(action).__name__, metric, task, sorted(metrics_by_task),
        )  # fmt: skip
        return None
    return float(value)
