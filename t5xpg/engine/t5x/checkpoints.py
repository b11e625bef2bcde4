"""Saves and restores train states: `checkpoint_<step>/state/…`, and `dataset/…` where the data's position is kept.

A checkpoint is written beside its final name and renamed when it is whole; `commit_success.txt` marks it so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from t5x.embedded.checkpoint_readers import LEGACY_INDEX, DamagedCheckpointError, flatten, open_checkpoint, unflatten  # noqa: F401, DamagedCheckpointError is part of this module

DTYPES = (None, "float32", "bfloat16", "float16")


@dataclasses.dataclass
class SaveCheckpointConfig:
    """When and how to save.

    Attributes:
      dtype: parameters are stored in it (optimizer state as it is). T5X's Orbax path ignores this value.
      period: steps between checkpoints; None saves only at checkpoint_steps.
      checkpoint_steps: further steps to save at.
      keep: how many of the latest to keep; None keeps all.
      save_dataset: whether to store the position in the training data, so that a restart repeats none.
      keep_dataset_checkpoints: accepted for T5X's gin files, whose Orbax path ignores it as well.
    """

    dtype: str | None = "float32"
    period: int | None = None
    checkpoint_steps: Sequence[int] | None = None
    keep: int | None = None
    keep_dataset_checkpoints: int | None = None
    save_dataset: bool = False

    def __post_init__(self):
        check_dtype("SaveCheckpointConfig", self.dtype)


@dataclasses.dataclass
class RestoreCheckpointConfig:
    """Where to start from.

    Attributes:
      path: a checkpoint (mode "specific"), or a folder of them ("latest", "all"); [] for none.
      mode: "specific", "latest" or "all".
      assignment_map: (pattern, replacement) pairs. A pattern matches a whole name in the model
        ("target/encoder/…"); the replacement is its name in the checkpoint, or None not to restore it.
      strict: whether every parameter must be found (always so here, fallback_to_scratch aside).
      fallback_to_scratch: initialize what the checkpoint lacks.
      dtype: parameters are restored in it; None leaves them as stored.
      restore_dataset: whether to restore the position in the training data too.
    """

    path: str | Sequence[str]
    mode: str = "latest"
    assignment_map: Sequence[tuple[str, str | None]] | None = None
    strict: bool = True
    fallback_to_scratch: bool = False
    dtype: str | None = None
    restore_dataset: bool = False

    def __post_init__(self):
        check_dtype("RestoreCheckpointConfig", self.dtype)
        if self.mode not in ("specific", "latest", "all"):
            raise ValueError(f"RestoreCheckpointConfig.mode is {self.mode!r}; use 'specific', 'latest' or 'all'.")

    def checkpoint_paths(self) -> list[str]:
        """Returns the checkpoints this configuration names, oldest first; none for a folder without any."""
        paths = [self.path] if isinstance(self.path, str) else list(self.path)
        if self.mode == "specific":
            return paths
        found = [checkpoint_path(folder, step) for folder in paths for step in all_steps(folder)]
        return found[-1:] if self.mode == "latest" else found


@dataclasses.dataclass
class CheckpointConfig:
    save: SaveCheckpointConfig | None = None
    restore: RestoreCheckpointConfig | None = None


def check_dtype(where: str, dtype: str | None) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"{where}.dtype is {dtype!r}; use one of {DTYPES}.")


def checkpoint_path(folder: str, step: int) -> str:
    return os.path.join(folder, f"checkpoint_{step}")


def all_steps(folder: str) -> list[int]:
    """Returns the steps of the finished checkpoints in `folder`, in increasing order; [] without a folder."""
    if not os.path.isdir(folder):
        return []
    named = (re.fullmatch(r"checkpoint_(\d+)", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in named if match and is_finished(os.path.join(folder, match[0])))


def is_finished(path: str) -> bool:
    """Whether a checkpoint was written to its end: Orbax's marker, or the legacy format's index, is there."""
    return any(os.path.exists(os.path.join(path, name)) for name in ("commit_success.txt", LEGACY_INDEX))


def put_aside(path: str) -> str:
    """Renames a damaged checkpoint so that it no longer counts as one, and its step can be saved anew."""
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f"damaged_{name}")
    if jax.process_index() == 0:
        names = itertools.chain([aside], (f"{aside}.{i}" for i in itertools.count(1)))
        aside = next(name for name in names if not os.path.exists(name))
        os.rename(path, aside)
    multihost_utils.sync_global_devices(f"put aside {path}")
    return aside


class CheckpointManager:
    """Writes checkpoints of one run in the background, and removes the oldest beyond `cfg.keep`.

    Args:
      directory: MODEL_DIR.
      cfg: how to save.
      train_iter: the training data's iterator, whose position is stored with cfg.save_dataset.
      data_layout: which shard of the data this process reads (names its file).
    """

    def __init__(self, directory: str, cfg: SaveCheckpointConfig, train_iter=None, data_layout=None):
        self._cfg = cfg
        self._directory = directory
        self._dataset = (
            DatasetArgs(train_iter, dataset_file_name(data_layout), data_layout.is_first_host_in_replica_set)
            if cfg.save_dataset
            else None
        )
        handlers: dict[str, Any] = {"state": ocp.PyTreeCheckpointHandler(use_ocdbt=True)}
        if self._dataset is not None:
            handlers["dataset"] = DatasetHandler()
        self._manager = ocp.CheckpointManager(
            os.path.abspath(directory),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=cfg.keep, step_prefix="checkpoint", cleanup_tmp_directories=True
            ),
            item_handlers=handlers,
        )

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, train_state) -> bool:
        """Starts saving the state under its own step; returns False when that step is there already."""
        step = int(train_state.step)
        if step in self._manager.all_steps():
            return False
        state = train_state.state_dict()
        dtypes = {"target": None if self._cfg.dtype is None else jnp.dtype(self._cfg.dtype)}
        save_args = {
            key: jax.tree.map(lambda _, dtype=dtypes.get(key): ocp.SaveArgs(dtype=dtype), tree)
            for key, tree in state.items()
        }
        items: dict[str, Any] = {"state": ocp.args.PyTreeSave(state, save_args=save_args)}
        if self._dataset is not None:
            items["dataset"] = self._dataset
        with self._naming_failure():
            return self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def wait_until_finished(self) -> None:
        with self._naming_failure():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save and releases the manager's threads."""
        with self._naming_failure():
            self._manager.close()

    @contextlib.contextmanager
    def _naming_failure(self):
        """Turns what a failed save raises (in the background, so perhaps later) into one line with what to do."""
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:  # OSError, and what TensorStore makes of it
            folder, kept = self._directory, all_steps(self._directory)
            cause = str(error).strip().split("\n")[0] or type(error).__name__
            last = f"the last whole one is {checkpoint_path(folder, kept[-1])}" if kept else "there is none yet"
            raise OSError(
                f"A checkpoint could not be written to {folder}: {cause}. Once that is mended (is the disk full?), the "
                f"same command goes on; {last}."
            ) from error


