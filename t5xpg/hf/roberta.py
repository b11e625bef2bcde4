"""A trained `roberta.Roberta` as Hugging Face's RobertaForMaskedLM, with its tokenizer: from_pretrained loads it.

RobertaForMaskedLM counts positions from pad_token_id + 1, so its position table gets that many rows of zeros first;
and it adds a vector for the only token type: zeros. Kernels are [inputs, outputs] in flax and
[outputs, inputs] in PyTorch. Ids stay as they are: <pad> is 0 here and 1 in RoBERTa, which config.json says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from t5xpg.hf.checkpoints import Trained
from t5xpg.roberta import RobertaConfig
from t5xpg.vocabularies.bpe import ByteLevelBPEVocabulary

IN_LAYER = {  # {flax: PyTorch} below layers_<i>/ and roberta.encoder.layer.<i>.
    **{f"attention/{name}": f"attention.self.{name}" for name in ("query", "key", "value")},
    "attention/out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "wi": "intermediate.dense",
    "wo": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
OUTSIDE = {
    "embedding_norm": "roberta.embeddings.LayerNorm",
    "head_dense": "lm_head.dense",
    "head_norm": "lm_head.layer_norm",
}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def convert(trained: Trained, vocabulary: ByteLevelBPEVocabulary) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns Hugging Face's tensors, and the content of config.json."""
    params = traverse_util.unflatten_dict(trained.params, sep="/")
    return to_hf(params), hf_config(trained.module.config, vocabulary)


def to_hf(params: Mapping) -> dict[str, np.ndarray]:
    """Returns `roberta.Roberta`'s parameters by PyTorch's names, float32; the tied decoder has none of its own."""
    flat = {name: np.asarray(x, np.float32) for name, x in traverse_util.flatten_dict(dict(params), sep="/").items()}
    words, places = flat.pop("token_embedding"), flat.pop("position_embedding")
    unused = np.zeros((1, words.shape[1]), np.float32)
    tensors = {
        "roberta.embeddings.word_embeddings.weight": words,
        "roberta.embeddings.position_embeddings.weight": np.concatenate([unused, places]),  # pad_token_id 0
        "roberta.embeddings.token_type_embeddings.weight": unused,
        "lm_head.bias": flat.pop("logits_bias"),
    }
    for name, value in flat.items():
        module, leaf = name.rsplit("/", 1)
        tensors[f"{hf_name(module)}.{LEAVES[leaf]}"] = np.ascontiguousarray(value.T if leaf == "kernel" else value)
    return tensors


def hf_name(module: str) -> str:
    """Returns roberta.encoder.layer.3.attention.output.dense for layers_3/attention/out."""
    if module in OUTSIDE:
        return OUTSIDE[module]
    layer, inside = module.split("/", 1)
    return f"roberta.encoder.layer.{layer.removeprefix('layers_')}.{IN_LAYER[inside]}"


def hf_config(config: RobertaConfig, vocabulary: ByteLevelBPEVocabulary) -> dict[str, object]:
    """Returns what transformers' RobertaConfig needs."""
    return {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.dropout_rate,
        "max_position_embeddings": config.max_length + 1,  # see `to_hf`
        "type_vocab_size": 1,
        "layer_norm_eps": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
