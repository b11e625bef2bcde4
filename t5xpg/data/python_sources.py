"""The prose and the code that every Python carries with it, as JSONL; they need no network.

Nothing is imported, the sources are parsed, and the same Python gives the same files. A topic of `help()`, a top-level
module of the standard library with all below it, or a file of an installed package goes to one split, by `seed`, and
validation gets up to `validation_fraction` of the characters; a row that occurs twice is written once.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import re
import sys
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from t5xpg.data.corpora import PROSE_MIN_LENGTH, CorpusError, json_line, plan_pair, tallied, write_pair
from t5xpg.data.corpus_report import Tally

Documents = dict[str, list[str]]  # {what goes to one split: its rows}


def prepare_python_docs(
    output_dir: str | os.PathLike = ".",
    *,
    name: str = "python_docs",
    packages: Sequence[str] = (),
    min_length: int = PROSE_MIN_LENGTH,
    validation_fraction: float = 0.1,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Writes the English that this Python carries: the language reference and docstrings.

    About 1.9 MB of real prose, and more with `packages`, the installed packages to take docstrings from besides the
    standard library: a row is a topic of `help()` or the docstring of a module, class or function of at least
    `min_length` characters.

    Returns {split: path}. Raises CorpusError where this Python came without its sources, or without a package.
    """
    library = _library()
    sources = {"the standard library": _standard_sources(library)}
    sources |= {package: _package_sources(package) for package in packages}

    def documents() -> Documents:
        found = _topics(library)
        for where, of_modules in sources.items():
            found |= _modules(of_modules, _docstrings, where)
        return found

    return _prepare(documents, output_dir, name, min_length, validation_fraction, seed, overwrite)


def prepare_python_code(
    output_dir: str | os.PathLike = ".",
    *,
    name: str = "python_code",
    min_length: int = PROSE_MIN_LENGTH,
    validation_fraction: float = 0.1,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Writes the functions and methods of the standard library that this Python carries, without its tests.

    About 8 MB: a row is the source of one function, with those inside it, of at least `min_length` characters.

    Returns {split: path}. Raises CorpusError where this Python came without its sources.
    """
    library = _library()

    def documents() -> Documents:
        return _modules(_standard_sources(library), _functions, "the standard library")

    return _prepare(documents, output_dir, name, min_length, validation_fraction, seed, overwrite)


def _prepare(
    documents: Callable[[], Documents],
    output_dir: str | os.PathLike,
    name: str,
    min_length: int,
    fraction: float,
    seed: int,
    overwrite: bool,
) -> dict[str, Path]:
    """Deals the documents out to the splits by `seed`, each row once, and says what they are made of."""
    paths, wanted = plan_pair(output_dir, name, fraction, overwrite)
    if not wanted:
        return paths
    distinct = _distinct_rows(documents(), min_length)
    order = sorted(distinct)
    random.Random(seed).shuffle(order)
    held_out = _fill_validation(distinct, order, fraction)
    tally = Tally()
    rows = (
        (document in held_out, json_line(text))
        for document in order
        for text in tallied(distinct[document], document, tally)
    )
    write_pair(paths, rows)
    print("\n".join(tally.report()), flush=True)
    return paths


# --- where the sources are ------------------------------------------------------------------------------------------


def _library() -> Path:
    library = Path(sysconfig.get_path("stdlib"))
    if not (library / "pydoc_data" / "topics.py").is_file():
        raise CorpusError(f"{library}: this Python came without its library's sources. Use another, or prepare text.")
    return library


def _package_sources(name: str) -> dict[str, list[Path]]:
    """Returns {path in the package: [file]} of an installed package, which is not imported for it."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None:
        raise CorpusError(
            f"--packages {name}: nothing of that name is installed in {sys.prefix}. Install it, or name others."
        )
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        found = {f"{name}/{path.relative_to(folder).as_posix()}": [path] for path in _sources(folder)}
    else:
        found = {name: [Path(spec.origin)]} if spec.origin and spec.origin.endswith(".py") else {}
    if not found:
        raise CorpusError(f"--packages {name}: it came without Python sources ({spec.origin}). Name others.")
    return found


def _standard_sources(library: Path) -> dict[str, list[Path]]:
    """Returns {top-level module: its sources and all below it}."""
    return {
        module: [library / f"{module}.py", *_sources(library / module)] for module in sorted(sys.stdlib_module_names)
    }


def _sources(folder: Path) -> list[Path]:
    """Returns the folder's sources and those below, tests left out."""
    found = sorted(folder.rglob("*.py"))
    return [
        path for path in found if not {"test", "tests", "idle_test"} & {folder.name, *path.relative_to(folder).parts}
    ]


# --- what is taken from them ----------------------------------------------------------------------------------------


def _topics(library: Path) -> dict[str, list[str]]:
    """Returns {"help(<topic>)": [text]} of the language reference, without topics that a longer one quotes in full.

    "with", for example, is part of "compound"; kept, it could repeat in validation what train has word for word.
    """
    tree = ast.parse((library / "pydoc_data" / "topics.py").read_bytes())
    topics = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "topics"
    )
    kept: dict[str, str] = {}  # topic to its text without underlines, which change with a heading's level
    for topic in sorted(topics, key=lambda topic: (-len(topics[topic]), topic)):
        plain = re.sub(r"[*=\-~^]{3,}", "", topics[topic])
        body = plain.partition("\n")[2].strip()  # a heading can change where it is quoted
        if not any(body in longer for longer in kept.values()):
            kept[topic] = plain
    return {f"help({topic})": [topics[topic].strip()] for topic in kept}


