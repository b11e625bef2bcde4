"""Brings a run's train state into being: from its shapes, from scratch, or from a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
from jax.sharding import NamedSharding, PartitionSpec

from t5x import checkpoints
from t5x.train_state import FlaxOptimTrainState, InferenceState


class TrainStateInitializer:
    """Initializes or restores partitioned train states of one model.

    Args:
      optimizer_def: the optimizer, or None for an InferenceState.
      init_fn: a model's get_initial_variables.
      input_shapes, input_types: {feature: global shape} and {feature: dtype} of a batch.
      partitioner: places the arrays.

    Attributes:
      global_train_state_shape: the state with jax.ShapeDtypeStruct leaves.
      train_state_axes: the state with PartitionSpec leaves.
    """

    def __init__(
        self,
        optimizer_def,
        init_fn: Callable,
        input_shapes: Mapping[str, tuple[int, ...]],
        partitioner,
        input_types: Mapping | None = None,
    ):
        def initialize(rng):
            variables = init_fn(rng=rng, input_shapes=input_shapes, input_types=input_types)
            if optimizer_def is None:
                return InferenceState.create(variables)
            return FlaxOptimTrainState.create(optimizer_def, variables)

        self._initialize = initialize
        self._partitioner = partitioner
        self.global_train_state_shape = jax.eval_shape(initialize, jax.random.PRNGKey(0))
        self.train_state_axes = partitioner.get_mesh_axes(self.global_train_state_shape)
        check_divisible(self.global_train_state_shape, self.train_state_axes, partitioner.mesh)

    def from_scratch(self, init_rng: jax.Array):
        """Initializes each array where it will live."""
        fn = self._partitioner.partition(
            self._initialize, in_axis_resources=None, out_axis_resources=self.train_state_axes
        )
        return fn(init_rng)

    def from_checkpoint(
        self, path: str, cfg: checkpoints.RestoreCheckpointConfig, init_rng: jax.Array | None = None
    ):
        """Restores the checkpoint at `path`; `init_rng` serves what it lacks and `cfg` allows to initialize."""
        state = checkpoints.restore_state(
            path,
            cfg,
            self.global_train_state_shape,
            self.train_state_axes,
            self._partitioner.mesh,
            scratch=None if init_rng is None else (lambda: self.from_scratch(init_rng)),
        )
        return part_arrays(state, self.train_state_axes, self._partitioner.mesh)


def part_arrays(state, specs, mesh):
    """Returns the state with an array of its own, placed as `specs` say, for each name.

    An assignment_map may have given several names one stored array, and a training step takes each array's memory.
    """
    specs, taken, parted = checkpoints.flatten(specs.state_dict()), set(), {}
    for name, value in checkpoints.flatten(state.state_dict()).items():
        if isinstance(value, jax.Array):
            sharding = NamedSharding(mesh, specs[name] or PartitionSpec())
            if id(value) in taken or value.sharding != sharding:
                value = jax.device_put(value, sharding, may_alias=False)
            taken.add(id(value))
        parted[name] = value
    return state.restore_state(checkpoints.unflatten(parted))


def check_divisible(shapes, specs, mesh) -> None:
    """Raises ValueError for the first array that the mesh cannot divide evenly."""
    specs = checkpoints.flatten(specs.state_dict())
    for name, value in checkpoints.flatten(shapes.state_dict()).items():
        for size, axes in zip(getattr(value, "shape", ()), specs.get(name) or (), strict=False):
            parts = math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
            if size % parts:
                raise ValueError(
                    f"{name} {tuple(value.shape)} cannot be divided over {parts} devices of the mesh axis {axes!r}; "
                    "choose PjitPartitioner.num_partitions so that it divides that size."
                )
