"""Turns the metrics a step function returns into numbers, and writes them to TensorBoard and metrics.jsonl."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from t5x import metrics as metrics_lib
from t5xpg.base import stores


class MetricsManager:
    """Summarizes one collection's metrics ("train", "training_eval/<task>") in a background thread.

    Only process 0 writes. Call close() to wait for what is still being written.

    Args:
      name: the collection, and the sub-directory of `summary_dir` its event file goes to.
      summary_dir: where to write, and where metrics.jsonl is; None computes the values and writes nothing.
      clock: gives the time in seconds.
    """

    def __init__(self, name: str, summary_dir: str | None = None, clock: Callable[[], float] = time.time):
        self.name = name
        self._folder = summary_dir
        self.summary_dir = os.path.join(summary_dir, name) if summary_dir else None
        self._clock = clock
        self._writes_here = bool(summary_dir) and jax.process_index() == 0
        # One worker: summaries are written in the order they were asked for.
        self._writes: list[Future] = []
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"metrics:{name}")
        self._start_time: float | None = None
        self._writer = None

    @property
    def summary_writer(self):
        """The clu metric writer, made (and TensorFlow imported) on first use; it writes from process 0 only."""
        if self._writer is None:
            from clu import metric_writers

            made = make_writers(self._folder, self.name) if self._folder and self._writes_here else []
            self._writer = metric_writers.AsyncMultiWriter(made)
        return self._writer

    def write_scalar(self, key: str, val: float, step: int) -> None:
        self.write_scalars(step, {key: val})

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        self._writes = [w for w in self._writes if not w.done() or w.exception()]
        self._writes.append(self._pool.submit(self._write, int(step), dict(scalars)))

    def start_duration_timer(self, block_on: Any = ()) -> None:
        """Starts timing once the computations behind `block_on` are done."""
        jax.block_until_ready(block_on)
        self._start_time = self._clock()

    def write_metrics_summary(self, metrics: Mapping[str, Any], step: int, num_steps: int) -> Future:
        """Summarizes metrics accumulated over `num_steps` steps, timed since start_duration_timer.

        Returns a future of {name: clu.values.Value}: scalars, and texts, images or histograms of a model's metrics.
        """
        if self._start_time is None:
            raise ValueError(f"The metrics of {self.name!r} are not timed; call start_duration_timer first.")
        return self._pool.submit(self._summarize, metrics, int(step), num_steps, self._start_time)

    def _summarize(self, metrics, step: int, num_steps: int, start_time: float) -> dict[str, Any]:
        fetched = jax.tree.map(local_value, metrics)
        duration = self._clock() - start_time
        fetched = metrics_lib.set_time_metrics_duration(fetched, duration)
        fetched = metrics_lib.set_step_metrics_num_steps(fetched, num_steps)
        summary = {name: metric.compute_value() for name, metric in fetched.items()}
        self._write(step, summary)
        return summary

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        if self._writes_here:
            from clu import metric_writers

            metric_writers.write_values(self.summary_writer, step, values)

    def flush(self) -> None:
        self._pool.submit(lambda: self._writer and self._writer.flush()).result()

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for write in self._writes:
            write.result()  # raises the error of the write
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def make_writers(folder: str, name: str) -> list:
    """Returns clu's writers of a collection: TensorBoard's files, on a disk or at a URL, and those of its numbers."""
    from clu import metric_writers

    from t5x.embedded import tf_memory

    events = os.path.join(folder, name)
    board = tf_memory.EventWriter(events) if stores.is_url(folder) else metric_writers.SummaryWriter(events)
    return [board, *number_writers(folder, name)]


def number_writers(folder: str, name: str) -> list:
    """Returns clu's writers of a collection's numbers beside TensorBoard's: metrics.jsonl, and a tracker."""
    from t5x.embedded import metric_lines, trackers

    return [metric_lines.MetricLines(folder, name), *trackers.writers(name)]


def local_value(x):
    """Fetches a replicated array's value to this process (waiting until it is computed)."""
    return np.asarray(x.addressable_data(0)) if isinstance(x, jax.Array) else x
