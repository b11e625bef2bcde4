"""`t5xpg prepare wikitext|text|python-docs`: a corpus to JSONL files. The work is in t5xpg.data.corpora.

The flags are the keyword arguments of the three functions there, their defaults read from the signatures.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable

from t5xpg.data import corpora


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
    _register_python_docs(verbs)


def _register_wikitext(verbs) -> None:
    prepare = corpora.prepare_hub
    parser = _add_verb(verbs, "wikitext", prepare, "WikiText-103, or any data set of the Hugging Face Hub")
    _add_flags(parser, prepare, dataset="name on the Hub, or a local folder", text_column="the column to write")
    parser.add_argument(
        "--config", help=f"the data set's configuration; None: {corpora.WIKITEXT_CONFIG} for WikiText, else its default"
    )
    parser.add_argument("--splits", nargs="+", default=corpora.SPLITS, metavar="SPLIT", help="the splits to write")


def _register_text(verbs) -> None:
    prepare = corpora.prepare_text
    parser = _add_verb(verbs, "text", prepare, "your own text files")
    kinds = " ".join(corpora.TEXT_SUFFIXES)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=f"files, quoted globs or folders of {kinds}")
    parser.add_argument("--rows", choices=("paragraphs", "lines"), default="paragraphs", help="a row of a .txt file")
    _add_flags(parser, prepare, text_key="the key of the text in .jsonl files", **SPLIT_FLAGS)


def _register_python_docs(verbs) -> None:
    prepare = corpora.prepare_python_docs
    parser = _add_verb(verbs, "python-docs", prepare, "the prose that every Python carries (2 MB, no network)")
    _add_flags(parser, prepare, **SPLIT_FLAGS)


SPLIT_FLAGS = {
    "validation_fraction": "share held out for validation; 0 writes train alone",
    "seed": "decides what is held out",
}


def _add_verb(verbs, verb: str, prepare: Callable, corpus: str) -> argparse.ArgumentParser:
    """Returns a sub-verb with the flags that all three have; its `run(args)` calls `prepare`."""
    parser = verbs.add_parser(
        verb,
        help=corpus,
        description=f"Writes {corpus}. The files: <name>_<split>.jsonl.",
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
    prepare(**{name: getattr(args, name) for name in inspect.signature(prepare).parameters})
    return 0
