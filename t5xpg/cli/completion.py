"""`t5xpg completion`: completes verbs, flags, recipes, the NAMEs that a recipe lets one set, and files, by argcomplete.

The shell starts t5xpg at each TAB; what is here loads neither TensorFlow nor JAX.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable

from t5xpg import name_value

SHELLS = {  # {shell: where the line goes that switches completion on, and the line}
    "bash": ("~/.bashrc", 'eval "$(t5xpg completion bash)"'),
    "zsh": ("~/.zshrc, after compinit", 'eval "$(t5xpg completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "t5xpg completion fish | source"),
}
VALUES = {"True", "False"}


def register(verbs) -> None:
    lines = "".join(f"  {line:<38} (in {place})\n" for place, line in SHELLS.values())
    parser = verbs.add_parser(
        "completion",
        help="print what lets a shell complete this command",
        description="Prints the code that lets a shell complete verbs, flags, recipes, their NAMEs and files.",
        epilog=f"to switch it on:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="yours")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    import argcomplete

    print(argcomplete.shellcode(["t5xpg"], shell=args.shell))


def is_asked() -> bool:
    """Whether a shell has started this process for the words that may follow."""
    return "_ARGCOMPLETE" in os.environ


def answer(parser: argparse.ArgumentParser) -> None:
    """Gives the shell the words that may follow, and ends the process."""
    import argcomplete

    add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Completes the arguments of all verbs whose METAVAR is a recipe."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                add_completers(verb)
        elif "NAME=VALUE" in str(action.metavar):
            action.completer = recipe_arguments  # type: ignore[attr-defined]
        elif action.metavar in ("RECIPE", "A", "B"):
            action.completer = recipes  # type: ignore[attr-defined]


def recipe_arguments(prefix: str, parser: argparse.ArgumentParser, **_) -> Iterable[str]:
    """Returns what may stand in the place of `prefix` among recipes, NAME=VALUE and T5X's flags."""
    name, equals, value = prefix.partition("=")
    if name == "--gin_file":
        return [f"{name}={recipe}" for recipe in recipes(value)]
    names = [f"{gin}{macro}=" for gin in ("", "--gin.") for macro in macros(words_before())]
    if not equals:
        flags = {f"{flag}=" for flag in name_value.FLAGS_WITH_VALUE} | (
            name_value.OWN_FLAGS - name_value.FLAGS_WITH_VALUE
        )
        flags |= {"--on", "--dump"} if parser.prog.endswith(" check") else set()
        return [*recipes(prefix), *names, *(sorted(flags) if prefix.startswith("-") else [])]
    if re.search(r"(DIR|PATH|FILES?)$", name):
        found = paths(value)
        splits = {path.replace("train", "{split}") for path in found} if name.endswith("FILES") else set()
        return [f"{name}={path}" for path in sorted({*found, *splits})]
    return [f"{name}={value}" for value in VALUES] if boolean(name) else []


def recipes(prefix: str, **_) -> list[str]:
    """Returns the recipes that ship and begin with `prefix`, and the gin files and folders here that do."""
    from t5xpg.cli.recipes import shipped

    return sorted({*(name for name in shipped() if name.startswith(prefix)), *paths(prefix, (".gin",))})


def paths(prefix: str, endings: tuple[str, ...] = ("",)) -> list[str]:
    """Returns the files with one of these endings, and the folders, that begin with `prefix`."""
    from t5xpg.base import files, stores

    folder, begin = os.path.split(prefix)
    where = os.path.expanduser(folder) or "."
    found = []
    for name in [] if stores.is_url(where) else files.names_in(where):  # a store is not asked at each TAB
        path = os.path.join(folder, name)
        if name.startswith(begin) and (begin or not name.startswith(".")):
            if files.is_folder(os.path.join(where, name)):
                found.append(f"{path}/")
            elif name.endswith(endings):
                found.append(path)
    return found


def words_before() -> list[str]:
    """Returns the words of the line that the shell completes, up to the cursor."""
    return os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()


def macros(words: Iterable[str]) -> dict[str, str]:
    """Returns {name: value} of the macros of the recipes among these words; none of a recipe that cannot be read."""
    from t5xpg import gin_text

    found: dict[str, str] = {}
    for word in words:
        recipe = word.removeprefix("--gin_file=")
        if recipe.endswith(".gin") and "=" not in recipe and gin_text.find(recipe, gin_text.t5x_root()):
            try:
                found |= {each.name: each.value for each in gin_text.read(recipe).values() if each.is_macro}
            except ValueError:  # it is being written; `t5xpg check` says what is wrong
                continue
    return found


def boolean(name: str) -> bool:
    return macros(words_before()).get(name.removeprefix("--gin.")) in VALUES
