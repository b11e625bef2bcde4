"""A Hugging Face T5 as a T5X checkpoint, and the gin file of its model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base import files
from t5xpg.hf import checkpoints, compare, t5, tokenizer


def import_model(folder: str, out: str) -> tuple[str, dict[str, float]]:
    """Writes a Hugging Face T5 or mT5 as `out`/checkpoint_<step> and `out`/model.gin.

    The checkpoint has T5X's default optimizer, Adafactor, in its initial state, so that T5X restores it like Google's.

    Args:
      folder: has config.json and model.safetensors, or the parts that model.safetensors.index.json lists.
      out: a folder that does not exist yet.

    Returns:
      (the checkpoint's path, how far the two models are apart, see `compare.compare`).

    Raises:
      ImportError: what t5xpg[hf] installs is missing.
      FileExistsError: `out` exists.
      ValueError: no config.json, no safetensors files, a model that T5X's T5 cannot be, or results that differ.
    """
    checkpoints.check_ready()
    from transformers import AutoConfig

    source = Path(folder)
    if not (source / "config.json").is_file():
        raise ValueError(f"{folder}: no config.json there; pass the folder of `hf download REPO --local-dir FOLDER`.")
    with files.make_folder_whole(out) as part:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
        sizes = t5.t5x_config(config)
        params = t5.from_hf(read_safetensors(source), config)
        sizes["logits_via_embedding"] = "decoder/logits_dense/kernel" not in params
        step = config.get("t5x_step", 0)
        module = checkpoints.write_checkpoint(str(part), params, sizes, step)
        stored, _ = checkpoints.read_params(checkpoints.checkpoint_path(str(part), step))
        found = compare.compare(source, module, stored)
        family, vocabulary = family_and_vocabulary(source, sizes, part, out)
        (part / "model.gin").write_text(checkpoints.model_gin(folder, family, sizes, vocabulary), encoding="utf-8")
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
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(files):
        with safe_open(folder / name, framework="flax") as file:  # NumPy alone has no bfloat16
            tensors |= {key: np.asarray(file.get_tensor(key), np.float32) for key in file.keys()}  # noqa: SIM118
    return tensors


def family_and_vocabulary(source: Path, sizes: dict[str, Any], part: Path, out: str) -> tuple[str, str]:
    """Returns two arguments of `checkpoints.model_gin`; copies a SentencePiece model to `part`, which becomes `out`."""
    extra_ids = tokenizer.byte_extra_ids(source)
    if extra_ids is not None:
        return "byt5", f"seqio.ByteVocabulary.extra_ids = {extra_ids}"
    family = "t5_1_0" if sizes["logits_via_embedding"] else "t5_1_1"
    if sizes["vocab_size"] == t5.MT5_ROWS:
        family = "mt5"
    if not (source / "spiece.model").is_file():
        return family, f"# VOCABULARY is the include's: {source} has no spiece.model."
    shutil.copyfile(source / "spiece.model", part / "spiece.model")
    extra_ids = tokenizer.sentencepiece_extra_ids(source)
    path = os.path.join(os.path.abspath(out), "spiece.model")
    name = "seqio.SentencePieceVocabulary"
    return family, f"{name}.sentencepiece_model_file = {path!r}\n{name}.extra_ids = {extra_ids}"
