"""Checksums of a checkpoint's arrays, in it as `checkpoint_<step>/checksums/lowbias32.json`: {name: number or null}.

They are of the values and not of the files, computed where the arrays are: on the devices, before a save and after a
restore. So no byte is read twice, whatever the store; they do not depend on how an array is divided among devices
and processes; and they cover what happens between the devices' memory and the disk. The file has the formula's name:
another formula gets another file, and a checkpoint without this one is read unchecked, as T5X's are.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from t5xpg.base import files

ITEM = "checksums"
FILE_NAME = "lowbias32.json"
_BLOCK = 2**17  # elements that NumPy mixes at a time, in the processor's cache


def handler() -> ocp.CheckpointHandler:
    """Returns what writes and reads the file, as an item of an Orbax checkpoint."""
    return ocp.JsonCheckpointHandler(FILE_NAME)


def of_arrays(arrays: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns {name: checksum} of {name: array}; None for numbers of 8 bytes, which JAX halves except under x64.

    Of several processes all must call it, with the same names.
    """
    sums = {name: checksum(x) if is_held(x) else None for name, x in arrays.items()}
    return {name: None if x is None else int(x) for name, x in sums.items()}


def is_held(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and x.dtype.itemsize <= 4


def checksum(x: jax.Array | np.ndarray) -> Any:
    """Returns the sum of an array's mixed bits, each element's times an odd number that depends on its place, mod 2^32.

    Any change of one element changes it, as the mixing and an odd factor can be undone; any other damage does but for
    one time in 2^32. Unmixed, two flipped sign bits would cancel. A sum of integers is the same in whatever order, so
    XLA may compute it in parts wherever they are. What the CPU has whole, NumPy adds up: it has nothing to compile.

    Args:
      x: of any shape and of a dtype of up to 4 bytes.
    """
    if isinstance(x, jax.Array) and not (x.is_fully_addressable and all(d.platform == "cpu" for d in x.devices())):
        return checksum_on_devices(x)
    values = np.asarray(x)
    words = values.reshape(-1).view(word(values.dtype))
    if values.ndim == 0:
        return mix(words.astype(np.uint32))[0]
    return sum_over_axes(_sum_rows(words.reshape(values.shape)), np)


def _sum_rows(words: np.ndarray) -> np.ndarray:
    """Returns mixed words [..., n] summed over the last axis, a block that fits in the processor's cache at a time."""
    rows = words.reshape(math.prod(words.shape[:-1]), words.shape[-1])
    factors = factors_of(words.shape[-1], words.ndim, np)
    sums = np.zeros(len(rows), np.uint32)
    width = max(1, min(len(factors), _BLOCK))
    height = _BLOCK // width
    for top in range(0, len(rows), height):
        for left in range(0, len(factors), width):
            block = mix(rows[top : top + height, left : left + width].astype(np.uint32))
            sums[top : top + height] += np.einsum("ij,j->i", block, factors[left : left + width])
    return sums.reshape(words.shape[:-1])


@jax.jit
def checksum_on_devices(x: jax.Array) -> jax.Array:
    words = jax.lax.bitcast_convert_type(x.astype(np.uint8) if x.dtype == np.bool_ else x, word(x.dtype))
    return sum_over_axes(mix(words.astype(np.uint32)), jnp)


def word(dtype: Any) -> Any:
    """Returns the unsigned type to see a dtype's bits as."""
    return {1: np.uint8, 2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]


def mix(words: Any) -> Any:
    """Returns a permutation of the uint32 that spreads each bit over all: Wellons' lowbias32 (hash-prospector)."""
    words = words ^ (words >> 16)
    words = words * np.uint32(0x7FEB352D)
    words = words ^ (words >> 15)
    words = words * np.uint32(0x846CA68B)
    return words ^ (words >> 16)


def factors_of(size: int, axis: int, xp: Any) -> Any:
    """Returns odd numbers, uint32 [size], for the places on an array's axis, the first of which is 1."""
    place = xp.arange(size, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(axis)
    return ((place ^ (place >> 15)) * np.uint32(0x85EBCA6B)) | np.uint32(1)


def sum_over_axes(words: Any, xp: Any) -> Any:
    """Returns the sum of uint32 words, each times its factors of all axes, by NumPy or JAX."""
    while words.ndim:
        factors = factors_of(words.shape[-1], words.ndim, xp)
        words = xp.sum(words * xp.broadcast_to(factors, words.shape), -1, dtype=np.uint32)
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
