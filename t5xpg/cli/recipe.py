"""Parses a recipe without running it, on either engine: for `t5xpg check`, `inspect` and `cache`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

from t5xpg.cli import macros
from t5xpg.cli.programs import FLAGS_WITH_VALUE, is_given, program_flags

PROGRAMS = {"train": "train", "eval": "evaluate", "infer": "infer"}  # {module of t5x: its function}
UNGIVEN = "(not given)"  # stands for folders and checkpoints that need not be known yet
MAY_MISS = ("MODEL_DIR", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR", "CHECKPOINT_PATH", "INITIAL_CHECKPOINT_PATH")


def parse(arguments: list[str]) -> tuple[str, Callable]:
    """Binds what `t5xpg train | eval | infer ARGUMENTS` would, in place of what gin holds.

    Returns:
      The program the recipe is for ("train", "eval" or "infer") and its function, whose arguments gin knows now.

    Raises:
      ValueError: the recipe is for no program, or leaves a macro to be given that is not in MAY_MISS.
    """
    import gin

    import __main__
    from t5x import gin_utils

    functions = {
        program: getattr(importlib.import_module(f"t5x.{program}"), name) for program, name in PROGRAMS.items()
    }
    for function in functions.values():
        setattr(__main__, function.__name__, function)  # recipes say `import __main__ as train_script`
    files, bindings, paths = gin_arguments(gin_utils.rewrite_gin_args(program_flags(arguments)))
    with gin.unlock_config():
        gin.clear_config()
        gin_utils.parse_gin_flags(paths, files, bindings, finalize_config=False)
        macros.check(bindings)
        gin.parse_config([f"{name} = {UNGIVEN!r}" for name in MAY_MISS if not is_given(name)])
    if unset := re.findall(r"^(\w+) = %gin.REQUIRED$", gin.config_str(), re.MULTILINE):
        raise ValueError(f"{unset[0]} is not set; add {unset[0]}=VALUE to the command line.")
    for program, function in functions.items():
        if is_bound(function):
            return program, function
    raise ValueError("The recipe binds no program; include one of t5x/configs/runs/*.gin, and give it a model.")


def not_given() -> list[str]:
    """Returns the macros of MAY_MISS that the parsed recipe uses and that nothing gave a value."""
    import gin

    used = set(re.findall(r"%(\w+)", gin.config_str()))
    return [name for name in MAY_MISS if name in used and gin.query_parameter(f"%{name}") == UNGIVEN]


def dataset_config(arguments: list[str]):
    """Returns the DatasetConfig of the data that `t5xpg train ARGUMENTS` trains on (eval, infer: reads)."""
    import gin

    program, function = parse(arguments)
    bindings = gin.get_bindings(function, resolve_references=False)
    reference = bindings["train_dataset_cfg" if program == "train" else "dataset_cfg"]
    with gin.unlock_config():  # tasks registered on the way may be configurables
        cfg = reference.scoped_configurable_fn()
    if cfg.module:
        importlib.import_module(cfg.module)
    return cfg


def gin_arguments(flags: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns (files, bindings, search paths) of a program's flags; its other flags are left out."""
    given: dict[str, list[str]] = {"gin_file": [], "gin_bindings": [], "gin_search_paths": []}
    for flag in flags:
        name, _, value = flag.partition("=")
        if name.lstrip("-") in given:
            given[name.lstrip("-")].append(value)
        elif name not in FLAGS_WITH_VALUE:
            raise ValueError(f"{flag} is no flag of T5X's programs.")
    paths = [path for value in given["gin_search_paths"] for path in value.split(",")]
    engine = importlib.import_module("t5x").__path__[0]
    return given["gin_file"], given["gin_bindings"], [*paths, str(Path(engine).parent)]


def is_bound(function: Callable) -> bool:
    """Whether a recipe binds arguments of `function`."""
    import gin

    try:
        gin.get_bindings(function, resolve_references=False)
    except ValueError:  # gin's word for a function that no recipe names
        return False
    return True
