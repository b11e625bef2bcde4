"""RoBERTa (arXiv:1907.11692) for masked language modelling: BERT's post-norm encoder and a head tied to its input.

The network is that of Hugging Face's RobertaForMaskedLM, whose logits it gives from the same weights
(`t5xpg.hf.roberta` converts them). What only takes up space there is left out: the rows of the position table before
the first position, and the one token type, a vector that is added to every token.

Parameters and activations have T5X's logical axis names, so that either engine partitions them by its standard rules.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen.partitioning import param_with_axes, with_sharding_constraint


@struct.dataclass
class RobertaConfig:
    """Size and numerics; the defaults are roberta-base's. Every field can be bound in gin.

    Attributes:
      vocab_size: rows of the embedding and logits per position; at least the vocabulary's size.
      dtype: of activations; parameters, norms, attention weights and logits are float32.
      emb_dim, num_heads: the first a multiple of the second.
      max_length: the number of positions that have a vector.
      dropout_rate: of the embedded tokens, the attention weights and each block's result, each number on its own.
      initializer_range: standard deviation of fresh embeddings and kernels; a narrow model learns sooner with more.
    """

    vocab_size: int = 50265
    dtype: Any = jnp.float32
    emb_dim: int = 768
    num_heads: int = 12
    num_layers: int = 12
    mlp_dim: int = 3072
    max_length: int = 512
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02


class Dense(nn.Module):
    """kernel and bias: [batch, length, inputs] -> [batch, length, features], multiplied in the config's dtype."""

    config: RobertaConfig
    features: int
    axes: tuple[str, str]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        normal, dtype = nn.initializers.normal(self.config.initializer_range), self.config.dtype
        kernel = param_with_axes("kernel", normal, (x.shape[-1], self.features), jnp.float32, axes=self.axes)
        bias = param_with_axes("bias", nn.initializers.zeros, (self.features,), jnp.float32, axes=self.axes[1:])
        tokens = x.reshape(-1, x.shape[-1]).astype(dtype)  # in two dimensions XLA multiplies fastest on CPU
        tokens = tokens @ kernel.astype(dtype) + bias.astype(dtype)[None]  # [batch * length, features]
        return tokens.reshape(*x.shape[:-1], self.features)


