"""A gin file is code: what the config.gin of somebody else's run may name before anything of it is imported or called.

gin imports the modules that a file imports, and calls the functions that it refers to. `only_known` holds a file to
what recipes are made of. This is no sandbox: what those functions can be told to do, such as to write a file, a
config.gin can still tell them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

# {package: what is in it, each a module or a name in one}, by where a name is defined. None of it imports, unpickles
# or runs what a string names, or parses gin, but NEVER_CALLED and ONLY_FOR.
NAMES = {
    "t5x": (
        *("adafactor", "contrib.moe", "decoding", "examples", "losses", "metrics", "models", "optimizers"),
        *("partitioning", "trainer", "checkpoints.Checkpointer", "checkpoints.SaveBestCheckpointer"),
        *("train.train", "eval.evaluate", "infer.infer", "precompile.precompile", "gin_utils.summarize_gin_config"),
        *("utils.CheckpointConfig", "utils.DatasetConfig", "utils.RestoreCheckpointConfig"),
        *("utils.SaveCheckpointConfig", "utils.create_learning_rate_scheduler", "utils.get_training_eval_datasets"),
        "utils.round_vocab_size_to_multiple",
        # Where the embedded engine has some of them.
        *("embedded.actions", "embedded.base_model.BaseModel", "embedded.base_model.BaseTransformerModel"),
        *("embedded.base_model.get_input_vocabulary", "embedded.base_model.get_output_vocabulary"),
        *("embedded.checkpoint_configs", "embedded.datasets.DatasetConfig", "embedded.learning_rates"),
        "embedded.weight_metrics",
    ),
    "t5xpg": ("mlm", "objectives", "qa", "roberta", "schedules", "tasks", "vocabularies"),
    "seqio": (
        *("evaluation", "feature_converters", "loggers", "vocabularies"),
        *("dataset_providers.Feature", "utils.Feature"),  # of different versions
    ),
    "t5": ("data", "evaluation"),
    "flax": tuple(
        f"linen.{name}"
        for name in ("activation", "attention", "combinators", "initializers", "linear", "normalization", "pooling")
    ),
    "optax": ("",),
}
JAX = ("jax.nn", "jax.numpy", "jax._src.nn")  # whose functions are called by flax's names, as linen.relu is
GINS = tuple(f"gin.config.{name}" for name in ("macro", "singleton", "_retrieve_constant", "_GinBuiltins"))
# These import what their configurations name. A config.gin binds a program's arguments and never refers to it; what it
# refers to for one argument of `train`, which nothing calls that asks a trained model, it refers to nowhere else.
NEVER_CALLED = ("t5x.train.train", "t5x.eval.evaluate", "t5x.infer.infer")
ONLY_FOR = {"t5x.utils.get_training_eval_datasets": ("t5x.train.train", "train_eval_get_dataset_fn")}


@contextlib.contextmanager
def only_known(path: str) -> Iterator[None]:
    """Lets gin import and bind NAMES alone, in whatever it parses in the block, included files too, and lets T5X and
    SeqIO import no other packages' modules by a string there, such as a DatasetConfig's.

    Only T5X's and t5xpg's files may be included: to find one gin imports the package that its folders may be.

    Names are judged by where their modules, classes and functions are defined, so that `seqio.os.system` is not one of
    seqio's. `__main__` stands for T5X's programs, as `recipes.parsing` puts them there.

    Args:
      path: what is parsed, for messages.

    Raises:
      ValueError: something else is imported or bound; nothing has been imported or called then but NAMES.
    """
    from gin import config

    references: list[Any] = []  # to ONLY_FOR
    refuse = functools.partial(refusal, path)
    with contextlib.ExitStack() as patches:
        for module, name, ours in (
            *((config, name, ours) for name, ours in guarded_gin(refuse, references).items()),
            (importlib, "import_module", guarded_import(refuse)),
        ):
            patches.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, ours)
        yield
        bound = {
            id(value): (defined_at(config._REGISTRY[selector].wrapped), name)
            for (_, selector), arguments in config._CONFIG.items()
            for name, value in arguments.items()
        }
        for reference in references:
            if bound.get(id(reference)) != ONLY_FOR[defined_at(reference.configurable.wrapped)]:
                raise refuse(f"@{reference.selector}")


def refusal(path: str, name: str) -> ValueError:
    return ValueError(
        f"{path}: names {name}, and a config.gin is code; without --trust (trust=True) it may name only what "
        f"t5xpg.trust.NAMES lists, of {', '.join(NAMES)}."
    )


def guarded_gin(refuse: Callable[[str], ValueError], references: list) -> dict[str, Any]:
    """Returns what to put in place of gin.config's names; `references` gets the references to ONLY_FOR."""
    from gin import config

    class Guarded(config.ParseContext):
        """gin's context of one file, which resolves the names in it."""

        def process_import(self, statement):
            # gin writes an import of its own module, whose names are refused, where a macro has no value.
            gins = statement.module.startswith("__gin__.") or statement.module == "gin.config"
            if not gins and not is_known_module(statement.module):
                raise refuse(statement.module)
            super().process_import(statement)

        def get_configurable(self, selector):
            if self._dynamic_registration:
                parts = self._resolve_selector(selector)[1]
            else:
                found = super().get_configurable(selector)
                if found is None:  # gin says so
                    return None
                parts = [found.wrapped]
            if not all(map(is_known, parts)) or isinstance(parts[-1], types.ModuleType):
                raise refuse(selector)
            return super().get_configurable(selector)

    class GuardedReference(config.ConfigurableReference):
        def initialize(self):
            super().initialize()
            name = defined_at(self.configurable.wrapped)
            if name in NEVER_CALLED:
                raise refuse(f"@{self.selector}")
            if name in ONLY_FOR:
                references.append(self)

    parse_as_ever = config.parse_config_file

    def include(name: str, *args, **kwargs):
        parts = name.split("/")
        if parts[0] not in ("t5x", "t5xpg") or ".." in parts:
            raise refuse(f"include {name!r}")
        return parse_as_ever(name, *args, **kwargs)

    return {"ParseContext": Guarded, "ConfigurableReference": GuardedReference, "parse_config_file": include}


def guarded_import(refuse: Callable[[str], ValueError]) -> Callable[..., types.ModuleType]:
    """Returns importlib.import_module, which imports nothing but NAMES' packages for T5X and SeqIO."""
    import_as_ever = importlib.import_module

    def import_module(name: str, package: str | None = None) -> types.ModuleType:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] in ("t5x", "seqio", "t5") and name.partition(".")[0] not in NAMES:
            raise refuse(name)
        return import_as_ever(name, package)

    return import_module


def is_known_module(name: str) -> bool:
    """Whether a module is one of NAMES, in one, or a package or module that has some of them."""
    above = (f"{known}.".startswith(f"{name}.") for known in known_names())
    return is_known_name(name) or any(above) or name == "__main__"


def is_known(thing: Any) -> bool:
    """Whether a module, class or function is one of NAMES, or JAX's under one of their names, or gin's own."""
    if isinstance(thing, types.ModuleType):
        return is_known_module(thing.__name__)
    name = defined_at(thing)
    return is_known_name(name) or name in GINS or name.startswith(tuple(f"{module}." for module in JAX))


def is_known_name(name: str) -> bool:
    return f"{name}.".startswith(tuple(f"{known}." for known in known_names()))


def known_names() -> list[str]:
    return [f"{package}.{name}".rstrip(".") for package, names in NAMES.items() for name in names]


def defined_at(thing: Any) -> str:
    """Returns the module and name of a class or function, or of the type of anything else."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"
