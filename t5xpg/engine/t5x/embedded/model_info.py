"""model-info.txt: every parameter and optimizer variable with its size, shape and sharding."""

from __future__ import annotations

import math

import jax

from t5x.checkpoints import flatten
from t5x.embedded.checkpoint_restoring import has_value


def count_parameters(train_state) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(train_state.params))


def model_info_lines(train_state, partitioner) -> list[str]:
    """Returns the table for a train state (by values or by shapes), in T5X's words."""
    values = flatten(train_state.state_dict())
    logical = flatten(partitioner.get_logical_axes(train_state).state_dict())
    specs = flatten(partitioner.get_mesh_axes(train_state).state_dict())

    def line(name: str) -> str:
        value, axes, spec = values[name], logical.get(name), specs.get(name)
        short = name.split("/", 1)[1]
        if value is None:
            return f"Variable    {short:<80} None"
        shape = str(tuple(value.shape))
        if axes is not None and len(axes) == len(value.shape):
            shape = f"({', '.join(f'{axis}={size}' for axis, size in zip(axes, value.shape, strict=True))})"
        spec = None if spec is None else tuple(spec)
        return f"Variable {short:<80} size {math.prod(value.shape):<12} shape {shape:<40} partition spec {spec}"

    def section(prefix: str) -> list[str]:
        names = sorted((name for name in values if name.startswith(prefix)), key=lambda name: name.split("/"))
        return [line(name) for name in names if values[name] is None or has_value(values[name])]

    total = f"Total number of parameters: {count_parameters(train_state)}"
    return [*section("target/"), total, "", *section("state/")]
