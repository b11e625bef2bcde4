"""A recipe read without running it: what it binds, and what is missing. For check, inspect, cache and Model.

Gin keeps one configuration for the whole process, and each function here puts its recipe in place of the last one.
Recipes say `import __main__ as train_script`, because T5X's programs run as `__main__`; while one is read here,
`ProgramModule` stands there instead, so that nothing of the user's own script is touched.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import t5xpg

PROGRAMS = {"train": "train", "eval": "evaluate", "infer": "infer"}  # {module of t5x: its function}
UNGIVEN = "(not given)"  # stands for folders and checkpoints that need not be known yet
MAY_MISS = ("MODEL_DIR", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR", "CHECKPOINT_PATH", "INITIAL_CHECKPOINT_PATH")
FLAGS_WITH_VALUE = {
    f"--{name}"
    for name in (
        *("gin_file", "gin_bindings", "gin_search_paths", "tfds_data_dir", "seqio_additional_cache_dirs"),
        *("coordinator_address", "process_count", "process_index", "initialization_timeout"),
        "shard_id",
    )
}


# ---- What a recipe binds ----


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe that gin has parsed; it answers until another one is read.

    Attributes:
      program: "train", "eval" or "infer".
      function: T5X's function of that program.
    """

    program: str
    function: Callable

    def settings(self) -> dict[str, Any]:
        """Returns the function's arguments as the recipe binds them: model, partitioner, dataset configurations, …"""
        import gin

        with gin.unlock_config():  # tasks registered on the way may be configurables
            return gin.get_bindings(self.function)

    def dataset_config(self):
        """Returns the DatasetConfig of the data it trains on (eval, infer: reads), and registers its task."""
        import gin

        bindings = gin.get_bindings(self.function, resolve_references=False)
        reference = bindings["train_dataset_cfg" if self.program == "train" else "dataset_cfg"]
        with gin.unlock_config():
            cfg = reference.scoped_configurable_fn()
        if cfg.module:
            importlib.import_module(cfg.module)
        return cfg

    def not_given(self) -> list[str]:
        """Returns the macros of MAY_MISS that it uses and that have no value."""
        import gin

        used = set(re.findall(r"%(\w+)", gin.config_str()))
        return [name for name in MAY_MISS if name in used and gin.query_parameter(f"%{name}") == UNGIVEN]


def read(arguments: Sequence[str]) -> Recipe:
    """Reads what `t5xpg train | eval | infer ARGUMENTS` would.

    Raises:
      ValueError: the recipe binds no program, or a macro outside MAY_MISS has no value.
    """
    import gin

    from t5x import gin_utils

    files, bindings, paths = gin_arguments(gin_utils.rewrite_gin_args(program_flags(arguments)))
    with parsing():
        gin_utils.parse_gin_flags(paths, files, bindings, finalize_config=False)
        check_macros(bindings)
        gin.parse_config([f"{name} = {UNGIVEN!r}" for name in MAY_MISS if not is_given(name)])
        if unset := re.findall(r"^(\w+) = %gin.REQUIRED$", gin.config_str(), re.MULTILINE):
            raise ValueError(f"{unset[0]} is not set; add {unset[0]}=VALUE to the command line.")
    return bound_recipe()


def read_text(text: str) -> Recipe:
    """Reads gin `text` that leaves nothing to be given.

    Raises:
      ValueError: it binds no program.
    """
    import gin

    with parsing():
        gin.parse_config(text)
    return bound_recipe()


def read_run(model_dir: str) -> Recipe:
    """Reads the config.gin that a run of either engine left in its MODEL_DIR.

    Raises:
      ValueError: there is none, or it is not of a training run.
    """
    path = Path(model_dir, "config.gin")
    if not path.is_file():
        raise ValueError(f"{path} is missing; give the MODEL_DIR of a training run.")
    recipe = read_text(path.read_text(encoding="utf-8"))
    if recipe.program != "train":
        raise ValueError(f"{path} is of t5xpg {recipe.program}; give the MODEL_DIR of a training run.")
    return recipe


class ProgramModule(types.ModuleType):
    """Has every name of T5X's programs; a program is imported when one of its names is asked for."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        for module in sorted(PROGRAMS, key=lambda program: PROGRAMS[program] != name):
            found = importlib.import_module(f"t5x.{module}")
            if hasattr(found, name):
                return getattr(found, name)
        raise AttributeError(f"T5X's programs have no {name!r}")


@contextlib.contextmanager
def parsing() -> Iterator[None]:
    """Clears gin's configuration and lets recipes import the programs as `__main__`."""
    import gin

    main = sys.modules["__main__"]
    sys.modules["__main__"] = ProgramModule("__main__")
    try:
        with gin.unlock_config():
            gin.clear_config()
            yield
    finally:
        sys.modules["__main__"] = main


