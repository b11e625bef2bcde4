"""When a run saves, and where it starts from: what gin files bind as `utils.SaveCheckpointConfig` and its siblings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from t5x.checkpoints import (
    Checkpointer,
    OrbaxCheckpointManagerInterface,
    RestoreStateTransformationFn,
    SaveStateTransformationFn,
)
from t5x.embedded.checkpoint_paths import agreed_steps, checkpoint_path, describe_steps
from t5x.embedded.checkpoint_restoring import AssignmentMap, drop_what_the_model_lacks
from t5xpg.base import stores

DTYPES = (None, "float32", "bfloat16", "float16")


@dataclasses.dataclass
class SaveCheckpointConfig:
    """When and how to save.

    Attributes:
      dtype: parameters are stored in it (optimizer state as it is). T5X's Orbax path ignores this value.
      period: steps between checkpoints; None saves only at checkpoint_steps.
      checkpoint_steps: further steps to save at.
      keep: how many of the latest to keep; None keeps all.
      keep_dataset_checkpoints: accepted for T5X's gin files, whose Orbax path ignores it as well.
      save_dataset: whether to store the position in the training data, so that a restart repeats no data.
      checkpointer_cls: checkpoints.SaveBestCheckpointer keeps the best checkpoints by a metric, as bound in gin.
      state_transformation_fns: applied to what is saved, one after the other.
      checkpoint_manager_cls: writes and restores a run's checkpoints.
    """

    dtype: str | None = "float32"
    period: int | None = None
    checkpoint_steps: Sequence[int] | None = None
    keep: int | None = None
    keep_dataset_checkpoints: int | None = None
    save_dataset: bool = False
    checkpointer_cls: Callable[..., Checkpointer] = Checkpointer
    state_transformation_fns: Sequence[SaveStateTransformationFn] = ()
    checkpoint_manager_cls: Callable[..., OrbaxCheckpointManagerInterface] = OrbaxCheckpointManagerInterface

    def __post_init__(self):
        check_dtype("SaveCheckpointConfig", self.dtype)


@dataclasses.dataclass
class RestoreCheckpointConfig:
    """Where to start from.

    Attributes:
      path: a checkpoint (mode "specific"), or a folder of them ("latest", "all"), on a disk, gs:// or s3://; [] for
        none. With "specific" too a folder of them, a MODEL_DIR, stands for its latest, which T5X does not find.
      mode: "specific", "latest" or "all".
      assignment_map: (pattern, replacement) pairs. A pattern matches a whole name in the model
        ("target/encoder/…"); the replacement is its name in the checkpoint, or None not to restore it.
      strict: whether a checkpoint with parameters that the model lacks is refused. T5X drops them in silence, and
        asks with this whether to restore all of TensorFlow's older checkpoints.
      fallback_to_scratch: initialize what the checkpoint lacks.
      dtype: parameters are restored in it; None leaves them as stored.
      restore_dataset: whether to restore the position in the training data too.
      checkpointer_cls: reads in TrainStateInitializer.from_checkpoint.
      state_transformation_fns: applied to what is restored, one after the other; assignment_map's comes first.
      checkpoint_manager_cls: reads in the programs; the same as in SaveCheckpointConfig.
    """

    path: str | Sequence[str]
    mode: str = "latest"
    assignment_map: Sequence[tuple[str, str | None]] | None = None
    strict: bool = True
    fallback_to_scratch: bool = False
    dtype: str | None = None
    restore_dataset: bool = False
    checkpointer_cls: Callable[..., Checkpointer] = Checkpointer
    state_transformation_fns: Sequence[RestoreStateTransformationFn] = ()
    checkpoint_manager_cls: Callable[..., OrbaxCheckpointManagerInterface] = OrbaxCheckpointManagerInterface

    def __post_init__(self):
        check_dtype("RestoreCheckpointConfig", self.dtype)
        if isinstance(self.path, str | os.PathLike):
            self.path = stores.plain(self.path)
        else:
            self.path = [stores.plain(path) for path in self.path or ()]
        if self.mode not in ("specific", "latest", "all"):
            raise ValueError(f"RestoreCheckpointConfig.mode is {self.mode!r}; use 'specific', 'latest' or 'all'.")
        if self.assignment_map:
            renaming = AssignmentMap(tuple((pattern, replacement) for pattern, replacement in self.assignment_map))
            if renaming not in self.state_transformation_fns:  # dataclasses.replace runs this again
                self.state_transformation_fns = (renaming, *self.state_transformation_fns)

        if not self.strict and drop_what_the_model_lacks not in self.state_transformation_fns:
            self.state_transformation_fns = (*self.state_transformation_fns, drop_what_the_model_lacks)

    def found_checkpoint_paths(self) -> list[str]:
        """Returns `checkpoint_paths`; raises ValueError where there is none."""
        if paths := self.checkpoint_paths():
            return paths
        folders = [self.path] if isinstance(self.path, str) else list(self.path)
        raise ValueError(
            f"There is no finished checkpoint in {', '.join(folders) or self.path} (RestoreCheckpointConfig.path); "
            f"{'; '.join(map(describe_steps, folders)) or 'name one'}."
        )

    def checkpoint_paths(self) -> list[str]:
        """Returns the checkpoints this configuration names, oldest first; none for a folder without any.

        Of several processes all must call it, and have the same from it (see `agreed_steps`).
        """
        paths = [self.path] if isinstance(self.path, str) else list(self.path)
        if self.mode == "specific":
            return [checkpoint_path(path, steps[-1]) if (steps := agreed_steps(path)) else path for path in paths]
        found = [checkpoint_path(folder, step) for folder in paths for step in agreed_steps(folder)]
        return found[-1:] if self.mode == "latest" else found


@dataclasses.dataclass
class CheckpointConfig:
    save: SaveCheckpointConfig | None = None
    restore: RestoreCheckpointConfig | None = None


def check_dtype(where: str, dtype: str | None) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"{where}.dtype is {dtype!r}; use one of {DTYPES}.")
