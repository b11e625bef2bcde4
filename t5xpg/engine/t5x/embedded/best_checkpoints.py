"""Keeping the checkpoints that are best by a metric, read from the run's TensorBoard files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as ocp_policies

from t5xpg.base import files, stores


@dataclasses.dataclass
class KeepBest(ocp_policies.PreservationPolicy):
    """Keeps the latest checkpoint, the best ones before it, and those of every `keep_period`-th step.

    Attributes:
      directory: MODEL_DIR.
      metric_name: "<folder of event files in it>/<tag>", such as train/accuracy or training_eval/<task>/loss.
      mode: "max" or "min", whichever is better.
      keep: how many of the best to keep; None keeps all.
      keep_without_metrics: whether a checkpoint without a value stays; otherwise it goes first, the oldest before
        the others.
      keep_period: see above; None for no such step.
    """

    directory: str
    metric_name: str
    mode: str = "max"
    keep: int | None = None
    keep_without_metrics: bool = True
    keep_period: int | None = None

    def __post_init__(self):
        if self.mode not in ("max", "min"):
            raise ValueError(f"metric_mode is {self.mode!r}; use 'max' or 'min'.")
        if "/" not in self.metric_name:
            raise ValueError(
                f"metric_name_to_monitor is {self.metric_name!r}; write the folder of the run and the metric, such as "
                "'train/accuracy' or 'training_eval/<task>/loss'."
            )

    def should_preserve(self, checkpoints: Sequence, *, context: Any) -> list[bool]:
        """Returns whether to keep each of the checkpoints, which come in the order of their steps."""
        del context
        steps = [info.step for info in checkpoints]
        kept = set(steps[-1:]) | {step for step in steps if self.keep_period and step % self.keep_period == 0}
        rivals = [step for step in steps if step not in kept]
        if self.keep is None or len(rivals) <= self.keep:
            return [True] * len(steps)
        values = dict(zip(rivals, self._values(rivals), strict=True))
        sign = 1 if self.mode == "max" else -1
        without = [step for step in rivals if np.isnan(values[step])]
        ranked = sorted((s for s in rivals if s not in without), key=lambda step: sign * values[step])
        if self.keep_without_metrics:
            kept |= {*without}
        else:
            ranked = [*without, *ranked]
        kept |= {*ranked[len(ranked) - self.keep if len(ranked) > self.keep else 0 :]}
        return [step in kept for step in steps]

    def _values(self, steps: Sequence[int]) -> list[float]:
        """Returns each step's value, or NaN, the same in every process."""
        found: dict[int, float] = {}
        if jax.process_index() == 0:
            found = populate_metrics_for_steps(self.directory, self.metric_name, steps)
        values = np.array([found.get(step, np.nan) for step in steps], np.float32)
        return [float(x) for x in multihost_utils.broadcast_one_to_all(values)]


def send_metrics(trainer, manager) -> None:
    """Waits until a run's metrics are in its event files, where `KeepBest` looks for those of the next checkpoint.

    If `manager` monitors none, a store that does not take them is logged: it keeps no checkpoint from being saved, and
    the next flush sends them all.
    """
    try:
        trainer.flush_metrics()
    except Exception as error:
        if manager.metric_name_to_monitor or not stores.is_failure(error):
            raise
        logging.warning("The metrics were not sent: %s", error)


def populate_metrics_for_steps(checkpoints_dir: str, metric_name: str, steps: Collection[int]) -> dict[int, float]:
    """Returns {step: value} of a metric, as the event files below a folder have it.

    Args:
      checkpoints_dir: MODEL_DIR.
      metric_name: "<folder in it>/<tag>", where both may hold slashes.
      steps: those to look for; one without a value is not in the result, and of several values the last counts.
    """
    import tensorflow as tf  # late: saving needs it only where a metric is monitored

    parts = metric_name.split("/")
    values: dict[int, float] = {}
    for i in range(1, len(parts)):
        folder, tag = os.path.join(checkpoints_dir, *parts[:i]), "/".join(parts[i:])
        for path in [os.path.join(folder, name) for name in files.names_in(folder) if "tfevents" in name]:
            for event in events(path):
                if event.step in steps:
                    for value in event.summary.value:
                        if value.tag == tag:
                            simple = value.HasField("simple_value")
                            values[event.step] = value.simple_value if simple else float(tf.make_ndarray(value.tensor))
    return values


def events(path: str) -> Iterator:
    """Yields the records of an event file; the last one may be cut short, by a kill or because it is being written."""
    import tensorflow as tf

    from t5x.embedded import tf_memory

    try:
        with tf_memory.fetched(path) if stores.is_url(path) else contextlib.nullcontext(path) as readable:
            yield from tf.compat.v1.train.summary_iterator(readable)
    except tf.errors.DataLossError:
        logging.warning("%s ends in an unfinished record.", path)