def bound_recipe() -> Recipe:
    """Returns what gin has just parsed as a Recipe; raises ValueError where it binds none of the programs."""
    for program, name in PROGRAMS.items():
        module = sys.modules.get(f"t5x.{program}")  # a recipe that binds a program has imported it
        if module and is_bound(getattr(module, name)):
            return Recipe(program, getattr(module, name))
    raise ValueError("The recipe binds no program; include one of t5x/configs/runs/*.gin, and give it a model.")


def is_bound(function: Callable) -> bool:
    """Whether a recipe binds arguments of `function`."""
    import gin

    try:
        return bool(gin.get_bindings(function, resolve_references=False))
    except ValueError:  # gin's word for a function that no recipe has named yet
        return False


def is_given(macro: str) -> bool:
    """Whether a recipe or the command line gives the macro a value."""
    import gin

    try:
        return str(gin.query_parameter(f"%{macro}")) != "%gin.REQUIRED"
    except ValueError:  # gin's word for a macro that nothing binds
        return False


def check_macros_when_parsed(bindings: Sequence[str]) -> None:
    """Makes gin check the macros of `bindings` when either engine's program has parsed its files."""
    import gin

    gin.config.register_finalize_hook(lambda _: check_macros(bindings))


def check_macros(bindings: Sequence[str]) -> None:
    """Checks the macros of `NAME = value` bindings; gin itself lets a misspelt TRAIN_STEPS pass.

    Raises:
      ValueError: the parsed configuration does not refer to one, but does to a similar name. Without a similar name
        it only prints a warning.
    """
    import gin

    used = set(re.findall(r"%(\w+)", gin.config_str()))
    names = [match[1] for binding in bindings if (match := re.match(r"\s*(\w+)\s*=", binding))]
    for name in names:
        if name in used:
            continue
        if near := difflib.get_close_matches(name, used, n=1):
            raise ValueError(f"The recipe has no use for {name}; did you mean {near[0]}?")
        print(f"Warning: the recipe has no use for {name}; it uses {', '.join(sorted(used))}.", file=sys.stderr)


# ---- The command line's words as T5X's flags ----


def program_flags(arguments: Sequence[str]) -> list[str]:
    """Rewrites recipes and `NAME=VALUE` to T5X's flags, and lets gin find the recipes that ship."""
    search_paths = [".", str(recipes_root())]
    flags = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in FLAGS_WITH_VALUE:
            argument = f"{argument}={next(remaining, '')}"
        if argument.startswith("--gin_search_paths="):
            search_paths = [*argument.partition("=")[2].split(","), search_paths[-1]]
        elif argument.startswith("-"):
            flags.append(argument)
        elif argument.endswith(".gin") and "=" not in argument:
            flags.append(f"--gin_file={argument}")
        elif "=" in argument:
            name, _, value = argument.partition("=")
            name = re.sub(r"^\w+_script\.", "", name)  # what recipes import a program as; gin has it by its own name
            flags.append(f"--gin_bindings={name} = {gin_value(name, value)}")
        else:
            raise ValueError(f"{argument!r} is neither a recipe (….gin) nor a binding (NAME=VALUE).")
    return [f"--gin_search_paths={','.join(search_paths)}", *flags]


def gin_arguments(flags: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns (files, bindings, search paths) of a program's flags; its other flags are left out."""
    given: dict[str, list[str]] = {"gin_file": [], "gin_bindings": [], "gin_search_paths": []}
    for flag in flags:
        name, _, value = flag.partition("=")
        if name.lstrip("-") in given:
            given[name.lstrip("-")].append(value)
        elif name not in FLAGS_WITH_VALUE:
            raise ValueError(f"{flag} is not a flag of T5X's programs.")
    paths = [path for value in given["gin_search_paths"] for path in value.split(",")]
    engine = importlib.import_module("t5x").__path__[0]
    return given["gin_file"], given["gin_bindings"], [*paths, str(Path(engine).parent)]


def given_bindings(flags: Sequence[str]) -> list[str]:
    """Returns the gin bindings of a program's flags."""
    prefixes = ("--gin_bindings=", "--gin.")
    return [flag.removeprefix(prefix) for flag in flags for prefix in prefixes if flag.startswith(prefix)]


def recipes_root() -> Path:
    """Returns the folder that holds configs/: the package's in a wheel, its parent in a checkout."""
    package = Path(t5xpg.__file__).parent
    return package if (package / "configs").is_dir() else package.parent


def gin_value(name: str, text: str) -> str:
    """Quotes `text` for gin unless it is a gin value already: a literal, a %MACRO, a @reference, a list of such.

    A number in the place of a path is a path: MODEL_DIR=2024 is a folder.
    """
    if re.match(r"[%@]", text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text if re.match(r"[\[{(].*[%@]\w.*[\]})]$", text) else repr(text)
    is_path = re.search(r"(DIR|PATH|FILES?)$", name) is not None
    return repr(text) if is_path and isinstance(value, int | float) else text
