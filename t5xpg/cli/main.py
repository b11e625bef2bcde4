"""`t5xpg <verb>`: finds the verb, runs it, and turns an error into one line."""

from __future__ import annotations

import argparse
import os
import sys
import warnings

import t5xpg
from t5xpg.cli import (
    cache,
    check,
    completion,
    demo,
    errors,
    fill_mask,
    hf,
    inspect,
    predict,
    prepare,
    programs,
    qa,
    recipes,
    report,
    score,
    tokenizer,
)
from t5xpg.cli.parser import Parser

FIRST_STEPS = """first steps:
  t5xpg demo                                  (a corpus, a tiny model and what it learned, in minutes)
  t5xpg prepare text FOLDER --name corpus     (text of your own)
  t5xpg train configs/byt5_tiny.gin FILES=corpus_{split}.jsonl MODEL_DIR=runs/corpus

`t5xpg VERB --help` says more. T5XPG_TRACEBACK=1 shows where an error comes from.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the process's exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before anything imports TensorFlow
    if completion.is_asked():
        completion.answer(make_parser())
    if argv is None:
        use_huge_pages()
    look_in_working_directory_last()
    warnings.showwarning = errors.show_warning
    args = parse(argv)
    try:
        return args.run(args) or 0
    except KeyboardInterrupt:
        print("t5xpg: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as in `t5xpg … | head`
        return 0
    except Exception as error:
        if os.environ.get("T5XPG_TRACEBACK"):
            raise
        print(f"t5xpg: error: {errors.one_line(error)}", file=sys.stderr)
        return 1


def use_huge_pages() -> None:
    """Restarts this command with huge pages for large blocks of memory, if it is about to train.

    XLA's CPU backend takes its scratch memory from the kernel in each step; in pages of 4 kB that is a fifth of
    the time of a small model's step. glibc reads the setting only when a process starts, and other C libraries
    ignore it. Python gets the same command line, so its own -X, -m and -W stay. Where
    GLIBC_TUNABLES is set already, to anything, nothing is restarted.
    """
    if sys.argv[1:2] in (["train"], ["demo"]) and sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def look_in_working_directory_last() -> None:
    """Lets `import` find users' modules in the working directory, behind everything else (see __main__.py)."""
    if "" not in sys.path:
        sys.path.append("")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line; recipes, NAME=VALUE and texts may stand before and after a verb's options."""
    parser = make_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help()
        sys.exit(2)  # as each verb alone does: a script that has lost its words has not succeeded
    args, rest = parser.parse_known_args(argv)
    if rest:
        args.what += [word for word in rest if word != "--"]
    return args


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="t5xpg",
        description="From a pile of text to a trained T5-family model.",
        epilog=FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t5xpg {t5xpg.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for group in (
        demo,
        prepare,
        cache,
        programs,
        recipes,
        check,
        inspect,
        tokenizer,
        report,
        predict,
        score,
        hf,
        fill_mask,
        qa,
        completion,
    ):
        group.register(verbs)
    return parser
