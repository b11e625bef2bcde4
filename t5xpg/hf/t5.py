"""T5's parameters under T5X's names and under Hugging Face's, and the configurations that go with them.

Both hold the same numbers. T5X keeps every kernel as [inputs, outputs], `torch` as [outputs, inputs]. T5X's relative
position biases belong to a stack, Hugging Face keeps them in the stack's first layer. Scanned layers hold one array for
all layers and may have biases of their own in each: then the network is umT5, which is Hugging Face's "umt5".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from t5xpg.hf.checkpoints import Trained

Arrays = dict[str, np.ndarray]

ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu_new", "silu": "silu", "swish": "silu"}  # flax's gelu is the tanh one
SIZES = {  # {T5X's T5Config: config.json}
    "vocab_size": "vocab_size",
    "emb_dim": "d_model",
    "num_heads": "num_heads",
    "num_encoder_layers": "num_layers",
    "num_decoder_layers": "num_decoder_layers",
    "head_dim": "d_kv",
    "mlp_dim": "d_ff",
}
BIAS = "relative_attention_bias.weight"
COPIES = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}  # of shared.weight
MT5_ROWS = 250112  # of mT5's embedding; nothing else tells an mT5 from a T5 1.1


def convert(trained: Trained, vocabulary) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns Hugging Face's tensors, and the content of config.json."""
    config = trained.module.config
    params = unscanned(trained.params, getattr(config, "param_scan_axis", 1))
    own_biases = "encoder/relpos_bias/rel_embedding" not in params
    content = hf_config(config, own_biases, vocabulary.eos_id)
    return to_hf(params, content), content


def layer_names(i: int, decoder: bool, gated: bool, own_bias: bool) -> dict[str, str]:
    """Returns {Hugging Face's name: T5X's} for layer `i` of a stack."""
    stack = "decoder" if decoder else "encoder"
    blocks = (
        [("SelfAttention", "self_attention"), ("EncDecAttention", "encoder_decoder_attention")]
        if decoder
        else [("SelfAttention", "attention")]
    )
    theirs, ours = f"{stack}.block.{i}.layer", f"{stack}/layers_{i}"
    names = {}
    for j, (block, name) in enumerate(blocks):
        norm = {"attention": "attention", "self_attention": "self_attention"}.get(name, "cross_attention")
        names[f"{theirs}.{j}.layer_norm.weight"] = f"{ours}/pre_{norm}_layer_norm/scale"
        for part, letter in ATTENTION.items():
            names[f"{theirs}.{j}.{block}.{letter}.weight"] = f"{ours}/{name}/{part}/kernel"
    names[f"{theirs}.{len(blocks)}.layer_norm.weight"] = f"{ours}/pre_mlp_layer_norm/scale"
    for part in ("wi_0", "wi_1", "wo") if gated else ("wi", "wo"):
        names[f"{theirs}.{len(blocks)}.DenseReluDense.{part}.weight"] = f"{ours}/mlp/{part}/kernel"
    if own_bias:
        names[f"{theirs}.0.SelfAttention.{BIAS}"] = f"{ours}/relpos_bias/rel_embedding"
    return names


def all_names(config: Mapping[str, Any], tied: bool) -> dict[str, str]:
    """Returns {Hugging Face's name: T5X's name in `t5.network`'s layout} for all that a config.json describes.

    `tied`: whether the embedding is the output projection.
    """
    gated = config["feed_forward_proj"].startswith("gated-")
    per_layer = config["model_type"] == "umt5"
    names = {"shared.weight": "token_embedder/embedding"}
    for stack, count in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        for i in range(count):
            names |= layer_names(i, stack == "decoder", gated, per_layer)
        if not per_layer:
            names[f"{stack}.block.0.layer.0.SelfAttention.{BIAS}"] = f"{stack}/relpos_bias/rel_embedding"
        names[f"{stack}.final_layer_norm.weight"] = f"{stack}/{stack}_norm/scale"
    if not tied:
        names["lm_head.weight"] = "decoder/logits_dense/kernel"
    return names


def transposed(name: str, array: np.ndarray) -> np.ndarray:
    """Returns the array as the other framework lays it out; `name` is Hugging Face's."""
    return array if name == "shared.weight" else np.ascontiguousarray(array.T)


def to_hf(params: Arrays, config: Mapping[str, Any]) -> Arrays:
    """Names and lays out parameters (see `unscanned`) as Hugging Face does.

    Raises:
      ValueError: names what is there but not expected, and what is expected but missing.
    """
    names = all_names(config, "decoder/logits_dense/kernel" not in params)
    check_names("the checkpoint", set(params), set(names.values()))
    tensors = {theirs: transposed(theirs, params[ours]) for theirs, ours in names.items()}
    if config["model_type"] == "umt5" and "lm_head.weight" in tensors:
        # umT5 in transformers 5 scales the decoder's outputs by 1 / sqrt(d_model), whatever config.json says.
        tensors["lm_head.weight"] *= np.float32(math.sqrt(config["d_model"]))
    return tensors


