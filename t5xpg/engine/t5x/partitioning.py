"""Where arrays live: a mesh of devices with axes `data` and `model`, and rules from logical axes to it.

One code path serves one device, many devices and many processes. Parameters and activations carry logical
axis names ("embed", "mlp", …); a priority-ordered list of rules maps each name to a mesh axis or to None
(replicated); XLA's partitioner does the rest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LogicalAxisRules = Sequence[tuple[str, str | None]]


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
    embed_rules = {
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


class PartitionedFn:
    """A jitted function that runs and compiles under the partitioner's mesh and axis rules."""

    def __init__(self, jitted: Callable, mesh: Mesh, rules: LogicalAxisRules):
        self._jitted, self._mesh, self._rules = jitted, mesh, rules

    def __call__(self, *args):
        with self._mesh, flax_partitioning.axis_rules(self._rules):
            return self._jitted(*args)

    def lower(self, *args):
        with self._mesh, flax_partitioning.axis_rules(self._rules):
            return self._jitted.lower(*args)


class PjitPartitioner:
    """Partitions arrays and functions over all devices by logical axis rules.

    Args:
      num_partitions: devices that share one copy of the model (the mesh's `model` axis).
      model_parallel_submesh: alternative to num_partitions, a TPU tile (x, y, z, core). Its size is what
        counts here: JAX itself places the mesh on the hardware, where T5X does so by hand.
      params_on_devices: accepted for T5X's gin files; parameters always live on the devices.
      backend: restricts the mesh to devices of that backend.
      ici_mesh_shape, dcn_mesh_shape: (replica, data, model) within and across slices or hosts.
      logical_axis_rules: see standard_logical_axis_rules.

    Deviation from T5X: it ignores num_partitions on CPU and shards every model over all of a host's CPU
    devices; here num_partitions means the same everywhere.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: Sequence[int] | None = None,
        params_on_devices: bool = True,
        backend: str | None = None,
        ici_mesh_shape: Sequence[int] | None = None,
        dcn_mesh_shape: Sequence[int] | None = None,
        logical_axis_rules: LogicalAxisRules | None = None,
    ):
        if not num_partitions and not model_parallel_submesh:
            raise ValueError("PjitPartitioner needs num_partitions or model_parallel_submesh; set one.")
        if model_parallel_submesh is not None:
            if num_partitions and num_partitions != math.prod(model_parallel_submesh) and num_partitions != 1:
                raise ValueError(
                    f"num_partitions {num_partitions} and model_parallel_submesh {model_parallel_submesh} "
                    "disagree; set one of them to None."
                )
            num_partitions = math.prod(model_parallel_submesh)
        self._num_partitions = num_partitions
        self._backend = backend
        self._ici_mesh_shape, self._dcn_mesh_shape = ici_mesh_shape, dcn_mesh_shape
        self.params_on_devices = params_on_devices
        self.data_axes = ("replica", "data") if self._is_multi_slice else ("data",)
        rules = standard_logical_axis_rules() if logical_axis_rules is None else logical_axis_rules
        if self._is_multi_slice:
            rules = [(name, self.data_axes if name == "batch" else axis) for name, axis in rules]
        self.logical_axis_rules = tuple(rules)

    @property
    def _is_multi_slice(self) -> bool:
        return self._ici_mesh_shape is not None and self._dcn_mesh_shape is not None

    @cached_property
    def mesh(self) -> Mesh:
        """The devices as [data, model], or as [replica, data, model] when both mesh shapes are given."""
        devices = jax.devices(self._backend)
        if self._is_multi_slice:
            grid = mesh_utils.create_hybrid_device_mesh(
                self._ici_mesh_shape,
                self._dcn_mesh_shape,
                devices,
                process_is_granule=not hasattr(devices[0], "slice_index"),  # only TPUs have slices
            )
            return Mesh(grid, ("replica", "data", "model"))
        if len(devices) % self._num_partitions:
            raise ValueError(
                f"num_partitions {self._num_partitions} does not divide the {len(devices)} "
                f"{devices[0].platform} devices; use one of {divisors(len(devices))}."
            )
        shape = (len(devices) // self._num_partitions, self._num_partitions)
        return Mesh(mesh_utils.create_device_mesh(shape, devices), ("data", "model"))

    @property
    def data_partition_spec(self) -> PartitionSpec:
        """The sharding of a batch: its first axis over the data axes."""
        return PartitionSpec(self.data_axes if self._is_multi_slice else "data")

    @property
    def data_mesh_size(self) -> int:
        """Over how many devices a batch is divided."""
        return math.prod(self.mesh.shape[axis] for axis in self.data_axes)

    @cached_property
    def _batch_rows_by_process(self) -> dict[int, tuple[int, ...]]:
        """Which rows of the data mesh each process holds devices of."""
        rows: dict[int, set[int]] = {}
        for row, devices in enumerate(self.mesh.devices.reshape(self.data_mesh_size, -1)):
            for device in devices:
                rows.setdefault(device.process_index, set()).add(row)
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
        shards = sorted(set(rows.values()))
        mine = rows[jax.process_index()]
        readers = [process for process, owned in rows.items() if owned == mine]
        return DataLayout(batch_size, shards.index(mine), len(shards), readers[0] == jax.process_index())

    def shard_batch(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Makes global arrays of this process's share of a batch, {name: [batch / num_shards, …]}."""
        sharding = NamedSharding(self.mesh, self.data_partition_spec)
        return {k: jax.make_array_from_process_local_data(sharding, np.asarray(v)) for k, v in batch.items()}

    def get_logical_axes(self, train_state):
        return train_state.as_logical_axes()

    def get_mesh_axes(self, train_state):
        """Returns the train state with a PartitionSpec, or None, in each array's place."""
        logical_axes = train_state.as_logical_axes()
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

    def named_shardings(self, specs: Any):
        """Turns a tree of PartitionSpec or None (replicated) into one of NamedSharding."""
        return jax.tree.map(
            lambda spec: NamedSharding(self.mesh, PartitionSpec() if spec is None else spec),
            specs,
            is_leaf=lambda x: x is None or isinstance(x, PartitionSpec),
        )

    def partition(
        self, fn: Callable, in_axis_resources, out_axis_resources, static_argnums=(), donate_argnums=()
    ) -> PartitionedFn:
        """Jits `fn` with its arguments and results placed as the trees of PartitionSpec or None say."""
        jitted = jax.jit(
            fn,
            in_shardings=self.named_shardings(in_axis_resources),
            out_shardings=self.named_shardings(out_axis_resources),
            static_argnums=static_argnums,
            donate_argnums=donate_argnums,
        )
        return PartitionedFn(jitted, self.mesh, self.logical_axis_rules)

    def compile(self, partitioned_fn: PartitionedFn, *args):
        """Compiles a partitioned function for arguments of these shapes."""
        return partitioned_fn.lower(*args).compile()


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
