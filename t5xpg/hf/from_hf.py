"""A Hugging Face T5 as a T5X checkpoint, and the gin file of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import seqio

from t5xpg.base import files
from t5xpg.base.stores import absolute
from t5xpg.hf import checkpoints, compare, t5, tokenizer
from t5xpg.hf.folder import blamed_on, find_tensors, read_config, read_tensors


def import_model(folder: str, out: str) -> tuple[str, dict[str, float]]:
    """Writes a Hugging Face T5 or mT5 as `out`/checkpoint_<step> and `out`/model.gin.

    The checkpoint has T5X's default optimizer, Adafactor, in its initial state, so that T5X restores it like Google's.

    Args:
      folder: has config.json, the tokenizer (spiece.model, or the tokenizer.json that transformers 5 saves), and
        model.safetensors or the parts that model.safetensors.index.json lists.
      out: a folder that does not exist yet.

    Returns:
      (the checkpoint's path, how far the two models are apart, see `compare.compare`).

    Raises:
      ImportError: what t5xpg[hf] installs is missing.
      FileExistsError: `out` exists.
      ValueError: no config.json, no tokenizer, no safetensors files, one that is damaged or does not go with the
        others, a model that T5X's T5 cannot be, or results that differ. Names the file.
    """
    checkpoints.check_ready()
    with files.local_copy(folder) as local, files.make_folder_whole(out, last="model.gin") as part:
        path, found = write(Path(local), part, folder, absolute(out))
    return path, found


def write(source: Path, part: Path, name: str, target: str) -> tuple[str, dict[str, float]]:
    """As `import_model`, to `part`, which becomes `target`; `name` is what the user calls `source`."""
    config = read_config(source)
    with blamed_on(source / "config.json"):
        sizes = t5.t5x_config(config)
        step = config.get("t5x_step", 0)
        if not isinstance(step, int) or not 0 <= step < 2**31:
            raise ValueError(f"t5x_step is {step!r}, not a number of steps.")
    found_tensors = find_tensors(source)
    with blamed_on(source):
        t5.check_tensors({name: shape for name, (_, shape) in found_tensors.items()}, config)
    with blamed_on(source):
        vocabulary = tokenizer.read(source, part)
        check_ids(source, config, vocabulary)
        params = t5.from_hf(read_tensors({path for path, _ in found_tensors.values()}), config)
    sizes["logits_via_embedding"] = "decoder/logits_dense/kernel" not in params
    module = checkpoints.write_checkpoint(str(part), params, sizes, step)
    stored, _ = checkpoints.read_params(checkpoints.checkpoint_path(str(part), step))
    with blamed_on(source):
        found = compare.compare(source, module, stored)
    text = checkpoints.model_gin(name, family(sizes, vocabulary), sizes, vocabulary_gin(vocabulary, target))
    files.write_whole(part / "model.gin", text)
    return checkpoints.checkpoint_path(target, step), found  # T5X itself takes no relative path


def check_ids(source: Path, config: dict[str, Any], vocabulary: seqio.Vocabulary) -> None:
    """Raises ValueError where the tokenizer's ids are not the model's."""
    if vocabulary.vocab_size > config["vocab_size"]:
        raise ValueError(
            f"{source}: the tokenizer has {vocabulary.vocab_size:,} ids, and config.json's vocab_size is "
            f"{config['vocab_size']:,}; it is another model's."
        )
    if config.get("eos_token_id") not in (vocabulary.eos_id, None):
        raise ValueError(
            f"{source}: the tokenizer's EOS is {vocabulary.eos_id}, and config.json's eos_token_id is "
            f"{config['eos_token_id']!r}; it is another model's."
        )


def family(sizes: dict[str, Any], vocabulary: seqio.Vocabulary) -> str:
    """Returns which of T5X's families a model belongs to, for `checkpoints.model_gin`."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return "byt5"
    if sizes["vocab_size"] == t5.MT5_ROWS:
        return "mt5"
    return "t5_1_0" if sizes["logits_via_embedding"] else "t5_1_1"


def vocabulary_gin(vocabulary: seqio.Vocabulary, target: str) -> str:
    """Returns the lines of gin that bind the vocabulary of a model in the folder `target`."""
    name = f"seqio.{type(vocabulary).__name__}"
    lines = [f"{name}.extra_ids = {vocabulary.extra_ids}"]
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        lines.append(f"{name}.sentencepiece_model_file = {f'{target}/spiece.model'!r}")
    return "\n".join(lines)
