"""One training step, one evaluation step, and the loops that run them over batches."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import clu.metrics
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from t5x import metrics as metrics_lib
from t5x.embedded.actions import ActionMode, BaseAction, EarlyStoppingAction, TerminateOnNanAction  # noqa: F401  (T5X's names for gin: trainer.EarlyStoppingAction, …)
from t5x.embedded.metrics_manager import MetricsManager
from t5x.embedded.weight_metrics import WeightMetricsComputer
from t5xpg.base import memory

Batch = Mapping[str, jax.Array]
Metrics = dict[str, clu.metrics.Metric]


def last_value(x: jax.Array) -> clu.metrics.LastValue:
    """A metric that keeps the last scalar it was given (clu's own constructor counts in int32)."""
    return clu.metrics.LastValue(total=x, count=jnp.float32(1))


@jax.jit
def merge_metrics(a: Metrics, b: Metrics) -> Metrics:
    """Merges two metric mappings with the same names."""
    return {name: a[name].merge(b[name]) for name in a}


class BaseTrainer(abc.ABC):
    """Runs partitioned train and eval steps over batches and summarizes their metrics.

    Subclasses give `_partitioned_train_step` (state, batch) -> (state, metrics) and
    `_partitioned_eval_step` (state, batch) -> metrics.

    Args:
      model: a models.BaseModel.
      train_state: the state to start from.
      partitioner: a partitioning.PjitPartitioner.
      eval_names: names of the evaluation datasets, the keys of what `eval` gets.
      summary_dir: where TensorBoard files go, or None.
      train_state_axes: the state's tree of PartitionSpec.
      rng: PRNG key; each step folds its number in, so dropout depends on (rng, step) alone.
    """

    def __init__(self, model, train_state, partitioner, eval_names, summary_dir, train_state_axes, rng):
        self._model = model
        self._partitioner = partitioner
        self._train_state_axes = train_state_axes
        self._base_rng = rng
        self._init_time = time.time()
        self._compiled_train_step: Callable | None = None
        self._compiled_eval_steps: dict[Any, Callable] = {}
        self.train_state = train_state
        self.stop_training = False
        self.train_metrics_manager = MetricsManager("train", summary_dir)
        self.eval_metrics_managers = {
            name: MetricsManager(f"training_eval/{name[:113]}", summary_dir) for name in eval_names
        }

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self) -> None:
        """Waits until all metrics are written."""
        for manager in (self.train_metrics_manager, *self.eval_metrics_managers.values()):
            manager.close()

    def _get_step_rng(self, step) -> jax.Array:
        return jax.random.fold_in(self._base_rng, step)

    @property
    @abc.abstractmethod
    def _partitioned_train_step(self): ...

    @property
    @abc.abstractmethod
    def _partitioned_eval_step(self): ...

    def train(
        self,
        batch_iter: Iterator[Batch],
        num_steps: int,
        start_step: int | None = None,
        on_step: Callable[[int, Metrics], None] | None = None,
    ) -> Future:
        """Runs up to `num_steps` steps; returns a future of their summarized metrics.

        Args:
          batch_iter: yields sharded global batches.
          num_steps: how many to run; fewer run when `stop_training` becomes true on the way.
          start_step: the step the state is at, where known (it saves a wait for the device).
          on_step: called after each step is dispatched, with the number of finished steps and that step's
            metrics, which may not be computed yet.
        """
        step_fn = self._compiled_train_step or self._partitioned_train_step
        first = step = int(self.train_state.step) if start_step is None else start_step
        self.train_metrics_manager.start_duration_timer(block_on=self.train_state.step)
        metrics = None
        while step < first + num_steps and not self.stop_training:
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                self.train_state, update = step_fn(self.train_state, next(batch_iter))
                metrics = update if metrics is None else merge_metrics(metrics, update)
            step += 1
            if on_step is not None:
                on_step(step, update)
        if metrics is None:
            raise ValueError(f"No step was run from step {first}: num_steps is {num_steps}.")
        metrics["timing/uptime"] = last_value(jnp.float32(time.time() - self._init_time))
        return self.train_metrics_manager.write_metrics_summary(metrics, step, step - first)

    def compile_train(self, batch: Batch) -> None:
        """Compiles the train step for batches of this shape ahead of the first one.

        Raises:
          ValueError: the step cannot fit in the devices' memory.
        """
        tick = time.time()
        self._compiled_train_step = self._partitioner.compile(
            self._partitioned_train_step, self.train_state, batch
        )
        memory.check_step(self._compiled_train_step, self._partitioner.mesh)
        step = int(self.train_state.step)
        self.train_metrics_manager.write_scalar("timing/compilation_seconds", time.time() - tick, step)

    def eval(
        self,
        batch_iters: Mapping[str, Iterator[Mapping]],
        on_step: Callable[[str, int], None] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Evaluates each dataset with teacher forcing; returns {dataset: {metric: value}} and writes them.

        `batch_iters` yield this process's share of batches as numpy arrays.
        """
        summaries = {}
        for name, batches in batch_iters.items():
            manager = self.eval_metrics_managers[name]
            manager.start_duration_timer(block_on=self.train_state.step)
            metrics, num_steps = None, 0
            for batch in batches:
                batch = self._partitioner.shard_batch(batch)
                update = self._eval_step_for(batch)(self.train_state, batch)
                metrics = update if metrics is None else merge_metrics(metrics, update)
                num_steps += 1
                if on_step is not None:
                    on_step(name, num_steps)
            if metrics is None:
                raise ValueError(
                    f"Evaluation dataset {name!r} gave no batch; lower BATCH_SIZE or add rows to its split."
                )
            step = int(self.train_state.step)
            summaries[name] = manager.write_metrics_summary(metrics, step, num_steps)
        return {name: summary.result() for name, summary in summaries.items()}

    def _eval_step_for(self, batch: Batch) -> Callable:
        """Returns the eval step compiled for this batch's shapes, compiling it once per shape."""
        key = tuple(sorted((name, x.shape, str(x.dtype)) for name, x in batch.items()))
        if key not in self._compiled_eval_steps:
            self._compiled_eval_steps[key] = self._partitioner.compile(
                self._partitioned_eval_step, self.train_state, batch
            )
        return self._compiled_eval_steps[key]


class Trainer(BaseTrainer):
    """The usual trainer: one optimizer update per batch, gradients accumulated over microbatches if asked.

    Args (beyond BaseTrainer's):
      learning_rate_fn: step -> learning rate.
      num_microbatches: splits each batch to save memory; None runs it whole.
      weight_metrics_computer: also reports norms of weights, gradients and updates, if given.
    """

    def __init__(
        self,
        model,
        train_state,
        partitioner,
        eval_names,
        summary_dir,
        train_state_axes,
        rng,
        learning_rate_fn: Callable[[jax.Array], jax.Array],
        num_microbatches: int | None,
        weight_metrics_computer: WeightMetricsComputer | None = None,
    ):
        self._learning_rate_fn = learning_rate_fn
        self._num_microbatches = num_microbatches
        self._weight_metrics_computer = weight_metrics_computer
        super().__init__(model, train_state, partitioner, eval_names, summary_dir, train_state_axes, rng)

    @cached_property
    def _partitioned_train_step(self):
        def train_step(train_state, batch):
            grads, metrics, flax_mutables = accumulate_grads_microbatched(
                self._model,
                train_state,
                batch,
                self._get_step_rng(train_state.step),
                self._num_microbatches,
                self._partitioner.named_shardings(self._partitioner.data_partition_spec),
            )
            learning_rate = self._learning_rate_fn(train_state.step)
            mutables = {} if flax_mutables is None else {"flax_mutables": flax_mutables}
            new_state = train_state.apply_gradient(grads, learning_rate=learning_rate, **mutables)
            metrics["learning_rate"] = clu.metrics.Average(total=learning_rate, count=jnp.float32(1))
            metrics["learning_rate/current"] = last_value(learning_rate)
            if self._weight_metrics_computer is not None:
                metrics |= self._weight_metrics_computer.compute_metrics(grads, train_state, new_state)
            return new_state, metrics

        spec = self._partitioner.data_partition_spec
        return self._partitioner.partition(
            train_step,
            in_axis_resources=(self._train_state_axes, spec),
            out_axis_resources=(self._train_state_axes, None),
            donate_argnums=(0,),
        )

    @cached_property
    def _partitioned_eval_step(self):
        def eval_step(train_state, batch):
            mutables = (train_state.flax_mutables,) if train_state.flax_mutables else ()
            return self._model.eval_fn(train_state.params, batch, *mutables)[1]

        return self._partitioner.partition(
            eval_step,
            in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
            out_axis_resources=None,
        )


def accumulate_grads_microbatched(
    model,
    train_state,
    batch: Batch,
    dropout_rng: jax.Array,
    num_microbatches: int | None,
    batch_sharding: NamedSharding | None = None,
) -> tuple[Any, Metrics, Any]:
    """Returns (gradients, metrics, flax_mutables or None), summed over microbatches.

    `batch_sharding` keeps each microbatch divided among the devices as the whole batch is. Models whose train
    state holds flax mutables take them as loss_fn's last argument and return them beside their metrics.
    """
    grad_fn = jax.value_and_grad(model.loss_fn, has_aux=True)

    def metrics_and_grads(batch, rng, mutables):
        if mutables is None:
            (_, metrics), grads = grad_fn(train_state.params, batch, rng)
        else:
            (_, (metrics, mutables)), grads = grad_fn(train_state.params, batch, rng, mutables)
        return metrics, grads, mutables

    mutables = train_state.flax_mutables or None
    if num_microbatches is None or num_microbatches <= 1:
        metrics, grads, mutables = metrics_and_grads(batch, dropout_rng, mutables)
        return grads, metrics, mutables

    # One key for all microbatches, as in T5X: each drops the same positions of its own rows.
    microbatch_rng = jax.random.split(dropout_rng)[1]

    def body(index, carry):
        grads_so_far, metrics_so_far, mutables = carry
        part = microbatch(batch, index, num_microbatches, batch_sharding)
        metrics, grads, mutables = metrics_and_grads(part, microbatch_rng, mutables)
        grads = jax.tree.map(jnp.add, grads_so_far, grads)
        return grads, merge_metrics(metrics_so_far, metrics), mutables

    grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), train_state.params)
    first = microbatch(batch, 0, num_microbatches, batch_sharding)
    metrics_shape = jax.eval_shape(lambda: metrics_and_grads(first, microbatch_rng, mutables)[0])
    no_metrics = {name: metrics_lib.shape_obj_to_defined_obj(shape) for name, shape in metrics_shape.items()}
    return jax.lax.fori_loop(0, num_microbatches, body, (grads, no_metrics, mutables))


def microbatch(batch: Batch, index, num_microbatches: int, sharding: NamedSharding | None = None) -> Batch:
    """Returns rows [index * size, (index + 1) * size) of every feature."""
    rows = next(iter(batch.values())).shape[0]
    if rows % num_microbatches:
        raise ValueError(f"batch_size {rows} must be a multiple of num_microbatches {num_microbatches}.")
    size = rows // num_microbatches
    parts = {k: jax.lax.dynamic_slice_in_dim(x, index * size, size) for k, x in batch.items()}
    return parts if sharding is None else jax.lax.with_sharding_constraint(parts, sharding)
