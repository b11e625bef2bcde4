"""To Hugging Face and back: a folder that `transformers` loads from a checkpoint, a checkpoint from such a folder.

T5 goes both ways, RoBERTa out (`hf_roberta`).

Both end by running the two models on the same tokens. Logits and a beam search have to agree, or nothing is written.
Only safetensors files are read and written, never pickled ones; nothing reaches the network but `push`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg import hf_card, hf_compare, hf_roberta, hf_t5x, hf_weights, roberta, t5x_finder

NEEDED = ("torch", "transformers", "safetensors", "huggingface_hub")


def export_model(
    source: str, out: str, *, gin_file: str | None = None, tokenizer: str | None = None
) -> dict[str, float]:
    """Writes a T5 or RoBERTa as `out`/config.json, model.safetensors, tokenizer, README.md and what T5 generates by.

    Args:
      source: a MODEL_DIR, of which the latest checkpoint is taken, or a checkpoint_<step> folder of any layout.
      out: a folder that does not exist yet.
      gin_file: a model's gin file, for a checkpoint without the config.gin of its run beside it.
      tokenizer: the SentencePiece model, where it is not at the path that the run had it at.

    Returns:
      How far the two models are apart: {"logits": the largest difference, "largest_logit": …}.

    Raises:
      ImportError: what t5xpg[hf] installs is missing.
      FileExistsError: `out` is there.
      ValueError: no such checkpoint, a model that Hugging Face has no counterpart for, or results that differ.
    """
    check_ready()
    with folder_made_whole(out) as part:
        trained = hf_t5x.read_trained(source, gin_file)
        export = hf_roberta.export if isinstance(trained.module, roberta.Roberta) else export_t5
        found = export(part, trained, tokenizer)
        hf_card.write(part, Path(out).name, trained.step, trained.model_dir, found["logits"], found["largest_logit"])
    return found


def export_t5(folder: Path, trained: hf_t5x.Trained, tokenizer: str | None) -> dict[str, float]:
    """Writes model and tokenizer to `folder`; returns what `hf_compare.compare` found."""
    write_tokenizer(trained.vocabulary, folder, tokenizer)
    hf_compare.compare_tokenizer(folder, trained.vocabulary)
    write_model(folder, *converted(trained))
    return hf_compare.compare(folder, trained.module, trained.params)


def converted(trained: hf_t5x.Trained) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns Hugging Face's tensors, and the content of config.json."""
    config = trained.module.config
    params = hf_weights.unscanned(trained.params, getattr(config, "param_scan_axis", 1))
    own_biases = "encoder/relpos_bias/rel_embedding" not in params
    content = hf_weights.hf_config(config, own_biases, trained.vocabulary.eos_id)
    return hf_weights.to_hf(params, content), content | {"t5x_step": trained.step}


