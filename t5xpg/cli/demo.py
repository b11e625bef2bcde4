"""`t5xpg demo`: a corpus, a vocabulary, a tiny model trained with them, and what it learned, in minutes on a laptop."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from t5xpg.cli.programs import run_program
from t5xpg.cli.quiet import import_tensorflow

RECIPE = "configs/demo.gin"
PACKAGES = ("numpy", "jax", "flax", "optax", "tensorflow")  # which t5xpg needs, so that they are installed
PIECES, SAMPLE_BYTES = 2000, 4_000_000  # of the vocabulary, and of the text that it is made from


def register(verbs) -> None:
    parser = verbs.add_parser(
        "demo",
        help="prepare a corpus, train a tiny model on it, show what it learned",
        description="Trains a tiny T5 to fill in words, on the documentation of Python and of installed packages, and "
        "shows what it fills in beside an untrained model. Some four minutes on two CPU cores, with no network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--dir", default="demo", help="where the corpus and the run go")
    parser.add_argument("--steps", type=int, default=3400, help="training steps")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from t5xpg.data import python_sources

    folder = Path(args.dir).absolute()  # T5X takes no relative path
    print("1. A corpus: the documentation of Python and of packages that t5xpg needs", flush=True)
    paths = python_sources.prepare_python_docs(folder / "data", packages=PACKAGES)
    import_tensorflow()
    print(f"\n2. A vocabulary of {PIECES:,} pieces of words", flush=True)
    vocabulary = make_vocabulary(paths["train"], folder / "data" / "python_docs.model")
    pattern = paths["train"].with_name("python_docs_{split}.jsonl").as_posix()
    recipe = [RECIPE, f"FILES={pattern}", f"VOCABULARY_FILE={vocabulary}", f"TRAIN_STEPS={args.steps}"]
    model_dir = str(folder / "run")
    arguments = [*recipe, f"MODEL_DIR={model_dir}"]
    print(f"\n3. Training: t5xpg train {' '.join(arguments)}", flush=True)
    status = run_program("t5x.train", arguments)
    if status:
        return status
    print("\n4. What it learned: text it has never seen, with blanks to fill in", flush=True)
    show_fillings(model_dir, recipe)
    write_report(model_dir, str(folder / "report.html"))
    print("\nYour own text: t5xpg prepare text --help")
    return 0


def make_vocabulary(corpus: Path, path: Path) -> Path:
    from t5xpg.base import files
    from t5xpg.vocabularies import training

    if files.exists(path):
        print(f"{path}: already there and kept")
        return path
    return training.train_sentencepiece(str(corpus), path, PIECES, sample_bytes=SAMPLE_BYTES)


def write_report(model_dir: str, path: str) -> None:
    from t5xpg.report import page, reading

    page.write([reading.read(model_dir)], path)
    print(f"\n5. The report, with curves and predictions: open {path} in a browser")


# ---- What it learned ----


class Blank(NamedTuple):
    """A masked piece of text."""

    ids: list[int]
    is_word: bool  # it is a whole word, and not a part of one or a sign


def show_fillings(model_dir: str, recipe: Sequence[str], shown: int = 4, counted: int = 1024) -> None:
    """Prints what a run's model and an untrained one fill in, in some of the validation split's first examples."""
    import seqio

    import t5xpg

    trained = t5xpg.Model.restore(model_dir, batch_size=64)
    cfg = trained.settings["train_eval_dataset_cfg"]
    task = seqio.get_mixture_or_task(cfg.mixture_or_task_name)
    dataset = task.get_dataset(cfg.task_feature_lengths, cfg.split, shuffle=False, seed=cfg.seed)
    examples = list(dataset.take(counted).as_numpy_iterator())
    inputs, targets = ([example[name].tolist() for example in examples] for name in ("inputs", "targets"))
    vocabulary = trained.model.output_vocabulary
    truth = [blanks(*pair, vocabulary) for pair in zip(inputs, targets, strict=True)]
    untrained = t5xpg.Model.new(*recipe, batch_size=64)
    guesses = {
        name: [spans(ids, vocabulary) for ids in model.predict_ids(inputs)]
        for name, model in (("trained", trained), ("untrained", untrained))
    }
    for i in range(0, len(examples), -(-len(examples) // shown)):  # the first are of one text
        answers = {number: blank.ids for number, blank in truth[i].items()}
        print(f"\n   text       {filled(inputs[i], answers, answers, vocabulary)}")
        for name, fillings in guesses.items():
            print(f"   {name:10} {filled(inputs[i], fillings[i], answers, vocabulary, mark='✓')}")
    print("\n" + "\n".join(summary(truth, guesses)))
    print("   (one piece: what always answering with the commonest would get)")


def summary(
    truth: Sequence[Mapping[int, Blank]], guesses: Mapping[str, Sequence[Mapping[int, list[int]]]]
) -> list[str]:
    """Returns the lines of a table: what share of the blanks is filled in as it was, by each model and by one piece."""
    lines = [f"   {'filled in as it was:':21}" + "".join(f"{name:>12}" for name in (*guesses, "one piece"))]
    for kind, words_only in (("blanks", False), ("of them words", True)):
        asked = [
            (i, number, blank.ids)
            for i, example in enumerate(truth)
            for number, blank in example.items()
            if blank.is_word or not words_only
        ]
        right = [sum(guess[i].get(number) == ids for i, number, ids in asked) for guess in guesses.values()]
        commonest = max(Counter(tuple(ids) for _, _, ids in asked).values(), default=0)
        shares = [f"{count / max(len(asked), 1):.0%}" for count in (*right, commonest)]
        lines.append(f"   {f'{len(asked):,} {kind}':21}" + "".join(f"{share:>12}" for share in shares))
    return lines


def spans(ids: Sequence[int], vocabulary) -> dict[int, list[int]]:
    """Returns {number of a sentinel: the ids after it, up to the next sentinel or the end}."""
    from t5xpg.vocabularies import sentinels

    found: dict[int, list[int]] = {}
    current: list[int] = []
    for token in map(int, ids):
        if token == vocabulary.eos_id:
            break
        if sentinels.first(vocabulary) <= token < vocabulary.vocab_size:
            current = found.setdefault(sentinels.to_number(token, vocabulary), [])
        else:
            current.append(token)
    return found


def blanks(inputs: Sequence[int], targets: Sequence[int], vocabulary) -> dict[int, Blank]:
    """Returns {number: blank} of a masked example."""
    from t5xpg.vocabularies import sentinels

    truth = spans(targets, vocabulary)
    whole: list[tuple[int | None, int]] = []  # the text unmasked: which blank a piece is of, and its id
    for token in inputs:
        number = sentinels.to_number(token, vocabulary)
        whole += [(number, id) for id in truth[number]] if number in truth else [(None, token)]
    pieces = [vocabulary.tokenizer.id_to_piece(id) for _, id in whole]
    words = {
        number
        for (number, _), piece, after in zip(whole, pieces, pieces[1:], strict=False)
        if piece[1:].isalpha() and piece[0] == after[0] == "▁"
    }
    return {number: Blank(ids, number in words and len(ids) == 1) for number, ids in truth.items()}


def filled(
    inputs: Sequence[int], fillings: Mapping[int, list[int]], truth: Mapping[int, list[int]], vocabulary, mark: str = ""
) -> str:
    """Returns a masked text with what fills its blanks in, "the[ cat✓] sat[ in]"; what is as in truth is marked."""
    from t5xpg.base import sentinels

    text = ""
    for token in inputs:
        number = sentinels.to_number(token, vocabulary)
        if number in truth:
            ids = fillings.get(number, [])
            text += f"[{sentinels.decoded(ids, vocabulary) if ids else '·'}{mark * (ids == truth[number])}]"
        elif token != vocabulary.eos_id:
            text += sentinels.decoded([token], vocabulary)
    return " ".join(text.split())
