"""How fast a task becomes batches for training, on one core and on all, and how many cores feed a trainer.

A speed is measured in a process of its own. TensorFlow and NumPy make as many threads as there are cores when they
start, and what ran before changes how a process takes memory: tf.data's from_generator bounds the blocks that glibc
keeps, and after it the same batches take up to twice the time.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import seqio

from t5xpg.data import workers
from t5xpg.inspection import code, measurements

WARM_SECONDS = 1.0  # for tf.data to find how much to do at once
SECONDS = 2.0


class Rate(NamedTuple):
    """What a process makes in a second.

    Attributes:
      examples: rows of batches; packed ones where the run packs.
      tokens: of labels, and of what the encoder reads, without padding.
      cores: that it used, by its CPU time.
      path: how they are made, in words.
    """

    examples: float
    tokens: float
    cores: float
    path: str


@dataclasses.dataclass(frozen=True)
class Speed:
    """That of one run's batches.

    Attributes:
      rates: {cores: rate} on one and on all that there are; on all alone where a process cannot be held to one.
      pack: whether the run packs.
      text_bytes: of the source, in UTF-8, for each token; None where it has no text.
    """

    rates: Mapping[int, Rate]
    pack: bool
    text_bytes: float | None


# ---- Measuring ----


def numbers_of_cores() -> list[int]:
    """Returns how many to measure on: one, and all that this process may use; all alone where one cannot be had."""
    return sorted({1, workers.cores()}) if hasattr(os, "sched_setaffinity") else [workers.cores()]


def default_config(task: str, fields: Mapping[str, Any]) -> Any:
    """Returns the DatasetConfig of a task without a recipe: packed and shuffled; `fields` are the others."""
    from t5x import utils

    return utils.DatasetConfig(task, batch_size=measurements.DEFAULT_BATCH_SIZE, shuffle=True, pack=True, **fields)


def default_converter(features: Mapping[str, Any]) -> type[seqio.FeatureConverter]:
    """Returns the converter of a task with these features without a recipe."""
    if "selected" in features:
        from t5xpg.mlm import MaskedLMFeatureConverter

        return MaskedLMFeatureConverter
    return seqio.EncDecFeatureConverter if "inputs" in features else seqio.LMFeatureConverter


def measure(cfg: Any, converter_cls: Any) -> Rate:
    """Measures what training reads with a DatasetConfig and a class of seqio.FeatureConverter, in this process."""
    from t5x import utils

    batches = utils.get_dataset(cfg, 0, 1, converter_cls).as_numpy_iterator()
    return Rate(*a_second(batches, time.perf_counter, time.process_time), code.of_batches(cfg, converter_cls).words)


def a_second(
    batches: Iterator[Mapping[str, np.ndarray]], clock: Callable[[], float], cpu_clock: Callable[[], float]
) -> tuple[float, float, float]:
    """Returns how many examples and tokens of endless batches come in a second, and its seconds of CPU time.

    What is timed follows the first batch, which waits for buffers, and those of WARM_SECONDS, whose tokens are counted.
    """
    next(batches)
    rows = tokens = 0
    for batch in _for(WARM_SECONDS, batches, clock):
        rows += _rows(batch)
        tokens += sum(int(np.count_nonzero(x)) for name, x in batch.items() if _is_text(name))
    start, start_cpu = clock(), cpu_clock()
    measured = sum(map(_rows, _for(SECONDS, batches, clock)))
    passed, used = clock() - start, cpu_clock() - start_cpu
    examples = measured / passed
    return examples, examples * tokens / rows, used / passed


def _for(seconds: float, batches: Iterator, clock: Callable[[], float]) -> Iterator:
    """Yields the next batch, and those after it until so many seconds are over."""
    start = clock()
    yield next(batches)
    while clock() < start + seconds:
        yield next(batches)


def _rows(batch: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(batch.values())))


def _is_text(feature: str) -> bool:
    return feature.endswith("_tokens") and feature != "decoder_input_tokens"  # which are the labels again, shifted


def text_bytes_of_a_token(
    provider: seqio.Task | seqio.Mixture, lengths: Mapping[str, int], split: str, rows: int, seed: int
) -> float | None:
    """Returns how much of the source's text, in UTF-8, makes one token of inputs or targets, by a sample of rows.

    Of a mixture so many rows of each task are taken, whose examples count as much as its rate says.

    Returns:
      bytes; None where the rows have no text, or the examples no tokens.
    """
    text = tokens = 0.0
    for task in seqio.get_subtasks(provider):
        examples = measurements.read(task, lengths, split, rows, seed)
        rate = provider.get_rate(task) if isinstance(provider, seqio.Mixture) else 1
        share = rate / max(len(examples), 1)
        text += share * measurements.text_bytes(task, split, rows, seed)
        read = [name for name in ("inputs", "targets") if name in lengths]
        tokens += share * sum(np.count_nonzero(example[name]) for example in examples for name in read)
    return text / tokens if text and tokens else None


# ---- Cores ----


def cores_for(wanted: float, rates: Mapping[int, float]) -> int | None:
    """Returns how many cores of a process make so many examples a second; None where no number of them does.

    By Amdahl's law: of the time that an example takes on one core, `undivided` stays, and the cores share the rest.

    Args:
      wanted: examples a second.
      rates: {cores: examples a second}, of which the fewest and the most cores count.
    """
    time, stays, most = one_core(rates) / wanted, undivided(rates), max(rates)  # time in units of that on one core
    if time >= 1:
        return 1
    found = math.ceil((1 - stays) / (time - stays) - 1e-9) if time > stays else None
    return most if found and found > most and rates[most] >= wanted else found  # they may be better than any law


def one_core(rates: Mapping[int, float]) -> float:
    """Returns examples a second on one core: as measured, or a share of what all together make."""
    return rates[min(rates)] / min(rates)


def undivided(rates: Mapping[int, float]) -> float:
    """Returns the share of the work that more cores do not shorten; 0 where one rate alone is known."""
    fewest, most = min(rates), max(rates)
    if fewest == most:
        return 0.0
    time, at_best = rates[fewest] / rates[most], fewest / most
    return min(max((time - at_best) / (1 - at_best), 0.0), 1.0)
