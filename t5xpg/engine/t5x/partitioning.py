"""Where arrays live: a mesh of devices with axes `data` and `model`, and rules from logical axes to it.

One code path serves one device, many devices and many processes. Parameters and activations carry logical
axis names ("embed", "mlp", …); a priority-ordered list of rules maps each name to a mesh axis or to None
(replicated); XLA's partitioner does the rest.

`BasePartitioner` is what the trainer, checkpoints and inference need from a partitioner; `BasePjitPartitioner` does it
with jax.jit; `PjitPartitioner` adds the rules, and is the one to use.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np
from absl import logging
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x.embedded import platforms
from t5x.embedded.contract import refuse_missing
from t5x.train_state import TrainState

refuse_missing(globals(), "partitioning")

JaxDevice = jax.Device
TpuMesh = tuple[int, int, int, int]  # (x, y, z, cores)
OtherMesh = tuple[int, int]
HardwareMesh = TpuMesh | OtherMesh
LogicalAxisRules = Sequence[tuple[str, str | tuple[str, ...] | None]]
CompiledPartitionedCallable = Callable[..., Any]


class PartitionedCallable(Protocol):
    """What `partition` returns: a function that can be called, or lowered to be compiled ahead of the first call."""

    def __call__(self, *args, **kwargs) -> Any: ...

    def lower(self, *args, **kwargs) -> jax.stages.Lowered: ...


def global_mesh_defined() -> bool:
    """Whether a mesh is in force, as it is inside a partitioned function."""
    return not platforms.mesh_of_this_trace().empty


def with_sharding_constraint(x, axis_resources):
    """Returns the arrays of `x`, divided over the mesh axes that a PartitionSpec names; unchanged without a mesh.

    Deviation: T5X's does nothing on CPUs; here they are devices like any other.
    """
    return jax.lax.with_sharding_constraint(x, axis_resources) if global_mesh_defined() else x


def host_local_array_to_global_array(arr_tree, mesh: Mesh, pspecs):
    """Makes global arrays from each process's part; `pspecs` is a tree of PartitionSpec, None for replicated."""
    pspecs = jax.tree.map(lambda x: PartitionSpec() if x is None else x, pspecs, is_leaf=lambda x: x is None)
    return multihost_utils.host_local_array_to_global_array(arr_tree, mesh, pspecs)


