"""A corpus' files written by several processes: the spans' rows are read into a working folder, and put together there.

In the inputs' order, what a process makes of its spans waits in a file for each split, and these are joined. Shuffled,
the rows wait in `sharding`'s buckets. Rows that repeat another's text are counted by a hash of it, in buckets too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from t5xpg.base import files
from t5xpg.data import sharding, text_rows
from t5xpg.data.corpora import CorpusError, no_rows
from t5xpg.data.corpus_report import Tally
from t5xpg.data.text_rows import Row, Span
from t5xpg.data.workers import Workers
from t5xpg.data.working_folder import open_together

Plan = Mapping[str, Sequence[Path]]  # {split: files}
Handles = Mapping[str, Sequence[IO[bytes]]]  # the same files, open


class Settings(NamedTuple):
    """What a process is told about a corpus."""

    splits: tuple[str, ...]
    folder: str  # where rows wait
    shape: text_rows.Shape
    min_length: int
    fraction: float  # held out for validation
    seed: int
    sampled: int  # of so many rows one, drawn by its hash, is looked into for its characters' scripts
    shuffled: bool
    drop_duplicates: bool
    digits: int  # of rows' keys that say in which of `sharding`'s buckets they wait

    @property
    def rows_folder(self) -> str:
        return os.path.join(self.folder, "rows")

    @property
    def keys_folder(self) -> str:
        return os.path.join(self.folder, "keys")


class Written(NamedTuple):
    """What became of the rows of a split."""

    rows: int
    duplicates: int  # that were dropped


def write(
    plan: Plan, settings: Settings, tasks: list[list[Span]], workers: Workers
) -> tuple[Tally, dict[str, Written]]:
    """Writes all rows of the tasks to the files, which appear together.

    Raises:
      CorpusError: the input cannot be read, or a file would have no row; then no file appears.
    """
    for folder in (settings.rows_folder, settings.keys_folder):
        files.make_folder(folder)
    with open_together([path for paths in plan.values() for path in paths], settings.folder) as opened:
        waiting = iter(opened)
        handles = {split: [next(waiting) for _ in paths] for split, paths in plan.items()}
        tally, taken = _read_all(settings, tasks, workers, handles)
        rows = _deal(settings, workers, handles) if settings.shuffled else taken
        for split, paths in plan.items():
            _check_enough(rows[split], split, paths, sum(taken.values()))
    if not settings.drop_duplicates:
        buckets = sharding.buckets(settings.keys_folder, workers)
        tally.repeated = sum(taken.values()) - sum(workers.map(sharding.count_different, buckets))
    return tally, {split: Written(rows[split], taken[split] - rows[split]) for split in plan}


def _check_enough(rows: int, split: str, paths: Sequence[Path], taken: int) -> None:
    if not rows:
        raise no_rows(paths[0], split, taken)
    if rows < len(paths):
        raise CorpusError(f"{rows} rows of {split} are too few for {len(paths)} files. Pass --shards {rows} or fewer")


def _read_all(
    settings: Settings, tasks: list[list[Span]], workers: Workers, handles: Handles
) -> tuple[Tally, dict[str, int]]:
    """Reads the rows to where they wait, in the inputs' order on to their files; returns how many there are."""
    tally, taken = Tally(), dict.fromkeys(handles, 0)
    bar = workers.progress_bar("reading", sum(span.size for spans in tasks for span in spans))
    with bar, contextlib.closing(workers.map(functools.partial(_read, settings), enumerate(tasks))) as read:
        for number, (found, rows) in enumerate(read):
            tally |= found
            for split, (handle, *_) in handles.items():
                taken[split] += rows[split]
                if not settings.shuffled:
                    _move(_path_of(settings, number, split), handle)
    return tally, taken


def _deal(settings: Settings, workers: Workers, handles: Handles) -> dict[str, int]:
    from tqdm import tqdm

    buckets = sharding.buckets(settings.rows_folder, workers)
    shards = {split: len(own) for split, own in handles.items()}
    dealt = workers.map(functools.partial(sharding.deal, shards), buckets)
    with contextlib.closing(dealt):
        return sharding.write(tqdm(dealt, "shuffling", len(buckets), unit="part", disable=None), handles)


def _path_of(settings: Settings, task: int, split: str) -> str:
    return os.path.join(settings.rows_folder, f"{task}-{split}")


def _move(path: str, file: IO[bytes]) -> None:
    """Appends a waiting file to another and removes it."""
    with open(path, "rb") as waiting:
        shutil.copyfileobj(waiting, file, 1024 * 1024)
    os.remove(path)


# --- in a process of its own ---------------------------------------------------------------------


def _read(settings: Settings, task: tuple[int, list[Span]]) -> tuple[Tally, dict[str, int]]:
    """Puts the rows of a task's spans where they wait; returns what they are, and of each split their number."""
    number, spans = task
    tally, taken = Tally(), dict.fromkeys(settings.splits, 0)
    limit = settings.fraction * 2**64
    keys = sharding.Writer(settings.keys_folder, 1)
    with _writer(settings, number) as put:
        for span in spans:
            for row, digest in _watched(span, settings, tally):
                split = "validation" if int.from_bytes(digest, "big") < limit else "train"
                taken[split] += 1
                put(split, b"%d:%d" % (span.number, row.start), row.line)
                if not settings.drop_duplicates:
                    keys.add(b"%b\n" % digest.hex().encode())
    keys.flush()
    tally.look_into()
    return tally, taken


def _watched(span: Span, settings: Settings, tally: Tally) -> Iterator[tuple[Row, bytes]]:
    """Yields a span's rows that are long enough, each with a hash of its text, and adds all to the tally."""
    beginning, kind = f"{settings.seed}:", text_rows.suffix(span.path)
    for row in text_rows.rows_of(span, settings.shape):
        text = row.text
        if not text or text.isspace():
            tally.blank += 1
        if len(text) < settings.min_length:
            tally.short[kind] += 1
            continue
        digest = hashlib.blake2b((beginning + text).encode(), digest_size=8).digest()
        tally.taken[kind] += 1
        tally.add(text, span.path, digest[-1] % settings.sampled == 0)
        yield row, digest


@contextlib.contextmanager
def _writer(settings: Settings, task: int) -> Iterator[Callable[[str, bytes, bytes], None]]:
    """Yields what takes (split, key, line of JSON) and puts the row where it waits."""
    rows = sharding.Writer(settings.rows_folder, settings.digits)
    with contextlib.ExitStack() as stack:
        opened = {}
        if not settings.shuffled:
            for split in settings.splits:
                opened[split] = stack.enter_context(open(_path_of(settings, task, split), "wb"))

        def put(split: str, place: bytes, line: bytes) -> None:
            if opened:
                opened[split].write(b"%b\n" % line)
            else:
                key = sharding.key_of(line if settings.drop_duplicates else place, settings.seed)
                rows.add(b"%b%c%b\n" % (key, split[0].encode(), line))

        yield put
        rows.flush()
