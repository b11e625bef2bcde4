"""Turns the metrics a step function returns into numbers, and writes them to TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from t5x import metrics as metrics_lib


class MetricsManager:
    """Summarizes one collection's metrics ("train", "training_eval/<task>") in a background thread.

    Only process 0 writes. Call close() to wait for what is still being written.

    Args:
      name: the collection, and the sub-directory of `summary_dir` its event file goes to.
      summary_dir: where to write; None computes the values and writes nothing.
    """

    def __init__(self, name: str, summary_dir: str | None = None):
        self.name = name
        self.summary_dir = os.path.join(summary_dir, name) if summary_dir else None
        # One worker: summaries are written in the order they were asked for.
        self._writes: list[Future] = []
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"metrics:{name}")
        self._start_time = time.time()
        self._writer = None

    @property
    def summary_writer(self):
        """The clu metric writer, made (and TensorFlow imported) when first needed; None where none writes."""
        if self._writer is None and self.summary_dir and jax.process_index() == 0:
            from clu import metric_writers

            writer = metric_writers.SummaryWriter(self.summary_dir)
            self._writer = metric_writers.AsyncWriter(writer)
        return self._writer

    def write_scalar(self, key: str, value: float, step: int) -> None:
        self.write_scalars(step, {key: value})

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        self._writes = [w for w in self._writes if not w.done() or w.exception()]
        self._writes.append(self._pool.submit(self._write, int(step), dict(scalars)))

    def start_duration_timer(self, block_on: Any = ()) -> None:
        """Starts timing once the computations behind `block_on` are done."""
        jax.block_until_ready(block_on)
        self._start_time = time.time()

    def write_metrics_summary(self, metrics: Mapping[str, Any], step: int, num_steps: int) -> Future:
        """Summarizes metrics accumulated over `num_steps` steps, timed since start_duration_timer.

        Returns a future of {name: clu.values.Value}.
        """
        return self._pool.submit(self._summarize, metrics, int(step), num_steps, self._start_time)

    def _summarize(self, metrics, step: int, num_steps: int, start_time: float) -> dict[str, Any]:
        fetched = jax.tree.map(local_value, metrics)
        duration = time.time() - start_time
        fetched = metrics_lib.set_time_metrics_duration(fetched, duration)
        fetched = metrics_lib.set_step_metrics_num_steps(fetched, num_steps)
        summary = {name: metric.compute_value() for name, metric in fetched.items()}
        self._write(step, {name: float(np.asarray(value.value)) for name, value in summary.items()})
        return summary

    def _write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self.summary_writer is not None:
            self.summary_writer.write_scalars(step, scalars)

    def flush(self) -> None:
        self._pool.submit(lambda: self._writer and self._writer.flush()).result()

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for write in self._writes:
            write.result()  # raises what went wrong there
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def local_value(x):
    """Fetches a replicated array's value to this process (waiting until it is computed)."""
    return np.asarray(x.addressable_data(0)) if isinstance(x, jax.Array) else x
