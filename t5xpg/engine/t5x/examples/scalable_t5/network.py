"""T5 for large models: its layers are scanned, and rematerialised in the backward pass.

A scanned stack compiles one layer instead of all and holds the layers' parameters in one array each, along
`param_scan_axis`. A rematerialised layer keeps little for the backward pass and computes the rest again.

Two things about the function differ from `t5.network`, both T5X's: every layer has position biases of its own, which
makes this the network of umT5, and attention kernels keep heads and head_dim apart.
"""

from __future__ import annotations

from typing import ClassVar

import jax
from flax import linen as nn
from flax import struct
from flax.linen.partitioning import ScanIn, scan_with_axes

from t5x.embedded.contract import refuse_missing
from t5x.embedded.residuals import divided, rematerialised
from t5x.examples.t5 import network as t5

refuse_missing(globals(), "examples.scalable_t5.network")


@struct.dataclass
class T5Config(t5.T5Config):
    """Size and numerics of a T5; every field can be bound in gin.

    Attributes:
        scan_layers: whether layers are scanned; otherwise they are layers_0, layers_1, … as in `t5.network`.
        param_scan_axis: the axis of every scanned parameter that counts the layers.
    """

    scan_layers: bool = True
    param_scan_axis: int = 1
    split_kernels: ClassVar[bool] = True


def run_layers(stack: nn.Module, layer: type[nn.Module], count: int, name: str, x: jax.Array, *arguments) -> jax.Array:
    """Runs x [batch, length, emb] through `count` layers, scanned and rematerialised as the config says.

    Args:
        stack: the module that the layers become part of.
        layer: maps (x, *arguments) to (x, None).
        name: of the scanned layers.
        arguments: the same for all layers; arrays, or values that are known when compiling.
    """
    cfg = stack.config
    layer = rematerialised(layer, cfg.remat_policy, arguments, scanned=cfg.scan_layers)
    if not cfg.scan_layers:
        for i in range(count):
            x, _ = layer(cfg, name=f"layers_{i}")(x, *arguments)
        return x
    axis = cfg.param_scan_axis
    scanned = scan_with_axes(
        layer,
        variable_axes={"params": axis if stack.is_mutable_collection("params") else ScanIn(axis), "cache": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast,) * len(arguments),
        length=count,
        axis_name="layers",
    )
    return scanned(cfg, name=name)(x, *arguments)[0]


class EncoderLayer(t5.EncoderLayer):
    """T5's, with position biases of its own."""

    @nn.compact
    def __call__(self, inputs, encoder_mask, deterministic):
        """[batch, length, emb] -> ([batch, length, emb], None)."""
        bias = t5.position_bias(self.config, inputs.shape[-2], bidirectional=True)
        return super().__call__(divided(inputs), encoder_mask, bias, deterministic), None


class DecoderLayer(t5.DecoderLayer):
    """T5's, with position biases of its own."""

    @nn.compact
    def __call__(self, inputs, encoded, decoder_mask, encoder_decoder_mask, deterministic, decode, max_decode_length):
        """[batch, length, emb], encoded [batch, input length, emb] -> ([batch, length, emb], None)."""
        length = max_decode_length if decode and max_decode_length else inputs.shape[-2]
        bias = t5.position_bias(self.config, length, bidirectional=False)
        masks = decoder_mask, encoder_decoder_mask
        return super().__call__(divided(inputs), encoded, *masks, bias, deterministic, decode), None


class Encoder(t5.Encoder):
    def stack(self, x, *arguments):
        return run_layers(self, EncoderLayer, self.config.num_encoder_layers, "encoder", x, *arguments)


class Decoder(t5.Decoder):
    def stack(self, y, *arguments):
        return run_layers(self, DecoderLayer, self.config.num_decoder_layers, "decoder", y, *arguments)


class Transformer(t5.Transformer):
    """T5's encoder and decoder around one embedding; see `t5.Transformer`."""

    config: T5Config

    def setup(self):
        self.shared_embedding = t5.embedding(self.config)
        self.encoder = Encoder(self.config, self.shared_embedding)
        self.decoder = Decoder(self.config, self.shared_embedding)

    @property
    def scan_layers(self) -> bool:
        """Whether the cache's first axis is layers rather than examples; `t5x.models` asks."""
        return self.config.scan_layers
