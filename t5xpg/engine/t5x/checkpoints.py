"""Saves and restores train states: `checkpoint_<step>/state/…`, and `dataset/…` where the data's position is kept.

`commit_success.txt`, written last, marks a checkpoint that is whole. On a disk it is written next to its final name
and renamed; a store cannot rename, and a checkpoint without the mark is removed when the run goes on. All classes
write this layout, which T5X writes with Orbax, and `checksums/` besides, and read both it and the legacy one.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gin
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5x.checkpoint_importer import LazyArray
from t5x.embedded import checkpoint_paths, checksums
from t5x.embedded.best_checkpoints import KeepBest, populate_metrics_for_steps
from t5x.embedded.checkpoint_datasets import (
    DatasetArgs,
    DatasetCheckpointHandler,
    UnsavableDatasetError,
    dataset_file_name,
    restore_dataset,
)
from t5x.embedded.checkpoint_paths import all_steps, checkpoint_path, describe_steps, latest_in, latest_step, put_aside
from t5x.embedded.checkpoint_readers import DamagedCheckpointError, flatten, open_checkpoint, unflatten
from t5x.embedded.checkpoint_restoring import StoredArray, has_value, read_in_rounds, restore_state, transformed
from t5x.embedded.contract import refuse_missing
from t5x.embedded.tensorstore_specs import teach_orbax_s3
from t5xpg.base import files, stores

refuse_missing(globals(), "checkpoints")
teach_orbax_s3()

__all__ = [
    "CheckpointManagerConstructor",
    "Checkpointer",
    "CheckpointerConstructor",
    "DamagedCheckpointError",
    "DatasetArgs",
    "DatasetCheckpointHandler",
    "LazyArray",
    "OrbaxCheckpointManagerInterface",
    "RestoreStateTransformationFn",
    "SaveBestCheckpointer",
    "SaveStateTransformationFn",
    "all_steps",
    "checkpoint_path",
    "find_checkpoint",
    "flatten",
    "get_local_data",
    "has_value",
    "latest_step",
    "load_t5x_checkpoint",
    "open_checkpoint",
    "populate_metrics_for_steps",
    "put_aside",
    "restore_dataset",
    "unflatten",
]


class SaveStateTransformationFn(Protocol):
    """Changes what is saved: takes and returns (state dict, the same tree with each leaf's name)."""

    def __call__(self, state_dict: Mapping, parameter_infos: Mapping) -> tuple[Mapping, Mapping]: ...


class RestoreStateTransformationFn(Protocol):
    """Changes what was restored into what the model has.

    `state_dict` has the checkpoint's names. Its leaves have a shape and a dtype and are not read yet; a function moves
    them, drops them, or puts arrays in their places. `target_state_dict` is the model's, by shapes. `is_resuming` says
    that a run goes on with a checkpoint of its own.
    """

    def __call__(self, state_dict: Mapping, target_state_dict: Mapping, *, is_resuming: bool = False) -> Mapping: ...


def cast(tree: Any, dtype: Any) -> Any:
    """Returns a tree of arrays in this dtype; those that have it are themselves."""
    return jax.tree.map(lambda x: x if x.dtype == dtype else x.astype(dtype), tree)


def get_local_data(x):
    """Returns a replicated array's copy on this process's first device; anything else as it is."""
    return x.addressable_data(0) if isinstance(x, jax.Array) else x


@gin.configurable
class OrbaxCheckpointManagerInterface:
    """Writes checkpoints of one run in the background, removes those that need not be kept, and restores.

    Args:
      directory: MODEL_DIR.
      train_state: the train state by shapes (jax.ShapeDtypeStruct leaves).
      partitioner: partitioning.PjitPartitioner.
      dataset_iterator: the training data's iterator, whose position is stored too; None to leave it out.
      save_dtype: parameters are stored in it (optimizer state as it is); None leaves them as they are.
      restore_dtype: parameters are restored in it; None leaves them as stored.
      keep: how many checkpoints to keep, the latest, or the best ones besides the latest; None keeps all.
      period: steps between checkpoints, for `should_save`.
      force_keep_period: checkpoints at its multiples are always kept.
      metric_name_to_monitor: "<folder of event files>/<tag>", such as train/accuracy or training_eval/<task>/loss;
        with it the best checkpoints are kept rather than the latest.
      metric_mode: "max" or "min", whichever is better.
      keep_checkpoints_without_metrics: whether those without a value stay.

    Deviations from T5X: the latest checkpoint is always kept, as its SaveBestCheckpointer documents.
    checkpoint_steps and keep_dataset_checkpoints, which T5X accepts and ignores here, are not accepted.
    """

    def __init__(
        self,
        directory: str,
        train_state,
        partitioner,
        dataset_iterator=None,
        save_dtype: Any = None,
        restore_dtype: Any = None,
        keep: int | None = None,
        period: int | None = 1,
        force_keep_period: int | None = None,
        metric_name_to_monitor: str | None = None,
        metric_mode: str = "max",
        keep_checkpoints_without_metrics: bool = True,
    ):
        self._directory, self._train_state, self._partitioner = os.fspath(directory), train_state, partitioner
        self._dataset_iterator, self._save_dtype, self._restore_dtype = dataset_iterator, save_dtype, restore_dtype
        self._should_write_dataset_ckpt = False
        if dataset_iterator is not None:
            self._layout = partitioner.get_data_layout()
            self._should_write_dataset_ckpt = self._layout.is_first_host_in_replica_set
        self._period, self.metric_name_to_monitor = period, metric_name_to_monitor
        self._kept: dict[str, Any] = {"max_to_keep": keep, "keep_period": force_keep_period}
        if metric_name_to_monitor is not None:
            policy = KeepBest(
                *(self._directory, metric_name_to_monitor, metric_mode, keep, keep_checkpoints_without_metrics),
                force_keep_period,
            )
            self._kept = {"preservation_policy": policy}

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        """Orbax's, made when it is needed: it makes the folder and removes what is unfinished in it."""
        if at_url := stores.is_url(self._directory):
            checkpoint_paths.clear_unfinished(self._directory)
        handlers: dict[str, Any] = {"state": ocp.PyTreeCheckpointHandler(use_ocdbt=True)}
        handlers[checksums.ITEM] = checksums.handler()
        if self._dataset_iterator is not None:
            file_name = dataset_file_name(self._layout)
            handlers["dataset"] = DatasetCheckpointHandler(file_name, self._should_write_dataset_ckpt)
        options = ocp.CheckpointManagerOptions(
            save_interval_steps=self._period or 1,
            step_prefix="checkpoint",
            cleanup_tmp_directories=not at_url,
            temporary_path_class=ocp.path.atomicity.CommitFileTemporaryPath if at_url else None,
            **self._kept,
        )
        return ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)

    @property
    def directory(self) -> epath.Path:
        return epath.Path(stores.absolute(self._directory))

    def all_steps(self) -> Sequence[int]:
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def should_save(self, step: int) -> bool:
        return self._manager.should_save(step)

    def save(
        self, train_state, state_transformation_fns: Sequence[SaveStateTransformationFn] = (), force: bool = True
    ) -> bool:
        """Starts saving the state under its own step.

        Args:
          train_state: what to save.
          state_transformation_fns: applied one after the other to (state dict, names of its leaves).
          force: save although `should_save` says no.

        Returns:
          Whether it is saved; it is not when that step is there already.
        """
        step = int(get_local_data(train_state.step))
        with self._naming_failure():
            if step in self._manager.all_steps() or not (force or self.should_save(step)):
                return False
        state: Mapping[str, Any] = train_state.state_dict()
        names: Mapping[str, Any] = unflatten({name: name if has_value(x) else x for name, x in flatten(state).items()})
        for fn in state_transformation_fns:
            state, names = fn(state, names)
        if self._save_dtype is not None:
            state = {**state, "target": cast(state["target"], self._save_dtype)}
        items: dict[str, Any] = {"state": ocp.args.PyTreeSave(state)}
        leaves = {name: x for name, x in flatten(state).items() if has_value(x)}
        items[checksums.ITEM] = ocp.args.JsonSave(checksums.of_arrays(leaves))
        if self._dataset_iterator is not None:
            items["dataset"] = DatasetArgs(self._dataset_iterator)
        with self._naming_failure():
            return self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def restore(
        self,
        step: int | None = None,
        path: str | None = None,
        fallback_state: Mapping | None = None,
        state_transformation_fns: Sequence[RestoreStateTransformationFn] = (),
    ):
        """Returns the train state of a checkpoint, in arrays of their own.

        Args:
          step: one of this folder's checkpoints; None for the latest.
          path: a checkpoint anywhere, or a folder of them with the latest, instead of a step.
          fallback_state: a state dict with the values of what the checkpoint lacks.
          state_transformation_fns: see RestoreStateTransformationFn.

        Raises:
          ValueError: there is no such checkpoint, it lacks arrays, or shapes differ.
          DamagedCheckpointError: its files cannot be read.

        The data's position, where a dataset_iterator was given and the checkpoint has it, is restored first.
        """
        if path is not None and step is not None:
            raise ValueError(f"restore takes a step or a path; it was given both, {step} and {path}.")
        path = find_checkpoint(self._directory, step) if path is None else latest_in(path)
        if self._dataset_iterator is not None:
            restore_dataset(path, self._dataset_iterator, self._layout)
        return restore_state(
            path,
            self._train_state,
            self._partitioner.get_mesh_axes(self._train_state),
            self._partitioner.mesh,
            self._restore_dtype,
            state_transformation_fns,
            fallback_state,
        )

    def is_saving_in_progress(self) -> bool:
        return self._manager.is_saving_in_progress()

    def wait_until_finished(self) -> None:
        with self._naming_failure():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save and releases the manager's threads."""
        if "_manager" in vars(self):
            with self._naming_failure():
                self._manager.close()

    @contextlib.contextmanager
    def _naming_failure(self):
        """Turns what a failed save raises (in the background, so perhaps later) into one line with what to do."""
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError, UnsavableDatasetError):
            raise
        except Exception as error:  # OSError, and what TensorStore makes of it
            if stores.is_url(folder := self._directory):
                named, what = stores.named(folder, error), " ".join(str(error).split())[:300]
                detail = f" ({what})" if isinstance(named, stores.MissingError) else ""  # which file it was
                raise OSError(f"A checkpoint could not be written: {named}{detail}") from error
            kept, cause = all_steps(folder), str(error).strip().split("\n")[0] or type(error).__name__
            last = f"the last whole one is {checkpoint_path(folder, kept[-1])}" if kept else "there is none yet"
            raise OSError(
                f"A checkpoint could not be written to {folder}: {cause}. Once that is mended (is the disk full?), the "
                f"same command goes on; {last}."
            ) from error


