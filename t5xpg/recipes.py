"""A recipe read without running it: what it binds, and what is missing. For check, inspect, cache and Model.

Gin keeps one configuration for the whole process, and each function here puts its recipe in place of the last one.
Recipes say `import __main__ as train_script`, because T5X's programs run as `__main__`; while one is read here,
`ProgramModule` stands there instead, so that nothing of the user's own script is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import t5xpg
from t5xpg import name_value
from t5xpg.base import files
from t5xpg.trust import only_known

# {module of t5x: its function}
PROGRAMS = {"train": "train", "eval": "evaluate", "infer": "infer", "precompile": "precompile"}
UNGIVEN = "(not given)"  # stands for folders and checkpoints that need not be known yet
MAY_MISS = ("MODEL_DIR", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR", "CHECKPOINT_PATH", "INITIAL_CHECKPOINT_PATH")


# ---- What a recipe binds ----


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe that gin has parsed; it answers until another one is read.

    Attributes:
      program: one of PROGRAMS.
      function: T5X's function of that program.
      untrusted: the config.gin that it is of, where that may name only what `trust.only_known` lets it.
    """

    program: str
    function: Callable
    untrusted: str | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the function's arguments as the recipe binds them: model, partitioner, dataset configurations, …"""
        import gin

        with gin.unlock_config(), held(self.untrusted):  # tasks registered on the way may be configurables
            return gin.get_bindings(self.function)

    def dataset_config(self):
        """Returns the DatasetConfig of the data it trains on (eval, infer: reads), and registers its task."""
        import gin

        from t5x import utils

        bindings = gin.get_bindings(self.function, resolve_references=False)
        reference = bindings["train_dataset_cfg" if self.program == "train" else "dataset_cfg"]
        with gin.unlock_config(), held(self.untrusted):
            cfg = reference.scoped_configurable_fn()
            if cfg.module:
                utils.import_module(cfg.module)
        return cfg

    def not_given(self) -> list[str]:
        """Returns the macros of MAY_MISS that it uses and that have no value."""
        import gin

        used = set(re.findall(r"%(\w+)", gin.config_str()))
        return [name for name in MAY_MISS if name in used and gin.query_parameter(f"%{name}") == UNGIVEN]


def read(arguments: Sequence[str]) -> Recipe:
    """Reads what `t5xpg train | eval | infer ARGUMENTS` would.

    Raises:
      ValueError: the recipe binds no program, or macros outside MAY_MISS have no value; it names all of them.
    """
    import gin

    from t5x import gin_utils

    flags = gin_utils.rewrite_gin_args(name_value.program_flags(arguments, recipes_root()))
    files, bindings, paths = name_value.gin_arguments(flags)
    with parsing():
        gin_utils.parse_gin_flags(paths, files, bindings, finalize_config=False)
        name_value.check_macros(bindings)
        gin.parse_config([f"{name} = {UNGIVEN!r}" for name in MAY_MISS if not is_given(name)])
        if names := macros_not_set():
            raise ValueError(how_to_give(names))
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


def read_run(model_dir: str, trust: bool = False, more: str = "") -> Recipe:
    """Reads the config.gin that a run of either engine left in its MODEL_DIR.

    Args:
      model_dir: the run's.
      trust: whether config.gin, which is code, may name any Python function.
      more: lines of gin that come after it.

    Raises:
      ValueError: there is none, it is not of a training run, or it names what is not trusted (see `trust.only_known`).
    """
    path = os.path.join(model_dir, "config.gin")
    if not files.is_file(path):
        raise ValueError(f"{path} is missing; give the MODEL_DIR of a training run.")
    untrusted = None if trust else path
    with held(untrusted):
        recipe = dataclasses.replace(read_text(files.read_text(path) + more), untrusted=untrusted)
    if recipe.program != "train":
        raise ValueError(f"{path} is of t5xpg {recipe.program}; give the MODEL_DIR of a training run.")
    return recipe


def held(untrusted: str | None) -> contextlib.AbstractContextManager:
    """Returns `trust.only_known` of a config.gin that is not trusted; for None, what holds nothing."""
    return contextlib.nullcontext() if untrusted is None else only_known(untrusted)


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


def macros_not_set() -> list[str]:
    """Returns the macros to which what gin has parsed wants a value given."""
    import gin

    return re.findall(r"^(\w+) = %gin\.REQUIRED$", gin.config_str(), re.MULTILINE)


MAKES = {  # {a macro for a file: the command that makes one}
    "VOCABULARY_FILE": "`t5xpg tokenizer train`",
    "TOKENIZER_FILE": "`t5xpg tokenizer train --model_type byte_level_bpe`",
}


def how_to_give(names: Sequence[str]) -> str:
    """Returns the line that asks for these macros."""
    are = "is" if len(names) == 1 else "are"
    how = [f" {MAKES[name]} makes a {name}." for name in names if name in MAKES]
    values = " ".join(f"{name}=VALUE" for name in names)
    return f"{', '.join(names)} {are} not set; add {values} to the command line.{''.join(how)}"


def recipes_root() -> Path:
    """Returns the folder that holds configs/: the package's in a wheel, its parent in a checkout."""
    package = Path(t5xpg.__file__).parent
    return package if (package / "configs").is_dir() else package.parent
