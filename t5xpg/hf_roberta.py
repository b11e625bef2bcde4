"""A trained `roberta.Roberta` as Hugging Face's RobertaForMaskedLM, with its tokenizer: from_pretrained loads it.

RobertaForMaskedLM counts positions from pad_token_id + 1, so its position table gets that many rows of zeros first;
and it adds a vector for the token type, of which there is one: zeros. Kernels are [inputs, outputs] in flax and
[outputs, inputs] in PyTorch. Ids stay as they are: <pad> is 0 here and 1 in RoBERTa, which config.json says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from safetensors.numpy import save_file

from t5xpg import byte_level_bpe, hf_t5x, vocabularies
from t5xpg.roberta import Roberta, RobertaConfig

TOLERANCE = 1e-4  # of logits, in float32
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


def export(folder: Path, trained: hf_t5x.Trained, tokenizer: str | None) -> dict[str, float]:
    """Writes model and tokenizer to `folder`, loads them with transformers and compares.

    Args:
      folder: is there, and empty.
      trained: with a `roberta.Roberta`.
      tokenizer: another tokenizer.json than the run's.

    Returns:
      {"logits": the largest difference, "largest_logit": the largest logit}.

    Raises:
      ValueError: another kind of vocabulary, or logits that differ by more than 1e-4.
    """
    vocabulary = vocabularies.byte_level_bpe(tokenizer) if tokenizer else trained.vocabulary
    if not isinstance(vocabulary, byte_level_bpe.ByteLevelBPEVocabulary):
        raise ValueError(f"A RoBERTa with a {type(vocabulary).__name__}; only byte-level BPE can be exported.")
    config, params = trained.module.config, traverse_util.unflatten_dict(trained.params, sep="/")
    write(folder, config, params, vocabulary)
    found = compare(folder, config, params)
    if not found["logits"] <= TOLERANCE:
        apart = f"transformers' logits differ by {found['logits']:.1e}, more than {TOLERANCE}"
        raise ValueError(f"{apart}; nothing was written.")
    return found


def write(
    folder: Path, config: RobertaConfig, params: Mapping, vocabulary: byte_level_bpe.ByteLevelBPEVocabulary
) -> None:
    """Writes the four files into `folder`."""
    save_file(to_hf(params), folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (
        ("config.json", hf_config(config, vocabulary)),
        ("tokenizer_config.json", byte_level_bpe.tokenizer_config(config.max_length)),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(vocabulary.tokenizer.to_str(pretty=True), encoding="utf-8")


def to_hf(params: Mapping) -> dict[str, np.ndarray]:
    """The parameters of `roberta.Roberta` by PyTorch's names, float32; the decoder is tied and has none of its own."""
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
    """layers_3/attention/out -> roberta.encoder.layer.3.attention.output.dense"""
    if module in OUTSIDE:
        return OUTSIDE[module]
    layer, inside = module.split("/", 1)
    return f"roberta.encoder.layer.{layer.removeprefix('layers_')}.{IN_LAYER[inside]}"


def hf_config(config: RobertaConfig, vocabulary: byte_level_bpe.ByteLevelBPEVocabulary) -> dict[str, object]:
    """What transformers' RobertaConfig needs to know."""
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


def compare(folder: Path, config: RobertaConfig, params: Mapping) -> dict[str, float]:
    """The largest difference of logits between the folder, as transformers loads it, and the parameters here; and the
    largest logit.

    In float32, on two rows of random ids of which one is padded.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    length = config.max_length
    tokens = np.random.default_rng(0).integers(1, config.vocab_size, (2, length), np.int32)
    tokens[1, length // 2 :] = 0
    theirs = AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens).long(), attention_mask=torch.tensor(tokens != 0)).logits.numpy()
    ours = Roberta(config.replace(dtype=jnp.float32))
    logits = jax.jit(lambda p, t: ours.apply({"params": p}, t, enable_dropout=False))(params, tokens)
    real = tokens != 0
    apart = np.abs(np.asarray(logits) - expected)[real].max()
    return {"logits": float(apart), "largest_logit": float(np.abs(expected)[real].max())}