class Checkpointer(OrbaxCheckpointManagerInterface):
    """T5X's other interface to the same checkpoints: `save` waits until they are written; the arguments differ.

    Args:
      train_state, partitioner, dataset_iterator, keep, restore_dtype: as in OrbaxCheckpointManagerInterface.
      checkpoints_dir: the folder to save in; "" where there is nothing to save.
      save_dtype: parameters are stored in it.
      keep_dataset_checkpoints: accepted for T5X's callers; the data's position goes with its checkpoint.

    Deviation from T5X: it writes the layout of Orbax, not the legacy one.
    """

    def __init__(
        self,
        train_state,
        partitioner,
        checkpoints_dir: str,
        dataset_iterator=None,
        *,
        keep: int | None = None,
        save_dtype: Any = np.float32,
        restore_dtype: Any = None,
        keep_dataset_checkpoints: int | None = None,
        **best: Any,
    ):
        del keep_dataset_checkpoints
        super().__init__(
            checkpoints_dir, train_state, partitioner, dataset_iterator, save_dtype, restore_dtype, keep, **best
        )

    def save(
        self, train_state, state_transformation_fns: Sequence[SaveStateTransformationFn] = (), force: bool = True
    ) -> bool:
        saved = super().save(train_state, state_transformation_fns, force)
        self.wait_until_finished()
        return saved