def _modules(sources: Mapping[str, list[Path]], rows_of: Callable[[str], list[str]], where: str) -> Documents:
    """Returns {module: the rows of its sources}, in their order."""
    from tqdm import tqdm

    progress = tqdm(sources.items(), f"reading {where}", unit=" modules", disable=None)
    return {module: [text for path in paths for text in _rows(path, rows_of)] for module, paths in progress}


def _rows(path: Path, rows_of: Callable[[str], list[str]]) -> list[str]:
    """Returns the rows of a source, which need not exist; names one that this Python cannot read."""
    from tqdm import tqdm

    try:
        return rows_of(_source(path)) if path.is_file() else []
    except (SyntaxError, ValueError) as error:  # a template, or for another Python
        tqdm.write(f"{path}: left out, this Python cannot read it ({error})")
        return []


def _source(path: Path) -> str:
    with tokenize.open(path) as file:  # by the encoding that the file declares
        return file.read()


def _parsed(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes, which are the library's business
        return ast.parse(source)


def _docstrings(source: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(_parsed(source)) if isinstance(node, kinds)]


def _functions(source: str) -> list[str]:
    """Returns the source of each function and method that is not inside another, as it stands, in their order."""
    lines = source.split("\n")  # as `ast` counts them: a form feed ends none

    def outermost(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield textwrap.dedent("\n".join(lines[child.lineno - 1 : child.end_lineno])).strip()
            else:
                yield from outermost(child)

    return list(outermost(_parsed(source)))


def _distinct_rows(documents: Documents, min_length: int) -> Documents:
    """Returns the documents without short rows and without rows that occur before in this or an earlier one."""
    seen: set[str] = set()
    distinct: Documents = {}
    for document, texts in documents.items():
        fresh = [text for text in dict.fromkeys(texts) if len(text) >= min_length and text not in seen]
        seen.update(fresh)
        distinct[document] = fresh
    return distinct


def _fill_validation(documents: Documents, order: list[str], fraction: float) -> set[str]:
    """Returns the documents for validation: in this order, each that still fits into the fraction of all characters."""
    sizes = {document: sum(map(len, texts)) for document, texts in documents.items()}
    room = fraction * sum(sizes.values())
    held_out = set()
    for document in order:
        if sizes[document] <= room:
            held_out.add(document)
            room -= sizes[document]
    return held_out
