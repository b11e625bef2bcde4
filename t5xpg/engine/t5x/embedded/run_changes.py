"""What has changed in a run's configuration since it was last started, and whether it may go on with that.

MODEL_DIR/config.gin, which the last start left, and gin's bindings now are compared as texts. Both are parsed by gin's
own parser into bindings {"scope/module.name.argument": value}; nothing in them is imported or called.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import gin
import jax
from gin import config_parser

from t5x.embedded import console
from t5x.embedded.checkpoint_paths import agreed_steps
from t5xpg.base import files

CONFIG_NAME = "config.gin"
# Arguments below the training data and the model that a run may change and still be the same run.
FREE = {
    *("name", "metric_fns", "cacheable", "use_memory_cache", "num_prefetch_threads", "num_workers"),
    *("optimizer_def", "loss_normalizing_factor", "z_loss", "label_smoothing", "decode_fn"),
    *("dropout_rate", "dtype", "float32_attention_logits", "remat_policy"),
}
Bindings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Macro:
    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@scope/module.name`, or its call."""

    scope: str
    name: str
    is_called: bool

    def __repr__(self) -> str:
        return f"@{self.scope}{'/' * bool(self.scope)}{shorter(self.name)}{'()' * self.is_called}"


@dataclasses.dataclass(frozen=True)
class Changes:
    """What differs from the last start of a run.

    Attributes:
      bindings: {binding or macro: "value (was value)"}.
      refused: those of them that make it another run.
      is_other_data: whether the training data is other than before, its batch size aside.
      batch_size: the last start's; None where that is not known.
    """

    bindings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    is_other_data: bool = False
    batch_size: int | None = None


def review(model_dir: str, allow_changes: bool) -> Changes:
    """Compares a run that is about to go on with its last start, and says what differs.

    Nothing is compared where `model_dir` holds no checkpoint or no config.gin, or gin binds no training run now.

    Raises:
      ValueError: data, lengths, batch size, vocabulary or network differ, and `allow_changes` is not set.
    """
    path = os.path.join(model_dir, CONFIG_NAME)
    if not agreed_steps(model_dir) or not files.exists(path):
        return Changes()
    before = parse(files.read_text(path), path)
    now = parse(gin.config_str(), "the recipe")
    if not (root_of(before) and root_of(now)):
        return Changes()
    changes = compare(before, now)
    if changes.bindings:
        listed = "; ".join(f"{name} = {text}" for name, text in sorted(changes.bindings.items()))
        console.say(f"Changed since {model_dir} was last started: {listed}")
    if changes.refused and not allow_changes:
        raise ValueError(
            f"{model_dir} holds a run that these would not continue: {', '.join(sorted(changes.refused))}. Set them "
            "back, take another MODEL_DIR, or pass --allow_changes."
        )
    return changes


def keep_config(model_dir: str, step: int) -> None:
    """Keeps an earlier start's config.gin, with which the run came to `step`, as config.<step>.gin if gin differs now.

    A config.<step>.gin that is there stays: what was started after it made no checkpoint.
    """
    path, kept = os.path.join(model_dir, CONFIG_NAME), os.path.join(model_dir, f"config.{step}.gin")
    if jax.process_index() != 0 or not files.exists(path) or files.exists(kept):
        return
    text = files.read_text(path)
    if text != gin.config_str():
        files.write_whole(kept, text)


# ---- Bindings ----


def parse(text: str, where: str) -> Bindings:
    """Returns the bindings of a gin file without includes; raises ValueError where gin's parser cannot read it."""
    names: dict[str, str] = {}  # what an import calls a module -> the module

    def full(name: str) -> str:
        first, dot, rest = name.partition(".")
        return names.get(first, first) + dot + rest

    class Delegate(config_parser.ParserDelegate):
        def configurable_reference(self, scoped_configurable_name, evaluate):
            scope, _, name = scoped_configurable_name.rpartition("/")
            return Reference(scope, full(name), evaluate)

        def macro(self, macro_name):
            return Macro(macro_name)

    bindings = {}
    try:
        for statement in config_parser.ConfigParser(text, Delegate()):
            if isinstance(statement, config_parser.ImportStatement) and statement.module != "__gin__":
                module = statement.module
                if statement.alias or statement.is_from:
                    names[statement.alias or module.rpartition(".")[2]] = module
            elif isinstance(statement, config_parser.BindingStatement):
                scope, selector, argument, value, _ = statement
                name = f"{full(selector)}.{argument}" if argument else selector  # a macro has no argument
                bindings[f"{scope}/{name}" if scope else name] = value
    except SyntaxError as error:
        raise ValueError(f"{where} is not gin that can be compared ({error.msg}); mend or remove it.") from error
    return bindings