class LayerNorm(nn.Module):
    """Zero mean and unit variance of each vector, in float32, then scale and bias."""

    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = param_with_axes("scale", nn.initializers.ones, x.shape[-1:], jnp.float32, axes=("embed",))
        bias = param_with_axes("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32, axes=("embed",))
        x = nn.standardize(x.astype(jnp.float32), epsilon=self.epsilon)
        return (x * scale[None, None] + bias[None, None]).astype(self.dtype)


class SelfAttention(nn.Module):
    """softmax(query · key / sqrt(head_dim)) · value over the positions that `mask` allows."""

    config: RobertaConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        """[batch, length, emb], bool [batch, 1, length, length] -> [batch, length, emb]."""
        cfg = self.config

        def heads(name: str) -> jax.Array:
            y = Dense(cfg, cfg.emb_dim, ("embed", "joined_kv"), name=name)(x)
            y = y.reshape(*x.shape[:2], cfg.num_heads, -1)  # [batch, length, heads, head_dim]
            return with_sharding_constraint(y, ("batch", "length", "heads", "kv"))

        query, key, value = heads("query"), heads("key"), heads("value")
        logits = jnp.einsum("bqhd,bkhd->bhqk", query * query.shape[-1] ** -0.5, key).astype(jnp.float32)
        weights = nn.softmax(jnp.where(mask, logits, -1e10))  # [batch, heads, q_len, k_len]; equal if none is visible
        weights = nn.Dropout(cfg.dropout_rate)(weights.astype(cfg.dtype), deterministic)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        return Dense(cfg, cfg.emb_dim, ("joined_kv", "embed"), name="out")(y)


class Layer(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, the residual and the norm."""

    config: RobertaConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        """[batch, length, emb], bool [batch, 1, length, length] -> [batch, length, emb]."""
        cfg = self.config
        y = SelfAttention(cfg, name="attention")(x, mask, deterministic)
        y = nn.Dropout(cfg.dropout_rate)(y, deterministic)
        x = LayerNorm(cfg.layer_norm_epsilon, cfg.dtype, name="attention_norm")(x + y)

        y = nn.gelu(Dense(cfg, cfg.mlp_dim, ("embed", "mlp"), name="wi")(x), approximate=False)
        y = with_sharding_constraint(y, ("batch", "length", "mlp"))
        y = Dense(cfg, cfg.emb_dim, ("mlp", "embed"), name="wo")(y)
        y = nn.Dropout(cfg.dropout_rate)(y, deterministic)
        return LayerNorm(cfg.layer_norm_epsilon, cfg.dtype, name="mlp_norm")(x + y)


class Roberta(nn.Module):
    """Tokens to logits over the vocabulary, at every position."""

    config: RobertaConfig

    @nn.compact
    def __call__(
        self,
        encoder_input_tokens: jax.Array,
        encoder_positions: jax.Array | None = None,
        encoder_segment_ids: jax.Array | None = None,
        *,
        enable_dropout: bool = True,
    ) -> jax.Array:
        """Returns logits, float32 [batch, length, vocab].

        Args:
          encoder_input_tokens: int [batch, length], 0 where padded.
          encoder_positions: int [batch, length], of a packed batch; counted from 0 in each row if None.
          encoder_segment_ids: int [batch, length], of a packed batch: tokens see those of their own segment.
          enable_dropout: needs the rng "dropout".

        Raises:
          ValueError: rows longer than the position table.
        """
        cfg, length = self.config, encoder_input_tokens.shape[1]
        if length > cfg.max_length:
            raise ValueError(
                f"{length} tokens, but {cfg.max_length} positions: shorten the text, or train with a larger "
                "RobertaConfig.max_length."
            )
        deterministic = not enable_dropout
        normal = nn.initializers.normal(cfg.initializer_range)
        embedding = param_with_axes(
            "token_embedding", normal, (cfg.vocab_size, cfg.emb_dim), jnp.float32, axes=("vocab", "embed")
        )
        places = param_with_axes(
            "position_embedding", normal, (cfg.max_length, cfg.emb_dim), jnp.float32, axes=("abspos_buckets", "embed")
        )
        if encoder_positions is None:
            encoder_positions = jnp.broadcast_to(jnp.arange(length)[None], encoder_input_tokens.shape)
        x = embedding[encoder_input_tokens] + places[encoder_positions]  # [batch, length, emb]
        x = LayerNorm(cfg.layer_norm_epsilon, cfg.dtype, name="embedding_norm")(x)
        x = nn.Dropout(cfg.dropout_rate)(x, deterministic)
        x = with_sharding_constraint(x, ("batch", "length", "embed"))
        mask = visible(encoder_input_tokens, encoder_segment_ids)
        for i in range(cfg.num_layers):
            x = Layer(cfg, name=f"layers_{i}")(x, mask, deterministic)

        x = nn.gelu(Dense(cfg, cfg.emb_dim, ("embed", "mlp"), name="head_dense")(x), approximate=False)
        x = LayerNorm(cfg.layer_norm_epsilon, jnp.float32, name="head_norm")(x)
        bias = param_with_axes("logits_bias", nn.initializers.zeros, (cfg.vocab_size,), jnp.float32, axes=("vocab",))
        logits = x.reshape(-1, cfg.emb_dim) @ embedding.T + bias[None]  # [batch * length, vocab]
        return logits.reshape(*encoder_input_tokens.shape, cfg.vocab_size)


def visible(tokens: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
    """Returns which keys each query may see, bool [batch, 1, q_len, k_len]: no padding, and only its own segment."""
    mask = (tokens > 0)[:, None, None, :]  # [batch, 1, 1, k_len]
    if segment_ids is None:
        return mask
    return mask & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
