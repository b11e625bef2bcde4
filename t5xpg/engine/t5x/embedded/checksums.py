"""Checksums of a checkpoint's arrays, in it as `checkpoint_<step>/checksums/checksums.json`: {name: number or null}.

They are of the values and not of the files, computed where the arrays are: on the devices, before a save and after a
restore. So no byte is read twice, whatever the store; they do not depend on how an array is divided among devices
and processes; and they cover what happens between the devices' memory and the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from t5xpg.base import files

ITEM = "checksums"
FILE_NAME = "checksums.json"


def handler() -> ocp.CheckpointHandler:
    """Returns what writes and reads the file, as an item of an Orbax checkpoint."""
    return ocp.JsonCheckpointHandler(FILE_NAME)


def of_arrays(arrays: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns {name: checksum} of {name: array}; None for what JAX cannot hold as it is, such as int64.

    Of several processes all must call it, with the same names.
    """
    sums = {name: checksum(x) if is_held(x) else None for name, x in arrays.items()}
    return {name: None if x is None else int(x) for name, x in sums.items()}


def is_held(x: Any) -> bool:
    return isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.dtype.itemsize <= 4)


def checksum(x: jax.Array | np.ndarray) -> Any:
    """Returns the sum of an array's bits, each element's times an odd number that depends on its place, modulo 2^32.

    Any change of one element changes it, as an odd factor has an inverse; any other damage does but for one time in
    2^32. A sum of integers is the same in whatever order, so XLA may compute it in parts wherever they are. What the
    CPU has whole, NumPy adds up: it is faster, and has nothing to compile.

    Args:
      x: of any shape and dtype.
    """
    if isinstance(x, jax.Array) and not (x.is_fully_addressable and all(d.platform == "cpu" for d in x.devices())):
        return checksum_on_devices(x)
    values = np.asarray(x)
    words = values.reshape(-1).view(word(values.dtype)).reshape(values.shape)
    return weighted_sum(words, np, lambda x, f: np.einsum("...i,i->...", x, f))


@jax.jit
def checksum_on_devices(x: jax.Array) -> jax.Array:
    words = jax.lax.bitcast_convert_type(x.astype(np.uint8) if x.dtype == np.bool_ else x, word(x.dtype))
    return weighted_sum(words, jnp, lambda x, f: jnp.sum(x * jnp.broadcast_to(f, x.shape), -1))


def word(dtype: Any) -> Any:
    """Returns the unsigned type to see a dtype's bits as."""
    return {1: np.uint8, 2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]


def weighted_sum(words: Any, xp: Any, reduce: Callable) -> Any:
    """Returns the checksum of unsigned words, by NumPy or JAX: a place's factor is the product of its axes' factors."""
    while words.ndim:
        place = xp.arange(words.shape[-1], dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(words.ndim)
        factors = ((place ^ (place >> 15)) * np.uint32(0x85EBCA6B)) | np.uint32(1)
        words = reduce(words.astype(np.uint32, copy=False), factors)
    return words


def read(path: str) -> dict[str, int | None] | None:
    """Returns a checkpoint's checksums; None for one without, such as T5X's."""
    file = os.path.join(path, ITEM, FILE_NAME)
    return json.loads(files.read_text(file)) if files.exists(file) else None


def check_names(expected: Mapping[str, int | None] | None, names: set[str]) -> None:
    """Raises ValueError unless a checkpoint has the arrays that were saved in it."""
    if expected is not None and expected.keys() != names:
        changed = sorted(expected.keys() ^ names)
        raise ValueError(f"its list of arrays is not what was saved: {len(changed)} differ, {changed[0]} for one")


def check(expected: Mapping[str, int | None] | None, arrays: Mapping[str, jax.Array]) -> None:
    """Raises ValueError that names the first of the arrays that is not what was saved."""
    if expected is None:
        return
    wrong = [name for name, found in of_arrays(arrays).items() if expected[name] not in (None, found)]
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(arrays)} arrays are not what was saved (checksums), {wrong[0]} for one")
