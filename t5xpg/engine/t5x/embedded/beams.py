"""Sequences, beams and caches: what sampling and beam search are made of.

The decodes of one example lie next to each other: an axis `rows` is batch * beams, and `offset` says which axis of a
cache it is (1 where layers are scanned).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import FrozenDict, freeze
from jax import lax

Cache = Any  # nested dicts of arrays

# How many scores `top_k` takes the maximum of.
BLOCK = 128
# Leaves of the cache that all examples and decodes share.
SHARED_LEAVES = ("cached_bias", "position_embedder_index")


# The axis of beams


def add_beam_dim(x: jax.Array, beam_size: int, offset: int = 0) -> jax.Array:
    """Repeats every example along a new axis: [batch, …] becomes [batch, beam_size, …]."""
    return jnp.repeat(jnp.expand_dims(x, offset + 1), beam_size, axis=offset + 1)


def flatten_beam_dim(x: jax.Array, offset: int = 0) -> jax.Array:
    """Joins the axes of examples and beams: [batch, beams, …] becomes [batch * beams, …]."""
    return x.reshape(*x.shape[:offset], -1, *x.shape[offset + 2 :])


def unflatten_beam_dim(x: jax.Array, batch_size: int, beam_size: int, offset: int = 0) -> jax.Array:
    """Splits the axis of examples and beams: [batch * beams, …] becomes [batch, beams, …]."""
    return x.reshape(*x.shape[:offset], batch_size, beam_size, *x.shape[offset + 1 :])


def flat_batch_beam_expand(x: jax.Array, beam_size: int, offset: int = 0) -> jax.Array:
    """Repeats every example of the batch axis `offset` in place: [a, b] becomes [a, a, b, b] with `beam_size` 2."""
    return jnp.repeat(x, beam_size, axis=offset)


def pick(x: jax.Array, indices: jax.Array, offset: int = 0) -> jax.Array:
    """Returns x[b, indices[b, i]]: x [batch, n, …] and int32 [batch, m] give [batch, m, …], from axis `offset` on.

    Batched over the examples, so that a batch split over devices stays where it is.
    """
    take = partial(jnp.take, axis=offset, mode="clip")
    return jax.vmap(take, in_axes=(offset, 0), out_axes=offset)(x, indices)


def pick_rows(x: jax.Array, parents: jax.Array, offset: int) -> jax.Array:
    """Gives every row of the axis `offset` what its parent had: `parents` is [batch, beams]."""
    batch, size = parents.shape
    return pick(unflatten_beam_dim(x, batch, size, offset), parents, offset).reshape(x.shape)


def best(scores: jax.Array, count: int) -> jax.Array:
    """Returns the indices [batch, count] of the largest scores in increasing order."""
    return lax.top_k(scores, count)[1][:, ::-1]


def top_k(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """What `lax.top_k` returns of scores [batch, n], the largest and their indices, float and int32 [batch, count].

    All of them are in the `count` blocks with the largest maxima. On a CPU, where `lax.top_k` looks at one score at a
    time, 8 of 128,512 are found in less than a fifth of its time.
    """
    batch, size = scores.shape
    blocks = jnp.pad(scores, ((0, 0), (0, -size % BLOCK)), constant_values=-jnp.inf).reshape(batch, -1, BLOCK)
    # In their order, for of equal scores the first is taken.
    kept = lax.top_k(blocks.max(-1), min(count, blocks.shape[1]))[1].sort(-1)
    values, places = lax.top_k(pick(blocks, kept).reshape(batch, -1), count)
    return values, pick(kept, places // BLOCK) * BLOCK + places % BLOCK


# What all decodes of an example attend to

_repeated: ContextVar[tuple[jax.Array, jax.Array] | None] = ContextVar("repeated", default=None)


@contextlib.contextmanager
def repeated(x: jax.Array, count: int) -> Iterator[jax.Array]:
    """Yields x [batch, …] repeated for `count` decodes of each example; inside, `unrepeated` takes that back.

    So code between the two, such as a model's own `_compute_logits_from_slice`, sees T5X's shapes, and may change rows.
    """
    rows = flat_batch_beam_expand(x, count)
    token = _repeated.set((rows, x))
    try:
        yield rows
    finally:
        _repeated.reset(token)


def unrepeated(x: jax.Array) -> jax.Array:
    """Returns the array [batch, …] that `repeated` yielded x of, or x if it is any other."""
    known = _repeated.get()
    return known[1] if known and known[0] is x else x


def as_queries(query: jax.Array, mask: jax.Array | None, batch: int) -> tuple[jax.Array, jax.Array | None]:
    """Makes the decodes of an example as many positions of one sequence, so that its keys and values are read once.

    The query [batch * decodes, 1, heads, head_dim] becomes [batch, decodes, heads, head_dim], and the mask, if there is
    one, [batch * decodes, 1, 1, k_len] becomes [batch, 1, decodes, k_len].
    """
    if query.shape[0] == batch:
        return query, mask
    query = query.reshape(batch, -1, *query.shape[2:])
    return query, None if mask is None else mask.reshape(batch, 1, -1, mask.shape[-1])


# Caches


def cache_map(fn: Callable[[jax.Array], jax.Array], cache: Cache, apply_to_index: bool = False) -> Cache:
    """Maps the cache's leaves that have a batch axis.

    `cache_index` has one only where examples start at different positions; set `apply_to_index` then.
    """
    shared = SHARED_LEAVES if apply_to_index else (*SHARED_LEAVES, "cache_index")
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x if getattr(path[-1], "key", None) in shared else fn(x), cache
    )


def expand_cache(cache: Cache, num_decodes: int, offset: int, initial_index: jax.Array | None) -> Cache:
    expand = partial(flat_batch_beam_expand, beam_size=num_decodes, offset=offset)
    return cache_map(expand, cache, apply_to_index=initial_index is not None)


def frozen_like(old: Cache, new: Cache) -> Cache:
    """Returns the new cache as a FrozenDict if the old one is one, so that a loop carries one type."""
    return freeze(new) if isinstance(old, FrozenDict) else new


# Sequences


def start(inputs: jax.Array, initial_index: jax.Array | None, length: int) -> tuple[jax.Array, jax.Array]:
    """Returns the sequences [batch, length + 1] that hold the prompts, and the positions [batch] to start from."""
    room = jnp.zeros((inputs.shape[0], length + 1), jnp.int32)
    width = min(inputs.shape[1], length + 1)
    sequences = room.at[:, :width].set(inputs[:, :width].astype(jnp.int32))
    if initial_index is not None:
        return sequences, initial_index.astype(jnp.int32)
    return sequences.at[:, 0].set(0), jnp.zeros(inputs.shape[0], jnp.int32)


def read(sequences: jax.Array, position: jax.Array) -> jax.Array:
    """Returns the tokens […] at `position` […] of the sequences […, width]; past the end, 0."""
    return jnp.where(_slot(sequences, position), sequences, 0).sum(-1)


def write(sequences: jax.Array, position: jax.Array, token: jax.Array) -> jax.Array:
    """Returns the sequences […, width] with `token` […] at `position` […]; past the end, nothing is written."""
    return jnp.where(_slot(sequences, position), token[..., None], sequences)


def _slot(sequences: jax.Array, position: jax.Array) -> jax.Array:
    return lax.broadcasted_iota(jnp.int32, sequences.shape, sequences.ndim - 1) == position[..., None]
