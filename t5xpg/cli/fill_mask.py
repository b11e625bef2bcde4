"""`t5xpg fill-mask`: what a masked language model puts in place of <mask>, with JAX alone."""

from __future__ import annotations

import argparse

from t5xpg.cli import export

EXAMPLE = """example:
  t5xpg fill-mask runs/roberta "The season was the <mask> of his career ."
"""


def register(verbs) -> None:
    """Adds the verb to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "fill-mask",
        help="show a masked language model's guesses for <mask>",
        description="Shows the likeliest tokens for each <mask> of a text, with their probabilities.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model_dir", metavar="MODEL_DIR", help="of a run with configs/roberta_….gin or the like")
    add("text", metavar="TEXT", nargs="+", help="each with <mask> where a token is to be guessed")
    add("--top", type=int, default=5, metavar="N", help="guesses for each mask (5)")
    add("--step", type=int, help="of the checkpoint (the latest)")
    export.add_trust(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from t5xpg.cli import starting

    starting.load()
    import t5xpg

    model = t5xpg.Model.restore(args.model_dir, args.step, 1, args.trust)
    for text in args.text:
        print(text)
        for number, best in enumerate(model.fill_mask(text, args.top), 1):
            for token, chance in best:
                print(f"  {number}  {chance:6.1%}  {token}")
    return 0