def default_mesh(
    num_partitions: int | None,
    model_parallel_submesh: HardwareMesh | None = None,
    backend: str | None = None,
    ici_mesh_shape: HardwareMesh | None = None,
    dcn_mesh_shape: HardwareMesh | None = None,
) -> Mesh:
    """Returns all devices as [data, model], or as [replica, data, model] when both mesh shapes are given.

    Args:
      num_partitions: devices that share one copy of the model (the mesh's `model` axis). On CPUs it is lowered to a
        divisor that there are devices for: a recipe made for a pod runs on a laptop.
      model_parallel_submesh: alternative to num_partitions, a TPU tile (x, y, z, core). Its size is what counts here:
        JAX itself places the mesh on the hardware, where T5X does so by hand.
      backend: restricts the mesh to devices of that backend.
      ici_mesh_shape, dcn_mesh_shape: (replica, data, model) within and across slices or hosts.

    Deviation: T5X ignores num_partitions on CPUs and shards every model over all CPUs of a host.
    """
    devices = platforms.devices(backend)
    platform = devices[0].platform
    if ici_mesh_shape is not None and dcn_mesh_shape is not None:
        grid = mesh_utils.create_hybrid_device_mesh(
            ici_mesh_shape,
            dcn_mesh_shape,
            devices,
            process_is_granule=not hasattr(devices[0], "slice_index"),  # only TPUs have slices
        )
        return Mesh(grid, ("replica", "data", "model"))
    if model_parallel_submesh:
        num_partitions = math.prod(model_parallel_submesh)
    if not num_partitions:
        raise ValueError("default_mesh needs num_partitions or model_parallel_submesh; set one.")
    if len(devices) % num_partitions:
        if platform != "cpu":
            raise ValueError(
                f"num_partitions {num_partitions} does not divide the {len(devices)} {platform} devices; "
                f"use one of {divisors(len(devices))}."
            )
        asked, num_partitions = num_partitions, math.gcd(num_partitions, len(devices))
        logging.warning("num_partitions is %d; %d on these %d CPU devices.", asked, num_partitions, len(devices))
    shape = (len(devices) // num_partitions, num_partitions)
    # A slice's axes may be longer than the mesh's: 2 model partitions on 4x4 chips are half of one.
    return Mesh(mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True), ("data", "model"))


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: LogicalAxisRules | None = None,
) -> LogicalAxisRules:
    """Returns the usual rules for T5's logical axes.

    Args:
      activation_partitioning_dims: 2 also shards activations' "embed" axis over `model`.
      parameter_partitioning_dims: 2 also shards parameters' "embed" axis over `data`.
      additional_rules: appended, so they apply to names that the standard rules leave open.
    """
    dims = (activation_partitioning_dims, parameter_partitioning_dims)
    embed_rules: dict[tuple[int, int], LogicalAxisRules] = {
        (1, 1): [("embed", None)],
        (2, 1): [("embed", "model")],
        (1, 2): [("embed", "data")],
        (2, 2): [("embed", "model"), ("embed", "data")],
    }
    if dims not in embed_rules:
        raise ValueError(f"activation and parameter_partitioning_dims are {dims}; each must be 1 or 2.")
    sharded = [("vocab", "model"), ("mlp", "model"), ("heads", "model"), ("kv", None), ("joined_kv", "model")]
    replicated = ["relpos_buckets", "abspos_buckets", "length", "layers", "stack", "mlp_activations"]
    return [
        ("batch", "data"),
        *sharded,
        *embed_rules[dims],
        *((name, None) for name in replicated),
        *(additional_rules or ()),
    ]


@dataclasses.dataclass(frozen=True)
class DataLayout:
    """How a global batch is divided among processes.

    Attributes:
      batch_size: examples in the global batch.
      shard_id, num_shards: which of the batch's host shards this process reads.
      is_first_host_in_replica_set: whether it is the first of those that read the same shard.
    """

    batch_size: int
    shard_id: int
    num_shards: int
    is_first_host_in_replica_set: bool


class PjittedFnWithContext:
    """A jitted function that runs and compiles under a mesh and axis rules."""

    def __init__(
        self, pjitted_fn: PartitionedCallable, partition_mesh: Mesh, logical_axis_rules: LogicalAxisRules = ()
    ):
        self._pjitted_fn, self._mesh, self._logical_axis_rules = pjitted_fn, partition_mesh, logical_axis_rules

    def __call__(self, *args, **kwargs):
        with self._mesh, flax_partitioning.axis_rules(self._logical_axis_rules):
            return self._pjitted_fn(*args, **kwargs)

    def lower(self, *args, **kwargs):
        with self._mesh, flax_partitioning.axis_rules(self._logical_axis_rules):
            return self._pjitted_fn.lower(*args, **kwargs)