@gin.configurable
class SaveBestCheckpointer(Checkpointer):
    """Keeps the best checkpoints by a metric, and the latest; see OrbaxCheckpointManagerInterface.

    As SaveCheckpointConfig.checkpointer_cls it hands its settings to the checkpoint manager.
    """

    def __init__(
        self,
        train_state,
        partitioner,
        checkpoints_dir: str,
        dataset_iterator=None,
        *,
        keep: int | None = None,
        save_dtype: Any = np.float32,
        restore_dtype: Any = None,
        metric_name_to_monitor: str = "train/accuracy",
        metric_mode: str = "max",
        keep_checkpoints_without_metrics: bool = True,
        force_keep_period: int | None = None,
        keep_dataset_checkpoints: int | None = None,
    ):
        self.best = {
            "metric_name_to_monitor": metric_name_to_monitor,
            "metric_mode": metric_mode,
            "keep_checkpoints_without_metrics": keep_checkpoints_without_metrics,
            "force_keep_period": force_keep_period,
        }
        super().__init__(
            train_state,
            partitioner,
            checkpoints_dir,
            dataset_iterator,
            keep=keep,
            save_dtype=save_dtype,
            restore_dtype=restore_dtype,
            keep_dataset_checkpoints=keep_dataset_checkpoints,
            **self.best,
        )


