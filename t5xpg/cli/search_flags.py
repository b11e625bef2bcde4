"""The flags that say how predictions are searched for, as a `Search`; for `predict` and `export savedmodel`."""

from __future__ import annotations

import argparse

FLAGS = ("beams", "temperature", "top_k", "top_p", "samples", "max_length")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "search", "Without any of these: what the run's recipe has, T5X's search with one beam if nothing."
    )
    add = group.add_argument
    add("--beams", type=int, metavar="N", help="beam search with T5X's length penalty")
    add("--temperature", type=float, metavar="T", help="sample; 0 takes the likeliest token (1, with the flags below)")
    add("--top_k", type=int, metavar="K", help="sample among the K likeliest tokens")
    add("--top_p", type=float, metavar="P", help="sample among the fewest likeliest tokens that hold this share")
    add("--samples", type=int, default=1, metavar="N", help="sample N predictions for each input (1)")
    add("--max_length", type=int, metavar="N", help="tokens of a prediction, EOS included (as in training)")


def from_args(args: argparse.Namespace):
    """Returns the Search; raises ValueError that names the flags where they exclude each other."""
    from t5xpg.search import Search

    try:
        return Search(**{name: getattr(args, name) for name in FLAGS})
    except ValueError as error:
        raise ValueError(f"--{error}") from None
