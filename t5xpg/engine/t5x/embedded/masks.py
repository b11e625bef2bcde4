"""Attention masks and biases: who sees whom."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Added to the logits of what may not be attended to: T5X's -1e10 as bfloat16 has it. A compiler may keep logits in
# float32 and take off their maximum in bfloat16; were the two not equal, a query that sees nothing would get NaN.
MASKED = -9_999_220_736.0


def make_attention_mask(
    query_input: jax.Array,
    key_input: jax.Array,
    pairwise_fn: Callable = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """Applies pairwise_fn to every query and key: [..., q_len], [..., k_len] -> [..., 1, q_len, k_len].

    `extra_batch_dims` is the number of axes of size 1 to put before those.
    """
    pairs = pairwise_fn(query_input[..., :, None], key_input[..., None, :])[..., None, :, :]
    return jnp.expand_dims(pairs, tuple(range(extra_batch_dims))).astype(dtype)


def make_causal_mask(x: jax.Array, extra_batch_dims: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    """[..., length] -> [..., 1, length, length], 1 where the key is not after the query; see `make_attention_mask`."""
    positions = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return make_attention_mask(positions, positions, jnp.greater_equal, extra_batch_dims, dtype)


def combine_masks(*masks: jax.Array | None, dtype: Any = jnp.float32) -> jax.Array | None:
    """Returns 1 where all masks that are not None are nonzero; None if all are None. They must have one rank."""
    given = _given(masks)
    return functools.reduce(jnp.logical_and, given).astype(dtype) if given else None


def combine_biases(*masks: jax.Array | None) -> jax.Array | None:
    """Returns the sum of the biases that are not None; None if all are None. They must have one rank."""
    given = _given(masks)
    return functools.reduce(operator.add, given) if given else None


def _given(arrays: Sequence[jax.Array | None]) -> list[jax.Array]:
    given = [x for x in arrays if x is not None]
    if len({x.ndim for x in given}) > 1:
        raise ValueError(f"masks of shapes {[x.shape for x in given]} cannot be combined; give them one rank.")
    return given


def make_decoder_mask(
    decoder_target_tokens: jax.Array,
    dtype: Any,
    decoder_causal_attention: jax.Array | None = None,
    decoder_segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Returns who sees whom in the decoder: positions see earlier ones of the same packed example, but not padding.

    Args:
        decoder_target_tokens: [batch, length] of any type; 0 is padding.
        dtype: of the mask.
        decoder_causal_attention: [batch, length], 1 at the positions of a prefix LM's inputs, which see each other
            in both directions.
        decoder_segment_ids: int [batch, length], which packed example a position belongs to.

    Returns:
        [batch, 1, length, length].
    """
    visible = make_causal_mask(decoder_target_tokens, dtype=jnp.bool_)
    if decoder_causal_attention is not None:
        prefix = decoder_causal_attention.astype(jnp.bool_)
        visible |= make_attention_mask(prefix, prefix, jnp.logical_and, dtype=jnp.bool_)
    real = decoder_target_tokens > 0
    masks = [visible, make_attention_mask(real, real, jnp.logical_and, dtype=jnp.bool_)]
    if decoder_segment_ids is not None:
        masks.append(make_attention_mask(decoder_segment_ids, decoder_segment_ids, jnp.equal, dtype=jnp.bool_))
    return functools.reduce(jnp.logical_and, _given(masks)).astype(dtype)


def add_mask(mask: jax.Array | None, bias: jax.Array | None) -> jax.Array | None:
    """Returns the float32 bias that also keeps out what is masked; None when both are None."""
    if mask is None:
        return bias
    masked = jnp.where(mask.astype(jnp.bool_), 0.0, MASKED)
    return masked if bias is None else masked + bias
