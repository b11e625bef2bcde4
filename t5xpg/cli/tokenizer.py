"""`t5xpg tokenizer train`: a vocabulary of one's own. The work is in t5xpg.vocabularies.training.

The flags are the arguments of `train_sentencepiece` and `train_byte_level_bpe` there, and keep their defaults.
"""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = """example:
  t5xpg prepare wikitext
  t5xpg tokenizer train --input wikitext_train.jsonl --vocab_size 32000 --output wikitext
  t5xpg tokenizer train --input wikitext_train.jsonl --model_type byte_level_bpe --output wikitext_bpe
"""
BYTE_LEVEL_BPE = "byte_level_bpe"


def register(verbs) -> None:
    """Adds the verb `tokenizer` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser("tokenizer", help="train a vocabulary on your own text")
    parser = parser.add_subparsers(metavar="VERB", required=True).add_parser(
        "train",
        help="train a SentencePiece or byte-level BPE vocabulary",
        description="Trains a SentencePiece vocabulary with T5's ids, on a corpus of any size. Writes OUTPUT.model,\n"
        "OUTPUT.vocab (a list to read) and OUTPUT_hf/, the same for Hugging Face's AutoTokenizer. With --model_type\n"
        "byte_level_bpe, trains RoBERTa's kind: writes the folder OUTPUT, which AutoTokenizer and the recipes read.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSONL, Parquet or .txt, also .gz .bz2 .xz .zst; globs; URLs",
    )
    add("--output", required=True, help="what the files' names begin with")
    add("--vocab_size", type=int, help="pieces; the recipes add 100 sentinels (32000; for byte_level_bpe 50265)")
    kinds = ("unigram", "bpe", BYTE_LEVEL_BPE)
    add("--model_type", choices=kinds, help="unigram, as T5's, bpe, or byte_level_bpe, as RoBERTa's (unigram)")
    add("--min_frequency", type=int, help="for byte_level_bpe: how often a pair must occur to become one piece (2)")
    add("--text_key", help="the key of the text in JSONL rows (text)")
    add("--lowercase", action="store_true", help="fold case")
    add("--byte_fallback", action="store_true", help="spell unknown characters in bytes: 256 of the pieces")
    add("--character_coverage", type=float, help="share of the text's characters to know, 0.98 to 1 (1)")
    add(
        "--sample_bytes",
        type=int,
        help="train on an even sample of this size; SentencePiece takes 25 times that in memory (100000000)",
    )
    add("--seed", type=int, help="decides the sample (0)")
    add("--overwrite", action="store_true", help="replace a vocabulary that exists already")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    from t5xpg import vocabularies
    from t5xpg.vocabularies import tokenizer_json, training

    settings = {name: value for name, value in vars(args).items() if name not in ("run", "input")}
    if settings.get("model_type") == BYTE_LEVEL_BPE:
        train_byte_level_bpe(args.input, settings)
        return 0
    check_settings(training.train_sentencepiece, settings)
    model = training.train_sentencepiece(args.input, **settings)
    folder = model.with_name(f"{model.stem}_hf")
    tokenizer_json.write(model, folder)
    print_next_steps(model, folder, vocabularies.sentencepiece(str(model)).vocab_size)
    return 0


def train_byte_level_bpe(inputs: list[str], settings: dict) -> None:
    from t5xpg.vocabularies import training

    del settings["model_type"]
    check_settings(training.train_byte_level_bpe, settings)
    path = training.train_byte_level_bpe(inputs, **settings)
    print(
        f"{path}: for the recipes, and for AutoTokenizer.from_pretrained('{path.parent}')\n"
        "train with it:\n"
        "  t5xpg train configs/roberta_tiny.gin FILES=corpus_{split}.jsonl MODEL_DIR=runs/roberta_tiny \\\n"
        f"    TOKENIZER_FILE={path}"
    )


def check_settings(train, settings: dict) -> None:
    """Refuses a flag that this kind of vocabulary has no use for."""
    import inspect

    if unknown := settings.keys() - inspect.signature(train).parameters.keys():
        raise ValueError(f"--{min(unknown)} is not a setting of that --model_type; leave it out.")


def print_next_steps(model: Path, folder: Path, size: int) -> None:
    """Says how to train with the vocabulary of `size` ids, sentinels included."""
    from t5xpg.base import stores

    path = "a copy of it on a disk" if stores.is_url(folder) else f"'{folder}'"
    rows = -size // 128 * -128  # of the embedding: a multiple of 128, as T5's 32100 ids have 32128
    print(
        f"{model}: {size - 100:,} pieces and 100 sentinels, {size:,} ids; {model.with_suffix('.vocab')} lists them\n"
        f"{folder}: the same for Hugging Face, AutoTokenizer.from_pretrained({path})\n"
        "train with it:\n"
        "  t5xpg train configs/t5_1_1_tiny.gin FILES=corpus_{split}.jsonl MODEL_DIR=runs/t5_1_1_tiny \\\n"
        f"    VOCABULARY_FILE={model} network.T5Config.vocab_size={rows}"
    )
