"""Reads the arrays of a checkpoint by name, from either of T5X's layouts.

Orbax's, which T5X and this engine write: `checkpoint_<step>/state/…`. The legacy one, which Google's released T5
checkpoints use: `checkpoint_<step>/checkpoint`, a msgpack index with the small arrays in it, next to one zarr
folder for each large array.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from flax import serialization, traverse_util
from jax.experimental import multihost_utils

from t5x.embedded import checksums, tensorstore_specs
from t5x.embedded.checkpoint_paths import LEGACY_INDEX, describe_steps, is_finished
from t5xpg.base import files, stores

GROUP_BYTES = 2**30  # read at a time where arrays are cast: what is needed beyond the result

OF_THE_MACHINE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
OF_THE_MACHINE |= {errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN}  # a file system's server is gone


class DamagedCheckpointError(ValueError):
    """A checkpoint that cannot be read: some of its files are missing, cut short or altered."""


def open_checkpoint(path: str) -> OrbaxReader | LegacyReader:
    """Opens a `checkpoint_<step>` folder of either layout.

    A reader has `arrays`, {"target/…" or "state/…": something with a shape}, and `read`.

    Raises:
      ValueError: there is no such checkpoint.
      DamagedCheckpointError: there is one, but its list of arrays cannot be read, or at a URL its marker is not there.
    """
    if files.is_folder(os.path.join(path, "state")):
        if stores.is_url(path) and not is_finished(path):
            raise DamagedCheckpointError(f"{path} cannot be read: it was not written to its end")
        return OrbaxReader(path)
    if files.is_file(os.path.join(path, LEGACY_INDEX)):
        return LegacyReader(path)
    raise ValueError(
        f"{path} is not a T5X checkpoint: it holds neither a folder 'state' nor a file 'checkpoint'. Pass a "
        f"checkpoint_<step> folder, or a folder of them; {describe_steps(path)}."
    )


class OrbaxReader:
    def __init__(self, path: str):
        self._path = path
        self._folder = epath.Path(stores.absolute(path)) / "state"
        self._handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True)
        with naming_damage(path):
            self.arrays: Mapping[str, Any] = flatten(self._handler.metadata(self._folder).tree)
            self._checksums = checksums.read(path)
            checksums.check_names(self._checksums, {name for name, x in self.arrays.items() if hasattr(x, "shape")})

    def read(self, wanted: Mapping[str, tuple[jax.sharding.Sharding, Any]]) -> dict[str, jax.Array]:
        """Returns {name: array} for {name: (sharding, dtype or None to keep the stored one)}.

        Raises:
          DamagedCheckpointError: a file cannot be read, or an array is not what its checksum says was saved.
        """
        kept = {n: sharding for n, (sharding, dtype) in wanted.items() if dtype in (None, self.arrays[n].dtype)}
        arrays = self._read_stored(kept) if kept else {}
        # Checksums are of the stored values, so others are cast after they were read, a few at a time.
        for names in in_groups({name: self.arrays[name] for name in wanted if name not in kept}, GROUP_BYTES):
            stored = self._read_stored({name: wanted[name][0] for name in names})
            arrays |= {name: x.astype(wanted[name][1]) for name, x in stored.items()}
        return arrays

    def _read_stored(self, wanted: Mapping[str, jax.sharding.Sharding]) -> dict[str, jax.Array]:
        """Returns {name: array as stored} for {name: sharding}."""
        restore_args = {name: ocp.ArrayRestoreArgs(sharding=sharding) for name, sharding in wanted.items()}
        args = ocp.args.PyTreeRestore(
            item=unflatten(dict.fromkeys(wanted, 0)), restore_args=unflatten(restore_args), partial_restore=True
        )
        # As ocp.Checkpointer does, which would wait for a process that found damage.
        with raised_by_all(self._path), naming_damage(self._path), contextlib.closing(self._handler):
            arrays = flatten(self._handler.restore(self._folder, args=args))
        with raised_by_all(self._path), naming_damage(self._path):
            checksums.check(self._checksums, arrays)
        return arrays


def in_groups(arrays: Mapping[str, Any], max_bytes: int) -> Iterator[list[str]]:
    """Yields the names in groups of at most `max_bytes`, or of one array that is larger by itself."""
    group: list[str] = []
    size = 0
    for name, x in arrays.items():
        num_bytes = math.prod(x.shape) * np.dtype(x.dtype).itemsize
        if group and size + num_bytes > max_bytes:
            yield group
            group, size = [], 0
        group.append(name)
        size += num_bytes
    if group:
        yield group


class LegacyReader:
    def __init__(self, path: str):
        self._path = path
        with naming_damage(path):
            index = serialization.msgpack_restore(files.read_bytes(os.path.join(path, LEGACY_INDEX)))
            if index["version"] < 2:
                raise ValueError(f"its version is {index['version']}; versions 2 and 3 can be read")
            leaves = traverse_util.flatten_dict(
                index["optimizer"], is_leaf=lambda _, node: "driver" in node, keep_empty_nodes=True, sep="/"
            )
            self.arrays: Mapping[str, Any] = {
                name: open_zarr(path, leaf["kvstore"].get("path") or leaf["path"]) if is_zarr(leaf) else leaf
                for name, leaf in leaves.items()
            }

    def read(self, wanted: Mapping[str, tuple[jax.sharding.Sharding, Any]]) -> dict[str, jax.Array]:
        """Returns {name: array} for {name: (sharding, dtype or None to keep the stored one)}.

        Each device reads only its own part.
        """
        with raised_by_all(self._path), naming_damage(self._path):
            return {name: place(self.arrays[name], *placement) for name, placement in wanted.items()}


def is_zarr(leaf: Any) -> bool:
    return isinstance(leaf, dict) and "kvstore" in leaf


def open_zarr(path: str, name: str) -> ts.TensorStore:
    """Opens a zarr folder inside the checkpoint; the index names it, and may name nothing outside."""
    folder, parent = os.path.join(path, name.rstrip("/")), path
    if not stores.is_url(path):  # where a link inside may lead elsewhere
        folder, parent = os.path.realpath(stores.absolute(folder)), os.path.realpath(stores.absolute(path))
    if os.path.dirname(folder) != parent.rstrip("/") or os.path.basename(folder) in ("", ".", ".."):
        raise ValueError(f"its index names {name!r}, which is not a folder in it")
    kvstore = tensorstore_specs.key_value_store(folder)
    return ts.open({"driver": "zarr", "kvstore": kvstore, "fill_missing_data_reads": False}, open=True).result()


def place(stored: Any, sharding: jax.sharding.Sharding, dtype: Any) -> jax.Array:
    """Returns a TensorStore or NumPy array as a jax.Array with this sharding."""

    def part(index: tuple[slice, ...]) -> np.ndarray:
        values = stored[index].read().result() if isinstance(stored, ts.TensorStore) else np.asarray(stored)[index]
        return values if dtype is None else values.astype(dtype)

    # JAX calls it with an index for every shard, though its annotation has None as well.
    return jax.make_array_from_callback(tuple(np.shape(stored)), sharding, part)  # type: ignore[arg-type]


@contextlib.contextmanager
def naming_damage(path: str):
    """Turns whatever a damaged file makes a reader raise into a DamagedCheckpointError that names the checkpoint.

    What says nothing about the checkpoint stays as it is: a store that fails, which is a StoreError, and a machine that
    has no right, no memory, no connection, or too many open files (see OF_THE_MACHINE).
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # Orbax raises no narrower class for a file that is cut short
        if stores.is_url(path) and stores.is_failure(error):
            raise stores.named(path, error) from error
        if is_of_the_machine(error):
            raise
        cause = str(error.__cause__ or error).strip().split("\n")[0] or type(error).__name__
        raise DamagedCheckpointError(f"{path} cannot be read: {cause}") from error


