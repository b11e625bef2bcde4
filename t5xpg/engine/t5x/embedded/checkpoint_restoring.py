"""A checkpoint's arrays in the form of a train state: transformed, checked, read onto the devices and completed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from t5x.embedded import console
from t5x.embedded.checkpoint_readers import flatten, open_checkpoint, raised_by_all, unflatten


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array of a checkpoint that is not read yet; state transformations move these around.

    Attributes:
      name: in the checkpoint, "target/…" or "state/…".
      shape, dtype: as stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class AssignmentMap:
    """The state transformation that RestoreCheckpointConfig.assignment_map asks for.

    Attributes:
      rules: (pattern, replacement) pairs. The first pattern that matches a whole name in the model decides: the
        replacement is its name in the checkpoint, or None not to restore it. Names that none matches keep their own.
    """

    rules: tuple[tuple[str, str | None], ...]

    def __call__(self, state_dict: Mapping, target_state_dict: Mapping, *, is_resuming: bool = False) -> Mapping:
        """Returns `state_dict` under the model's names; unchanged where a run goes on from its own checkpoint."""
        if is_resuming:
            return state_dict
        stored, wanted = flatten(state_dict), flatten(target_state_dict)
        sources = {name: rule for name in wanted if (rule := self._source(name)) is not None}
        if unused := sorted({p for p, _ in self.rules} - {pattern for pattern, _ in sources.values()}):
            has = console.name_some(parameters_first(wanted))
            raise ValueError(f"assignment_map patterns {unused} match no name in the model; it has {has}.")
        for name, (_, source) in sources.items():
            if source is not None and source not in stored:
                has = console.name_some(parameters_first(stored))
                raise ValueError(f"assignment_map maps {name} to {source}, which the checkpoint lacks; it has {has}.")
        used = {source for _, source in sources.values()}
        result = {name: x for name, x in stored.items() if name in wanted or name not in used}
        result |= {name: stored[source] for name, (_, source) in sources.items() if source is not None}
        dropped = {name for name, (_, source) in sources.items() if source is None}
        return unflatten({name: x for name, x in result.items() if name not in dropped})

    def _source(self, name: str) -> tuple[str, str | None] | None:
        """Returns (pattern that matches, name in the checkpoint or None), or None where no pattern matches."""
        for pattern, replacement in self.rules:
            if match := re.fullmatch(pattern, name):
                return pattern, None if replacement is None else match.expand(replacement)
        return None


def drop_what_the_model_lacks(state_dict: Mapping, target_state_dict: Mapping, *, is_resuming: bool = False) -> Mapping:
    """The state transformation that RestoreCheckpointConfig.strict = False asks for; it says what it drops."""
    del is_resuming
    stored = flatten(state_dict)
    if extra := names_beyond(flatten(target_state_dict), stored):
        console.say(f"Not in the model, so not restored: {console.name_some(extra)}")
    return unflatten({name: x for name, x in stored.items() if name not in extra})


def parameters_first(names: Iterable[str]) -> list[str]:
    """Returns the names sorted, those of the model before those of the optimizer's state."""
    return sorted(names, key=lambda name: (not name.startswith("target/"), name))


def names_beyond(wanted: Mapping, stored: Mapping) -> list[str]:
    """Returns the parameters of a checkpoint that are not in the model."""
    return sorted(name for name in stored if name.startswith("target/") and name not in wanted)