class BasePartitioner(abc.ABC):
    """Partitions arrays and functions over devices.

    Subclasses give `mesh`, `partition`, `compile` and `get_mesh_axes`; they may override the rest.

    Args: as in `default_mesh`, and
      params_on_devices: accepted for T5X's gin files; parameters always live on the devices.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: HardwareMesh | None = None,
        params_on_devices: bool = True,
        backend: str | None = None,
        ici_mesh_shape: HardwareMesh | None = None,
        dcn_mesh_shape: HardwareMesh | None = None,
    ):
        if not num_partitions and not model_parallel_submesh:
            raise ValueError(f"{type(self).__name__} needs num_partitions or model_parallel_submesh; set one.")
        if num_partitions and model_parallel_submesh and num_partitions not in (1, math.prod(model_parallel_submesh)):
            raise ValueError(
                f"num_partitions {num_partitions} and model_parallel_submesh {model_parallel_submesh} "
                "disagree; set one of them to None."
            )
        self._num_partitions, self._model_parallel_submesh = num_partitions, model_parallel_submesh
        self._backend = backend
        self._ici_mesh_shape, self._dcn_mesh_shape = ici_mesh_shape, dcn_mesh_shape
        many_slices = ici_mesh_shape is not None and dcn_mesh_shape is not None
        self._data_axis: str | tuple[str, ...] | None = ("replica", "data") if many_slices else "data"
        self.params_on_devices = params_on_devices

    @property
    def mesh(self) -> Mesh:
        raise NotImplementedError(f"{type(self).__name__} has no mesh.")

    @property
    def data_partition_spec(self) -> PartitionSpec:
        """The sharding of a batch: its first axis over the data axes."""
        return PartitionSpec(self._data_axis)

    @property
    def data_mesh_size(self) -> int:
        """The number of devices that a batch is divided over."""
        axes = (self._data_axis,) if isinstance(self._data_axis, str) else self._data_axis
        return math.prod(self.mesh.shape[axis] for axis in axes or ())

    @property
    def data_shards(self) -> int:
        """The number of host shards of a batch: processes that hold the same rows read the same one."""
        return len(set(self._batch_rows_by_process.values()))

    @property
    def data_shard_id(self) -> int:
        """Which of the host shards this process reads."""
        rows = self._batch_rows_by_process
        return sorted(set(rows.values())).index(rows[jax.process_index()])

    @cached_property
    def _batch_rows_by_process(self) -> dict[int, tuple[int, ...]]:
        """{process: the rows on its devices} of a batch with one row for each data shard."""
        sharding = NamedSharding(self.mesh, self.data_partition_spec)
        rows: dict[int, set[int]] = {}
        indices = sharding.devices_indices_map((self.data_mesh_size,))
        for device in self.mesh.devices.flat:
            (row,) = indices[device]
            rows.setdefault(device.process_index, set()).add(row.start or 0)
        return {process: tuple(sorted(owned)) for process, owned in sorted(rows.items())}

    def get_data_layout(self, batch_size: int | None = None) -> DataLayout:
        """Returns this process's share of a global batch of `batch_size` (default: one per data shard)."""
        size = self.data_mesh_size
        batch_size = batch_size or size
        if batch_size % size:
            raise ValueError(
                f"batch_size {batch_size} must be a multiple of the {size} data shards; "
                f"nearest {max(batch_size // size, 1) * size} or {(batch_size // size + 1) * size}."
            )
        rows = self._batch_rows_by_process
        readers = [process for process, owned in rows.items() if owned == rows[jax.process_index()]]
        return DataLayout(batch_size, self.data_shard_id, self.data_shards, readers[0] == jax.process_index())

    def shard_batch(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Makes global arrays from this process's share of a batch, {name: [batch / num_shards, …]}."""
        sharding = NamedSharding(self.mesh, self.data_partition_spec)
        return {k: jax.make_array_from_process_local_data(sharding, np.asarray(v)) for k, v in batch.items()}

    def named_shardings(self, specs: Any):
        """Turns a tree of PartitionSpec or None (replicated) into one of NamedSharding."""
        return jax.tree.map(
            lambda spec: NamedSharding(self.mesh, PartitionSpec() if spec is None else spec),
            specs,
            is_leaf=lambda x: x is None or isinstance(x, PartitionSpec),
        )

    def move_params_to_devices(self, train_state: TrainState, train_state_axes: TrainState) -> TrainState:
        """Returns a state whose arrays, NumPy or JAX, are placed as `train_state_axes` (PartitionSpec leaves) says."""
        place = self.partition(lambda state: state, (train_state_axes,), train_state_axes, donate_argnums=(0,))
        return place(train_state)

    def get_logical_axes(self, train_state: TrainState) -> TrainState:
        """Returns the train state with a PartitionSpec of logical axes, or None, in each array's place."""
        return train_state.restore_state(jax.tree.map(lambda x: None, train_state.state_dict()))

    def get_mesh_axes(self, train_state: TrainState) -> TrainState:
        """Returns the train state with a PartitionSpec of mesh axes, or None, in each array's place."""
        raise NotImplementedError(f"{type(self).__name__} has no get_mesh_axes.")

    @abc.abstractmethod
    def partition(
        self, fn: Callable, in_axis_resources, out_axis_resources, static_argnums=(), donate_argnums=()
    ) -> PartitionedCallable:
        """Returns `fn` with its arguments and results placed as the trees of PartitionSpec or None say."""

    @abc.abstractmethod
    def compile(self, partitioned_fn: PartitionedCallable, *args) -> CompiledPartitionedCallable:
        """Returns the function compiled for arguments of these shapes; itself if it cannot be compiled."""


class BasePjitPartitioner(BasePartitioner):
    """Partitions by jax.jit, over the default mesh and without axis rules."""

    @cached_property
    def mesh(self) -> Mesh:
        return default_mesh(
            self._num_partitions,
            self._model_parallel_submesh,
            self._backend,
            self._ici_mesh_shape,
            self._dcn_mesh_shape,
        )

    @property
    def logical_axis_rules(self) -> LogicalAxisRules:
        return ()

    def partition(
        self, fn: Callable, in_axis_resources, out_axis_resources, static_argnums=(), donate_argnums=()
    ) -> PjittedFnWithContext:
        jitted = jax.jit(
            fn,
            in_shardings=self.named_shardings(in_axis_resources),
            out_shardings=self.named_shardings(out_axis_resources),
            static_argnums=static_argnums,
            donate_argnums=donate_argnums,
        )
        return PjittedFnWithContext(jitted, self.mesh, self.logical_axis_rules)

    def compile(self, partitioned_fn: PartitionedCallable, *args) -> CompiledPartitionedCallable:
        return partitioned_fn.lower(*args).compile()


class PjitPartitioner(BasePjitPartitioner):
    """Partitions by logical axis rules.

    Args: as in `BasePartitioner`, and
      logical_axis_rules: (logical axis, mesh axis or None), the first of a name first; see
        standard_logical_axis_rules. Batches are divided as "batch" is.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: HardwareMesh | None = None,
        params_on_devices: bool = True,
        backend: str | None = None,
        ici_mesh_shape: HardwareMesh | None = None,
        dcn_mesh_shape: HardwareMesh | None = None,
        logical_axis_rules: LogicalAxisRules | None = None,
    ):
        super().__init__(
            num_partitions, model_parallel_submesh, params_on_devices, backend, ici_mesh_shape, dcn_mesh_shape
        )
        rules = standard_logical_axis_rules() if logical_axis_rules is None else logical_axis_rules
        if self._data_axis != "data":  # several slices
            rules = [(name, self._data_axis if name == "batch" else axis) for name, axis in rules]
        self._logical_axis_rules = tuple(rules)
        self._data_axis = next((axis for name, axis in rules if name == "batch"), None)

    @property
    def logical_axis_rules(self) -> LogicalAxisRules:
        return self._logical_axis_rules

    def get_logical_axes(self, train_state: TrainState) -> TrainState:
        return train_state.as_logical_axes()

    def get_mesh_axes(self, train_state: TrainState) -> TrainState:
        logical_axes = self.get_logical_axes(train_state)
        flat = traverse_util.flatten_dict(logical_axes.state_dict(), keep_empty_nodes=True, sep="/")
        specs = {name: self._mesh_axes_of(name, axes) for name, axes in flat.items()}
        return logical_axes.restore_state(traverse_util.unflatten_dict(specs, sep="/"))

    def _mesh_axes_of(self, name: str, axes):
        if axes is None or axes is traverse_util.empty_node:
            return axes
        try:
            return flax_partitioning.logical_to_mesh_axes(axes, self.logical_axis_rules)
        except ValueError as error:
            raise ValueError(
                f"{name}: no rule for one of its axes {tuple(axes)} ({error}); "
                "add it with standard_logical_axis_rules.additional_rules."
            ) from error


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
