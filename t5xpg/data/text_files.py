"""Text files to JSONL: rows by file, paragraph or line, split by a hash; shuffled and dealt out where that is asked.

No row held out for validation is in train as well: the split of a row depends on the seed and its text alone, so that
equal rows fall on the same side whatever else is in the corpus.

The files are cut into spans, which processes read, a few at a time; what they make of them waits in a working folder
until the files are put together from it.
"""

from __future__ import annotations

import collections
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from t5xpg.base import files, stores
from t5xpg.data import compressed, preparing, sharding, text_rows, workers
from t5xpg.data.corpora import CorpusError, check_fraction, in_words, plan_pair, report
from t5xpg.data.corpus_report import Tally, counted
from t5xpg.data.text_rows import suffix
from t5xpg.data.working_folder import is_inside, working_folder

TEXT_SUFFIXES = (*compressed.packed(".txt"), *compressed.packed(".jsonl"))
JSON_SUFFIXES = compressed.packed(".json")
READ = " ".join((*TEXT_SUFFIXES, *JSON_SUFFIXES))
ROWS = ("paragraphs", "lines", "file")

_LARGE = 32 * 1024 * 1024  # bytes of input; less is done before other processes have started
_FEW_BUCKETS = 256 * 1024 * 1024  # bytes of input; more wait in 256 buckets, which is more files to open
_LONG_ROWS = 20_000  # characters, on average: more are seldom paragraphs
_SAMPLED = 16  # of so many rows of a larger input one is looked into for the characters' scripts


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
    are added.

    With `shards`, the rows of train are shuffled and dealt out to that many files, so that they can be read in
    random order; validation is shuffled too, in one file.

    All cores are used where the input is 32 MiB or more, by processes (see `workers.Workers`), and the files do not
    depend on how many. Each takes some 100 MB of memory at most, whatever the corpus' size, and this one as much, as
    long as no row is larger. The disk of `output_dir` needs room for the corpus twice; the system's folder for
    temporary files once, where that is at a URL. At the end a report is printed: rows, characters, their scripts, the
    longest row, rows without text and rows that repeat another's text.

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
      ChildProcessError: a process was killed, or could not start (see `workers.Workers`); likewise.
    """
    _check_settings(rows, shards, drop_duplicates)
    if shards:
        plan, wanted = _plan_shards(output_dir, name, validation_fraction, shards, overwrite)
    else:
        pair, wanted = plan_pair(output_dir, name, validation_fraction, overwrite)
        plan = {split: [path] for split, path in pair.items()}
    if wanted:
        found = _find_files(inputs)
        _check_apart(found.taken, plan)
        tasks = text_rows.tasks(found.taken, rows)
        size = sum(span.size for spans in tasks for span in spans)
        large = size >= _LARGE
        with (
            working_folder(plan["train"][0], name) as folder,
            workers.Workers(min(workers.available(), len(tasks)) if large else 1) as processes,
        ):
            settings = preparing.Settings(
                splits=tuple(plan),
                folder=folder,
                shape=text_rows.Shape(rows, text_key, whole_rows),
                min_length=min_length,
                fraction=validation_fraction,
                seed=seed,
                sampled=_SAMPLED if large else 1,
                shuffled=shards > 0,
                drop_duplicates=drop_duplicates,
                digits=1 if size < _FEW_BUCKETS else 2,
            )
            tally, written = preparing.write(plan, settings, tasks, processes)
        _report(plan, written, shards > 0)
        lines = [*found.report(tally, min_length), *tally.report()]
        from_text = all(kind.startswith(".txt") for kind in tally.taken)
        if rows == "paragraphs" and from_text and tally.characters > _LONG_ROWS * tally.taken.total():
            lines.append("Rows end at empty lines, of which there are few; --rows lines makes a row of each line.")
        print("\n".join(lines), flush=True)
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


def _report(plan: Mapping[str, Sequence[Path]], written: Mapping[str, preparing.Written], shuffled: bool) -> None:
    for split, paths in plan.items():
        rows, duplicates = written[split]
        if not shuffled:
            report(paths[0], rows)
            continue
        size = in_words(sum(map(files.size, paths)))
        dropped = f"; {counted(duplicates, 'duplicate')} dropped" if duplicates else ""
        print(f"{_pattern(paths)}: {rows:,} rows, shuffled, {size} in {counted(len(paths), 'file')}{dropped}")


# --- files ---------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The files that inputs name."""

    taken: list[str]
    skipped: collections.Counter[tuple[str, str]]  # by suffix and why

    def report(self, tally: Tally, min_length: int) -> Iterator[str]:
        """Yields a line for each suffix: files and rows, taken and skipped."""
        for kind, count in sorted(collections.Counter(map(suffix, self.taken)).items()):
            short = tally.short[kind]
            skipped = f"; skipped {counted(short, 'row')} of fewer than {min_length} characters" if short else ""
            yield f"{kind}: took {counted(count, 'file')}, {counted(tally.taken[kind], 'row')}{skipped}"
        for (kind, why), count in sorted(self.skipped.items()):
            yield f"{kind}: skipped {counted(count, 'file')}, {why}"


def _find_files(inputs: Sequence[str | os.PathLike]) -> Found:
    """Returns the files that the inputs name, in the order given, sorted within a folder or glob, each once."""
    taken: dict[str, str] = {}
    skipped: dict[str, tuple[str, str]] = {}
    for item in [os.fspath(item) for item in inputs]:
        if files.is_file(item) and not _ends(item, (*TEXT_SUFFIXES, *JSON_SUFFIXES)):
            raise CorpusError(f"{item}: this kind of file is not read; pass files of {READ}")
        matches = _matches(item)
        below = (file for match in matches for file in (files.files_below(match) or [match]))
        found = sorted({file for file in below if not is_inside(file)})
        texts, jsons = ([file for file in found if _ends(file, kinds)] for kinds in (TEXT_SUFFIXES, JSON_SUFFIXES))
        wanted = texts or jsons
        if not wanted:
            state = f"has no {READ} in it" if matches else "does not exist and matches nothing"
            raise CorpusError(f"{item}: {state}. Name files, folders or quoted globs.")
        for file in wanted:
            taken.setdefault(_identity(file), file)
        skipped |= {_identity(file): (suffix(file), _why_skipped(file)) for file in set(found).difference(wanted)}
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
