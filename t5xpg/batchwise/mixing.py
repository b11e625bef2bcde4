"""Examples of several tasks, each taken from one of them at random, as SeqIO's mixtures take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t5xpg.batchwise.random_numbers import categorical, dataset_stream
from t5xpg.batchwise.stages import Block, Stage, Way, joined, part, size

_CHOICES = 4096  # looked at at a time


class Mix(Stage):
    """Takes examples from tasks as tf.data.Dataset.sample_from_datasets does; a call asks each for a block at most.

    Args:
      tasks: each gives blocks of examples of its task.
      empty: a block without examples.
      rates: of the tasks, relative to each other; above 0.
      seed: of the choices.
    """

    kept = ("_given", "_waiting")

    def __init__(self, tasks: Sequence[Way], empty: Block, rates: Sequence[float], seed: int):
        self.parts = self._tasks = tasks
        self._words = dataset_stream(seed)
        self._logits = tf.math.log(tf.constant(rates, tf.float32)).numpy()
        self._waiting, self._given = [empty] * len(tasks), 0

    def __call__(self) -> Block:
        words = self._words.words(2 * self._given, 2 * _CHOICES)
        chosen = categorical([words[::2], words[1::2]], 1, self._logits)[:, 0]
        numbers = [np.flatnonzero(chosen == task) for task in range(len(self._tasks))]  # of the examples of each
        waiting = zip(self._waiting, self._tasks, numbers, strict=True)
        self._waiting = [joined(block, task()) if size(block) < len(own) else block for block, task, own in waiting]
        come = zip(numbers, map(size, self._waiting), strict=True)
        lacking = [int(own[count]) for own, count in come if count < len(own)]  # the first of each that has not come
        return self._take(chosen[: min(lacking, default=_CHOICES)])

    def _take(self, chosen: np.ndarray) -> Block:
        counts = np.bincount(chosen, minlength=len(self._tasks)).tolist()
        taken = joined(*(part(block, slice(count)) for block, count in zip(self._waiting, counts, strict=True)))
        self._waiting = [part(block, slice(count, None)) for block, count in zip(self._waiting, counts, strict=True)]
        self._given += len(chosen)
        place = np.empty(len(chosen), np.int64)  # of each example among those taken, which stand task by task
        place[np.argsort(chosen, kind="stable")] = np.arange(len(chosen))
        return part(taken, place)
