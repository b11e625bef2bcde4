"""How much of each device's memory a run needs; a run that cannot fit is refused, with what to change.

Two estimates, both per device once the arrays are divided: of parameters, optimizer state and gradients, from their
shapes, before anything is allocated; and XLA's own, once it has compiled the training step, of all that the step
needs besides its arguments (activations, gradients, scratch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import psutil
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LESS = (
    "lower BATCH_SIZE or TASK_FEATURE_LENGTHS, raise trainer.Trainer.num_microbatches, take a model of "
    "t5x/examples/scalable_t5 (its remat_policy keeps fewer activations)"
)
MORE_DEVICES = "divide it over more devices by partitioning.PjitPartitioner.num_partitions"


def bytes_on_device(shapes: Any, specs: Any, mesh: Mesh) -> int:
    """Returns the bytes of arrays of these shapes, each divided over the mesh axes that its PartitionSpec names.

    None in `shapes` stands for no array: MultiOptimizer keeps no state for a parameter that is in no group.
    """
    total = 0
    leaves = jax.tree.leaves(shapes, is_leaf=lambda x: x is None)
    specs = jax.tree.leaves(specs, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec))
    for x, spec in zip(leaves, specs, strict=True):
        if x is None:
            continue
        local = NamedSharding(mesh, PartitionSpec() if spec is None else spec).shard_shape(x.shape)
        total += math.prod(local) * x.dtype.itemsize
    return total


def state_parts(state: Any, axes: Any, mesh: Mesh, training: bool = True) -> dict[str, int]:
    """Returns {part: bytes on each device} of a train state given by shapes, with gradients if `training`."""
    parameters = bytes_on_device(state.params, axes.params, mesh)
    parts = {"parameters": parameters}
    if training:
        parts["optimizer"] = bytes_on_device(state.param_states, axes.param_states, mesh)
        parts["gradients"] = parameters
    return parts


def free_on_device(mesh: Mesh) -> int | None:
    """Returns the free bytes of the mesh's device that has the fewest; None where no device tells.

    CPU devices share what their machine has left.
    """
    mine = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    if mine[0].platform == "cpu":
        free = psutil.virtual_memory().available / len(mine)
    else:
        stats = [device.memory_stats() or {} for device in mine]
        free = min(x.get("bytes_limit", math.inf) - x.get("bytes_in_use", 0) for x in stats)
    # All processes must come to the same conclusion. Float32 is near enough, and JAX has no int64 by default.
    free = float(np.min(multihost_utils.process_allgather(np.float32(free))))
    return int(free) if math.isfinite(free) else None


def check_state(parts: Mapping[str, int], mesh: Mesh) -> str:
    """Describes the parts of a state (see state_parts) and the free memory; to be called before it is allocated.

    Raises:
      ValueError: what stays allocated (gradients may come and go) cannot fit; it names the bindings to change.
    """
    free = free_on_device(mesh)
    listed = ", ".join(f"{name} {in_words(size)}" for name, size in parts.items())
    text = f"{in_words(sum(parts.values()))} a device ({listed}), and activations"
    if free is None:
        return text
    if sum(parts.values()) - parts.get("gradients", 0) > free:
        raise ValueError(
            f"The model needs {text}, and {describe_free(free, mesh)}: take smaller network.T5Config sizes, "
            f"an OPTIMIZER with less state (adafactor.Adafactor), or {MORE_DEVICES}."
        )
    return f"{text}; {describe_free(free, mesh)}"


def check_step(compiled: jax.stages.Compiled, mesh: Mesh) -> None:
    """Checks that what XLA will allocate for a compiled step fits; its arguments are allocated already.

    Raises:
      ValueError: it does not; the message names the bindings to change.
    """
    needed, free = bytes_of_step(compiled), free_on_device(mesh)
    if needed is None or free is None or needed <= free:
        return
    raise ValueError(
        f"The training step needs {in_words(needed)} a device for activations and gradients, and "
        f"{describe_free(free, mesh)}: {LESS}, or {MORE_DEVICES}."
    )


def bytes_of_step(compiled: jax.stages.Compiled) -> int | None:
    """Returns the bytes a compiled function needs per device besides its arguments; None where XLA does not tell."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        return None
    return sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes


def in_use() -> dict[str, float]:
    """Returns {TensorBoard's tag: bytes}: what this process has in memory, and the most that a device of its had."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    found = {"memory/process_bytes": float(psutil.Process().memory_info().rss)}
    if known := [peak for peak in peaks if peak]:
        found["memory/device_peak_bytes"] = float(max(known))
    return found


def describe_free(free: int, mesh: Mesh) -> str:
    count, platform = mesh.devices.size, mesh.devices.flat[0].platform
    where = f"the {platform} device" if count == 1 else f"each of {count} {platform} devices"
    return f"{in_words(free)} are free on {where}"


def in_words(size: float) -> str:
    if size < 1000:
        return f"{size:.0f} bytes"
    power = min(int(math.log10(size)) // 3, 4)
    return f"{size / 1000**power:.3g} {('kB', 'MB', 'GB', 'TB')[power - 1]}"
