"""One training step, one evaluation step, and the loops that run them over batches."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import clu.metrics
import clu.values
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict
from jax.sharding import PartitionSpec

from t5x import metrics as metrics_lib
from t5x import partitioning
from t5x.embedded import compiling
from t5x.embedded.actions import ActionMode, BaseAction, EarlyStoppingAction, TerminateOnNanAction  # noqa: F401  (T5X's names for gin: trainer.EarlyStoppingAction, …)
from t5x.embedded.contract import refuse_missing
from t5x.embedded.metrics_manager import MetricsManager
from t5x.embedded.weight_metrics import WeightMetricsComputer
from t5x.train_state import TrainState
from t5xpg.base import memory

refuse_missing(globals(), "trainer")

# T5X's names for what trainers take and give.
Array = np.ndarray | jax.Array
Rng = jax.Array
PyTree = Any
ModelWeights = Any
FlaxMutables = FrozenDict
BatchType = Mapping[str, Array]
BatchSpec = Mapping[str, jax.ShapeDtypeStruct]
MetricMapType = MutableMapping[str, clu.metrics.Metric]
MutableMetricMapType = dict[str, clu.metrics.Metric]
MetricValueMapType = Mapping[str, clu.values.Value]
MetricValueMapFuture = Future
LearningRateCallable = Callable[[jax.Array], jax.Array]
PartitionedTrainCallable = Callable[[TrainState, BatchType], tuple[TrainState, MetricMapType]]
PartitionedEvalCallable = Callable[[TrainState, BatchType], MetricMapType]
ActionMapType = Mapping[ActionMode, Sequence[BaseAction]]


class PreemptionError(Exception):
    """Raised by a trainer or its data when the machine is about to be taken away: the run saves and ends."""


def _time() -> float:
    """The clock of trainers and their metrics, which a test can replace."""
    return time.time()


def last_value(x: jax.Array) -> clu.metrics.LastValue:
    """A metric that keeps the last scalar it was given (clu's own constructor counts in int32)."""
    return clu.metrics.LastValue(total=x, count=jnp.float32(1))


@jax.jit
def merge_metrics(a: MetricMapType, b: MetricMapType) -> MetricMapType:
    """Merges two metric mappings with the same names."""
    return {name: a[name].merge(b[name]) for name in a}


class BaseTrainer(abc.ABC):
    """Runs partitioned train and eval steps over batches and summarizes their metrics.

    Subclasses give `_partitioned_train_step` (state, batch) -> (state, metrics) and
    `_partitioned_eval_step` (state, batch) -> metrics.

    Args:
      model: a models.BaseModel.
      train_state: the state to start from; or its shapes, and the attribute is set before the first step. So does
        train.train, as a new run compiles its step while it makes its arrays.
      partitioner: a partitioning.PjitPartitioner.
      eval_names: names of the evaluation datasets, the keys of what `eval` gets.
      summary_dir: where TensorBoard files go, or None.
      train_state_axes: the state's tree of PartitionSpec.
      rng: PRNG key; each step folds its number in, so dropout depends on (rng, step) alone.

    Attributes:
      train_state: the state after the last step that was dispatched.
      stop_training: set it to end `train` after the current step.
      on_step: called after each training step is dispatched, with the number of finished steps and that step's
        metrics, which may not be computed yet.
    """

    train_state: Any

    def __init__(self, model, train_state, partitioner, eval_names, summary_dir, train_state_axes, rng):
        self._model = model
        self._partitioner = partitioner
        self._train_state_axes = train_state_axes
        self._base_rng = rng
        self._trainer_init_time = _time()
        self._compiled_train_step: PartitionedTrainCallable | None = None
        self._compiled_ahead: Future[compiling.Compilation] | None = None
        self._compiled_eval_steps: dict[str, PartitionedEvalCallable] = {}
        self._compiled_eval_step_cache: dict[Any, PartitionedEvalCallable] = {}
        self.train_state = train_state
        self.stop_training = False
        self.on_step: Callable[[int, MetricMapType], None] | None = None
        self.train_metrics_manager = MetricsManager("train", summary_dir, clock=lambda: _time())
        self.eval_metrics_managers = {
            name: MetricsManager(f"training_eval/{name[:113]}", summary_dir, clock=lambda: _time())
            for name in eval_names
        }

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self) -> None:
        """Waits until all metrics are written."""
        for manager in (self.train_metrics_manager, *self.eval_metrics_managers.values()):
            manager.close()

    def flush_metrics(self) -> None:
        """Waits until the metrics so far are in the event files."""
        for manager in (self.train_metrics_manager, *self.eval_metrics_managers.values()):
            manager.flush()

    def _get_step_rng(self, step) -> jax.Array:
        return jax.random.fold_in(self._base_rng, step)

    @property
    @abc.abstractmethod
    def _partitioned_train_step(self) -> PartitionedTrainCallable: ...

    @property
    @abc.abstractmethod
    def _partitioned_eval_step(self) -> PartitionedEvalCallable: ...

    def train(
        self, batch_iter: Iterator[BatchType], num_steps: int, start_step: int | None = None
    ) -> MetricValueMapFuture:
        """Runs up to `num_steps` steps; returns a future of their summarized metrics.

        Args:
          batch_iter: yields sharded global batches.
          num_steps: how many to run; fewer run when `stop_training` becomes true on the way.
          start_step: the step the state is at, where known (it saves a wait for the device).
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
            if self.on_step is not None:
                self.on_step(step, update)
        if metrics is None:
            raise ValueError(f"No step was run from step {first}: num_steps is {num_steps}.")
        metrics["timing/uptime"] = last_value(jnp.float32(_time() - self._trainer_init_time))
        return self.train_metrics_manager.write_metrics_summary(metrics, step, step - first)

    def compile_ahead(self, batch: BatchType, submit: Callable[[Callable], Future]) -> None:
        """Begins to compile the train step for `compile_train`; `submit` makes a call in another thread.

        The embedded engine's own. Traced it is at once, as what `TrainStateInitializer.compile_ahead` compiles.
        """
        step, compiles = self._partitioned_train_step, type(self._partitioner).compile
        if compiles is partitioning.BasePjitPartitioner.compile and hasattr(step, "lower"):
            lowered = step.lower(*compiling.shapes((self.train_state, batch)))
            self._compiled_ahead = submit(lambda: compiling.timed(lowered.compile))

    def compile_train(self, batch: BatchType) -> None:
        """Compiles the train step for batches of this shape ahead of the first one.

        Raises:
          ValueError: the step cannot fit in the devices' memory.
        """
        step, arguments = self._partitioned_train_step, compiling.shapes((self.train_state, batch))
        if self._compiled_ahead:
            done = self._compiled_ahead.result()
        else:
            done = compiling.timed(lambda: self._partitioner.compile(step, *arguments))
        self._compiled_train_step, self._compiled_ahead = done.program, None
        if isinstance(done.program, jax.stages.Compiled):  # a partitioner may have no way to compile
            memory.check_step(done.program, self._partitioner.mesh)
        compiling.say(done)
        self.train_metrics_manager.write_scalar("timing/compilation_seconds", done.seconds, int(self.train_state.step))

    def compile_eval(self, batches: Mapping[str, BatchType]) -> None:
        """Compiles the eval step for batches of these shapes, {dataset: batch}, once per shape.

        Without this, the step is compiled when it first gets a batch of a new shape.
        """
        for name, batch in batches.items():
            tick = _time()
            key = tuple(sorted((feature, x.shape, str(x.dtype)) for feature, x in batch.items()))
            if key not in self._compiled_eval_step_cache:
                if jax.process_count() > 1:
                    batch = self._partitioner.shard_batch(batch)
                self._compiled_eval_step_cache[key] = self._partitioner.compile(
                    self._partitioned_eval_step, self.train_state, batch
                )
            self._compiled_eval_steps[name] = self._compiled_eval_step_cache[key]
            manager = self.eval_metrics_managers[name]
            manager.write_scalar("timing/compilation_seconds", _time() - tick, int(self.train_state.step))

    def eval(self, batch_iters: Mapping[str, Iterator[BatchType]]) -> dict[str, MetricValueMapType]:
        """Evaluates each dataset with teacher forcing; returns {dataset: {metric: value}} and writes them.

        The iterators yield this process's share of each batch as NumPy arrays.
        """
        summaries = {}
        for name, batches in batch_iters.items():
            step_fn = self._compiled_eval_steps.get(name) or self._partitioned_eval_step
            manager = self.eval_metrics_managers[name]
            manager.start_duration_timer(block_on=self.train_state.step)
            metrics, num_steps = None, 0
            for batch in batches:
                update = step_fn(self.train_state, self._partitioner.shard_batch(batch))
                metrics = update if metrics is None else merge_metrics(metrics, update)
                num_steps += 1
            if metrics is None:
                raise ValueError(
                    f"Evaluation dataset {name!r} gave no batch; lower BATCH_SIZE or add rows to its split."
                )
            summaries[name] = manager.write_metrics_summary(metrics, int(self.train_state.step), num_steps)
        return {name: summary.result() for name, summary in summaries.items()}


BaseTrainerConstructor = Callable[..., BaseTrainer]


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
        learning_rate_fn: LearningRateCallable,
        num_microbatches: int | None,
        weight_metrics_computer: WeightMetricsComputer | None = None,
    ):
        self._learning_rate_fn = learning_rate_fn
        self._num_microbatches = num_microbatches
        self._weight_metrics_computer = weight_metrics_computer
        super().__init__(model, train_state, partitioner, eval_names, summary_dir, train_state_axes, rng)

    @cached_property
    def _partitioned_train_step(self) -> PartitionedTrainCallable:
        spec = self._partitioner.data_partition_spec

        def train_step(train_state: TrainState, batch: BatchType):
            return train_with_lr(
                train_state,
                batch,
                learning_rate=self._learning_rate_fn(train_state.step),
                dropout_rng=self._get_step_rng(train_state.step),
                model=self._model,
                num_microbatches=self._num_microbatches,
                weight_metrics_computer=self._weight_metrics_computer,
                data_partition_spec=spec,
            )

        return self._partitioner.partition(
            train_step,
            in_axis_resources=(self._train_state_axes, spec),
            out_axis_resources=(self._train_state_axes, None),
            donate_argnums=(0,),
        )

    @cached_property
    def _partitioned_eval_step(self) -> PartitionedEvalCallable:
        return self._partitioner.partition(
            lambda train_state, batch: eval_step(self._model, train_state, batch),
            in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
            out_axis_resources=None,
        )


def train_with_lr(
    train_state: TrainState,
    batch: BatchType,
    learning_rate: jax.Array,
    dropout_rng: Rng,
    model,
    num_microbatches: int | None,
    weight_metrics_computer: WeightMetricsComputer | None = None,
    data_partition_spec: PartitionSpec = PartitionSpec("data"),
) -> tuple[TrainState, MetricMapType]:
    """Returns (state, metrics) after one update: what the trainer's step does to a batch."""
    grads, metrics, flax_mutables = accumulate_grads_microbatched(
        model, train_state, batch, dropout_rng, num_microbatches, data_partition_spec
    )
    others = {"flax_mutables": flax_mutables} if flax_mutables else None
    return apply_grads(
        train_state, grads, metrics, learning_rate, weight_metrics_computer, other_state_variables=others
    )


