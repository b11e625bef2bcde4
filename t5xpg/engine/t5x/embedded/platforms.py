"""Which machine a program is for, and what its fastest form depends on that for, as it is traced."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence

import jax
from flax.linen import partitioning as flax_partitioning

_standing_in: list[Sequence[jax.Device]] = []


def devices(backend: str | None = None) -> Sequence[jax.Device]:
    """Returns all devices of a backend (default: JAX's own), or those that stand in for them."""
    return _standing_in[-1] if _standing_in else jax.devices(backend)


@contextlib.contextmanager
def standing_in(devices: Sequence[jax.Device]) -> Iterator[None]:
    """Makes the meshes that are made in the block of `devices`, which may be of a slice to compile for only."""
    _standing_in.append(devices)
    try:
        yield
    finally:
        _standing_in.pop()


def mesh_of_this_trace() -> jax.sharding.Mesh:
    """Returns the mesh that is in force, as it is inside a partitioned function; an empty one where none is."""
    with warnings.catch_warnings():
        # JAX has no other way to ask for the mesh of `with mesh:`, which flax's axis rules need.
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.interpreters import pxla

        return pxla.thread_resources.env.physical_mesh


def constrain(x: jax.Array, names: Sequence[str]) -> jax.Array:
    """Returns x [batch, length, *features], divided as the logical axes `names` are by the mesh and the rules in force.

    flax's own `with_sharding_constraint` does nothing in a mesh of `with mesh:` that it is not told of. Nothing is said
    of an array that the mesh does not divide evenly, and where it divides batches only, which XLA follows.

    Where it divides parameters over the batches' chips (parameter_partitioning_dims=2 with num_partitions=1), XLA left
    to itself computes sums in parts, each of the whole batch; told, it gathers kernels, and keeps them for the backward
    pass unless layers are scanned. So it is told where there are more positions than features: T5 1.1 XL in two
    microbatches needs 16 GiB of a v5e:8x8's chip instead of 315, but two layers of 8192 x 131072 for 512 positions
    would need 31 of an l4:4's instead of 12.6.
    """
    parts = [ways(name) for name in names]
    if any(size % part for size, part in zip(x.shape, parts, strict=True)):
        return x
    spread = ways("embed") > 1 and math.prod(x.shape[:2]) >= math.prod(x.shape[2:])
    if ways("mlp") == 1 and not spread:
        return x
    return flax_partitioning.with_sharding_constraint(x, tuple(names), mesh=mesh_of_this_trace())


def axes(name: str) -> tuple[str, ...]:
    """Returns the axes of the mesh in force that a logical axis is divided over, by the rules in force."""
    (found,) = flax_partitioning.logical_to_mesh_axes((name,)) or (None,)
    names = (found,) if isinstance(found, str) else tuple(found or ())
    return tuple(axis for axis in names if axis in mesh_of_this_trace().shape)


def ways(name: str) -> int:
    """Returns into how many parts a logical axis is divided."""
    return math.prod(mesh_of_this_trace().shape[axis] for axis in axes(name))


def of_this_trace() -> str:
    """Returns "cpu", "tpu" or "gpu": the platform of the mesh in force, or JAX's default where there is none.

    The mesh counts, as a program can be compiled for devices that are not here. `lax.platform_dependent` chooses later
    and needs no mesh, but what is differentiated through it keeps what all of its forms need.
    """
    mesh = mesh_of_this_trace()
    return jax.default_backend() if mesh.empty else mesh.devices.flat[0].platform


def product(inputs: jax.Array, kernel: jax.Array, num_axes: int) -> jax.Array:
    """[*kept, *multiplied], [*multiplied, *features] -> [*kept, *features]; `num_axes` are multiplied away.

    On a CPU it is of matrices [tokens, features]: a third dimension would cost XLA the fast product. For a TPU that
    would cost copies, as 114 positions are stored as 120: compiled for v5e:2x2, a step of T5 1.1 base (batch 128)
    accessed 175 GB a chip. With this and `vocab_axis` it accesses 139.
    """
    kept, features = inputs.shape[:-num_axes], kernel.shape[num_axes:]
    if of_this_trace() == "cpu":
        size = math.prod(kernel.shape[:num_axes])
        return (inputs.reshape(-1, size) @ kernel.reshape(size, -1)).reshape(*kept, *features)
    over = tuple(range(len(kept), inputs.ndim)), tuple(range(num_axes))
    return jax.lax.dot_general(inputs, kernel, (over, ((), ())))


def before_loops(*arrays: jax.Array) -> Sequence[jax.Array]:
    """Returns the arrays, which XLA computes before the loop around, if there is one, where no turn changes them.

    By itself it takes products out of a loop, but not what only moves their numbers: transposing the encoder's keys and
    values at every step was a third of the time of a search with 4 beams on a CPU. For a TPU it makes no difference.
    """
    return jax.lax.optimization_barrier(arrays)
