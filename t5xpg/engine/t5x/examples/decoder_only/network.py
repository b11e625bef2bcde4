"""A decoder-only transformer: language models, and prefix language models where the prefix sees itself both ways.

A layer is T5's decoder layer without the attention to an encoder; all of its parts are T5's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from t5x.embedded.contract import refuse_missing
from t5x.examples.t5 import layers
from t5x.examples.t5 import network as t5

refuse_missing(globals(), "examples.decoder_only.network")


@struct.dataclass
class TransformerConfig:
    """Size and numerics; every field can be bound in gin and means what it does in `t5.T5Config`."""

    vocab_size: int
    dtype: Any = jnp.float32
    emb_dim: int = 512
    num_heads: int = 8
    num_layers: int = 6
    head_dim: int = 64
    mlp_dim: int = 2048
    mlp_activations: Sequence[str] = ("relu",)
    dropout_rate: float = 0.1
    logits_via_embedding: bool = False
    float32_attention_logits: bool = False
    fused_attention: bool = False
    split_kernels: ClassVar[bool] = False


class DecoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its norm, dropout and residual."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, inputs, decoder_mask=None, position_bias=None, deterministic=False, decode=False, prefill_lengths=None
    ):
        """[batch, length, emb] -> [batch, length, emb]."""
        cfg = self.config
        x = t5.norm(cfg, "pre_self_attention_layer_norm")(inputs)
        x = t5.attention(cfg, "self_attention")(
            x,
            x,
            decoder_mask,
            position_bias,
            deterministic=deterministic,
            decode=decode,
            prefill_lengths=prefill_lengths,
        )
        x = inputs + t5.dropout(cfg, "post_self_attention_dropout")(x, deterministic)

        y = t5.norm(cfg, "pre_mlp_layer_norm")(x)
        y = t5.mlp(cfg)(y, deterministic=deterministic)
        return x + t5.dropout(cfg, "post_mlp_dropout")(y, deterministic)


class Decoder(nn.Module):
    """Embedding, layers, a last norm and the projection to the vocabulary."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        decoder_input_tokens,
        decoder_target_tokens,
        decoder_segment_ids=None,
        decoder_positions=None,
        decoder_causal_attention=None,
        *,
        enable_dropout: bool = True,
        decode: bool = False,
        max_decode_length: int | None = None,
        prefill: bool = False,
        prefill_lengths=None,
    ):
        """Returns logits, float32 [batch, length, vocab].

        Args:
            decoder_input_tokens: int [batch, length], the targets shifted right.
            decoder_target_tokens: int [batch, length]; says which positions are padding (0).
            decoder_segment_ids: int [batch, length], which packed example a position belongs to.
            decoder_positions: accepted as part of a packed batch; the relative bias makes them unnecessary.
            decoder_causal_attention: [batch, length], 1 at the positions that see each other both ways.
            enable_dropout: needs the rng "dropout" when True.
            decode: use the cache; see `layers.MultiHeadDotProductAttention`.
            max_decode_length: the length the cache was created with, in every step with one position.
            prefill: attend as in training, and fill the cache with the first `prefill_lengths` [batch] positions.
        """
        cfg = self.config
        if decoder_input_tokens.ndim != 2:
            raise ValueError(
                f"decoder_input_tokens has shape {decoder_input_tokens.shape}; it must be [batch, length]."
            )
        if prefill and (decode or prefill_lengths is None):
            raise ValueError("prefill needs prefill_lengths and decode=False; decode in calls that follow.")
        mask = None
        if not decode:
            mask = layers.make_decoder_mask(
                decoder_target_tokens, jnp.bool_, decoder_causal_attention, decoder_segment_ids
            )
        length = max_decode_length if decode and max_decode_length else decoder_input_tokens.shape[-1]
        bias = t5.position_bias(cfg, length, bidirectional=False)
        lengths = prefill_lengths if prefill else None

        embedding = t5.embedding(cfg)
        y = embedding(decoder_input_tokens)
        y = t5.dropout(cfg, "input_dropout")(y, not enable_dropout)
        for i in range(cfg.num_layers):
            y = DecoderLayer(cfg, name=f"layers_{i}")(y, mask, bias, not enable_dropout, decode, lengths)
        y = t5.norm(cfg, "decoder_norm")(y)
        y = t5.dropout(cfg, "output_dropout")(y, not enable_dropout)
        return t5.to_logits(cfg, y, embedding)


class DecoderWrapper(nn.Module):
    """What gin files bind: a `Decoder` whose parameters are under "decoder"."""

    config: TransformerConfig

    def setup(self):
        self.decoder = Decoder(self.config)

    def __call__(self, *args, **kwargs):
        return self.decoder(*args, **kwargs)
