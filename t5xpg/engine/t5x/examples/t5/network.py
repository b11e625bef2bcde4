"""The T5 encoder-decoder: T5 1.0, T5 1.1, mT5 and ByT5 are this network with different sizes.

Embedded tokens enter a stack of pre-norm residual layers; the encoder's result is what the decoder attends to.
Positions are known only through the relative bias, which each stack computes once for all its layers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from t5x.embedded.beams import unrepeated
from t5x.embedded.contract import refuse_missing
from t5x.embedded.residuals import divided, rematerialised, whole, with_divided_gradient
from t5x.examples.t5 import layers

refuse_missing(globals(), "examples.t5.network")


@struct.dataclass
class T5Config:
    """Size and numerics of a T5; every field can be bound in gin.

    Attributes:
        vocab_size: rows of the embedding and logits per position; at least the vocabulary's size.
        dtype: of activations; parameters and logits are float32.
        num_heads, head_dim: their product need not be emb_dim.
        mlp_activations: see `layers.MlpBlock`.
        logits_via_embedding: whether the embedding is the output projection (T5 1.0) or has its own (T5 1.1).
        float32_attention_logits: whether attention logits and softmax are float32 whatever `dtype` is.
        fused_attention: whether, on TPUs, and on GPUs in bfloat16, attention to whole sequences is one kernel that
            keeps no weights for the backward pass (`embedded.fused_attention`). Its logits are float32. T5X has no
            such field.
        remat_policy: "none", "minimal" or "full", in increasing order of how much of a layer is computed twice, so that
            less is kept for the backward pass. T5X has it in `scalable_t5.network` only.
    """

    vocab_size: int
    dtype: Any = jnp.float32
    emb_dim: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: Sequence[str] = ("relu",)
    dropout_rate: float = 0.1
    logits_via_embedding: bool = False
    float32_attention_logits: bool = False
    fused_attention: bool = False
    remat_policy: str | None = "none"
    split_kernels: ClassVar[bool] = False  # see `layers.MultiHeadDotProductAttention`


attention_mask = functools.partial(layers.make_attention_mask, dtype=jnp.bool_)


def attention(cfg: T5Config, name: str) -> layers.MultiHeadDotProductAttention:
    return layers.MultiHeadDotProductAttention(
        num_heads=cfg.num_heads,
        head_dim=cfg.head_dim,
        dtype=cfg.dtype,
        dropout_rate=cfg.dropout_rate,
        float32_logits=cfg.float32_attention_logits,
        split_kernels=cfg.split_kernels,
        fused=cfg.fused_attention,
        name=name,
    )


def mlp(cfg: T5Config) -> layers.MlpBlock:
    return layers.MlpBlock(
        intermediate_dim=cfg.mlp_dim,
        activations=cfg.mlp_activations,
        intermediate_dropout_rate=cfg.dropout_rate,
        dtype=cfg.dtype,
        name="mlp",
    )


def norm(cfg: T5Config, name: str) -> layers.LayerNorm:
    return layers.LayerNorm(dtype=cfg.dtype, name=name)


def dropout(cfg: T5Config, name: str | None = None) -> nn.Dropout:
    """One mask for all positions of a sequence. Its random numbers depend on its name, or on the order of the calls."""
    return nn.Dropout(rate=cfg.dropout_rate, broadcast_dims=(-2,), name=name)


def position_bias(cfg: T5Config, length: int, bidirectional: bool) -> jax.Array:
    """The bias of a whole stack, float32 [1, heads, length, length]."""
    return layers.RelativePositionBiases(
        num_buckets=32,
        max_distance=128,
        num_heads=cfg.num_heads,
        dtype=cfg.dtype,
        embedding_init=nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
        name="relpos_bias",
    )(length, length, bidirectional)


def embedding(cfg: T5Config) -> layers.Embed:
    return layers.Embed(
        num_embeddings=cfg.vocab_size,
        features=cfg.emb_dim,
        cast_input_dtype=jnp.int32,
        dtype=cfg.dtype,
        attend_dtype=jnp.float32,
        embedding_init=nn.initializers.normal(stddev=1.0),
        name="token_embedder",
    )


def to_logits(cfg: T5Config, y: jax.Array, shared_embedding: layers.Embed) -> jax.Array:
    """Projects to the vocabulary: [batch, length, emb] -> float32 [batch, length, vocab]."""
    if cfg.logits_via_embedding:
        # The embedding has unit variance, an output projection 1 / emb_dim.
        return shared_embedding.attend(y.astype(jnp.float32) / jnp.sqrt(cfg.emb_dim))
    return layers.DenseGeneral(cfg.vocab_size, kernel_axes=("embed", "vocab"), name="logits_dense")(y)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its norm, dropout and residual."""

    config: T5Config

    @nn.compact
    def __call__(self, inputs, encoder_mask=None, position_bias=None, deterministic=False):
        """[batch, length, emb] -> [batch, length, emb]."""
        cfg = self.config
        x = whole(norm(cfg, "pre_attention_layer_norm")(inputs), kept=False)
        x = attention(cfg, "attention")(x, x, encoder_mask, position_bias, deterministic=deterministic)
        x = divided(inputs + dropout(cfg)(x, deterministic))

        y = whole(norm(cfg, "pre_mlp_layer_norm")(x))
        y = mlp(cfg)(y, deterministic=deterministic)
        return divided(x + dropout(cfg)(y, deterministic))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder and feed-forward, each with its norm, dropout and residual."""

    config: T5Config

    @nn.compact
    def __call__(
        self,
        inputs,
        encoded,
        decoder_mask=None,
        encoder_decoder_mask=None,
        position_bias=None,
        deterministic=False,
        decode=False,
    ):
        """[batch, length, emb], encoded [batch, input length, emb] -> [batch, length, emb]."""
        cfg = self.config
        x = whole(norm(cfg, "pre_self_attention_layer_norm")(inputs))
        x = attention(cfg, "self_attention")(
            x, x, decoder_mask, position_bias, deterministic=deterministic, decode=decode
        )
        x = divided(inputs + dropout(cfg)(x, deterministic))

        y = whole(norm(cfg, "pre_cross_attention_layer_norm")(x), kept=False)
        encoded = with_divided_gradient(encoded)
        y = attention(cfg, "encoder_decoder_attention")(y, encoded, encoder_decoder_mask, deterministic=deterministic)
        y = divided(x + dropout(cfg)(y, deterministic))

        z = whole(norm(cfg, "pre_mlp_layer_norm")(y))
        z = mlp(cfg)(z, deterministic=deterministic)
        return divided(y + dropout(cfg)(z, deterministic))


class Encoder(nn.Module):
    """Embedding, encoder layers and a last norm."""

    config: T5Config
    shared_embedding: nn.Module

    @nn.compact
    def __call__(self, encoder_input_tokens, encoder_mask=None, deterministic=False):
        """int [batch, length] -> [batch, length, emb]."""
        cfg = self.config
        x = self.shared_embedding(encoder_input_tokens)
        x = dropout(cfg)(x, deterministic)
        x = self.stack(divided(x), encoder_mask, deterministic)
        x = whole(norm(cfg, "encoder_norm")(x))
        return nn.Dropout(rate=cfg.dropout_rate)(x, deterministic)  # here alone T5 draws for every position

    def stack(self, x, encoder_mask, deterministic):
        """Runs all layers: [batch, length, emb] -> [batch, length, emb]."""
        cfg = self.config
        bias = position_bias(cfg, x.shape[-2], bidirectional=True)
        arguments = (encoder_mask, bias, deterministic)
        layer = rematerialised(EncoderLayer, cfg.remat_policy, arguments, scanned=False)
        for i in range(cfg.num_encoder_layers):
            x = layer(cfg, name=f"layers_{i}")(x, *arguments)
        return x


class Decoder(nn.Module):
    """Embedding, decoder layers, a last norm and the projection to the vocabulary."""

    config: T5Config
    shared_embedding: layers.Embed

    @nn.compact
    def __call__(
        self,
        encoded,
        decoder_input_tokens,
        decoder_positions=None,
        decoder_mask=None,
        encoder_decoder_mask=None,
        deterministic=False,
        decode=False,
        max_decode_length=None,
    ):
        """encoded [batch, input length, emb], int [batch, length] -> logits float32 [batch, length, vocab]."""
        cfg = self.config
        encoded = unrepeated(encoded)  # keys and values are the same for all decodes of an example
        y = self.shared_embedding(decoder_input_tokens)
        y = dropout(cfg)(y, deterministic)
        y = self.stack(
            divided(y), encoded, decoder_mask, encoder_decoder_mask, deterministic, decode, max_decode_length
        )
        y = whole(norm(cfg, "decoder_norm")(y))
        y = dropout(cfg)(y, deterministic)
        return to_logits(cfg, y, self.shared_embedding)

    def stack(self, y, encoded, decoder_mask, encoder_decoder_mask, deterministic, decode, max_decode_length):
        """Runs all layers: [batch, length, emb] -> [batch, length, emb]."""
        cfg = self.config
        length = max_decode_length if decode and max_decode_length else y.shape[-2]
        bias = position_bias(cfg, length, bidirectional=False)
        arguments = (encoded, decoder_mask, encoder_decoder_mask, bias, deterministic, decode)
        layer = rematerialised(DecoderLayer, cfg.remat_policy, arguments, scanned=False)
        for i in range(cfg.num_decoder_layers):
            y = layer(cfg, name=f"layers_{i}")(y, *arguments)
        return y


class Transformer(nn.Module):
    """T5's encoder and decoder around one embedding.

    Tokens are whole numbers [batch, length] of any type, 0 for padding. In a packed batch, segment ids of the same
    shape say which example a position belongs to, and attention stays inside it. Positions are accepted as part of the
    packed batch and not used: the relative bias makes them unnecessary.
    """

    config: T5Config

    def setup(self):
        cfg = self.config
        self.shared_embedding = embedding(cfg)
        self.encoder = Encoder(cfg, self.shared_embedding)
        self.decoder = Decoder(cfg, self.shared_embedding)

    def encode(self, encoder_input_tokens, encoder_segment_ids=None, enable_dropout=True):
        """int [batch, input length] -> [batch, input length, emb] in the config's dtype."""
        if encoder_input_tokens.ndim != 2:
            raise ValueError(
                f"encoder_input_tokens has shape {encoder_input_tokens.shape}; it must be [batch, length]."
            )
        mask = attention_mask(encoder_input_tokens > 0, encoder_input_tokens > 0, jnp.logical_and)
        if encoder_segment_ids is not None:
            mask &= attention_mask(encoder_segment_ids, encoder_segment_ids, jnp.equal)
        return self.encoder(encoder_input_tokens, mask, deterministic=not enable_dropout)

    def decode(
        self,
        encoded,
        encoder_input_tokens,
        decoder_input_tokens,
        decoder_target_tokens,
        encoder_segment_ids=None,
        decoder_segment_ids=None,
        decoder_positions=None,
        enable_dropout=True,
        decode=False,
        max_decode_length=None,
    ):
        """Returns logits, float32 [batch, target length, vocab].

        Args:
            encoded: what `encode` returned, [batch, input length, emb].
            encoder_input_tokens: int [batch, input length]; says which of `encoded` is padding.
            decoder_input_tokens: int [batch, target length], the targets shifted right.
            decoder_target_tokens: int [batch, target length]; says which positions are padding.
            encoder_segment_ids, decoder_segment_ids: both or neither.
            enable_dropout: needs the rng "dropout" when True.
            decode: use the cache; see `layers.MultiHeadDotProductAttention`. Excludes packing.
            max_decode_length: the length the cache was created with, in every step with one position.
        """
        if decode and encoder_segment_ids is not None:
            raise ValueError("encoder_segment_ids was passed with decode=True; decode unpacked examples.")
        if decode:
            decoder_mask, real_targets = None, jnp.ones_like(decoder_target_tokens, jnp.bool_)
        else:
            decoder_mask = layers.make_decoder_mask(
                decoder_target_tokens, jnp.bool_, decoder_segment_ids=decoder_segment_ids
            )
            real_targets = decoder_target_tokens > 0
        cross_mask = attention_mask(real_targets, encoder_input_tokens > 0, jnp.logical_and)
        if encoder_segment_ids is not None:
            cross_mask &= attention_mask(decoder_segment_ids, encoder_segment_ids, jnp.equal)
        return self.decoder(
            encoded,
            decoder_input_tokens,
            decoder_positions=decoder_positions,
            decoder_mask=decoder_mask,
            encoder_decoder_mask=cross_mask,
            deterministic=not enable_dropout,
            decode=decode,
            max_decode_length=max_decode_length,
        )

    def __call__(
        self,
        encoder_input_tokens,
        decoder_input_tokens,
        decoder_target_tokens,
        encoder_segment_ids=None,
        decoder_segment_ids=None,
        encoder_positions=None,
        decoder_positions=None,
        *,
        enable_dropout: bool = True,
        decode: bool = False,
    ):
        """Encodes, decodes and returns logits, float32 [batch, target length, vocab]; see `decode`."""
        encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
        return self.decode(
            encoded,
            encoder_input_tokens,
            decoder_input_tokens,
            decoder_target_tokens,
            encoder_segment_ids=encoder_segment_ids,
            decoder_segment_ids=decoder_segment_ids,
            decoder_positions=decoder_positions,
            enable_dropout=enable_dropout,
            decode=decode,
        )
