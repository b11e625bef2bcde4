"""What the readers of the documentation's pages have: corpora, vocabularies and trained models, all tiny.

`GIVEN` makes what a page's comment `<!-- given: … -->` names; `small` makes a training command short.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

from command import REPO
from made_runs import make_run
from written_runs import write_run

# Prose that ships with the project, so that what is printed of it is the same everywhere.
TEXTS = [
    " ".join(part.split()) for part in (REPO / "LICENSE").read_text(encoding="utf-8").split("\n\n") if part.strip()
]
MICRO = str(REPO / "tests" / "micro_model.gin")
MICRO_ROBERTA = str(REPO / "tests" / "micro_roberta.gin")
PAIRS = [{"inputs": f"how many words are these {'x ' * i}", "targets": "four" if i < 4 else "more"} for i in range(8)]


def rows(folder: Path, name: str) -> None:
    for split, count in (("train", len(TEXTS)), ("validation", 12)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:count])
        (folder / f"{name}_{split}.jsonl").write_text(lines, encoding="utf-8")


def books(folder: Path) -> None:
    """A folder of compressed texts."""
    (folder / "books").mkdir()
    for part in range(3):
        text = "\n\n".join(f"{text} ({part})" for text in TEXTS)
        (folder / "books" / f"{part}.txt.gz").write_bytes(gzip.compress(text.encode()))


def texts(folder: Path) -> None:
    """A folder of texts."""
    (folder / "texts").mkdir()
    (folder / "texts" / "all.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")


def news(folder: Path) -> None:
    """A folder of compressed rows in several files for each split."""
    (folder / "news").mkdir()
    for split in ("train", "validation"):
        for part in range(2):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[part::2])
            (folder / "news" / f"{split}-{part}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def pairs(folder: Path) -> None:
    lines = "".join(json.dumps(pair) + "\n" for pair in PAIRS)
    for split in ("train", "validation"):
        (folder / f"pairs_{split}.jsonl").write_text(lines, encoding="utf-8")


def squad(folder: Path) -> None:
    for split in ("train", "validation"):
        answers = [{"text": "Anna", "answer_start": 0}]
        questions = [{"id": f"{split}{i}", "question": "Who wrote it?", "answers": answers} for i in range(8)]
        paragraphs = [{"context": "Anna wrote it in 1911.", "qas": questions}]
        text = json.dumps({"version": "v2.0", "data": [{"title": "It", "paragraphs": paragraphs}]})
        (folder / f"squad_v2_{split}.json").write_text(text, encoding="utf-8")


def sentencepiece(folder: Path, name: str) -> None:
    from t5xpg.vocabularies import training

    rows(folder, "of_vocabulary")
    training.train_sentencepiece(str(folder / "of_vocabulary_train.jsonl"), str(folder / name), 300)


def flan_t5_small(folder: Path) -> None:
    """A folder as the hub has it, of another T5 with random weights."""
    import torch
    import transformers

    from t5xpg.vocabularies import training

    rows(folder, "of_vocabulary")
    training.train_sentencepiece(str(folder / "of_vocabulary_train.jsonl"), str(folder / "flan"), 300)
    sizes = {"vocab_size": 512, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    torch.manual_seed(0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder / "flan-t5-small")
    shutil.copy(folder / "flan.model", folder / "flan-t5-small" / "spiece.model")


def run(folder: Path, name: str, recipe: str, files: str, *more: str) -> None:
    """The MODEL_DIR of a recipe that ships, with random parameters."""
    (folder / name).parent.mkdir(exist_ok=True)
    task = f"NAME={folder.parent.name}_{folder.name}_{Path(name).name}"  # one of its own in this process
    make_run(folder / name, f"configs/{recipe}", MICRO, f"FILES={folder}/{files}", re.sub(r"[^\w=]", "_", task), *more)


GIVEN = {
    "books/": books,
    "texts/": texts,
    "books": lambda folder: rows(folder, "books"),
    "corpus": lambda folder: rows(folder, "corpus"),
    "wikitext": lambda folder: rows(folder, "wikitext"),
    "news/": news,
    "pairs": pairs,
    "squad": squad,
    "questions": lambda folder: (folder / "questions.txt").write_text("how many words\non clear days\n"),
    "news.model": lambda folder: sentencepiece(folder, "news.model"),
    "laptop.model": lambda folder: sentencepiece(folder, "laptop.model"),
    "flan-t5-small": flan_t5_small,
    "runs/books_and_wider": lambda folder: (
        write_run(folder / "runs" / "books"),
        write_run(folder / "runs" / "wider", rate=0.001),
    ),
    "runs/books": lambda folder: run(folder, "runs/books", "byt5_tiny.gin", "books_{split}.jsonl"),
    "runs/pairs": lambda folder: run(folder, "runs/pairs", "byt5_tiny_finetune.gin", "pairs_{split}.jsonl"),
    "runs/t5_flax_tiny": lambda folder: run(
        *(folder, "runs/t5_flax_tiny", "t5_flax_tiny.gin", "wikitext_{split}.jsonl"),
        f"VOCABULARY_FILE={folder}/laptop.model",
    ),
}

SHORT = ("BATCH_SIZE=8", "train.stats_period=1", "utils.SaveCheckpointConfig.period=2")
PRETRAIN = (*SHORT, "TRAIN_STEPS=2", "train.eval_period=2", "train.eval_steps=1")
FINETUNE = (MICRO, *SHORT, "TRAIN_STEPS_RELATIVE=2", "EVAL_PERIOD=2", "EVAL_STEPS=1")
CONSTANT = "utils.create_learning_rate_scheduler.factors='constant'"
BYTES = (
    MICRO,
    *PRETRAIN,
    CONSTANT,
    "network.T5Config.num_encoder_layers=1",
    "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 13}",
)
PIECES = (
    MICRO,
    *PRETRAIN,
    "network.T5Config.num_encoder_layers=1",
    "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 14}",
)
ANSWERS = (*FINETUNE, "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}")
SELECTED = "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 64, 'selected': 64}"
SMALL = {  # {recipe: what makes a run of it small}
    "byt5_tiny.gin": BYTES,
    "corpus.gin": BYTES,
    "mine.gin": PIECES,
    "news.gin": PIECES,
    "nano.gin": (*PIECES, CONSTANT),
    "norwegian.gin": (*PIECES, "WARMUP_STEPS=1"),
    "t5_flax_tiny.gin": (*PIECES, "WARMUP_STEPS=1"),
    "wikitext_t5_flax.gin": (*PIECES, "WARMUP_STEPS=1"),
    "roberta_tiny.gin": (MICRO_ROBERTA, *PRETRAIN, SELECTED, "WARMUP_STEPS=1"),
    "byt5_tiny_finetune.gin": ANSWERS,
    "byt5_tiny_eval.gin": (MICRO,),
    "byt5_tiny_infer.gin": (MICRO, ANSWERS[-1]),
    "roberta_tiny_eval.gin": (MICRO_ROBERTA, SELECTED),
    "squad_t5_flax_tiny.gin": ANSWERS,
    "model.gin": (*PRETRAIN[:3], "TRAIN_STEPS_RELATIVE=2", "EVAL_PERIOD=2", "EVAL_STEPS=1"),
}
CHECKPOINT = re.compile(r"(\S+?)/checkpoint_\d+")


def small(words: list[str], folder: Path) -> list[str]:
    """Returns a command's words, with what makes its run small, and checkpoints' numbers that are there."""
    words = [CHECKPOINT.sub(lambda found: newest(folder, found), word) for word in words]
    recipes = [Path(word.removeprefix("--gin_file=")).name for word in words if word.endswith(".gin")]
    if words[0] in ("train", "eval", "infer"):
        return [*words, *SMALL[recipes[0]]]
    return [*words, *SMALL.get(recipes[0], ())] if words[0] == "check" else words


def newest(folder: Path, found: re.Match) -> str:
    """Returns the newest checkpoint of the run that is named: a short run has other numbers."""
    name, _, run = found[1].rpartition("=")
    there = sorted((folder / run).glob("checkpoint_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    return f"{name}{'=' if name else ''}{run}/{there[-1].name}" if there else found[0]