class CheckpointerConstructor(Protocol):
    """A Checkpointer class, or one with arguments bound."""

    def __call__(
        self,
        train_state,
        partitioner,
        checkpoints_dir: str,
        dataset_iterator=None,
        *,
        keep: int | None = None,
        save_dtype: Any = np.float32,
        restore_dtype: Any = None,
        keep_dataset_checkpoints: int | None = None,
    ) -> Checkpointer: ...


class CheckpointManagerConstructor(Protocol):
    """An OrbaxCheckpointManagerInterface class, or one with arguments bound."""

    def __call__(
        self,
        directory: str,
        train_state,
        partitioner,
        dataset_iterator=None,
        save_dtype: Any = None,
        restore_dtype: Any = None,
        keep: int | None = None,
        period: int | None = None,
        force_keep_period: int | None = None,
    ) -> OrbaxCheckpointManagerInterface: ...


def find_checkpoint(path: str, step: int | None = None) -> str:
    """Returns the checkpoint_<step> folder that `path` and `step` name.

    Args:
      path: the folder itself, the index file of a legacy one, or a folder of checkpoints.
      step: which, in a folder of checkpoints; None for the latest.

    Raises:
      ValueError: there is no such checkpoint.

    Deviation: T5X's returns the index file, and so finds legacy checkpoints only.
    """
    path = os.fspath(path)
    if files.is_file(path):
        path = os.path.dirname(path)
    if step is not None and step not in all_steps(path):
        raise ValueError(f"There is no checkpoint of step {step} in {path}; {describe_steps(path)}.")
    path = latest_in(path) if step is None else checkpoint_path(path, step)
    open_checkpoint(path)
    return path


def load_t5x_checkpoint(
    path: str,
    step: int | None = None,
    state_transformation_fns: Sequence[RestoreStateTransformationFn] = (),
    restore_dtype: Any = None,
    lazy_parameters: bool = False,
) -> dict[str, Any]:
    """Returns a checkpoint's whole state dict, of either layout, without a model.

    Args:
      path, step: see find_checkpoint.
      state_transformation_fns: see RestoreStateTransformationFn; their target is empty.
      restore_dtype: parameters are restored in it; None leaves them as stored.
      lazy_parameters: give LazyArrays, each of which is read when it is asked for.

    Returns:
      {"target": {…}, "state": {…}} of NumPy arrays.
    """
    reader = open_checkpoint(find_checkpoint(path, step))
    leaves = transformed(reader.arrays, {}, state_transformation_fns)
    stored = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, StoredArray)}
    cpu = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    placements = {name: (cpu, restore_dtype if name.startswith("target/") else None) for name in stored}

    def read(names: Mapping[str, StoredArray]) -> dict[str, np.ndarray]:
        return {name: np.asarray(x) for name, x in read_in_rounds(reader, names, placements).items()}

    def lazy(name: str) -> LazyArray:
        leaf, dtype = stored[name], placements[name][1]
        return LazyArray(leaf.shape, leaf.dtype if dtype is None else dtype, lambda: read({name: leaf})[name])

    values = {name: lazy(name) for name in stored} if lazy_parameters else read(stored)
    return unflatten(leaves | values)