def from_hf(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Arrays:
    """The inverse of `to_hf`, for a config.json as `transformers` reads it.

    The embedding becomes the output projection where both are the same and the decoder's outputs are scaled, as in
    T5 1.0. In all other cases T5X needs a projection of its own.

    Raises:
      ValueError: as `to_hf`, or encoder and decoder have different embeddings.
    """
    tensors = dict(tensors)
    for name in sorted(COPIES):
        copy = tensors.pop(name, None)
        if copy is not None and not np.array_equal(tensors.setdefault("shared.weight", copy), copy):
            raise ValueError(f"{name} is not shared.weight; T5X's T5 has one embedding for encoder and decoder.")
    embedding = tensors.get("shared.weight")
    head = tensors.pop("lm_head.weight", embedding)
    scaled = config["model_type"] == "t5" and config["scale_decoder_outputs"]
    tied = scaled and head is not None and embedding is not None and np.array_equal(head, embedding)
    if not tied and head is not None:
        tensors["lm_head.weight"] = head / np.float32(math.sqrt(config["d_model"])) if scaled else head
    names = all_names(config, tied)
    check_names("the safetensors files", set(tensors), set(names))
    return {ours: transposed(theirs, tensors[theirs]) for theirs, ours in names.items()}


def check_tensors(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> None:
    """Compares the tensors that are there with config.json, before anything is made of the sizes that it says.

    Args:
      shapes: {Hugging Face's name: shape}.
      config: what config.json says.

    Raises:
      ValueError: a size or a tensor that does not go with the others.
    """
    for stack, size in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        found = {match[1] for name in shapes if (match := re.match(rf"{stack}\.block\.(\d+)\.", name))}
        if config[size] != len(found):
            raise ValueError(f"config.json: {size} is {config[size]}, and the weights have {len(found)}.")
    expected = set(all_names(config, tied=False))
    check_names("the safetensors files", {*shapes, *COPIES}, {*expected, *COPIES}, may_lack={"lm_head.weight"})
    if "shared.weight" not in shapes and not COPIES & shapes.keys():
        raise ValueError("the safetensors files: lack shared.weight, the embedding.")
    for name, shape in sorted(shapes.items()):
        if shape != (wanted := hf_shape(name, config)):
            raise ValueError(f"config.json: gives {name} the shape {wanted}, and the weights have {shape}.")


def hf_shape(name: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the shape of Hugging Face's tensor of this name."""
    width, attention = config["d_model"], config["num_heads"] * config["d_kv"]
    shapes = {
        **dict.fromkeys(("shared", "embed_tokens", "lm_head"), (config["vocab_size"], width)),
        **dict.fromkeys("qkv", (attention, width)),
        "o": (width, attention),
        **dict.fromkeys(("wi", "wi_0", "wi_1"), (config["d_ff"], width)),
        "wo": (width, config["d_ff"]),
        "relative_attention_bias": (config["relative_attention_num_buckets"], config["num_heads"]),
    }
    return shapes.get(name.split(".")[-2], (width,))  # the rest are norms


def check_names(where: str, found: set[str], expected: set[str], may_lack: Set[str] = frozenset()) -> None:
    lacking, unknown = sorted(expected - found - may_lack), sorted(found - expected)
    if lacking or unknown:
        raise ValueError(f"{where}: lacks {lacking[:5]}, and has {unknown[:5]}, which no T5 of this configuration has.")


# --- scanned layers ----------------------------------------------------------------------------


def unscanned(params: Mapping[str, np.ndarray], scan_axis: int = 1) -> Arrays:
    """Returns any T5X T5's parameters in the layout of `t5.network`: layers one by one, kernels as matrices.

    Args:
      params: {"encoder/…": array}, float32.
      scan_axis: the axis of a scanned array that counts the layers, T5Config.param_scan_axis.

    Returns:
      The same, with "encoder/relpos_bias/…" where all layers of both stacks have equal biases, and
      "encoder/layers_0/relpos_bias/…" and so on where they differ.
    """
    result: Arrays = {}
    for name, array in params.items():
        if match := re.match(r"(encoder|decoder)/\1/", name):
            for i, layer in enumerate(np.moveaxis(array, scan_axis, 0)):
                result[f"{match[1]}/layers_{i}/{name[match.end() :]}"] = layer
        else:
            result[name] = array
    return shared_biases({name: as_matrix(name, array) for name, array in result.items()})


def as_matrix(name: str, array: np.ndarray) -> np.ndarray:
    """Joins heads and head_dim of an attention kernel: [emb, heads, kv] and [heads, kv, emb] become matrices."""
    if array.ndim != 3:
        return array
    return array.reshape(-1, array.shape[-1]) if name.endswith("/out/kernel") else array.reshape(len(array), -1)


def shared_biases(params: Arrays) -> Arrays:
    """Gives each stack one table of biases if in both stacks all layers have the same."""
    own = {name for name in params if re.search(r"/layers_\d+/relpos_bias/", name)}
    first = {name: params[re.sub(r"layers_\d+", "layers_0", name)] for name in own}
    if not all(np.array_equal(params[name], first[name]) for name in own):
        return params
    rest = {name: array for name, array in params.items() if name not in own}
    return rest | {re.sub(r"layers_\d+/", "", name): array for name, array in first.items()}


# --- configurations ----------------------------------------------------------------------------


def hf_config(config, own_biases: bool, eos_id: int) -> dict[str, Any]:
    """Returns the content of config.json for a network.

    Args:
      config: T5X's network.T5Config.
      own_biases: whether each layer has position biases of its own.
      eos_id: the vocabulary's.

    Raises:
      ValueError: Hugging Face's T5 has no such feed-forward layer.
    """
    is_mt5 = config.vocab_size == MT5_ROWS and not config.logits_via_embedding
    kind = "umt5" if own_biases else "mt5" if is_mt5 else "t5"
    return {
        "architectures": [f"{dict(t5='T5', mt5='MT5', umt5='UMT5')[kind]}ForConditionalGeneration"],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": feed_forward(tuple(config.mlp_activations)),
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": float(config.dropout_rate),
        "is_encoder_decoder": True,
        # For T5, transformers 5 takes this for whether to scale the decoder's outputs (see also `to_hf`); whether the
        # projection is the embedding, it sees from the weights.
        "tie_word_embeddings": bool(config.logits_via_embedding) or own_biases,
        "pad_token_id": 0,
        "eos_token_id": eos_id,
        "decoder_start_token_id": 0,
        "dtype": "float32",
    }


def may_cache(config: Mapping[str, Any]) -> bool:
    """Whether generation may keep keys and values: transformers 5 sizes their cache by the encoder's layers."""
    return config["num_decoder_layers"] <= config["num_layers"]


def feed_forward(activations: tuple[str, ...]) -> str:
    """Returns "relu" for ("relu",), "gated-gelu" for ("gelu", "linear")."""
    if len(activations) in (1, 2) and activations[0] in ACTIVATIONS and activations[1:] in ((), ("linear",)):
        if activations == ("gelu", "linear"):
            return "gated-gelu"  # which for T5 alone means the tanh one
        return ("gated-" if activations[1:] else "") + ACTIVATIONS[activations[0]]
    raise ValueError(
        f"T5Config.mlp_activations is {activations}; Hugging Face's T5 has one of {sorted(ACTIVATIONS)}, alone or "
        "followed by 'linear'."
    )


def t5x_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes in T5X's network.T5Config for a config.json as `transformers` reads it.

    Raises:
      ValueError: T5X's T5 has no such parts; says which.
    """
    if config["model_type"] not in ("t5", "mt5"):
        raise ValueError(f"config.json: model_type is {config['model_type']!r}; only 't5' and 'mt5' can be imported.")
    fixed = {
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }
    if other := {name: config[name] for name, value in fixed.items() if config.get(name) not in (value, None)}:
        raise ValueError(f"config.json: {other}; T5X's T5 has { ({name: fixed[name] for name in other}) }.")
    for name in SIZES.values():
        if not isinstance(config[name], int) or config[name] < 1:
            raise ValueError(f"config.json: {name} is {config[name]!r}, not a number of at least 1.")
    gated, _, name = config["feed_forward_proj"].rpartition("-")
    name = "gelu_new" if config["feed_forward_proj"] == "gated-gelu" else name
    ours = {theirs: name for name, theirs in ACTIVATIONS.items() if name != "swish"}
    if name not in ours or gated not in ("", "gated"):
        raise ValueError(
            f"config.json: feed_forward_proj is {config['feed_forward_proj']!r}; 'gated-gelu' and any of "
            f"{sorted(ours)}, with or without 'gated-' before it, can be imported."
        )
    sizes = {field: config[theirs] for field, theirs in SIZES.items()}
    return sizes | {"mlp_activations": (ours[name], "linear") if gated else (ours[name],)}