def write_model(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {name: config[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")}
    generation = ids if hf_weights.may_cache(config) else ids | {"use_cache": False}
    for name, content in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors leaves it to its owner alone


def write_tokenizer(vocabulary, folder: Path, model_file: str | None) -> None:
    """Writes tokenizer.json and tokenizer_config.json, and of a SentencePiece vocabulary the model as spiece.model."""
    import seqio

    from t5xpg import vocabularies

    if isinstance(vocabulary, seqio.ByteVocabulary):
        vocabularies.bytes_to_tokenizer_json(folder, vocabulary.extra_ids)
        return
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        raise ValueError(f"No tokenizer is made of a {type(vocabulary).__name__}, only of bytes and SentencePiece.")
    path = model_file or vocabulary.sentencepiece_model_file
    if "://" in path:
        raise ValueError(f"The vocabulary is at {path}; fetch it, and pass it as --tokenizer FILE.model.")
    vocabularies.to_tokenizer_json(path, folder, vocabulary.extra_ids)
    shutil.copyfile(path, folder / "spiece.model")


def push(folder: str, repo_id: str) -> str:
    """Uploads an exported folder to the Hugging Face Hub, or what HF_ENDPOINT names; returns its address there."""
    check_ready()
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repo_id, exist_ok=True)
    api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Upload a model trained with t5xpg")
    return f"{api.endpoint}/{repo_id}"


# --- import ------------------------------------------------------------------------------------


def import_model(folder: str, out: str) -> tuple[str, dict[str, float]]:
    """Writes a Hugging Face T5 or mT5 as `out`/checkpoint_<step> and `out`/model.gin.

    The checkpoint has T5X's default optimizer, Adafactor, in its first state, so that T5X restores it like Google's.

    Args:
      folder: has config.json and model.safetensors, or the parts that model.safetensors.index.json lists.
      out: a folder that does not exist yet.

    Returns:
      (the checkpoint's path, how far the two models are apart, see `hf_compare.compare`).

    Raises:
      ImportError: what t5xpg[hf] installs is missing.
      FileExistsError: `out` is there.
      ValueError: no config.json, no safetensors files, a model that T5X's T5 cannot be, or results that differ.
    """
    check_ready()
    from transformers import AutoConfig

    from t5x import checkpoints

    source = Path(folder)
    if not (source / "config.json").is_file():
        raise ValueError(f"{folder}: no config.json there; pass the folder of `hf download REPO --local-dir FOLDER`.")
    with folder_made_whole(out) as part:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
        sizes = hf_weights.t5x_config(config)
        params = hf_weights.from_hf(read_safetensors(source), config)
        sizes["logits_via_embedding"] = "decoder/logits_dense/kernel" not in params
        step = config.get("t5x_step", 0)
        module = hf_t5x.write_checkpoint(str(part), params, sizes, step)
        stored, _ = hf_t5x.read_params(checkpoints.checkpoint_path(str(part), step))
        found = hf_compare.compare(source, module, stored)
        family, vocabulary = family_and_vocabulary(source, sizes, part, out)
        (part / "model.gin").write_text(hf_t5x.model_gin(folder, family, sizes, vocabulary), encoding="utf-8")
    return checkpoints.checkpoint_path(os.path.abspath(out), step), found  # T5X itself takes no relative path


def read_safetensors(folder: Path) -> dict[str, np.ndarray]:
    """Returns {name: float32 array} of all the safetensors files of a model folder."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    if missing := sorted(name for name in files if not (folder / name).is_file()):
        raise ValueError(
            f"{folder}: no {', '.join(missing)}; pickled weights (pytorch_model.bin) are not read. Save the model with "
            "save_pretrained of transformers 5, which writes safetensors."
        )
    tensors = {}
    for name in sorted(files):
        with safe_open(folder / name, framework="flax") as file:  # NumPy alone has no bfloat16
            tensors |= {key: np.asarray(file.get_tensor(key), np.float32) for key in file.keys()}  # noqa: SIM118
    return tensors


def family_and_vocabulary(source: Path, sizes: dict[str, Any], part: Path, out: str) -> tuple[str, str]:
    """Returns what `hf_t5x.model_gin` takes; copies a SentencePiece model to `part`, which is to become `out`."""
    extra_ids = byte_extra_ids(source)
    if extra_ids is not None:
        return "byt5", f"seqio.ByteVocabulary.extra_ids = {extra_ids}"
    family = "t5_1_0" if sizes["logits_via_embedding"] else "t5_1_1"
    if sizes["vocab_size"] == hf_weights.MT5_ROWS:
        family = "mt5"
    if not (source / "spiece.model").is_file():
        return family, f"# VOCABULARY is the include's: {source} has no spiece.model."
    from t5xpg import vocabularies

    shutil.copyfile(source / "spiece.model", part / "spiece.model")
    own = vocabularies.sentinels(vocabularies.sentencepiece(str(source / "spiece.model"), 0))
    extra_ids = 0 if own else sentencepiece_extra_ids(source)
    path = os.path.join(os.path.abspath(out), "spiece.model")
    name = "seqio.SentencePieceVocabulary"
    return family, f"{name}.sentencepiece_model_file = {path!r}\n{name}.extra_ids = {extra_ids}"


def sentencepiece_extra_ids(folder: Path) -> int:
    """Returns how many sentinels a tokenizer adds to its SentencePiece model; without a word on it, T5's 100."""
    config = read_json(folder / "tokenizer_config.json")
    if not config:
        return 100
    names = [*config.get("additional_special_tokens", ()), *config.get("extra_special_tokens", ())]
    return max(sum("<extra_id_" in str(name) for name in names), config.get("extra_ids", 0))


def byte_extra_ids(folder: Path) -> int | None:
    """Returns a byte tokenizer's number of sentinels as SeqIO counts them; None for any other tokenizer."""
    if read_json(folder / "tokenizer_config.json").get("tokenizer_class") == "ByT5Tokenizer":
        return 100  # T5X's; Hugging Face numbers sentinels otherwise
    ids = read_json(folder / "tokenizer.json").get("model", {}).get("vocab", {})
    if isinstance(ids, dict) and ids.get("a") == 3 + ord("a") and ids.get("z") == 3 + ord("z"):
        return ids["<extra_id_0>"] - 258
    return None


def read_json(path: Path) -> dict[str, Any]:
    """Returns the file's content, {} without a file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


# --- both --------------------------------------------------------------------------------------


def check_ready() -> None:
    """Raises ImportError when a package is missing, or another T5X than the embedded engine would answer."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"This needs {', '.join(missing)}: pip install 't5xpg[hf]'")
    if not t5x_finder.is_embedded():
        raise ImportError("Checkpoints are converted by the embedded engine; set T5XPG_ENGINE=embedded.")


@contextlib.contextmanager
def folder_made_whole(out: str) -> Iterator[Path]:
    """Gives a folder beside `out` to write to, which becomes `out` if nothing goes wrong, and goes away otherwise."""
    target = Path(out)
    if target.exists():
        raise FileExistsError(f"{out}: there already; pass a folder that does not exist yet.")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        yield part
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
