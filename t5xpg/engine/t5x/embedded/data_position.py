"""Where a run is in its training data, in examples, so that another batch size or number of processes can go on there.

MODEL_DIR/data_position.jsonl has a line for each way of reading that a run has had (see Reading). The examples come
from as many shards as the run began with processes; with another number of processes, each reads what it needs of these
shards, so that the batches hold the same examples in the same order.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import tensorflow as tf

from t5x.embedded import console
from t5x.embedded.checkpoint_datasets import restore_dataset
from t5x.embedded.checkpoint_readers import DamagedCheckpointError
from t5x.embedded.datasets import DatasetConfig, TrainIterator
from t5x.embedded.run_changes import Changes
from t5xpg.base import files

FILE_NAME = "data_position.jsonl"
OLD_FILE_NAME = "first_step.txt"  # of runs that began before there was the other: their first step alone


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a run has read its data from one of its steps on.

    Attributes:
      step: the step.
      examples: how many examples of the data the steps before it took; None where the run began at another run's
        place in the data, which no number of examples gives back.
      batch_size: examples of a step from there on.
      shards: into how many shards the data is divided.
      processes: how many processes read them.
    """

    step: int
    examples: int | None
    batch_size: int
    shards: int
    processes: int

    def examples_at(self, step: int) -> int | None:
        return None if self.examples is None else self.examples + (step - self.step) * self.batch_size


def read(model_dir: str) -> list[Reading]:
    """Returns the ways of reading that the run in `model_dir` has had; [] where that was not kept."""
    path = os.path.join(model_dir, FILE_NAME)
    if not files.exists(path):
        return []
    return [Reading(**json.loads(line)) for line in files.read_text(path).splitlines()]


def write(model_dir: str, readings: list[Reading]) -> None:
    if jax.process_index() == 0:
        lines = [json.dumps(dataclasses.asdict(reading)) + "\n" for reading in readings]
        files.write_whole(os.path.join(model_dir, FILE_NAME), "".join(lines))


def with_reading(earlier: list[Reading], now: Reading) -> list[Reading]:
    """Returns a run's ways of reading with that from its step `now.step` on; the first one stays, for its step."""
    return [*([reading for reading in earlier if reading.step < now.step] or earlier[:1]), now]


def stored_shards(checkpoint: str) -> int | None:
    """Returns into how many shards the data was divided whose position a checkpoint stores; None if it stores none."""
    paths = files.files_below(os.path.join(checkpoint, "dataset"))
    found = {int(match[1]) for path in paths if (match := re.search(r"train_ds-\d+-of-(\d+)", path))}
    return found.pop() if len(found) == 1 else None


