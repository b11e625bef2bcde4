"""The building blocks of T5: attention, feed-forward, embedding, relative positions, norm and masks.

Parameters, their logical axes, initial values and dropout masks are T5X's; the arithmetic around them is laid
out for speed. Three things are done differently, and none of them changes the function:

- dense layers multiply in the form that the platform's compiler is good at;
- embeddings are gathered instead of multiplied by one-hot vectors;
- attention dropout, which T5 shares between all queries, falls on the values instead of on the larger weights.

Dropout is also shared along the length wherever T5 does so, which is why activations come and go as
[batch, length, features].
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from jax import lax

from t5x.embedded import beams, fused_attention, platforms
from t5x.embedded.contract import refuse_missing
from t5x.embedded.masks import (
    add_mask,
    combine_biases,
    combine_masks,
    make_attention_mask,
    make_causal_mask,
    make_decoder_mask,
)

refuse_missing(globals(), "examples.t5.layers")

__all__ = [
    "DenseGeneral",
    "Embed",
    "LayerNorm",
    "MlpBlock",
    "MultiHeadDotProductAttention",
    "RelativePositionBiases",
    "combine_biases",
    "combine_masks",
    "dot_product_attention",
    "make_attention_mask",
    "make_causal_mask",
    "make_decoder_mask",
]

Initializer = Callable[..., jax.Array]

NORMAL_BY_INPUTS = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
TRUNCATED_BY_INPUTS = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
SCALED_BY_FEATURES = nn.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


class DenseGeneral(nn.Module):
    """A matrix product over some axes, without bias: [..., *inputs] -> [..., *features].

    The one parameter is kernel, float32 [product of inputs, product of features], or [*inputs, *features] with the
    same numbers where `kernel_axes` names more than two axes.

    Attributes:
        features: size of the new last axis, or the sizes of the several axes it is split into.
        axis: the axis, or the axes, that are multiplied away.
        dtype: of the product and of the result.
        kernel_init: initializer, called with the two-dimensional shape.
        kernel_axes: logical names of the kernel's axes.
    """

    features: int | Sequence[int]
    axis: int | Sequence[int] = -1
    dtype: Any = jnp.float32
    kernel_init: Initializer = TRUNCATED_BY_INPUTS
    kernel_axes: tuple[str, ...] = ()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        features = tuple(self.features) if isinstance(self.features, Sequence) else (self.features,)
        axes = tuple(self.axis) if isinstance(self.axis, Sequence) else (self.axis,)
        inputs = jnp.moveaxis(jnp.asarray(inputs, self.dtype), axes, range(-len(axes), 0))
        multiplied = inputs.shape[-len(axes) :]
        matrix = (math.prod(multiplied), math.prod(features))
        shape = (*multiplied, *features) if len(self.kernel_axes) > 2 else matrix

        def init(key: jax.Array) -> jax.Array:
            return self.kernel_init(key, matrix, jnp.float32).reshape(shape)

        kernel = param_with_axes("kernel", init, axes=self.kernel_axes)
        whole = kernel.reshape(*multiplied, *features).astype(self.dtype)
        return platforms.product(inputs, whole, len(multiplied))


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = jnp.float32,
    float32_logits: bool = False,
) -> jax.Array:
    """softmax(query · key + bias) · value. T5 has no 1/sqrt(head_dim) here: it is in the initial values.

    Args:
        query: [batch, q_len, heads, head_dim].
        key, value: [batch, k_len, heads, head_dim]; the value's head_dim may differ.
        bias: broadcastable to [batch, heads, q_len, k_len].
        dropout_rng: key for dropping attention weights.
        dropout_rate: share of the (batch, head, key) triples that no query sees.
        deterministic: whether no weights are dropped.
        dtype: of the weights and the result.
        float32_logits: whether logits and softmax are computed in float32 whatever `dtype` is.

    Returns:
        [batch, q_len, heads, head_dim of the value].
    """
    key, value = _cache_layout(key), _cache_layout(value)
    if not deterministic and dropout_rate > 0.0 and dropout_rng is not None:
        value = _drop(value, dropout_rng, dropout_rate, dtype)
    return _attend(query, key, value, bias, dtype, float32_logits)


def _cache_layout(x: jax.Array) -> jax.Array:
    """[batch, k_len, heads, head_dim] -> [batch, heads, head_dim, k_len]."""
    return jnp.transpose(x, (0, 2, 3, 1))


def _drop(value: jax.Array, rng: jax.Array, rate: float, dtype: Any) -> jax.Array:
    """Drops attention weights: a dropped weight and a dropped value give the same product, and values are fewer."""
    batch, heads, _, k_len = value.shape
    keep = jax.random.bernoulli(rng, 1.0 - rate, (batch, heads, 1, k_len))
    return value * (keep.astype(dtype) / jnp.asarray(1.0 - rate, dtype))


def _attend(query, key, value, bias, dtype, float32_logits) -> jax.Array:
    """As `dot_product_attention`, of keys and values in the layout of the decoding cache."""
    if float32_logits:
        query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    logits = jnp.einsum("bqhd,bhdk->bhqk", query, key)
    if bias is not None:
        logits += bias.astype(logits.dtype)
    weights = jax.nn.softmax(logits).astype(dtype)
    return jnp.einsum("bhqk,bhdk->bqhd", weights, value)


class MultiHeadDotProductAttention(nn.Module):
    """Multi-head attention with T5's additive bias and a key-value cache for decoding step by step.

    Attributes:
        num_heads, head_dim: their product need not be the width of the inputs.
        dtype: of the computation.
        dropout_rate: see `dot_product_attention`.
        kernel_init: initializer of all four kernels; the query's is divided by sqrt(head_dim).
        float32_logits: see `dot_product_attention`.
        split_kernels: whether the kernels keep heads and head_dim apart, as the scanned layers' do.
        fused: see `T5Config.fused_attention`.
    """

    num_heads: int
    head_dim: int
    dtype: Any = jnp.float32
    dropout_rate: float = 0.0
    kernel_init: Initializer = NORMAL_BY_INPUTS
    float32_logits: bool = False
    split_kernels: bool = False
    fused: bool = False

    @nn.compact
    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_kv: jax.Array,
        mask: jax.Array | None = None,
        bias: jax.Array | None = None,
        *,
        decode: bool = False,
        deterministic: bool = False,
        prefill_lengths: jax.Array | None = None,
    ) -> jax.Array:
        """Attends from inputs_q [batch, q_len, emb] to inputs_kv [batch, k_len, emb].

        Of one position each, inputs_q may also hold several decodes of an example, [batch * decodes, 1, emb].
        With `decode`, the call that creates the cache collection sees whole sequences and only sizes it. Every
        later call sees one position, q_len = k_len = 1: it appends to the cache and attends to all of it. With
        `prefill_lengths`, whole sequences are attended to as in training, and the cache filled with their beginnings.

        Args:
            mask: broadcastable to [batch, 1, q_len, k_len]; where it is 0, nothing is attended to.
            bias: [1, heads, q_len, k_len], while decoding [1, heads, cache_len, cache_len].
            prefill_lengths: int32 [batch], how many positions of each sequence go into the cache.

        Returns:
            [batch, q_len, emb] in `dtype`.
        """
        query = self._project("query", inputs_q, self._query_init)  # [batch, q_len, heads, head_dim]
        key = self._project("key", inputs_kv, self.kernel_init)
        value = self._project("value", inputs_kv, self.kernel_init)
        key, value = _cache_layout(key), _cache_layout(value)
        if prefill_lengths is not None:
            self._fill_cache(key, value, prefill_lengths)
        elif decode:
            key, value, mask, bias = self._update_cache(key, value, mask, bias)
        elif query.shape[1] == 1:
            key, value = platforms.before_loops(key, value)
            query, mask = beams.as_queries(query, mask, key.shape[0])

        if not deterministic and self.dropout_rate > 0.0:
            value = _drop(value, self.make_rng("dropout"), self.dropout_rate, self.dtype)
        if self.fused and not decode and fused_attention.is_possible(query, key, bias, mask):
            outputs = fused_attention.fused_attention(query, key, value, bias, mask)
        else:
            outputs = _attend(query, key, value, add_mask(mask, bias), self.dtype, self.float32_logits)
        return DenseGeneral(
            inputs_q.shape[-1],
            axis=(-2, -1),
            dtype=self.dtype,
            kernel_init=self.kernel_init,
            kernel_axes=(*self._head_axes, "embed"),
            name="out",
        )(outputs.reshape(*inputs_q.shape[:2], *outputs.shape[2:]))

    @property
    def _head_axes(self) -> tuple[str, ...]:
        return ("heads", "kv") if self.split_kernels else ("joined_kv",)

    def _query_init(self, *args) -> jax.Array:
        # T5X rounds the divisor to the dtype of the activations, so the initial values depend on it.
        return self.kernel_init(*args) / jnp.sqrt(self.head_dim).astype(self.dtype).astype(jnp.float32)

    def _project(self, name: str, inputs: jax.Array, kernel_init: Initializer) -> jax.Array:
        """[batch, length, emb] -> [batch, length, heads, head_dim]."""
        heads = DenseGeneral(
            (self.num_heads, self.head_dim),
            dtype=self.dtype,
            kernel_init=kernel_init,
            kernel_axes=("embed", *self._head_axes),
            name=name,
        )(inputs)
        return platforms.constrain(heads, ("batch", "length", "heads", "kv"))

    def _cache(self, like: jax.Array) -> tuple[nn.Variable, nn.Variable, nn.Variable]:
        """Returns cached_key, cached_value and cache_index, all zeros if they are new.

        Keys and values are `like` those given, [batch, heads, head_dim, cache_len]. The index is the number of
        positions written, int32 [], or [batch] once the cache was filled.
        """
        cached_key = self.variable("cache", "cached_key", jnp.zeros_like, like)
        cached_value = self.variable("cache", "cached_value", jnp.zeros_like, like)
        return cached_key, cached_value, self.variable("cache", "cache_index", jnp.zeros, (), jnp.int32)

    def _fill_cache(self, key, value, lengths) -> None:
        """Sets the cache to the first `lengths` [batch] positions of key and value, and zeros after them."""
        cached_key, cached_value, cache_index = self._cache(key)
        filled = _positions(key.shape[-1]) < lengths.reshape(-1, 1, 1, 1)
        cached_key.value, cached_value.value = (jnp.where(filled, x, jnp.zeros_like(x)) for x in (key, value))
        cache_index.value = lengths.astype(jnp.int32)

    def _update_cache(self, key, value, mask, bias):
        """Writes one position into the cache; returns all keys and values, and what the position may see."""
        is_created = self.has_variable("cache", "cached_key")
        cached_key, cached_value, cache_index = self._cache(key)
        if not is_created:
            return key, value, mask, bias

        cache_len = cached_key.value.shape[-1]
        index = cache_index.value
        if key.shape != (*cached_key.value.shape[:-1], 1):
            raise ValueError(
                f"{self.name}: a decoding step for a cache of shape {cached_key.value.shape} takes one position, "
                f"not keys of shape {key.shape}."
            )
        if bias is not None and bias.shape[-1] != cache_len:
            raise ValueError(
                f"{self.name}: the position bias covers {bias.shape[-1]} positions, the cache holds {cache_len}; "
                f"pass max_decode_length={cache_len}."
            )
        write = functools.partial(lax.dynamic_update_slice_in_dim, axis=-1)
        if index.ndim:  # every sequence is at a position of its own
            write = jax.vmap(write)
        cached_key.value = write(cached_key.value, key, index)
        cached_value.value = write(cached_value.value, value, index)
        cache_index.value = index + 1

        written = _positions(cache_len) <= index.reshape(-1, 1, 1, 1)  # [1 or batch, 1, 1, cache_len]
        mask = written if mask is None else jnp.logical_and(mask, written)
        if bias is not None:
            rows = jnp.take(bias[0], index.reshape(-1), axis=1, mode="clip")  # [heads, 1 or batch, cache_len]
            bias = rows.swapaxes(0, 1)[:, :, None]  # [1 or batch, heads, 1, cache_len]
        return cached_key.value, cached_value.value, mask, bias


def _positions(length: int) -> jax.Array:
    return jnp.arange(length).reshape(1, 1, 1, length)


class MlpBlock(nn.Module):
    """T5's feed-forward block: one projection per activation, multiplied, dropped out, projected back.

    Attributes:
        intermediate_dim: width between the two projections.
        activations: functions, names in flax.linen, or "linear"; ("relu",) is T5 1.0, ("gelu", "linear") T5 1.1.
        intermediate_dropout_rate: of the product; one mask for all positions of a sequence.
    """

    intermediate_dim: int = 2048
    activations: Sequence[str | Callable] = ("relu",)
    kernel_init: Initializer = TRUNCATED_BY_INPUTS
    intermediate_dropout_rate: float = 0.1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array, decode: bool = False, deterministic: bool = False) -> jax.Array:
        """[batch, length, emb] -> [batch, length, emb]; `decode`, an argument of every layer, changes nothing here."""
        del decode
        dense = functools.partial(DenseGeneral, dtype=self.dtype, kernel_init=self.kernel_init)
        branches = []
        for i, activation in enumerate(self.activations):
            name = "wi" if len(self.activations) == 1 else f"wi_{i}"
            x = dense(self.intermediate_dim, kernel_axes=("embed", "mlp"), name=name)(inputs)
            if activation != "linear":
                x = (getattr(nn, activation) if isinstance(activation, str) else activation)(x)
            branches.append(x)
        x = functools.reduce(operator.mul, branches)  # [batch, length, mlp]
        x = nn.Dropout(self.intermediate_dropout_rate, broadcast_dims=(-2,))(x, deterministic)
        x = platforms.constrain(x, ("batch", "length", "mlp"))
        return dense(inputs.shape[-1], kernel_axes=("mlp", "embed"), name="wo")(x)


class Embed(nn.Module):
    """A table of vectors, looked up by token id and usable as an output projection.

    Attributes:
        num_embeddings, features: shape of the one parameter, embedding, float32.
        cast_input_dtype: what ids are cast to first, which lets them be floats.
        dtype: of the vectors looked up.
        attend_dtype: of the table in `attend`; None is `dtype`.
        embedding_init: initializer of the table.
        one_hot: whether rows are found by a product with one-hot vectors rather than gathered.
    """

    num_embeddings: int
    features: int
    cast_input_dtype: Any = None
    dtype: Any = jnp.float32
    attend_dtype: Any = None
    embedding_init: Initializer = SCALED_BY_FEATURES
    one_hot: bool = False

    def setup(self):
        shape = (self.num_embeddings, self.features)
        self.embedding = param_with_axes("embedding", self.embedding_init, shape, jnp.float32, axes=("vocab", "embed"))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """int [batch, length] -> [batch, length, features]; an id outside the table becomes zeros."""
        ids = jnp.asarray(inputs, self.cast_input_dtype)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(f"Embed takes ids of an integer dtype, and these are {ids.dtype}; set cast_input_dtype.")
        if self.one_hot:
            return jax.nn.one_hot(ids, self.num_embeddings, dtype=self.dtype) @ self.embedding.astype(self.dtype)
        # Gathered before the cast, so that the gradient of a frequent token is summed in float32.
        vectors = self.embedding.at[ids].get(mode="fill", fill_value=0, wrap_negative_indices=False).astype(self.dtype)
        return platforms.constrain(vectors, ("batch", "length", "embed"))

    def attend(self, query: jax.Array) -> jax.Array:
        """[..., features] -> products with every vector, [..., num_embeddings]."""
        return platforms.product(query, self.embedding.astype(self.attend_dtype or self.dtype).T, 1)


class RelativePositionBiases(nn.Module):
    """One learned number per head and bucket of key-minus-query distances, added to the attention logits.

    Attributes:
        num_buckets, max_distance: see `relative_position_bucket`.
        num_heads: every head has its own numbers, rel_embedding, float32 [heads, num_buckets].
        dtype: the numbers are rounded to it, so that they are those the activations' dtype can hold.
    """

    num_buckets: int
    max_distance: int
    num_heads: int
    dtype: Any = jnp.float32
    embedding_init: Initializer = SCALED_BY_FEATURES

    @nn.compact
    def __call__(self, qlen: int, klen: int, bidirectional: bool = True) -> jax.Array:
        """Returns the bias, float32 [1, heads, qlen, klen]; float32 so that its gradient is summed in it."""
        shape, axes = (self.num_heads, self.num_buckets), ("heads", "relpos_buckets")
        table = param_with_axes("rel_embedding", self.embedding_init, shape, jnp.float32, axes=axes)
        table = table.astype(self.dtype).astype(jnp.float32)
        one_hot = functools.partial(jax.nn.one_hot, num_classes=self.num_buckets, axis=0)
        sizes = bidirectional, self.num_buckets, self.max_distance
        distances = np.arange(klen)[None, :] - np.arange(qlen)[:, None]
        if platforms.of_this_trace() == "tpu":  # it copies what it gathers, in every layer of a scan
            vectors = one_hot(relative_position_bucket(distances, *sizes))
            return jnp.tensordot(table, vectors, 1, precision=lax.Precision.HIGHEST)[None]
        # Each distance occurs on a whole diagonal: look the few distances up, then spread them. The other way
        # round, the gradient would add qlen * klen terms one after the other to a handful of numbers.
        by_distance = table @ one_hot(relative_position_bucket(np.arange(1 - qlen, klen), *sizes))
        return by_distance[:, distances + qlen - 1][None]


def relative_position_bucket(
    distances: np.ndarray, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> np.ndarray:
    """Sorts key-minus-query distances into buckets, as in section 2.1 of https://arxiv.org/abs/1910.10683.

    The nearer half of the buckets holds one distance each, the farther half grows with the logarithm, the last
    one takes all from max_distance on. Bidirectional, half of the buckets is for keys after the query; otherwise
    those all fall into bucket 0.
    """
    if bidirectional:
        num_buckets //= 2
    else:
        distances = np.minimum(distances, 0)
    offset, distances = np.where(distances > 0, num_buckets, 0), np.abs(distances)
    exact = num_buckets // 2
    # eps is T5's: with it the edges at powers of two come out the same in every precision.
    ratio = np.maximum(distances, 1) / exact + np.finfo(np.float32).eps
    log_bucket = np.log(ratio) / np.log(max_distance / exact) * (num_buckets - exact)
    far = np.minimum(exact + log_bucket.astype(np.int64), num_buckets - 1)
    return offset + np.where(distances < exact, distances, far)


class LayerNorm(nn.Module):
    """T5's norm (https://arxiv.org/abs/1910.07467): no mean is subtracted and no bias added.

    The mean square is taken in float32; parameter scale, float32 [features], and the result are cast to `dtype`.
    """

    epsilon: float = 1e-6
    dtype: Any = jnp.float32
    scale_init: Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(lax.square(x), axis=-1, keepdims=True)
        y = (x * lax.rsqrt(mean_square + self.epsilon)).astype(self.dtype)
        scale = param_with_axes("scale", self.scale_init, (x.shape[-1],), jnp.float32, axes=("embed",))
        return y * lax.broadcast_to_rank(scale.astype(self.dtype), y.ndim)
