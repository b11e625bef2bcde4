"""Damaged Hugging Face folders through `import hf`: the model is imported as it stands, or one line names the file.

    python benchmarks/fuzz_imports.py --cases 2000 --seed 1

A case is a small T5 (in one file with tokenizer.json, in parts with spiece.model, or on bytes) of which something was
cut off, flipped, edited, swapped, removed or linked elsewhere. It must

- be refused by a ValueError of one line that names the folder and leaves nothing beside it;
- or be imported as transformers reads it: all weights to the bit, and the ids of texts;

within SECONDS of processor time. safetensors has no checksums, so a bit flipped in the weights is an imported folder,
unless it makes one infinite or no number.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

os.environ.update(T5XPG_ENGINE="embedded")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from t5xpg import hf
from t5xpg.hf import checkpoints, compare, t5
from t5xpg.vocabularies import training

SECONDS = 60
SIZES = dict(d_model=8, d_kv=4, d_ff=12, num_layers=2, num_decoder_layers=1, num_heads=2)
PROSE = "The lighthouse keeper wrote down the weather every morning, and every evening he read what he had written. "
TEXTS = (*PROSE.split(", "), "Größe 中文", "a <extra_id_0> b")
VALUES = (None, True, -1, 0, 1.5, 2**31, 10**15, 10**400, "", "x", "../../x", [], [[]], {}, {"a": 1}, float("nan"))


def make_folders(place: Path) -> list[Path]:
    """Writes the three undamaged folders below `place`."""
    made = [place / name for name in ("whole", "parts", "bytes")]
    (place / "corpus.txt").write_text(PROSE * 20)
    spiece = training.train_sentencepiece(place / "corpus.txt", place / "v", 80)
    torch.manual_seed(0)
    for folder, rows in zip(made, (192, 192, 384), strict=True):
        config = transformers.T5Config(**SIZES, vocab_size=rows, tie_word_embeddings=folder is not made[2])
        model = transformers.T5ForConditionalGeneration(config)
        model.save_pretrained(folder, max_shard_size="6KB" if folder is made[1] else "1GB")
    shutil.copyfile(spiece, made[1] / "spiece.model")
    transformers.AutoTokenizer.from_pretrained(made[1]).save_pretrained(made[0])
    transformers.ByT5Tokenizer().save_pretrained(made[2])
    return made


# ---- Damages: each changes a folder by a random generator ----


def pick(rng, folder: Path, pattern: str = "*") -> Path:
    return rng.choice(sorted(path for path in folder.glob(pattern) if path.is_file()))


def cut(rng, folder: Path) -> None:
    path = pick(rng, folder)
    content = path.read_bytes()
    path.write_bytes(content[: rng.integers(len(content))])


def flip(rng, folder: Path) -> None:
    path = pick(rng, folder)
    content = bytearray(path.read_bytes())
    for place in rng.integers(len(content), size=rng.integers(1, 9)):
        content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def flip_header(rng, folder: Path) -> None:
    path = pick(rng, folder, "*.safetensors")
    content = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    content[int(rng.integers(8 if rng.random() < 0.3 else end))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def edit_tensors(rng, folder: Path) -> None:
    path = pick(rng, folder, "*.safetensors")
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    x = tensors[name]
    edits = {
        "dtype": lambda: x.to(rng.choice([torch.int8, torch.int64, torch.float64, torch.float16, torch.bfloat16])),
        "shape": lambda: x.reshape(-1)[: rng.integers(x.numel())].clone(),
        "transpose": lambda: x.t().contiguous(),
        "more": lambda: torch.stack([x, x]),
        "nan": lambda: torch.where(x == x.max(), float(rng.choice([np.nan, np.inf, -np.inf])), x),
    }
    kind = rng.choice([*edits, "missing", "renamed", "extra"])
    if kind in edits:
        tensors[name] = edits[kind]()
    else:
        if kind != "extra":
            del tensors[name]
        if kind != "missing":
            tensors[
                rng.choice([f"{name}.", "", "encoder.block.999999999.x", "lm_head.bias", name.replace("0", "7")])
            ] = x.clone()
    save_file(tensors, path, {"format": "pt"})


def edit_json(rng, folder: Path) -> None:
    """Replaces or removes a value anywhere in a JSON file."""
    path = pick(rng, folder, "*.json")
    content = json.loads(path.read_text())
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        if not isinstance(place[key], dict | list) or rng.random() < 0.3:
            break
        place = place[key]
    if rng.random() < 0.3:
        del place[key]
    else:
        place[key] = VALUES[rng.integers(len(VALUES))]
    path.write_text(json.dumps(content))


def edit_sizes(rng, folder: Path) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    key = rng.choice([*SIZES, "vocab_size", "relative_attention_num_buckets", "feed_forward_proj", "model_type"])
    content[key] = VALUES[rng.integers(len(VALUES))] if rng.random() < 0.7 else int(10 ** rng.integers(0, 19))
    path.write_text(json.dumps(content))


def edit_pieces(rng, folder: Path) -> None:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return flip(rng, folder)
    content = json.loads(path.read_text())
    pieces = content["model"]["vocab"]
    i, j = rng.integers(len(pieces), size=2)
    kind = rng.integers(5)
    if kind == 0:
        pieces[i], pieces[j] = pieces[j], pieces[i]
    elif kind == 1:
        del pieces[i]
    elif kind == 2:
        pieces[i] = pieces[j]
    elif kind == 3:
        pieces[i][1] = float(rng.normal(-5, 5))
    else:
        content["normalizer"] = rng.choice([None, {"type": "Lowercase"}, {"type": "StripAccents"}])
    return path.write_text(json.dumps(content)) and None


def not_json(rng, folder: Path) -> None:
    texts = (
        b"[" * 100_000,
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{",
        b"\0" * 50,
        b"{}",
        b'{"a": 1}',
        "{'ä'}".encode("latin1"),
    )
    pick(rng, folder, "*.json").write_bytes(texts[rng.integers(len(texts))])


def swap(rng, folder: Path) -> None:
    one, other = pick(rng, folder), pick(rng, folder)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def remove(rng, folder: Path) -> None:
    pick(rng, folder).unlink()


def link(rng, folder: Path) -> None:
    path = pick(rng, folder)
    outside = folder.parent / "outside"
    shutil.copyfile(path, outside)
    path.unlink()
    path.symlink_to(rng.choice([str(outside), "../outside", "/nowhere", path.name, "..", "/dev/zero", "/etc/passwd"]))


def edit_index(rng, folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    if not path.is_file():
        return edit_tensors(rng, folder)
    content = json.loads(path.read_text())
    names = content["weight_map"]
    name = rng.choice(sorted(names))
    files = [
        "../outside",
        "/etc/passwd",
        "",
        ".",
        "x.safetensors",
        7,
        None,
        "a\nb.safetensors",
        *sorted(set(names.values())),
    ]
    names[name] = files[rng.integers(len(files))]
    path.write_text(json.dumps(content))
    return None


DAMAGES = (
    *(cut, flip, flip_header, edit_tensors, edit_json, edit_sizes),
    *(edit_pieces, not_json, swap, remove, link, edit_index),
)


# ---- What becomes of them ----


def compare_to_the_bit(source: Path, module, params) -> dict[str, float]:
    """In place of `compare.compare`: the weights are those that transformers reads."""
    del module
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32, local_files_only=True)
    state = model.state_dict()
    for name, x in t5.to_hf(params, model.config.to_dict()).items():
        np.testing.assert_array_equal(x, state[name].numpy(), err_msg=name)
    return {"logits": 0.0, "largest_logit": 1.0}


def assert_same_ids(folder: Path, imported: Path) -> None:
    vocabulary = checkpoints.read_model("", str(imported / "model.gin")).output_vocabulary
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in TEXTS if "ByT5" not in type(theirs).__name__ else TEXTS[:-1]:
        assert [*vocabulary.encode(text), vocabulary.eos_id] == theirs(text).input_ids, text


def run_case(undamaged: list[Path], work: Path, rng: np.random.Generator) -> str:
    """Returns what came of one case; AssertionError where it is not what must come."""
    damage, folder = DAMAGES[rng.integers(len(DAMAGES))], work / "theirs"
    shutil.copytree(undamaged[rng.integers(3)], folder)
    damage(rng, folder)
    before = sorted(work.rglob("*"))
    try:
        hf.import_model(str(folder), str(work / "ours"))
    except ValueError as error:
        assert str(folder) in str(error) and "\n" not in str(error), error
        assert sorted(work.rglob("*")) == before, "something is left"
        return f"{damage.__name__}: named"
    assert_same_ids(folder, work / "ours")
    return f"{damage.__name__}: imported as it stands"


def run(cases: int, seed: int) -> int:
    """Runs the cases and prints what became of them; returns how many failed."""

    def give_up(*_) -> None:
        raise TimeoutError(f"does not end within {SECONDS} s")

    handler = signal.signal(signal.SIGPROF, give_up)
    compare.compare, compared = compare_to_the_bit, compare.compare
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        undamaged = make_folders(Path(place))
        for case in range(cases):
            print(f"\rcase {case}", end="", file=sys.stderr)  # the last one where the process dies
            work = Path(place, str(case))  # one of its own: SeqIO keeps vocabularies by their paths
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                outcomes[run_case(undamaged, work, np.random.default_rng((seed, case)))] += 1
            except (Exception, SystemExit) as error:
                failures += 1
                print(f"\rseed {seed}, case {case}: {type(error).__name__}: {error}")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                shutil.rmtree(work)
    signal.signal(signal.SIGPROF, handler)
    compare.compare = compared
    print(f"\r{cases} cases of seed {seed}, {failures} failures")
    for outcome, count in sorted(outcomes.items()):
        print(f"  {count:6} {outcome}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return run(args.cases, args.seed) > 0


if __name__ == "__main__":
    sys.exit(main())
