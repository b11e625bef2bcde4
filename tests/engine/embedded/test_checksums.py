"""Checksums of arrays: the same wherever the array is, and another for any damage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from t5x.embedded import checksums

RNG = np.random.default_rng(0)
ARRAYS = {
    "float32": RNG.normal(size=(3, 4, 5)).astype(np.float32),
    "bfloat16": RNG.normal(size=(7, 3)).astype(jnp.bfloat16),
    "int8": RNG.integers(-128, 127, 33).astype(np.int8),
    "bool": RNG.integers(0, 2, (4, 9)).astype(bool),
    "scalar": np.float32(3),
    "empty": np.zeros((0, 3), np.float32),
    "no columns": np.zeros((3, 0), np.float32),
}


def by_the_formula(x: np.ndarray) -> int:
    """In Python's own integers: the bits of each element, mixed, times the odd factor of each of its indices."""
    total = 0
    for index in np.ndindex(x.shape):
        bits = int.from_bytes(np.asarray(x[index]).tobytes(), "little")
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            bits = (bits ^ bits >> shift) * factor % 2**32
        for axis, i in enumerate(index, 1):
            place = (i * 0x9E3779B1 + axis) % 2**32
            bits *= ((place ^ place >> 15) * 0x85EBCA6B) % 2**32 | 1
        total += bits
    return total % 2**32


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_and_devices_agree_with_the_formula(name):
    x = ARRAYS[name]
    expected = by_the_formula(np.asarray(x))
    assert int(checksums.checksum(np.asarray(x))) == expected
    assert int(checksums.checksum(jnp.asarray(x))) == expected
    assert int(checksums.checksum_on_devices(jnp.asarray(x))) == expected


def test_any_flipped_bit_and_any_swap_is_seen():
    x = ARRAYS["float32"]
    expected = int(checksums.checksum(x))
    words = x.reshape(-1).view(np.uint32)
    for i in range(words.size):
        for bit in range(32):
            damaged = words.copy()
            damaged[i] ^= np.uint32(1 << bit)
            assert int(checksums.checksum(damaged.view(np.float32).reshape(x.shape))) != expected
    for bit in range(32):  # the sign's bit among them, of all elements and of any two
        for others in (range(words.size), (0, 1), (3, 59)):
            damaged = words.copy()
            damaged[list(others)] ^= np.uint32(1 << bit)
            assert int(checksums.checksum(damaged.view(np.float32).reshape(x.shape))) != expected
    assert int(checksums.checksum(x[::-1].copy())) != expected
    assert int(checksums.checksum(x[:, :, ::-1].copy())) != expected
    assert int(checksums.checksum(np.zeros_like(x))) != expected


def test_blocks_change_nothing(monkeypatch):
    for x in (ARRAYS["float32"], ARRAYS["bfloat16"], ARRAYS["int8"]):
        for size in (1, 4, 7):
            monkeypatch.setattr(checksums, "_BLOCK", size)
            assert int(checksums.checksum(x)) == by_the_formula(np.asarray(x))


def test_what_jax_cannot_hold_has_none():
    assert checksums.of_arrays({"step": np.int64(3), "x": np.zeros(2, np.float32)}) == {"step": None, "x": 0}


def test_an_array_on_a_mesh_has_the_checksum_of_the_whole():
    mesh = jax.make_mesh((1,), ("data",))
    x = jax.device_put(ARRAYS["float32"], NamedSharding(mesh, PartitionSpec("data")))
    assert int(checksums.checksum_on_devices(x)) == by_the_formula(ARRAYS["float32"])
