"""What gin files bind and say, read without importing what they name: for `t5xpg recipes`."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import os
import re
import tokenize
from collections.abc import Sequence
from pathlib import Path

from gin import config_parser

from t5xpg.base import files
from t5xpg.recipes import recipes_root
from t5xpg.t5x_finder import ENGINE_DIR

REQUIRED = "%gin.REQUIRED"


@dataclasses.dataclass(frozen=True)
class Binding:
    """A macro, or an argument of a function, with its value.

    Attributes:
      name: as it is written: BATCH_SIZE, or utils.SaveCheckpointConfig.period.
      value: as gin writes it: 16, 'text', %NAME, @function(); REQUIRED where the user gives it.
      beside: the comment at the end of its line, or of an earlier line that binds the same name.
      above: the comment on the lines above it, likewise.
    """

    name: str
    value: str
    beside: str = ""
    above: str = ""

    @property
    def is_macro(self) -> bool:
        return "." not in self.name

    @property
    def is_required(self) -> bool:
        return self.value == REQUIRED

    @property
    def note(self) -> str:
        return self.beside or self.above


class AsWritten(str):
    """A reference or a macro in a value; it prints as it is written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class References(config_parser.ParserDelegate):
    """Gives gin's parser references and macros as they are written, and keeps the macros' names."""

    def __init__(self):
        self.macros: set[str] = set()

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> AsWritten:
        return AsWritten(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name: str) -> AsWritten:
        self.macros.add(macro_name)
        return AsWritten(f"%{macro_name}")


def t5x_root() -> Path:
    """Returns the folder that the T5X is in which answers `import t5x`; the embedded engine's where none does."""
    spec = importlib.util.find_spec("t5x")
    return (Path(spec.origin).parent if spec and spec.origin else ENGINE_DIR).parent


def find(path: str, *roots: Path) -> str | None:
    """Returns where gin finds a file: at its own path or URL, among what ships, in `roots`; None if it does not."""
    places = (path, *(os.path.join(root, path) for root in (recipes_root(), *roots)))
    return next((place for place in places if files.is_file(place)), None)


def read(recipe: str) -> dict[str, Binding]:
    """Reads a recipe and what it includes; where a name is bound twice the later binding holds, as in gin.

    Returns:
      {name: its binding}. The functions in these names are in full, as in t5x.utils.SaveCheckpointConfig.period, so
      that files agree which import a module by different names. A macro that is used and bound nowhere is REQUIRED.
      Values are those of the T5X that answers; of its names the embedded engine's comments say what they are.

    Raises:
      ValueError: a file cannot be found, or is not gin.
    """
    t5x, engine = t5x_root(), ENGINE_DIR.parent
    bindings = _read(recipe, t5x)
    if t5x == engine:
        return bindings
    ours = _read(recipe, engine, t5x)
    return {
        key: dataclasses.replace(binding, beside=ours[key].beside or binding.beside) if key in ours else binding
        for key, binding in bindings.items()
    }


def read_config(path: str) -> dict[str, Binding]:
    """Reads the config.gin that a run wrote, with all bindings; raises ValueError where it includes another file."""
    bindings: dict[str, Binding] = {}
    _read_file(path, None, bindings, References())
    return bindings


def _read(recipe: str, *roots: Path) -> dict[str, Binding]:
    bindings: dict[str, Binding] = {}
    references = References()
    _read_file(recipe, roots, bindings, references)
    for name in sorted(name for name in references.macros - bindings.keys() if "." not in name):  # with one: constants
        bindings[name] = Binding(name, REQUIRED, "used here and bound nowhere; include what binds it, or give it")
    return bindings


def _read_file(name: str, roots: Sequence[Path] | None, bindings: dict[str, Binding], references: References) -> None:
    path = find(name, *(roots or ()))
    if path is None:
        raise ValueError(f"There is no gin file {name}: not here, not in {recipes_root()}, and not in T5X.")
    text = files.read_text(path)
    modules: dict[str, str] = {}  # {a name in this file: the module it stands for}
    try:
        beside, above = comments(text)
        for statement in config_parser.ConfigParser(text, references):
            if isinstance(statement, config_parser.IncludeStatement):
                if roots is None:
                    raise ValueError(f"{path} includes {statement.filename}; the config.gin of a run includes nothing.")
                _read_file(statement.filename, roots, bindings, references)
            elif isinstance(statement, config_parser.ImportStatement):
                renamed = statement.is_from or statement.alias
                modules[statement.bound_name()] = statement.module if renamed else statement.bound_name()
            elif isinstance(statement, config_parser.BindingStatement):
                line = statement.location.line_num
                _bind(statement, modules, bindings, beside.get(line, ""), above.get(line - 1, ""))
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{path} is not gin: {error}") from None


def _bind(statement, modules: dict[str, str], bindings: dict[str, Binding], beside: str, above: str) -> None:
    """Puts a BindingStatement in place of what `bindings` has for its name, whose comments it inherits."""
    scope = f"{statement.scope}/" if statement.scope else ""
    first, dot, rest = statement.selector.partition(".")
    argument = f".{statement.arg_name}" if statement.arg_name else ""
    key = f"{scope}{modules.get(first, first)}{dot}{rest}{argument}"
    written = f"{scope}{statement.selector}{argument}"
    before = bindings.get(key, Binding(written, REQUIRED))
    bindings[key] = Binding(written, repr(statement.value), beside or before.beside, above or before.above)


def comments(text: str) -> tuple[dict[int, str], dict[int, str]]:
    """Returns ({line: the comment at its end}, {last line of a comment on lines of its own: that comment})."""
    beside: dict[int, str] = {}
    above: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, words = token.start[0], re.sub("^#+|[-=#]{3,}", "", token.string).strip()
            if token.line[: token.start[1]].strip():
                beside[line] = words
            else:
                above[line] = f"{above.pop(line - 1, '')} {words}".strip()
    return beside, above