@contextlib.contextmanager
def raised_by_all(path: str) -> Iterator[None]:
    """Lets all processes find damage that one of them finds in the block, as they must go on from one checkpoint.

    All must enter the block, which may not communicate once one of them has failed. Any other error is for
    `peers.reporting`, which ends them all.

    Raises:
      DamagedCheckpointError: the block raised it here, or in another process.
      ValueError: the processes read checkpoints of different names.
    """
    error = None
    try:
        yield
    except DamagedCheckpointError as raised:
        error = raised
    if jax.process_count() > 1:
        found = np.array([error is not None, zlib.crc32(stores.name(path).encode())], np.uint32)
        failed, names = multihost_utils.process_allgather(found).T
        if (names != names[0]).any():
            raise ValueError(f"The processes of this run read different checkpoints, this one {path}; start it again.")
        by = np.flatnonzero(failed)
        if by.size and error is None:
            raise DamagedCheckpointError(f"{path} cannot be read by process {by[0]}")
    if error is not None:
        raise error


def is_of_the_machine(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, has a number of OF_THE_MACHINE; TensorStore has it in its text."""
    while error is not None:
        found = re.search(r"\[os_error_code='(\d+)'\]", str(error))
        if (int(found[1]) if found else getattr(error, "errno", None)) in OF_THE_MACHINE:
            return True
        error = error.__cause__ or error.__context__
    return False


def flatten(tree: Mapping) -> dict[str, Any]:
    """Flattens nested dicts to {"a/b/c": leaf}; empty dicts stay, as nodes that unflatten restores."""
    return traverse_util.flatten_dict(tree, keep_empty_nodes=True, sep="/")


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    return traverse_util.unflatten_dict(flat, sep="/")
