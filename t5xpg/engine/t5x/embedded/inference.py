"""Predicts or scores a whole dataset with a model's step, over all devices and processes, in the dataset's order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x.embedded.metrics_manager import local_value

PADDING = -1  # the index of the rows that fill up the last batch


def get_infer_fn(
    infer_step: Callable,
    batch_size: int,
    train_state_axes,
    partitioner,
    keep_aux_as_numpy: bool = False,
    on_examples: Callable[[int], object] | None = None,
) -> Callable:
    """Returns a function that runs `infer_step` over a dataset, as seqio.Evaluator wants it.

    Args:
      infer_step: a model's predict_batch, predict_batch_with_aux or score_batch: (params, batch, and if it
        names them rng and flax_mutables) -> a tree of arrays [batch, …], or a pair of such a tree and a dict of
        auxiliary arrays [batch, …].
      batch_size: examples in a global batch.
      train_state_axes: the train state with PartitionSpec leaves.
      partitioner: a partitioning.PjitPartitioner.
      keep_aux_as_numpy: leave each example's auxiliary values as arrays rather than lists.
      on_examples: called after each batch with the number of its examples, to show progress.

    Returns:
      (dataset, train_state, rng=None) -> [(index, output)], or ([(index, output)], {name: [value]}) where there
      are auxiliary values. The dataset yields (index, {feature: [length]}), knows its length, and is the same in
      every process; so is the result, which is ordered by index. Each batch gets a key of its own.
    """
    step = partition_step(infer_step, train_state_axes, partitioner)
    layout = partitioner.get_data_layout(batch_size)
    report = on_examples or (lambda count: None)

    def infer_fn(ds, train_state, rng: jax.Array | None = None):
        length = len(ds)
        multihost_utils.assert_equal(np.array(length), "The processes read datasets of different lengths.")
        if not length:
            raise ValueError("There is no example to infer; check the split and its files.")
        fetched = []
        for outputs in run_batches(step, padded_batches(ds, batch_size, layout), train_state, rng, partitioner):
            fetched.append(jax.tree.map(local_value, outputs))
            report(int((fetched[-1][0] != PADDING).sum()))
        indices, outputs = jax.tree.map(lambda *parts: np.concatenate(parts), *fetched)
        kept = np.flatnonzero(indices != PADDING)
        order = kept[np.argsort(indices[kept])]
        if len(order) != length:
            raise ValueError(f"{len(order)} of {length} examples came back; the processes' data differ.")
        return to_lists(indices[order], jax.tree.map(lambda x: x[order], outputs), keep_aux_as_numpy)

    return infer_fn


def partition_step(infer_step: Callable, train_state_axes, partitioner):
    """Jits (params, batch, rng, indices, flax_mutables) -> (indices, outputs), with results on every process."""
    accepted = inspect.signature(infer_step).parameters

    def step(params, batch, rng, indices, flax_mutables):
        offered = {"rng": rng, "flax_mutables": flax_mutables}
        return indices, infer_step(params, batch, **{name: offered[name] for name in offered if name in accepted})

    spec = partitioner.data_partition_spec
    return partitioner.partition(
        step,
        in_axis_resources=(train_state_axes.params, spec, None, spec, train_state_axes.flax_mutables),
        out_axis_resources=(None, None),
    )


def padded_batches(ds, batch_size: int, layout):
    """Returns this process's share of the batches; the first example, marked as PADDING, fills up the last."""
    if missing := -len(ds) % batch_size:
        ds = ds.concatenate(ds.take(1).map(lambda index, x: (index * 0 + PADDING, x)).repeat(missing))
    return ds.shard(layout.num_shards, layout.shard_id).batch(batch_size // layout.num_shards, drop_remainder=True)


def run_batches(step, batches, train_state, rng: jax.Array | None, partitioner) -> Iterator[Any]:
    """Yields (indices, outputs) of each batch; the next batch is started before one is waited for."""
    previous = None
    for indices, batch in batches.as_numpy_iterator():
        step_rng = None
        if rng is not None:
            step_rng, rng = jax.random.split(rng)
        if jax.process_count() > 1:
            batch, indices = partitioner.shard_batch(batch), partitioner.shard_batch({"index": indices})["index"]
        current = step(train_state.params, batch, step_rng, indices, train_state.flax_mutables)
        if previous is not None:
            yield previous
        previous = current
    yield previous


def to_lists(indices: np.ndarray, outputs: Any, keep_aux_as_numpy: bool):
    """Splits arrays [examples, …] into Python values: one output per example, and a list for each auxiliary value."""
    aux = None
    if isinstance(outputs, tuple) and len(outputs) == 2 and isinstance(outputs[1], Mapping):
        outputs, aux = outputs
    leaves, structure = jax.tree.flatten(outputs)
    rows = zip(*(leaf.tolist() for leaf in leaves), strict=True)
    pairs = [(index, jax.tree.unflatten(structure, row)) for index, row in zip(indices.tolist(), rows, strict=True)]
    if aux is None:
        return pairs
    return pairs, jax.tree.map(list if keep_aux_as_numpy else np.ndarray.tolist, aux)
