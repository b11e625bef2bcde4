"""`t5xpg export ct2 | savedmodel`: for CTranslate2 and TensorFlow. The work is in t5xpg.hf.ct2 and t5xpg.savedmodel."""

from __future__ import annotations

import argparse
import os

from t5xpg.cli import search_flags

CT2 = """examples:
  t5xpg export ct2 runs/corpus models/corpus_ct2                 (the latest checkpoint of a run)
  t5xpg export ct2 runs/corpus models/corpus_int8 --quantization int8
"""
SAVEDMODEL = """examples:
  t5xpg export savedmodel runs/corpus models/corpus_tf           (predicts as the run's recipe says)
  t5xpg export savedmodel runs/corpus models/corpus_tf --beams 4
"""
LINES = 200  # of text that are compared


def register(formats) -> None:
    """Adds `ct2` and `savedmodel` to the verb's formats."""
    parser = add_format(
        *(formats, "ct2", "CTranslate2", CT2),
        "Writes a T5 (1.0, 1.1, mT5, ByT5) as a folder that ctranslate2.Translator loads, with its tokenizer.json.\n"
        "Runs both models first: where greedy tokens differ in float32, nothing is written. What was compared, and\n"
        "what quantization changes, is printed and in the folder's model card.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a MODEL_DIR, whose latest checkpoint is taken, or a checkpoint")
    add("out", metavar="OUT", help="the folder to write; must not exist")
    add("--quantization", metavar="KIND", help="of the weights: int8, int8_float16, int16, float16, … (float32)")
    add("--gin", metavar="FILE", help="the model's gin file (the config.gin of its run)")
    add("--tokenizer", metavar="FILE", help="the SentencePiece model (the run's)")
    add("--compare", metavar="FILE", help="text to compare on, a line each (Python's documentation)")
    add("--lines", type=int, default=LINES, metavar="N", help=f"how many of its lines to compare ({LINES})")
    add_trust(parser)
    parser.set_defaults(run=run_ct2)
    parser = add_format(
        *(formats, "savedmodel", "TensorFlow", SAVEDMODEL),
        "Writes a TensorFlow SavedModel that takes and gives text, without JAX: signatures predict and score, for\n"
        "batches of any size. Runs both models first: where texts or scores differ, nothing is written.",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="the run")
    parser.add_argument("out", metavar="OUT", help="the folder to write; must not exist")
    parser.add_argument("--step", type=int, help="the checkpoint (the latest)")
    search_flags.add_flags(parser)
    add_trust(parser)
    parser.set_defaults(run=run_savedmodel)


def add_format(formats, name: str, summary: str, epilog: str, description: str) -> argparse.ArgumentParser:
    return formats.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="let the run's config.gin, which is code, name any Python function"
    )


def run_ct2(args: argparse.Namespace) -> int:
    if args.lines < 1:
        raise ValueError(f"--lines is {args.lines}; pass 1 or more.")
    load_hf()
    from t5xpg.cli import examples
    from t5xpg.hf import ct2, sample_text

    texts = sample_text.python_documentation()
    if args.compare:
        texts = [example["inputs"] for example in examples.read(args.compare, None)]
    found = ct2.export_model(
        args.model,
        args.out,
        gin_file=args.gin,
        tokenizer=args.tokenizer,
        quantization=args.quantization,
        texts=texts[: args.lines],
        trust=args.trust,
    )
    for kind, comparison in found.items():
        print(f"{args.out}: {kind}: {comparison}")
    print(f"how to load it: {args.out}/README.md")
    return 0


def run_savedmodel(args: argparse.Namespace) -> int:
    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    import t5xpg
    from t5xpg import savedmodel

    search = search_flags.from_args(args)
    model = t5xpg.Model.restore(args.model_dir, args.step, len(savedmodel.TEXTS), args.trust)
    savedmodel.export_model(model, args.out, search)
    print(f"{args.out}: gives the model's predictions and scores\nhow to load it: {args.out}/README.md")
    return 0


def load_hf():
    """Returns t5xpg.hf on the embedded engine, which reads T5X's gin files and checkpoints."""
    os.environ["T5XPG_ENGINE"] = "embedded"
    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    from t5xpg import hf

    return hf
