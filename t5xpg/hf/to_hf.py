"""A T5X checkpoint as a folder that transformers' from_pretrained loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base import files
from t5xpg.base.stores import absolute
from t5xpg.hf import card, checkpoints, compare, roberta, t5
from t5xpg.hf.tokenizer import write as write_tokenizer
from t5xpg.roberta import Roberta


def export_model(
    source: str, out: str, *, gin_file: str | None = None, tokenizer: str | None = None, trust: bool = False
) -> dict[str, float]:
    """Writes a T5 or RoBERTa to `out`, a folder for from_pretrained with a model card (README.md).

    Args:
      source: a MODEL_DIR, of which the latest checkpoint is taken, or a checkpoint_<step> folder of any layout.
      out: a folder that does not exist yet.
      gin_file: a model's gin file, for a checkpoint without the config.gin of its run next to it.
      tokenizer: the SentencePiece model, or RoBERTa's tokenizer.json, where it is now; the vocabulary is read from it
        and not from where the run, or the gin file, has it, which is not even looked at.
      trust: whether the run's config.gin, which is code, may name any Python function.

    Returns:
      How far the two models are apart: {"logits": the largest difference, "largest_logit": …}.

    Raises:
      ImportError: what t5xpg[hf] installs is missing.
      FileExistsError: `out` exists.
      ValueError: no such checkpoint, a model that Hugging Face has no counterpart for, or results that differ.
    """
    checkpoints.check_ready()
    with files.make_folder_whole(out) as part:
        trained = checkpoints.read_trained(source, gin_file, tokenizer, trust)
        vocabulary = write_tokenizer(trained, part)
        convert = roberta.convert if isinstance(trained.module, Roberta) else t5.convert
        tensors, config = convert(trained, vocabulary)
        write_model(part, tensors, config | {"t5x_step": trained.step})
        found = compare.compare(part, trained.module, trained.params)
        card.write(
            part,
            os.path.basename(absolute(out)),
            trained.step,
            trained.model_dir,
            found["logits"],
            found["largest_logit"],
        )
    return found


def write_model(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
    """Writes model.safetensors and config.json, and for a model that generates, generation_config.json."""
    from safetensors.numpy import save_file

    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    contents = {"config": config}
    if "decoder_start_token_id" in config:
        ids = {name: config[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")}
        contents["generation_config"] = ids if t5.may_cache(config) else ids | {"use_cache": False}
    for name, content in contents.items():
        files.write_whole(folder / f"{name}.json", json.dumps(content, indent=2) + "\n")
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors lets only its owner read it


def push(folder: str, repo_id: str, public: bool = False) -> str:
    """Uploads an exported folder to the Hugging Face Hub, or what HF_ENDPOINT names; returns its address there.

    Args:
      folder: the exported one.
      repo_id: "name" or "owner/name"; made if need be, for its owner's eyes.
      public: whether everybody may see it.

    Raises:
      ValueError: the repository is there and public, and `public` does not say so.
    """
    checkpoints.check_ready()
    from huggingface_hub import HfApi

    api = HfApi()
    repo_id = api.create_repo(repo_id, private=not public, exist_ok=True).repo_id
    if not public and not api.model_info(repo_id).private:
        raise ValueError(f"{repo_id} is a public repository; add --public to upload to it. Nothing was uploaded.")
    with files.local_copy(folder) as local:
        api.upload_folder(repo_id=repo_id, folder_path=local, commit_message="Upload a model trained with t5xpg")
    return f"{api.endpoint}/{repo_id}"