def dataset_file_name(layout) -> str:
    return f"train_ds-{layout.shard_id:03}-of-{layout.num_shards:03}"


class DatasetHandler(ocp.CheckpointHandler):
    """Stores the position in the training data; each process that reads a shard first writes its own file."""

    def save(self, directory: epath.Path, args: DatasetArgs) -> None:
        if not args.is_writer:
            return
        if jax.process_count() > 1:
            directory = directory / process_folder()
            directory.mkdir(parents=False, exist_ok=False)
        args.train_iter.save(os.fspath(directory / args.file_name))

    def restore(self, directory: epath.Path, args: DatasetArgs) -> None:
        raise ValueError("The data's position is restored by restore_dataset, before the train state is.")


@ocp.args.register_with_handler(DatasetHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class DatasetArgs(ocp.args.CheckpointArgs):
    train_iter: Any
    file_name: str
    is_writer: bool


def process_folder() -> str:
    return f"process_{jax.process_index()}-of-{jax.process_count()}"


def restore_dataset(path: str, train_iter, layout) -> bool:
    """Moves `train_iter` to where it was when checkpoint `path` was saved; False when that was not stored."""
    folder = os.path.join(path, "dataset", process_folder() if jax.process_count() > 1 else "")
    prefix = os.path.join(folder, dataset_file_name(layout))
    if not os.path.exists(prefix + ".index"):
        return False
    train_iter.restore(prefix)
    return True


def restore_state(path: str, cfg: RestoreCheckpointConfig, wanted, mesh_axes, mesh, scratch=None):
    """Reads a checkpoint into the form of a train state.

    Args:
      path: a checkpoint folder.
      cfg: assignment_map, dtype and fallback_to_scratch apply.
      wanted: the train state by shapes (jax.ShapeDtypeStruct leaves).
      mesh_axes: the same tree with PartitionSpec leaves.
      mesh: the device mesh.
      scratch: () -> a freshly initialized train state, for what the checkpoint lacks.

    Returns:
      A train state with arrays placed on the mesh.

    Raises:
      ValueError: names what is missing, and every shape that differs.
      DamagedCheckpointError: the files cannot be read.
    """
    shapes, specs = flatten(wanted.state_dict()), flatten(mesh_axes.state_dict())
    reader = open_checkpoint(path)
    stored = reader.arrays
    sources = match_names(list(shapes), stored, cfg.assignment_map or ())
    missing = sorted(name for name in shapes if name not in sources and has_value(shapes[name]))
    check_shapes(path, shapes, stored, sources)
    fresh = flatten(scratch().state_dict()) if may_fill(path, missing, stored, cfg, scratch) else {}

    dtype = None if cfg.dtype is None else jnp.dtype(cfg.dtype)
    placements = {
        source: (NamedSharding(mesh, specs[name] or PartitionSpec()), dtype if name.startswith("target/") else None)
        for name, source in sources.items()
    }
    values = reader.read(placements)
    result = {name: values[sources[name]] if name in sources else shape for name, shape in shapes.items()}
    result |= {name: fresh[name] for name in missing}
    return wanted.restore_state(unflatten(result))


def match_names(names: list[str], stored: Mapping[str, Any], assignment_map) -> dict[str, str]:
    """Returns {name in the model: name in the checkpoint} for all that the checkpoint has.

    The first pattern that matches a name decides; names without one keep their own.
    """
    used, sources = set(), {}
    for name in names:
        rule = next(((p, r) for p, r in assignment_map if re.fullmatch(p, name)), None)
        if rule is None:
            if name in stored and has_value(stored[name]):
                sources[name] = name
            continue
        pattern, replacement = rule
        used.add(pattern)
        if replacement is None:
            continue
        source = re.fullmatch(pattern, name).expand(replacement)
        if source not in stored:
            raise ValueError(
                f"assignment_map maps {name} to {source}, which the checkpoint lacks; it has {sorted(stored)}."
            )
        sources[name] = source
    unused = sorted({pattern for pattern, _ in assignment_map} - used)
    if unused:
        raise ValueError(f"assignment_map patterns {unused} match no name in the model; it has {sorted(names)}.")
    return sources


def has_value(stored: Any) -> bool:
    return stored is not None and stored is not traverse_util.empty_node


def check_shapes(path: str, shapes: Mapping, stored: Mapping, sources: Mapping[str, str]) -> None:
    """Raises ValueError naming every parameter whose stored shape is not the model's."""
    differing = [
        f"{name} is {tuple(stored[source].shape)} there and {tuple(shapes[name].shape)} in the model"
        for name, source in sources.items()
        if tuple(stored[source].shape) != tuple(np.shape(shapes[name]))
    ]
    if differing:
        raise ValueError(f"{path} does not fit the model: {'; '.join(differing)}. Use the gin it was trained with.")


def may_fill(path: str, missing: list[str], stored: Mapping, cfg: RestoreCheckpointConfig, scratch) -> bool:
    """Whether values must be initialized for `missing` names; raises ValueError when they may not be.

    A checkpoint that holds no optimizer state at all (an exported or imported model) may start a new one.
    """
    if not missing:
        return False
    has_optimizer = any(name.startswith("state/param_states") for name in stored)
    optimizer_only = all(name.startswith("state/") for name in missing)
    if scratch is not None and (cfg.fallback_to_scratch or (optimizer_only and not has_optimizer)):
        logging.warning("Not in %s, so initialized from scratch: %s", path, missing)
        return True
    raise ValueError(
        f"{path} lacks {missing}; map them with RestoreCheckpointConfig.assignment_map, or bind "
        "fallback_to_scratch = True to initialize them."
    )