def first_step(model_dir: str, started_from: Callable[[], int] = lambda: 0) -> int:
    """Returns the step that the run in `model_dir` began at; `started_from()` where nothing there tells."""
    if readings := read(model_dir):
        return readings[0].step
    path = os.path.join(model_dir, OLD_FILE_NAME)
    return int(files.read_text(path)) if files.exists(path) else started_from()


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """A run's training data, which it begins to read or goes on reading.

    Attributes:
      model_dir: where the position is kept.
      cfg: what is read.
      layout: this process's shard of each batch.
      allow_changes: start the data over where its position cannot be found again.
      get_dataset: (shard, number of shards) -> the batches of that shard.
      make_iterator: (a dataset of this process's part of the batches) -> TrainIterator.
    """

    model_dir: str
    cfg: DatasetConfig
    layout: Any
    allow_changes: bool
    get_dataset: Callable[[int, int], Any]
    make_iterator: Callable[[Any], TrainIterator]

    def go_to(
        self,
        train_iter: TrainIterator,
        step: int,
        checkpoint: str | None,
        began: int,
        changes: Changes,
        at_another_runs_place: bool,
    ) -> TrainIterator:
        """Returns the iterator at the place in the data where a run begins, or where its `step` left off.

        Args:
          train_iter: at the beginning of the data; in a new run perhaps at another run's place.
          step: the run's step.
          checkpoint: of the run's own that it goes on from; None for a new run.
          began: the run's first step.
          changes: what differs from the run's last start.
          at_another_runs_place: whether a new run is there.

        Raises:
          ValueError: the position cannot be found again; not with `allow_changes`, with which the data starts over.
        """
        kept: list[Reading] = []
        readings = [self._reading(step, None if at_another_runs_place else 0, self.layout.num_shards)]
        if checkpoint is not None:
            kept = read(self.model_dir)
            before = kept or [self._assumed(checkpoint, began, changes)]
            train_iter, readings = self._go_on(train_iter, step, checkpoint, before, changes)
        if readings != kept:
            write(self.model_dir, readings)
        return train_iter

    def _assumed(self, checkpoint: str, began: int, changes: Changes) -> Reading:
        """Returns how a run that kept no position, as one of T5X, has read its data."""
        processes = stored_shards(checkpoint)
        if not processes:
            processes = self.layout.num_shards
            console.say(f"Nothing tells how many processes read the data before; it is taken as {processes}")
        return Reading(began, 0, changes.batch_size or self.cfg.batch_size, processes, processes)

    def _go_on(
        self, train_iter: TrainIterator, step: int, checkpoint: str, readings: list[Reading], changes: Changes
    ) -> tuple[TrainIterator, list[Reading]]:
        """Returns the iterator, and the ways of reading from now on, of a run that has had `readings`."""
        size, seed, processes = self.cfg.batch_size, self.cfg.seed, self.layout.num_shards
        # The checkpoints of later ones could not be read.
        earlier = [reading for reading in readings if reading.step <= step] or readings[:1]
        last = earlier[-1]
        done, now = last.examples_at(step), self._reading(step, None, processes if seed is None else last.shards)
        same = dataclasses.replace(last, step=step, examples=None) == now and not changes.is_other_data
        # A line for `step` itself, but for the first, is of a start that came to no checkpoint: others wrote this one.
        same = same and (last.step < step or len(earlier) == 1)
        if size % now.shards:
            return self._start_over(train_iter, step, earlier, f"{now.shards} shards do not divide BATCH_SIZE {size}")
        why, instead = "it was stored for other data, batches or processes", "Go on as before"
        found_by_reading, rest = seed is not None and done is not None, (done or 0) % size
        if found_by_reading:
            train_iter = self._arranged(train_iter, now.shards, rest)
        try:
            if same and restore_dataset(checkpoint, train_iter, self.layout):
                console.say("Restored the position in the training data")
                return train_iter, earlier
        except (DamagedCheckpointError, tf.errors.NotFoundError) as error:
            # NotFoundError: it is a place in another pipeline, such as T5X's, of what are the same examples.
            if not isinstance(error, DamagedCheckpointError):
                error = f"{checkpoint}: its position was stored by another pipeline"
            # Another one, as this may have moved.
            train_iter = self.make_iterator(self.get_dataset(self.layout.shard_id, processes))
            if found_by_reading:
                console.say(f"{error}; the training data is read up to there instead")
                train_iter = self._arranged(train_iter, now.shards, rest)
            why, instead = f"{error}", "Move that checkpoint elsewhere to go on from an earlier one"
        was_stored = files.is_folder(os.path.join(checkpoint, "dataset"))
        if done is None or (seed is None and was_stored):
            return self._start_over(train_iter, step, earlier, why, instead)
        if seed is None:
            console.say("The training data has no seed: it starts over, in a new order")
        elif done:
            tick = time.time()
            train_iter.skip(done // size)
            seconds = time.time() - tick
            console.say(f"Read past the first {done:,} examples in {seconds:.1f} s (save_dataset avoids this)")
        return train_iter, earlier if same else with_reading(earlier, dataclasses.replace(now, examples=done))

    def _reading(self, step: int, examples: int | None, shards: int) -> Reading:
        return Reading(step, examples, self.cfg.batch_size, shards, self.layout.num_shards)

    def _start_over(
        self, train_iter: TrainIterator, step: int, earlier: list[Reading], why: str, instead: str = "Go on as before"
    ) -> tuple[TrainIterator, list[Reading]]:
        """Starts the data at its beginning, if that is allowed; returns what `_go_on` does."""
        if not self.allow_changes:
            raise ValueError(
                f"{self.model_dir}: the position in the training data cannot be found again, as {why}. "
                f"{instead}, or pass --allow_changes to start the data over."
            )
        console.say(f"The training data starts over, as {why}")
        return train_iter, with_reading(earlier, self._reading(step, 0, self.layout.num_shards))

    def _arranged(self, train_iter: TrainIterator, shards: int, rest: int) -> TrainIterator:
        """Returns an iterator over this process's part of batches made of `shards`, the first `rest` examples left out.

        Raises:
          ValueError: get_dataset_fn gives something that cannot be taken apart.
        """
        parts = self.layout.num_shards
        if (shards, rest) == (parts, 0):
            return train_iter
        batches = arrange(self.get_dataset, self.cfg.batch_size, shards, self.layout.shard_id, parts, rest)
        return self.make_iterator(batches)


def arrange(
    get_dataset: Callable[[int, int], Any], batch_size: int, shards: int, part: int, parts: int, rest: int
) -> tf.data.Dataset:
    """Returns part `part` of `parts` of each batch, of examples in the order of another number of shards.

    Args:
      get_dataset: (shard, shards) -> its batches of batch_size / shards examples.
      batch_size: examples of a whole batch, in which each of the `shards` has as many.
      shards: how many there are.
      part, parts: the rows to return.
      rest: how many examples to leave out first, the same number from each shard; fewer than a batch.
    """
    per_shard, per_part = batch_size // shards, batch_size // parts
    start = part * per_part
    first, end = start // per_shard, -(-(start + per_part) // per_shard)  # the shards that have these rows

    def shard(index: int) -> tf.data.Dataset:
        batches = get_dataset(index, shards)
        if not isinstance(batches, tf.data.Dataset):
            raise ValueError(
                f"get_dataset_fn returned a {type(batches).__name__}, and with another batch size or number of "
                "processes a run can only go on in a tf.data.Dataset; go on with the same."
            )
        if not rest:
            return batches
        return batches.unbatch().skip(rest // shards).batch(per_shard, drop_remainder=True)

    def rows(*batches: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        begin = start - first * per_shard
        return {name: tf.concat([b[name] for b in batches], 0)[begin : begin + per_part] for name in batches[0]}

    chosen = tuple(shard(index) for index in range(first, end))
    return tf.data.Dataset.zip(chosen).map(rows).prefetch(tf.data.AUTOTUNE)
