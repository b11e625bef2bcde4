"""clu's metric writers of numbers alone: that of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clu.metric_writers import interface

from t5x.embedded import json_lines


class NumberWriter(interface.MetricWriter):
    """Leaves out what is no number. Subclasses give `write_scalars`."""

    def flush(self) -> None: ...

    def close(self) -> None:
        self.flush()

    def _leave_out(self, *args: Any, **kwargs: Any) -> None: ...

    write_summaries = write_images = write_videos = write_audios = _leave_out
    write_texts = write_histograms = write_hparams = _leave_out


class MetricLines(NumberWriter):
    """Adds numbers to metrics.jsonl; see `json_lines`.

    Args:
      folder: where that file is, MODEL_DIR.
      name: the collection, "train" or "training_eval/<task>".
    """

    def __init__(self, folder: str, name: str):
        self._folder, self._name = folder, name

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        json_lines.add_metrics(self._folder, self._name, step, scalars)

    def flush(self) -> None:
        json_lines.lines_in(self._folder, json_lines.METRICS_NAME).flush()
