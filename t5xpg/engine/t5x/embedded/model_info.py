"""model-info.txt: every parameter and optimizer variable with its size, shape and sharding."""

from __future__ import annotations

import math

import jax

from t5x.checkpoints import flatten, has_value


def count_parameters(train_state) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(train_state.params))


def write_model_info(path: str, train_state, partitioner) -> None:
    """Writes the table for a train state (by values or by shapes), from process 0."""
    if jax.process_index() != 0:
        return
    values = flatten(train_state.state_dict())
    logical = flatten(partitioner.get_logical_axes(train_state).state_dict())
    specs = flatten(partitioner.get_mesh_axes(train_state).state_dict())

    def line(name: str) -> str:
        value, axes = values[name], logical.get(name)
        named = axes is not None and len(axes) == len(value.shape)
        parts = [f"{axis}={size}" for axis, size in zip(axes, value.shape, strict=True)] if named else value.shape
        shape = f"({', '.join(map(str, parts))})"
        spec = specs.get(name)
        spec = None if spec is None else tuple(spec)
        return f"Variable {short(name):<80} size {math.prod(value.shape):<12} shape {shape:<40} partition spec {spec}"

    def short(name: str) -> str:
        return name.split("/", 1)[1]

    def section(prefix: str) -> list[str]:
        return [line(name) for name in sorted(values) if name.startswith(prefix) and has_value(values[name])]

    total = f"Total number of parameters: {count_parameters(train_state)}"
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*section("target/"), total, "", *section("state/")]) + "\n")
