"""T5X's public names, read from its source without running it, and whether the engine has one of them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    *("adafactor", "binary_search", "checkpoint_importer", "checkpoint_utils", "checkpoints", "checkpoints_utils"),
    *("config_utils", "decoding", "eval", "export", "export_lib", "gin_utils", "infer", "interactive_model", "losses"),
    *("main", "metrics", "models", "optimizers", "partitioning", "precompile", "state_utils", "train", "train_state"),
    *("trainer", "utils", "examples.t5.layers", "examples.t5.network", "examples.decoder_only.network"),
    *("examples.decoder_only.layers", "examples.scalable_t5.layers", "examples.scalable_t5.network"),
)
# Their classes are what users derive from, so what begins with one underscore is part of the contract too.
SUBCLASSED = ("models", "trainer")
PROPERTIES = ("property", "cached_property", "functools.cached_property", "abc.abstractproperty")


def names_of(source: Path) -> Iterator[tuple[str, list[str] | None]]:
    """Yields ("module.Class.method", parameters or None) of T5X; `source` is its package."""
    for module in MODULES:
        tree = ast.parse((source / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        seen = set()
        for name, parameters in names_in(tree.body, module in SUBCLASSED):
            if name not in seen:
                seen.add(name)
                yield f"{module}.{name}", parameters


def names_in(body: list[ast.stmt], protected: bool) -> Iterator[tuple[str, list[str] | None]]:
    for node in body:
        if isinstance(node, ast.If):
            yield from names_in(node.body, protected)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, parameters_of(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from names_in_class(node, protected)
        elif isinstance(node, ast.Assign):
            constants = (target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper())
            yield from ((name, None) for name in constants if not name.startswith("_"))


def names_in_class(node: ast.ClassDef, protected: bool) -> Iterator[tuple[str, list[str] | None]]:
    functions = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    fields = [
        member.target.id
        for member in node.body
        if isinstance(member, ast.AnnAssign) and "ClassVar" not in ast.unparse(member.annotation)
    ]
    constructor = next((parameters_of(f)[1:] for f in functions if f.name == "__init__"), fields)
    yield node.name, constructor
    for function in functions:
        if function.name.startswith("_") and (not protected or function.name.startswith("__")):
            continue
        decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
        bound = parameters_of(function)[0 if "staticmethod" in decorators else 1 :]
        yield f"{node.name}.{function.name}", None if decorators & set(PROPERTIES) else bound


def parameters_of(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]


def engine_has(name: str) -> tuple[bool, set[str] | None]:
    """Returns (whether the engine has "module.Class.method", its parameters); None where any will do, or none."""
    module = next((m for m in sorted(MODULES, key=len, reverse=True) if f"{name}.".startswith(f"{m}.")), name)
    try:
        found = importlib.import_module(f"t5x.{module}")
        for part in name.removeprefix(module).strip(".").split("."):
            if part:
                found = member(found, part)
        parameters = inspect.signature(found).parameters.values()
    except (ImportError, AttributeError):
        return False, None
    except (TypeError, ValueError):  # not a function
        return True, None
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return True, None if takes_any else {parameter.name for parameter in parameters}


def member(owner, name: str):
    if not inspect.isclass(owner):
        return getattr(owner, name)
    if any(name in vars(base).get("__annotations__", {}) for base in owner.__mro__):
        return None  # an attribute of its instances
    found = inspect.getattr_static(owner, name)
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found