def parts(key: str) -> tuple[str, str, str]:
    """Returns (scope, configurable, argument) of a binding's name."""
    scope, _, name = key.rpartition("/")
    configurable, _, argument = name.rpartition(".")
    return scope, configurable, argument


def root_of(bindings: Bindings) -> str | None:
    """Returns the name of the program's function, `__main__.train`; None where they are not a training run's."""
    found = [configurable for _, configurable, argument in map(parts, bindings) if argument == "train_dataset_cfg"]
    return found[0] if found else None


def inside(value: Any) -> Iterator[Any]:
    """Yields the macros, references and literals that a value consists of."""
    if isinstance(value, Mapping):
        for pair in value.items():
            yield from inside(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from inside(item)
    else:
        yield value


def resolved(value: Any, bindings: Bindings) -> Any:
    """Returns the value with macros replaced by theirs, and tuples for lists."""
    if isinstance(value, Macro):
        return resolved(bindings.get(value.name), bindings)
    if isinstance(value, Mapping):
        return {resolved(k, bindings): resolved(v, bindings) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return tuple(resolved(item, bindings) for item in value)
    return value


def below(bindings: Bindings, argument: str) -> set[str]:
    """Returns the bindings that the value of the program's `argument` depends on, but for FREE ones."""
    found: set[str] = set()

    def follow(value: Any, scopes: frozenset[str]) -> None:
        for item in inside(value):
            if isinstance(item, Macro):
                follow(bindings.get(item.name), scopes)
            elif isinstance(item, Reference):
                inner = scopes | set(item.scope.split("/"))
                for key, bound in bindings.items():
                    scope, configurable, name = parts(key)
                    is_its_own = configurable == item.name and set(scope.split("/")) <= inner | {""}
                    if is_its_own and name not in FREE and key not in found:
                        found.add(key)
                        follow(bound, inner)

    key = f"{root_of(bindings)}.{argument}"
    follow(bindings.get(key), frozenset())
    return found | {key}


# ---- What differs ----


def compare(before: Bindings, now: Bindings) -> Changes:
    """Returns what differs between two starts; a macro is named in place of the bindings that it decides."""
    data, model = (below(before, name) | below(now, name) for name in ("train_dataset_cfg", "model"))
    described, refused, is_other_data, batch_size = {}, set(), False, None
    for key in sorted(key for key in before.keys() | now.keys() if parts(key)[1]):
        was, becomes = (resolved(bindings.get(key), bindings) for bindings in (before, now))
        if key in data and parts(key)[2] == "batch_size":
            batch_size = was
        elif key in data and was != becomes:
            is_other_data = True
        if was == becomes:
            continue
        for name in causes(key, before, now):
            described[written(name)] = f"{describe(name, now)} (was {describe(name, before)})"
            if key in data or key in model:
                refused.add(written(name))
    return Changes(described, frozenset(refused), is_other_data, batch_size)


def causes(key: str, before: Bindings, now: Bindings) -> set[str]:
    """Returns the macros that make the binding (or macro) `key` differ; itself, where it is written differently."""
    if key not in before or key not in now or before[key] != now[key]:
        return {key}
    macros = [item.name for item in inside(now[key]) if isinstance(item, Macro)]
    differing = [name for name in macros if resolved(Macro(name), before) != resolved(Macro(name), now)]
    return {cause for name in differing for cause in causes(name, before, now)}


def describe(name: str, bindings: Bindings) -> str:
    text = repr(resolved(bindings[name], bindings)) if name in bindings else "not bound"
    return text if len(text) <= 80 else f"{text[:77]}…"


def written(key: str) -> str:
    """Returns the name of a binding, or of a macro, as recipes write it."""
    scope, configurable, argument = parts(key)
    return f"{scope}{'/' * bool(scope)}{shorter(configurable)}.{argument}" if configurable else key


def shorter(configurable: str) -> str:
    """Returns a configurable's name with the module that it is in alone."""
    return ".".join(configurable.split(".")[-2:]).removeprefix("__main__.")
