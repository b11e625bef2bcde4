"""`t5xpg recipes`: lists the recipes that ship, shows what one lets you set, copies one, and compares two."""

from __future__ import annotations

import argparse
from pathlib import Path

from t5xpg.base import files, nearest
from t5xpg.recipes import recipes_root

NEXT = "`t5xpg recipes show RECIPE` says what one lets you set, `t5xpg recipes copy RECIPE mine.gin` starts your own."
EXAMPLE = """examples:
  t5xpg recipes
  t5xpg recipes show configs/byt5_tiny.gin
  t5xpg recipes copy configs/byt5_tiny.gin mine.gin
  t5xpg recipes diff configs/byt5_tiny.gin mine.gin
"""


def register(verbs) -> None:
    parser = verbs.add_parser(
        "recipes",
        help="list the recipes that ship; show, copy and compare recipes",
        description="Lists the recipes that ship. A RECIPE is one of them, or a gin file of your own.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=list_recipes)
    actions = parser.add_subparsers(metavar="show | copy | diff")
    add_action(actions, "show", show, "the names that a recipe lets you set, their values, and what they are", "recipe")
    add_action(actions, "copy", copy, "a copy to edit, which still includes the parts that ship", "recipe", "target")
    add_action(actions, "diff", diff, "the names and bindings in which two recipes differ", "a", "b")


def add_action(actions, name: str, function, text: str, *arguments: str) -> None:
    parser = actions.add_parser(name, help=text, description=f"Prints {text}." if name != "copy" else f"Writes {text}.")
    for argument in arguments:
        parser.add_argument(argument, metavar=argument.upper())
    parser.set_defaults(run=function)


def list_recipes(_: argparse.Namespace) -> None:
    recipes = shipped()
    width = max(map(len, recipes))
    for name, path in recipes.items():
        print(f"{name:<{width}}  {first_sentence(path)}")
    print(NEXT)


def show(args: argparse.Namespace) -> None:
    """Prints a line for each macro of a recipe and its parts, those first that have to be given."""
    path = find(args.recipe)
    from t5xpg import gin_text

    macros = [binding for binding in gin_text.read(path).values() if binding.is_macro]
    macros.sort(key=lambda binding: (not binding.is_required, binding.name))
    print_table([(macro.name, shown(macro), macro.note) for macro in macros])
    given = "".join(f" {macro.name}=…" for macro in macros if macro.is_required)
    print("Each is set by NAME=VALUE here, and by --gin.NAME=VALUE, with text in quotes, on T5X as well.")
    print(f"go on with:\n  t5xpg check {args.recipe}{given}")


def copy(args: argparse.Namespace) -> None:
    text = files.read_text(find(args.recipe))
    try:
        with open(args.target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{args.target} exists already; name another file.") from None
    print(f"{args.target}: edit it, then t5xpg check {args.target} …, t5xpg train {args.target} …")


def diff(args: argparse.Namespace) -> None:
    """Prints a line for each macro and binding that two recipes with their parts do not agree in, macros first."""
    paths = find(args.a), find(args.b)
    from t5xpg import gin_text

    a, b = map(gin_text.read, paths)
    different = [key for key in a.keys() | b.keys() if shown(a.get(key)) != shown(b.get(key))]
    different.sort(key=lambda key: ("." in key, key))
    if not different:
        print(f"{args.a} and {args.b} bind the same values.")
        return
    names = short_names({key: (b.get(key) or a[key]).name for key in different})
    print_table([("", args.a, args.b), *((names[key], shown(a.get(key)), shown(b.get(key))) for key in different)])


def short_names(written: dict[str, str]) -> dict[str, str]:
    """Returns {name in full: as it is written}, but in full where two modules are written alike, as T5's networks."""
    names = list(written.values())
    ambiguous = {name.partition(".")[0] for name in names if names.count(name) > 1}
    return {key: key if name.partition(".")[0] in ambiguous else name for key, name in written.items()}


def shown(binding) -> str:
    """Returns what a table says for the value of a gin_text.Binding, or of None."""
    if binding is None:
        return "(not bound)"
    return "(required)" if binding.is_required else binding.value


def print_table(rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for first, second, third in rows:
        print(f"{first:<{widths[0]}}  {second:<{widths[1]}}  {third}".rstrip())


def shipped() -> dict[str, Path]:
    """Returns {name: path} of the recipes that ship."""
    return {f"configs/{path.name}": path for path in sorted((recipes_root() / "configs").glob("*.gin"))}


def find(recipe: str) -> str:
    """Returns the path of a recipe, as gin finds it; raises ValueError, with the nearest that ships, for none."""
    from t5xpg import gin_text

    path = gin_text.find(recipe, gin_text.t5x_root())
    if path is None:
        names = {Path(name).stem: name for name in shipped()}
        near = nearest.find(Path(recipe).stem, names)
        hint = f"did you mean {names[near]}? " if near else ""
        raise ValueError(f"There is no recipe {recipe}; {hint}`t5xpg recipes` lists those that ship.")
    return path


def first_sentence(path: Path) -> str:
    """Returns the first sentence of the comment at the top of a recipe."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")])
    return comment.partition("   t5xpg")[0].split(". ")[0].partition(" t5xpg ")[0].rstrip(".") + "."
