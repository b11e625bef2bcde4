"""`t5xpg recipes`: lists the recipes that ship, and copies one to start from."""

from __future__ import annotations

import argparse
from pathlib import Path

from t5xpg.recipes import recipes_root


def register(verbs) -> None:
    parser = verbs.add_parser(
        "recipes",
        help="list the recipes that ship, or copy one to start from",
        description="Without arguments: lists the recipes that ship. With two: copies a recipe to a file of your own, "
        "which still includes the parts that ship.",
        epilog="example: t5xpg recipes configs/byt5_tiny.gin mine.gin",
    )
    parser.add_argument("recipe", nargs="?", help="the recipe to copy")
    parser.add_argument("target", nargs="?", help="the file to copy it to")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    recipes = {f"configs/{path.name}": path for path in sorted((recipes_root() / "configs").glob("*.gin"))}
    if args.recipe is None:
        width = max(map(len, recipes))
        for name, path in recipes.items():
            print(f"{name:<{width}}  {first_sentence(path)}")
        return 0
    if args.recipe not in recipes:
        raise ValueError(f"There is no recipe {args.recipe!r}; there are {', '.join(recipes)}.")
    text = recipes[args.recipe].read_text(encoding="utf-8")
    if args.target is None:
        print(text, end="")
        return 0
    try:
        with open(args.target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{args.target} exists already; name another file.") from None
    print(f"{args.target}: edit it, then t5xpg check {args.target} …, t5xpg train {args.target} …")
    return 0


def first_sentence(path: Path) -> str:
    """Returns the first sentence of the comment at the top of a recipe."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")])
    return comment.partition("   t5xpg")[0].split(". ")[0].partition(" t5xpg ")[0].rstrip(".") + "."
