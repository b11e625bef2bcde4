"""`t5xpg demo`: a corpus, a tiny model trained on it, and what it learned, in a few minutes on a laptop."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path

from t5xpg.cli.programs import run_program
from t5xpg.cli.quiet import import_tensorflow

RECIPE = "configs/byt5_tiny.gin"


def register(verbs) -> None:
    parser = verbs.add_parser(
        "demo",
        help="prepare a corpus, train a tiny model on it, show what it learned",
        description="Trains a tiny byte-level T5 by span corruption: on WikiText-2 where the Hugging Face hub can be "
        "reached, on Python's own documentation otherwise. A few minutes on two CPU cores.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--dir", default="demo", help="where the corpus and the run go")
    parser.add_argument("--steps", type=int, default=400, help="training steps")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder = Path(args.dir).absolute()  # T5X takes no relative path
    print("1. A corpus", flush=True)
    files = prepare_corpus(folder / "data")
    import_tensorflow()
    print("\n2. What guessing is worth", flush=True)
    print_byte_entropy(files["validation"])
    model_dir = folder / "run"
    pattern = files["train"].with_name(files["train"].name.replace("train", "{split}")).as_posix()
    arguments = [RECIPE, f"FILES={pattern}", f"MODEL_DIR={model_dir}", f"TRAIN_STEPS={args.steps}"]
    print(f"\n3. Training: t5xpg train {' '.join(arguments)}", flush=True)
    status = run_program("t5x.train", arguments)
    if status:
        return status
    print("\n4. What it learned: masked text it has never seen", flush=True)
    show_guesses(str(model_dir))
    write_report(str(model_dir), str(folder / "report.html"))
    print("\nYour own text: t5xpg prepare text --help")
    return 0


def write_report(model_dir: str, path: str) -> None:
    from t5xpg.report import page, reading

    page.write([reading.read(model_dir)], path)
    print(f"\n5. The report, with curves and predictions: open {path} in a browser")


def prepare_corpus(folder: Path) -> dict[str, Path]:
    """Returns {split: path} of WikiText-2, or of Python's documentation where the hub cannot be reached."""
    from t5xpg.data import corpora

    try:
        return corpora.prepare_hub(output_dir=folder, config="wikitext-2-raw-v1", splits=("train", "validation"))
    except corpora.CorpusError as error:
        print(f"   {error}")
        print("   So the corpus is the documentation that comes with Python: its language reference and docstrings.")
        return corpora.prepare_python_docs(output_dir=folder)


def print_byte_entropy(path: Path) -> None:
    from t5xpg.data import jsonl

    counts: Counter[int] = Counter()
    for row in jsonl.read_rows(str(path)):
        counts.update(row["text"].encode())
    total = sum(counts.values())
    nats = -sum(n / total * math.log(n / total) for n in counts.values())
    print(f"   Knowing only how often each byte occurs costs {nats:.2f} nats ({nats / math.log(2):.2f} bits) a byte.")


def show_guesses(model_dir: str, shown: int = 3, counted: int = 128) -> None:
    """Prints masked examples of the validation split with the model's guess for each masked byte."""
    import seqio

    import t5xpg
    from t5xpg.vocabularies import sentinels

    model = t5xpg.Model.restore(model_dir, batch_size=16)
    cfg = model.settings["train_eval_dataset_cfg"]
    task = seqio.get_mixture_or_task(cfg.mixture_or_task_name)
    dataset = task.get_dataset(cfg.task_feature_lengths, cfg.split, shuffle=False, seed=cfg.seed)
    examples = list(dataset.take(counted).as_numpy_iterator())
    inputs, targets = ([example[name].tolist() for example in examples] for name in ("inputs", "targets"))
    vocabulary = model.model.output_vocabulary
    first_sentinel = sentinels.first(vocabulary)
    truths: Counter[int] = Counter()
    right = 0
    for i, (masked, truth, guess) in enumerate(zip(inputs, targets, model.next_ids(inputs, targets), strict=True)):
        pairs = [(t, int(g)) for t, g in zip(truth, guess, strict=False) if vocabulary.eos_id < t < first_sentinel]
        truths.update(t for t, _ in pairs)
        right += sum(t == g for t, g in pairs)
        if i < shown:
            print(f"\n   text    {masked_text(masked, vocabulary, first_sentinel)}")
            print(f"   truth   {blanks(truth, truth, vocabulary, first_sentinel)}")
            print(f"   guess   {blanks(truth, guess, vocabulary, first_sentinel)}")
    total, commonest = sum(truths.values()), truths.most_common(1)[0][1]
    print(
        f"\n   It guesses {right / total:.0%} of {total:,} masked bytes, each from the text around it and the true "
        f"bytes before it;\n   always guessing the commonest byte would get {commonest / total:.0%}."
    )


def blanks(truth, ids, vocabulary, first_sentinel: int) -> str:
    """Returns the text of `ids` in the blanks that `truth`'s sentinels open: `[1]the [2]a`; · for any other id."""
    text, number = "", 0
    for true_id, token in zip(truth, map(int, ids), strict=False):
        if true_id >= first_sentinel:
            number += 1
            text += f" [{number}]"
        elif true_id > vocabulary.eos_id:
            text += vocabulary.decode([token]) if vocabulary.eos_id < token < first_sentinel else "·"
    return text.strip().replace("\n", "⏎")


def masked_text(ids, vocabulary, first_sentinel: int) -> str:
    """Returns the text of `ids` with its sentinels as numbered blanks."""
    text, run, blanks = "", [], 0
    for token in [*map(int, ids), vocabulary.vocab_size - 1]:
        if token < first_sentinel:
            run.append(token)
            continue
        blanks += 1
        text += vocabulary.decode(run) + f"[{blanks}]"
        run = []
    return " ".join(text.removesuffix(f"[{blanks}]").split())