def eval_step(model, train_state: TrainState, batch: BatchType) -> MetricMapType:
    """Returns the metrics of a batch; the model gets the state's mutable variables where there are some."""
    mutables = (train_state.flax_mutables,) if train_state.flax_mutables else ()
    return model.eval_fn(train_state.params, batch, *mutables)[1]


def apply_grads(
    train_state: TrainState,
    grad_accum: ModelWeights,
    metrics: MutableMetricMapType,
    learning_rate: jax.Array,
    weight_metrics_computer: WeightMetricsComputer | None,
    other_state_variables: Mapping[str, Any] | None = None,
) -> tuple[TrainState, MetricMapType]:
    """Updates the parameters, and adds the learning rate and weight metrics to `metrics`.

    `other_state_variables` are further arguments of the state's apply_gradient.
    """
    new_state = train_state.apply_gradient(grad_accum, learning_rate=learning_rate, **(other_state_variables or {}))
    metrics["learning_rate"] = clu.metrics.Average(total=learning_rate, count=jnp.float32(1))
    metrics["learning_rate/current"] = last_value(learning_rate)
    if weight_metrics_computer is not None:
        metrics |= weight_metrics_computer.compute_metrics(grad_accum, train_state, new_state)
    return new_state, metrics


def accumulate_grads_microbatched(
    model,
    train_state: TrainState,
    batch: BatchType,
    dropout_rng: Rng,
    num_microbatches: int | None,
    data_partition_spec: PartitionSpec = PartitionSpec("data"),
) -> tuple[ModelWeights, MutableMetricMapType, FlaxMutables | None]:
    """Returns (gradients, metrics, flax_mutables or None), summed over microbatches.

    `data_partition_spec` keeps each microbatch divided among the devices as the whole batch is. Models whose train
    state holds flax mutables take them as loss_fn's last argument and return them along with their metrics.
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

    parts = microbatches(batch, num_microbatches, data_partition_spec)

    def body(index, carry):
        grads_so_far, metrics_so_far, mutables = carry
        part = {name: jax.lax.dynamic_index_in_dim(x, index, keepdims=False) for name, x in parts.items()}
        metrics, grads, mutables = metrics_and_grads(part, microbatch_rng, mutables)
        grads = jax.tree.map(jnp.add, grads_so_far, grads)
        return grads, merge_metrics(metrics_so_far, metrics), mutables

    grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), train_state.params)
    first = {name: x[0] for name, x in parts.items()}
    metrics_shape = jax.eval_shape(lambda: metrics_and_grads(first, microbatch_rng, mutables)[0])
    no_metrics = {name: metrics_lib.shape_obj_to_defined_obj(shape) for name, shape in metrics_shape.items()}
    return jax.lax.fori_loop(0, num_microbatches, body, (grads, no_metrics, mutables))


def microbatches(batch: BatchType, count: int, data_partition_spec: PartitionSpec) -> BatchType:
    """[rows, ...] -> [count, rows / count, ...] of every feature; raises ValueError where that leaves a rest.

    Each microbatch is divided among the devices here, once: a slice of a divided batch would be fetched from the others
    at each of its uses. Compiled for v5e:2x2, T5 1.1 small gathered features of the batch 207 times a microbatch.
    """
    rows = next(iter(batch.values())).shape[0]
    if rows % count:
        raise ValueError(f"batch_size {rows} must be a multiple of num_microbatches {count}.")
    parts = {name: x.reshape(count, rows // count, *x.shape[1:]) for name, x in batch.items()}
    return partitioning.with_sharding_constraint(parts, PartitionSpec(None, *data_partition_spec))
