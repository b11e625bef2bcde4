"""Which files the name of a corpus stands for: paths, globs, folders and URLs; and what is wrong where none does."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterable, Sequence

from t5xpg.base import files as stored
from t5xpg.base import stores
from t5xpg.data import parquet
from t5xpg.data.compressed import packed

Files = str | os.PathLike | Sequence[str | os.PathLike]

DATA_DIR_VARIABLE = "T5XPG_DATA_DIR"


class JsonlError(ValueError):
    """What is wrong with the input, in one line: `file:line: what was found. What to do`."""


class MissingFileError(JsonlError, FileNotFoundError):
    """An entry of files= matches no file; the message names every place looked at."""


def find_files(files: Files) -> list[str]:
    """Returns the paths that `files` stands for, in reading order.

    Args:
      files: a path, a glob (also `**`), a folder, or a list of these, local or at a URL; a web address is always one
        file. A folder stands for its *.jsonl or *.parquet, and where it has neither, its *.json; JSON also .gz, .bz2,
        .xz and .zst. A relative path is looked up in the working directory, then in $T5XPG_DATA_DIR. What a folder or
        a glob finds is sorted; a list keeps its order.

    Raises:
      MissingFileError: an entry finds nothing.
      JsonlError: a folder holds both JSONL and Parquet, or a store cannot be asked.
    """
    paths = [path for entry in listed(files) for path in _find_entry(os.path.expanduser(entry))]
    if not paths:
        raise MissingFileError("files=[] names no file. Pass a path, a glob, a folder or a list")
    return paths


def listed(files: Files) -> list[str]:
    entries = [files] if isinstance(files, (str, os.PathLike)) else files
    return [os.fspath(entry) for entry in entries]


def _find_entry(entry: str) -> list[str]:
    data_dir = os.environ.get(DATA_DIR_VARIABLE)
    places = [entry if stores.is_url(entry) else stores.plain(entry)]
    if data_dir and not stores.is_url(entry) and not os.path.isabs(places[0]):
        places.append(os.path.join(data_dir, places[0]))
    for place in places:
        try:
            paths = _files_at(place)
        except stores.StoreError as error:
            raise JsonlError(str(error)) from error
        if paths:
            return paths
    looked = " and ".join(stores.absolute(place) for place in places)
    if not stores.is_url(entry) and (folders := [place for place in places if stored.is_folder(place)]):
        raise MissingFileError(
            f"no JSONL file for {entry!r}: the folder {stores.absolute(folders[0])} has none, nor Parquet or .json. "
            f"If it holds plain text: t5xpg prepare text {shlex.quote(folders[0])}"
        )
    raise MissingFileError(
        f"no JSONL file for {entry!r}; looked at {looked}. Mend the name, make the file with `t5xpg prepare`, or set "
        f"{DATA_DIR_VARIABLE} to the folder that holds it"
    )


def _files_at(place: str) -> list[str]:
    """Returns the files of a folder, of a glob or of a path; none where there is nothing."""
    if stores.scheme(place) in ("https", "http"):
        return [place]
    if stored.is_file(place):
        return [place]
    if not stored.is_folder(place):
        return stored.files_matching(place) if glob.has_magic(place) else []
    paths = [path for path in stored.files_in(place) if not stores.name(path).startswith(".")]
    jsonl, json = ([p for p in paths if p.endswith(packed(suffix))] for suffix in (".jsonl", ".json"))
    tables = [path for path in paths if path.endswith(parquet.SUFFIX)]
    if jsonl and tables:
        found = f"{os.path.basename(jsonl[0])} and {os.path.basename(tables[0])}"
        raise JsonlError(f"{place}: the folder holds both {found}. Name one kind: {place}/*.jsonl")
    return jsonl or tables or json


def has_rows(path: str) -> bool:
    """Whether it is a folder, or its name says JSONL, also x.jsonl-00000-of-00002, JSON or Parquet; else it is text."""
    name = re.sub(r"\.jsonl-\d{5,}-of-\d{5,}", ".jsonl", stores.name(path))
    return name.endswith((*packed(".jsonl"), *packed(".json"), parquet.SUFFIX)) or stored.is_folder(path)


def split_files(files: Files, splits: Sequence[str]) -> dict[str, list[str]]:
    """Returns {split: files} for files with "{split}" in each name; ValueError where one lacks it."""
    names = listed(files)
    if not all("{split}" in name for name in names):
        advice = f"Write FILES={split_advice(files, splits)}{text_advice(names[0])}"
        raise ValueError(f"files={files!r} does not say for which split. {advice}")
    return {split: [name.replace("{split}", split) for name in names] for split in splits}


def split_advice(files: Files, splits: Sequence[str]) -> str:
    """Returns FILES for the command line that says, in the names of `files`, which are whose."""
    names = listed(files)

    def like_files(paths: list[str]) -> list[str] | str:
        return paths[0] if isinstance(files, str | os.PathLike) else paths

    if all(patterns := [_with_word(name, "{split}", ("train", "validation", "test", *splits)) for name in names]):
        said = str(like_files(patterns))
        said = said if re.fullmatch(r"[\w./:{}-]+", said) else _quoted(said)
        return f"{said}, where {{split}} stands for {' and '.join(splits)}"
    of_splits = dict.fromkeys(splits, "…") | dict.fromkeys(splits[:1], repr(like_files(names)))
    if all(trained := [_with_word(name, "train", ("valid", "val", "dev", "eval")) for name in names]):
        of_splits |= {"train": repr(like_files(trained)), "validation": repr(like_files(names))}
    return _quoted("{" + ", ".join(f"{split!r}: {paths}" for split, paths in of_splits.items()) + "}")


def _with_word(path: str, new: str, words: Iterable[str]) -> str:
    """Returns the path with `new` for the last of the words in it; "" where none is there."""
    found = re.fullmatch(rf"(.*(?<![A-Za-z]))({'|'.join(map(re.escape, words))})((?![A-Za-z]).*)", path, re.DOTALL)
    return f"{found[1]}{new}{found[3]}" if found else ""


def _quoted(text: str) -> str:
    """Returns the text as a shell's word, in double quotes where nothing in it means something there."""
    return shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'


def text_advice(path: str) -> str:
    """Returns what to do with a file whose name does not say JSON."""
    return "" if ".json" in os.path.basename(path) else f". If this is plain text: t5xpg prepare text {path!r}"
