"""`t5xpg prepare wikitext|text|python-docs|python-code`: a corpus to JSONL files, by corpora, text_files and
python_sources.

The flags are the keyword arguments of the four functions there, their defaults read from the signatures.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from t5xpg.data import corpora, python_sources, text_files


def register(subparsers) -> None:
    """Adds the verb `prepare` to what `ArgumentParser.add_subparsers` returned; each sub-verb sets `run`."""
    parser = subparsers.add_parser(
        "prepare",
        help="turn a corpus into JSONL files",
        description='Writes a corpus as <name>_<split>.jsonl, one {"text": ...} a line.',
    )
    verbs = parser.add_subparsers(metavar="CORPUS", required=True)
    _register_wikitext(verbs)
    _register_text(verbs)
    _register_python(verbs)


def _register_wikitext(verbs) -> None:
    prepare = corpora.prepare_hub
    parser = _add_verb(verbs, "wikitext", prepare, "WikiText-103, or any data set of the Hugging Face Hub")
    _add_flags(parser, prepare, dataset="name on the Hub, or a local folder", text_column="the column to write")
    parser.add_argument(
        "--config", help=f"the data set's configuration; None: {corpora.WIKITEXT_CONFIG} for WikiText, else its default"
    )
    parser.add_argument("--splits", nargs="+", default=corpora.SPLITS, metavar="SPLIT", help="the splits to write")


def _register_text(verbs) -> None:
    prepare = text_files.prepare_text
    parser = _add_verb(verbs, "text", prepare, "your own text files")
    inputs = f"files, quoted globs or folders of {text_files.READ}"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    rows = "what is a row of a .txt file, and stays whole in one split: file where each is a document"
    parser.add_argument("--rows", choices=text_files.ROWS, default="paragraphs", help=rows)
    seed = "decides what is held out, and with --shards the order"
    shards = "shuffle, and deal train out to so many files; 0 is one, in the inputs' order"
    _add_flags(
        parser, prepare, text_key="the key of the text in JSON rows", shards=shards, **SPLIT_FLAGS | {"seed": seed}
    )
    whole_rows = "write JSON rows with all their keys"
    parser.add_argument("--whole_rows", action="store_true", help=whole_rows)
    drop = "of equal rows keep one; goes with --shards"
    parser.add_argument("--drop_duplicates", action="store_true", help=drop)


def _register_python(verbs) -> None:
    docs, code = python_sources.prepare_python_docs, python_sources.prepare_python_code
    parser = _add_verb(verbs, "python-docs", docs, "the prose that every Python carries (2 MB, no network)")
    _add_flags(parser, docs, **SPLIT_FLAGS)
    packages = "installed packages whose docstrings to add, such as numpy jax"
    parser.add_argument("--packages", nargs="+", default=(), metavar="NAME", help=packages)
    parser = _add_verb(verbs, "python-code", code, "the functions of Python's standard library (8 MB, no network)")
    _add_flags(parser, code, **SPLIT_FLAGS)


SPLIT_FLAGS = {
    "validation_fraction": "share held out for validation; 0 writes train alone",
    "seed": "decides what is held out",
}


def _add_verb(verbs, verb: str, prepare: Callable, corpus: str) -> argparse.ArgumentParser:
    """Returns a sub-verb with the flags that all have; its `run(args)` calls `prepare`."""
    parser = verbs.add_parser(
        verb,
        help=corpus,
        description=f"Makes JSONL files, <name>_<split>.jsonl, of {corpus}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=functools.partial(_run, prepare))
    _add_flags(
        parser,
        prepare,
        output_dir="folder for the files, made if need be",
        name="what the files' names begin with",
        min_length="the fewest characters of a row",
    )
    parser.add_argument("--overwrite", action="store_true", help="rewrite files that exist already")
    return parser


def _add_flags(parser: argparse.ArgumentParser, prepare: Callable, **helps: str) -> None:
    parameters = inspect.signature(prepare).parameters
    for name, text in helps.items():
        default = parameters[name].default
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)


def _run(prepare: Callable, args: argparse.Namespace) -> int:
    settings = {name: getattr(args, name) for name in inspect.signature(prepare).parameters}
    paths = prepare(**settings)
    recipe = "RECIPE.gin" if getattr(args, "whole_rows", False) else "configs/byt5_tiny.gin"
    if "train" in paths:
        print(f"go on with:\n  {train_command(recipe, paths, args.name)}", flush=True)
    return 0


def train_command(recipe: str, paths: dict[str, Path], name: str) -> str:
    """Returns the command that trains on the files of the splits, {split: path or glob}."""
    files = {split: str(path) for split, path in paths.items() if split in ("train", "validation")}
    folder, file = os.path.split(files["train"])
    pattern = os.path.join(folder, re.sub(r"_train(-\*|)(-of-\d+|)\.jsonl$", r"_{split}\1.jsonl", file))
    given = f"FILES={pattern if 'validation' in files else json.dumps(files, ensure_ascii=False)}"
    words = ["t5xpg", "train", recipe, given, f"MODEL_DIR=runs/{name}"]
    return " ".join(word if re.fullmatch(r"[\w./:={}-]+", word) else shlex.quote(word) for word in words)