def restore_state(
    path: str,
    wanted,
    mesh_axes,
    mesh: jax.sharding.Mesh,
    dtype: Any = None,
    state_transformation_fns: Sequence = (),
    fallback_state: Mapping | None = None,
):
    """Reads a checkpoint into the form of a train state.

    Args:
      path: a checkpoint folder.
      wanted: the train state by shapes (jax.ShapeDtypeStruct leaves).
      mesh_axes: the same tree with PartitionSpec leaves.
      mesh: the device mesh.
      dtype: parameters are restored in it; None leaves them as stored.
      state_transformation_fns: (state dict, target state dict) -> state dict, applied one after the other. Leaves of
        the first are StoredArrays, and what a function puts in their places may be arrays.
      fallback_state: a state dict with the values of what the checkpoint lacks. It is read only where
        something is missing.

    Returns:
      A train state with arrays placed on the mesh.

    Raises:
      ValueError: names what is missing, parameters that the model lacks, and shapes that differ.
      DamagedCheckpointError: the files cannot be read.
    """
    shapes, specs = flatten(wanted.state_dict()), flatten(mesh_axes.state_dict())
    with raised_by_all(path):
        reader = open_checkpoint(path)
    found = transformed(reader.arrays, wanted.state_dict(), state_transformation_fns)
    if extra := names_beyond(shapes, {name: x for name, x in found.items() if has_value(x)}):
        raise ValueError(
            f"{path} holds parameters that the model lacks: {console.name_some(extra)}. Use the gin it was trained "
            "with, or bind utils.RestoreCheckpointConfig.strict = False to go without them."
        )
    found = {name: x for name, x in found.items() if name in shapes and has_value(x)}
    missing = parameters_first(name for name in shapes if name not in found and has_value(shapes[name]))
    check_shapes(path, shapes, found)
    fresh = flatten(dict(fallback_state)) if missing and fallback_state is not None else {}
    if lacking := [name for name in missing if name not in fresh]:
        raise ValueError(
            f"{path} lacks {console.name_some(lacking)}; map them with RestoreCheckpointConfig.assignment_map, or "
            "bind fallback_to_scratch = True to initialize them."
        )
    if missing:
        console.say(f"Not in {path}, so initialized from scratch: {console.name_some(missing)}")

    dtype = None if dtype is None else jnp.dtype(dtype)
    placements = {
        name: (NamedSharding(mesh, specs[name] or PartitionSpec()), dtype if name.startswith("target/") else None)
        for name in [*found, *missing]
    }
    read = read_in_rounds(reader, {name: x for name, x in found.items() if isinstance(x, StoredArray)}, placements)
    given = {name: x for name, x in found.items() if name not in read} | {name: fresh[name] for name in missing}
    placed = {name: place(x, *placements[name]) for name, x in given.items()}
    return wanted.restore_state(unflatten({**shapes, **read, **placed}))


def transformed(arrays: Mapping[str, Any], target: Mapping, fns: Sequence) -> dict[str, Any]:
    """Returns {name: StoredArray, or what a transformation made of it} of a checkpoint's arrays."""
    tree = unflatten(
        {
            name: StoredArray(name, tuple(np.shape(x)), getattr(x, "dtype", None)) if has_value(x) else x
            for name, x in arrays.items()
        }
    )
    for fn in fns:
        tree = fn(tree, target)
    return flatten(tree)


def read_in_rounds(reader, found: Mapping[str, StoredArray], placements: Mapping[str, tuple]) -> dict[str, jax.Array]:
    """Reads {name in the model: stored array}. Names that share one get an array each, as training donates them."""
    result: dict[str, jax.Array] = {}
    left = dict(found)
    while left:
        names = {stored.name: name for name, stored in left.items()}  # stored name -> one name in the model
        values = reader.read({source: placements[name] for source, name in names.items()})
        result |= {name: values[source] for source, name in names.items()}
        left = {name: stored for name, stored in left.items() if name not in result}
    return result


def place(value: Any, sharding: NamedSharding, dtype: Any) -> jax.Array:
    return jax.device_put(value if dtype is None else value.astype(dtype), sharding)


def has_value(stored: Any) -> bool:
    return stored is not None and stored is not traverse_util.empty_node


def check_shapes(path: str, shapes: Mapping, found: Mapping) -> None:
    """Raises ValueError naming arrays whose shapes are not the model's."""
    differing = [
        f"{name} is {np.shape(found[name])} there and {np.shape(shapes[name])} in the model"
        for name in parameters_first(found)
        if np.shape(found[name]) != np.shape(shapes[name])
    ]
    if differing:
        raise ValueError(
            f"{path} does not fit the model: {console.name_some(differing)}. Use the gin it was trained with."
        )
