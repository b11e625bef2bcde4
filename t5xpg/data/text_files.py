"""Text files to JSONL: rows by file, paragraph or line, split by a hash; shuffled and dealt out where that is asked.

No row held out for validation is in train as well: the split of a row depends on the seed and its text alone, so that
equal rows fall on the same side whatever else is in the corpus.
"""

from __future__ import annotations

import collections
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from t5xpg.base import files, stores
from t5xpg.data import compressed, sharding
from t5xpg.data.corpora import CorpusError, check_fraction, in_words, json_line, plan_pair, write_pair

TEXT_SUFFIXES = (*compressed.packed(".txt"), *compressed.packed(".jsonl"))
JSON_SUFFIXES = compressed.packed(".json")
READ = " ".join((*TEXT_SUFFIXES, *JSON_SUFFIXES))
ROWS = ("paragraphs", "lines", "file")


class Row(NamedTuple):
    """A row of a file: its text, and the JSON to write."""

    text: str
    line: str


def prepare_text(
    inputs: Sequence[str | os.PathLike],
    output_dir: str | os.PathLike = ".",
    *,
    name: str = "text",
    rows: str = "paragraphs",
    text_key: str = "text",
    whole_rows: bool = False,
    min_length: int = 1,
    validation_fraction: float = 0.05,
    shards: int = 0,
    drop_duplicates: bool = False,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Writes text files as a train and a validation split; `validation_fraction` 0 writes train alone.

    `inputs` are files, globs or folders (searched through) of .txt and .jsonl, or where one finds neither, of .json,
    which hold lines or one object; also .gz, .bz2, .xz or .zst. A row is a paragraph (lines up to a blank one), a line
    or all of a .txt file, or the value of `text_key` in a row of a .jsonl file; rows of fewer than `min_length`
    characters are left out. The split of a row depends on `seed` and its text alone, so that it stays there when files
    are added. One row at a time is held in memory.

    With `shards`, the rows of train are shuffled and dealt out to that many files, so that they can be read in
    random order; validation is shuffled too, in one file. Then about 150 MB are held in memory, and the disk needs
    room for the corpus twice.

    Args:
      inputs: see above.
      output_dir: folder for the files, made if need be.
      name: what the files' names begin with.
      rows: "paragraphs", "lines" or "file".
      text_key: see above.
      whole_rows: write the rows of .jsonl files as they are, with all their keys.
      min_length: see above.
      validation_fraction: share of the rows held out.
      shards: files of train; 0 is one, in the inputs' order.
      drop_duplicates: of equal rows keep one; needs `shards`.
      seed: decides what is held out, and the order of the rows.
      overwrite: write files anew that are there already.

    Returns:
      {split: path}, or with `shards` a glob of the split's files.

    Raises:
      CorpusError: with file and line for what cannot be read; then nothing is written.
    """
    from tqdm import tqdm

    _check_settings(rows, shards, drop_duplicates)
    if shards:
        plan, wanted = _plan_shards(output_dir, name, validation_fraction, shards, overwrite)
    else:
        pair, wanted = plan_pair(output_dir, name, validation_fraction, overwrite)
        plan = {split: [path] for split, path in pair.items()}
    if wanted:
        found = _find_files(inputs)
        _check_apart(found.taken, plan)
        tally = Tally(found, min_length)
        texts = tally.watch((file, row) for file in found.taken for row in _rows_of(file, rows, text_key, whole_rows))
        bar = tqdm(texts, desc=f"writing {' and '.join(plan)}", unit=" rows", disable=None)
        lines = ((_is_held_out(row.text, seed, validation_fraction), row.line) for row in bar)
        if shards:
            splits = (("validation" if held_out else "train", line) for held_out, line in lines)
            _report_shards(plan, sharding.write_shards(plan, splits, seed, drop_duplicates))
        else:
            write_pair(pair, lines)
        print("\n".join(tally.report()), flush=True)
    return {split: _pattern(paths) for split, paths in plan.items()}


def _check_settings(rows: str, shards: int, drop_duplicates: bool) -> None:
    if rows not in ROWS:
        raise CorpusError(f"rows is {rows!r}; it must be one of {', '.join(map(repr, ROWS))}.")
    if not 0 <= shards <= sharding.MOST_SHARDS:
        raise CorpusError(f"shards is {shards}; it must be 0 (one file, not shuffled) to {sharding.MOST_SHARDS}.")
    if drop_duplicates and not shards:
        raise CorpusError("--drop_duplicates goes with --shards, which brings equal rows together; add --shards 64.")


def _check_apart(inputs: Iterable[str], plan: dict[str, list[Path]]) -> None:
    outputs = {_identity(path) for paths in plan.values() for path in paths}
    for file in inputs:
        if _identity(file) in outputs:
            raise CorpusError(f"{file} is both input and output. Pass another --output_dir or --name.")


def _identity(path: str | os.PathLike) -> str:
    """Returns what all names of one file have in common."""
    return stores.absolute(path) if stores.is_url(path) else os.path.realpath(stores.absolute(path))


# --- shards --------------------------------------------------------------------------------------


def _plan_shards(
    output_dir: str | os.PathLike, name: str, fraction: float, shards: int, overwrite: bool
) -> tuple[dict[str, list[Path]], bool]:
    """({split: paths}, whether to write them). Raises if new files would be next to older ones."""
    check_fraction(fraction)
    counts = {"train": shards, "validation": 1} if fraction else {"train": shards}
    plan = {split: sharding.shard_paths(output_dir, f"{name}_{split}", count) for split, count in counts.items()}
    paths = [path for split in plan.values() for path in split]
    if not overwrite and all(map(files.exists, paths)):
        for split in plan.values():
            print(f"{_pattern(split)}: already there and kept (--overwrite writes it again)", flush=True)
        return plan, False
    like_shards = re.compile(rf"{re.escape(name)}_(train|validation)-.*-of-.*\.jsonl")
    folder = stores.path_of(output_dir)
    there = [folder / found for found in files.names_in(folder) if like_shards.fullmatch(found)]
    if standing := [path for path in there if not overwrite or path not in paths]:
        raise CorpusError(
            f"{standing[0]} exists, and new files next to it could repeat its rows. Remove it and those like it, or "
            "pass another --name; --overwrite replaces files of the same names."
        )
    return plan, True


def _pattern(paths: Sequence[Path]) -> Path:
    """Returns the one path, or the glob of a split's shards."""
    first = paths[0]
    shard = re.search(r"-\d{5}-of-(\d{5})\.jsonl$", first.name)
    return first.with_name(f"{first.name[: shard.start()]}-*-of-{shard[1]}.jsonl") if shard else first


def _report_shards(plan: dict[str, list[Path]], written: dict[str, sharding.Written]) -> None:
    for split, paths in plan.items():
        rows, duplicates = written[split]
        size = in_words(sum(map(files.size, paths)))
        dropped = f"; {_counted(duplicates, 'duplicate')} dropped" if duplicates else ""
        print(f"{_pattern(paths)}: {rows:,} rows, shuffled, {size} in {_counted(len(paths), 'file')}{dropped}")


# --- files ---------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The files that inputs name."""

    taken: list[str]
    skipped: collections.Counter[tuple[str, str]]  # by suffix and why


def _find_files(inputs: Sequence[str | os.PathLike]) -> Found:
    """Returns the files that the inputs name, in the order given, sorted within a folder or glob, each once."""
    taken: dict[str, str] = {}
    skipped: dict[str, tuple[str, str]] = {}
    for item in [os.fspath(item) for item in inputs]:
        if files.is_file(item) and not _ends(item, (*TEXT_SUFFIXES, *JSON_SUFFIXES)):
            raise CorpusError(f"{item}: this kind of file is not read; pass files of {READ}")
        matches = _matches(item)
        found = sorted({file for match in matches for file in (files.files_below(match) or [match])})
        texts, jsons = ([file for file in found if _ends(file, kinds)] for kinds in (TEXT_SUFFIXES, JSON_SUFFIXES))
        wanted = texts or jsons
        if not wanted:
            state = f"has no {READ} in it" if matches else "does not exist and matches nothing"
            raise CorpusError(f"{item}: {state}. Name files, folders or quoted globs.")
        for file in wanted:
            taken.setdefault(_identity(file), file)
        skipped |= {_identity(file): (_suffix(file), _why_skipped(file)) for file in set(found).difference(wanted)}
    left = (kind for identity, kind in skipped.items() if identity not in taken)
    return Found(list(taken.values()), collections.Counter(left))


def _why_skipped(file: str) -> str:
    is_json = _ends(file, JSON_SUFFIXES)
    return "taken beside .txt and .jsonl only where named" if is_json else "not of a kind that is read"


def _matches(item: str) -> list[str]:
    """Returns a file or folder that is there, or the files and folders that a glob matches."""
    if files.exists(item):
        return [item]
    if not glob.has_magic(item) or stores.scheme(item) in ("https", "http"):
        return []
    return [match for match in files.matching(item) if files.is_file(match) or files.files_below(match)]


def _ends(path: str, suffixes: tuple[str, ...]) -> bool:
    return stores.name(path).endswith(suffixes)


def _suffix(path: str) -> str:
    """Returns .txt.gz for a.txt.gz, .pdf for a.b.pdf; (no suffix) where there is none."""
    stem, suffix = os.path.splitext(stores.name(path))
    packed = suffix if suffix in compressed.SUFFIXES else ""
    return ((os.path.splitext(stem)[1] + packed) if packed else suffix).lower() or "(no suffix)"


class Tally:
    """Counts the files and rows that are taken and skipped, by the files' suffix."""

    def __init__(self, found: Found, min_length: int):
        self._found, self._min_length = found, min_length
        self._files = collections.Counter(map(_suffix, found.taken))
        self._rows: collections.Counter[str] = collections.Counter()
        self._short: collections.Counter[str] = collections.Counter()

    def watch(self, rows: Iterable[tuple[str, Row]]) -> Iterator[Row]:
        """Yields the rows that are long enough, and counts all."""
        for file, row in rows:
            counts = self._rows if len(row.text) >= self._min_length else self._short
            counts[_suffix(file)] += 1
            if counts is self._rows:
                yield row

    def report(self) -> Iterator[str]:
        """Yields a line for each suffix."""
        for suffix, count in sorted(self._files.items()):
            short = self._short[suffix]
            skipped = f"; skipped {_counted(short, 'row')} of fewer than {self._min_length} characters" if short else ""
            yield f"{suffix}: took {_counted(count, 'file')}, {_counted(self._rows[suffix], 'row')}{skipped}"
        for (suffix, why), count in sorted(self._found.skipped.items()):
            yield f"{suffix}: skipped {_counted(count, 'file')}, {why}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- rows ----------------------------------------------------------------------------------------


def _is_held_out(text: str, seed: int, fraction: float) -> bool:
    digest = hashlib.blake2b(f"{seed}:{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def _rows_of(path: str, rows: str, text_key: str, whole_rows: bool) -> Iterator[Row]:
    lines = _read_lines(path)
    if _suffix(path).startswith(".json"):
        for number, line in lines:
            if line.strip():
                text = _text_of(line, text_key, f"{path}:{number}")
                yield Row(text, line.strip() if whole_rows else json_line(text))
    else:
        yield from (Row(text, json_line(text)) for text in _texts((line for _, line in lines), rows))


def _texts(lines: Iterable[str], rows: str) -> Iterator[str]:
    if rows == "lines":
        return filter(None, map(str.strip, lines))
    if rows == "paragraphs":
        return _paragraphs(lines)
    return filter(None, ["\n".join(map(str.rstrip, lines)).strip("\n")])


def _read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line) of a UTF-8 file, compressed or not, as `jsonl.unfolded` does."""
    from t5xpg.data import jsonl  # it loads NumPy

    with compressed.open_binary(path) as handle:
        try:
            for number, line in enumerate(jsonl.unfolded(handle, path), 1):
                yield number, line.decode()
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}:{number}: not UTF-8, byte 0x{error.object[error.start]:02x} at position {error.start + 1} of "
                "the line. Convert the file (iconv -t UTF-8) or mend the line."
            ) from error
        except (jsonl.JsonlError, stores.StoreError) as error:
            raise CorpusError(str(error)) from error
        except compressed.READ_ERRORS as error:
            raise CorpusError(f"{path}: cannot be read to its end ({error}). Fetch or compress it again.") from error


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    for has_text, block in itertools.groupby(lines, key=lambda line: bool(line.strip())):
        if has_text:
            yield "\n".join(map(str.rstrip, block))


def _text_of(line: str, key: str, where: str) -> str:
    """Returns the text under `key` in a line of JSON; `where` is its file and number, for the error."""
    import orjson

    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorpusError(f"{where}: not a line of JSON ({error}). Mend or remove it.") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: a JSON {type(row).__name__}, not an object with the key {key!r}.")
    if not isinstance(row.get(key), str):
        found = {name: type(value).__name__ for name, value in row.items()}
        raise CorpusError(f"{where}: no text under {key!r}; found {found}. Name the key of the text: --text_key")
    return row[key]
