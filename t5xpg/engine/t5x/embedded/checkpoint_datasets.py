"""The position in the training data, stored next to the state: `checkpoint_<step>/dataset/…`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from t5x.embedded.checkpoint_readers import DamagedCheckpointError, raised_by_all
from t5xpg.base import files, stores


class UnsavableDatasetError(ValueError):
    """The training data reads from a source whose position TensorFlow cannot store."""


def dataset_file_name(layout) -> str:
    return f"train_ds-{layout.shard_id:03}-of-{layout.num_shards:03}"


def process_folder() -> str:
    return f"process_{jax.process_index()}-of-{jax.process_count()}" if jax.process_count() > 1 else ""


class DatasetCheckpointHandler(ocp.CheckpointHandler):
    """Stores the position in the training data; the first of the processes that read a shard writes its file.

    Args:
      checkpoint_filename: of this process's shard.
      should_write_dataset_ckpt: whether this process writes it.
    """

    def __init__(self, checkpoint_filename: str, should_write_dataset_ckpt: bool):
        self._file_name, self._writes = checkpoint_filename, should_write_dataset_ckpt

    def save(self, directory: epath.Path, args: DatasetArgs) -> None:
        if not self._writes:
            return
        from tensorflow import errors  # late: a state without data is saved without TensorFlow

        if folder := process_folder():
            directory = directory / folder
            directory.mkdir(parents=False, exist_ok=False)
        try:
            with written(os.fspath(directory / self._file_name)) as prefix:
                args.item.save(prefix)
        except (errors.FailedPreconditionError, errors.UnimplementedError) as error:
            raise UnsavableDatasetError(
                "SaveCheckpointConfig.save_dataset = True, and the position in the training data cannot be saved: its "
                "source runs Python. Cache the task with `t5xpg cache` and train with use_cached = True, or leave "
                f"save_dataset out. ({error.message.splitlines()[0]})"
            ) from error

    def restore(self, directory: epath.Path, args: DatasetArgs) -> Any:
        """Moves the iterator to where it was and returns it."""
        with readable(os.fspath(directory / process_folder() / self._file_name)) as prefix:
            args.item.restore(prefix)
        return args.item


@ocp.args.register_with_handler(DatasetCheckpointHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class DatasetArgs(ocp.args.CheckpointArgs):
    item: Any = None


def restore_dataset(path: str, train_iter, layout) -> bool:
    """Moves `train_iter` to where it was when checkpoint `path` was saved; False when that was not stored.

    Raises:
      DamagedCheckpointError: it was stored, and one of the processes cannot read it.
    """
    prefix = os.path.join(path, "dataset", process_folder(), dataset_file_name(layout))
    with raised_by_all(path):
        if not files.exists(prefix + ".index"):
            return False
        with readable(prefix) as copy, naming_damaged_position(path):
            train_iter.restore(copy)
    return True


@contextlib.contextmanager
def naming_damaged_position(path: str) -> Iterator[None]:
    """Turns what TensorFlow raises where its files are cut short or altered into a DamagedCheckpointError.

    Where they are whole and do not fit the data, it raises a subclass of OpError.
    """
    from tensorflow import errors

    try:
        yield
    except Exception as error:
        if type(error) not in (errors.OpError, errors.DataLossError, IndexError):
            raise
        found = str(error).split("\n")[0]
        raise DamagedCheckpointError(f"{path} cannot be read: its position in the data ({found})") from error


def written(prefix: str) -> contextlib.AbstractContextManager[str]:
    """Gives TensorFlow a path to write files to whose names begin with `prefix`, which may be a URL."""
    if not stores.is_url(prefix):
        return contextlib.nullcontext(prefix)
    from t5x.embedded import tf_memory

    return tf_memory.sent(prefix)


def readable(prefix: str) -> contextlib.AbstractContextManager[str]:
    """As `written`, to read them."""
    if not stores.is_url(prefix):
        return contextlib.nullcontext(prefix)
    from t5x.embedded import tf_memory

    return tf_memory.fetched(prefix)
