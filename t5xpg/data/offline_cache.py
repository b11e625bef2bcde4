"""SeqIO's offline cache without Beam: what comes before CacheDatasetPlaceholder, computed once.

Writes what `seqio_cache_tasks` writes, where SeqIO and T5X look for it:

    <cache dir>/<task>/train.tfrecord-00000-of-00064 …   tf.train.Examples
                       info.train.json  stats.train.json  shapes and dtypes; examples and tokens
                       COMPLETED                          for SeqIO: all of this is whole

A *part* is what one process writes at a time: a share of the source, dealt out to one or more
shards. Everything is written in <task>/unfinished and moved at the end, so that a reader finds a
whole cache or none, and a run that was killed goes on from the parts that it had finished.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from t5xpg import vocabularies
from t5xpg.base import files, nearest, stores
from t5xpg.data import cache_records, jsonl, sources, workers

Plan = dict[str, Any]  # what the shards of a split are made of; JSON
Report = dict[str, Any]  # of a finished part: {"features": …, "stats": …}; JSON

_MIN_SHARDS = 64  # as seqio_cache_tasks: more shards shuffle better
_LARGE = 64 * 1024 * 1024  # bytes of files; of less, much is cached before other processes have started


class CacheError(ValueError):
    """Why a task cannot be cached, and what to do, in one line."""


def cache_tasks(
    names: Iterable[str],
    output_cache_dir: str | os.PathLike,
    splits: Sequence[str] | None = None,
    num_shards: int | None = None,
    processes: int | None = 1,
    overwrite: bool = False,
    register: Callable[[], object] | None = None,
) -> dict[str, dict[str, dict[str, int]]]:
    """Caches tasks, and all tasks of mixtures; what is cached already stays as it is.

    The examples are those of seqio_cache_tasks. Both shuffle them: Beam over all shards, this one
    1000 rows of a part at a time, with a seed made from the task and the part, so that the same
    corpus gives the same files, whatever `processes` is. Deviation: with fewer shards than the source
    lists, a random preprocessor before the placeholder draws other numbers than under Beam.

    Args:
      names: of registered tasks or mixtures.
      output_cache_dir: the folder that --seqio_additional_cache_dirs is to name.
      splits: those to cache; None is all of the task's.
      num_shards: files of a split; None is as many as the source lists, 64 at least.
      processes: how many write at the same time; 1 is this one alone, None one for each core, or this one alone
        where there is little to write.
      overwrite: rewrite what is already cached or begun.
      register: called first in every other process, to register the tasks there; a function that
        pickle can name, such as functools.partial(importlib.import_module, "my.tasks").

    Returns:
      {task: {split: {"examples": …, "targets_tokens": …, "targets_max_tokens": …}}}.

    Raises:
      CacheError: a task cannot be cached, or the existing cache was made from something else.
      jsonl.JsonlError: files are missing or empty, or a line of them is not such a row.
    """
    caches = [_TaskCache(task, output_cache_dir) for task in _cacheable_tasks(names)]
    with contextlib.ExitStack() as locks:
        for cache in caches:
            cache.plan(splits or cache.task.splits, num_shards, overwrite)
        for cache in caches:
            cache.begin(overwrite, locks)
        parts = [part for cache in caches for part in cache.parts()]
        _write(parts, processes, register)
        for cache in caches:
            cache.publish()
    return {cache.task.name: cache.stats(splits or cache.task.splits) for cache in caches}


def _cacheable_tasks(names: Iterable[str]) -> list[seqio.Task]:
    providers = [seqio.get_mixture_or_task(name) for name in names]
    tasks = {task.name: task for p in providers for task in seqio.get_subtasks(p)}
    for name, task in tasks.items():
        if not task.supports_caching:
            raise CacheError(
                f"{name} is not cacheable. Register it with tasks.jsonl_task(…, cacheable=True), "
                "in gin tasks.jsonl_task.cacheable=True"
            )
    return list(tasks.values())


@dataclasses.dataclass(frozen=True)
class _Part:
    task: str
    split: str
    folder: str
    index: int
    parts: int
    num_shards: int
    size: int  # bytes of the source's files that count as this part's, for the progress bar

    @property
    def seed(self) -> int:
        """What seqio.beam_utils gives the shard."""
        digest = hashlib.md5(f"{self.task}shard{self.index}".encode()).digest()
        return int.from_bytes(digest[:7], "little")

    @property
    def paths(self) -> list[str]:
        """The shards that this part is dealt out to."""
        prefix = seqio.get_cached_tfrecord_prefix(self.folder, self.split)
        shards = range(self.index, self.num_shards, self.parts)
        return [f"{prefix}-{shard:05d}-of-{self.num_shards:05d}" for shard in shards]

    @property
    def report_path(self) -> Path:
        """Exists once the shards are whole."""
        return stores.path_of(self.folder) / f"{self.split}.part-{self.index:05d}-of-{self.parts:05d}.json"


class _TaskCache:
    """A task's folder in the cache, and what there is to do in it."""

    def __init__(self, task: seqio.Task, output_cache_dir: str | os.PathLike):
        self.task = task
        folder = stores.path_of(output_cache_dir, "--output_cache_dir")
        self._folder = folder / seqio.get_task_dir_from_name(task.name)
        self._unfinished = self._folder / "unfinished"
        self._completed = self._folder / "COMPLETED"
        self._plans: dict[str, Plan] = {}

    def plan(self, splits: Sequence[str], num_shards: int | None, overwrite: bool) -> None:
        """Notes the splits to write, after a look at their files; changes nothing."""
        completed = self._completed_plans()
        for split in splits:
            plan = _plan(self.task, split, num_shards)
            if overwrite or self._has_begun(split, plan) or not self._is_cached(split):
                self._plans[split] = plan
            else:
                self._check_same(split, completed.get(split, plan), plan)

    def begin(self, overwrite: bool, locks: contextlib.ExitStack) -> None:
        """Makes the folder to write to and locks it until `locks` closes."""
        if not self._plans:
            return
        _lock(self._unfinished / "lock", locks)
        for split, plan in self._plans.items():
            if overwrite or not self._has_begun(split, plan):
                self._remove_unfinished(split)
            _write_json(self._plan_path(split), plan)

    def parts(self) -> list[_Part]:
        """All parts of the splits to write, the finished ones too."""
        found = []
        for split, plan in self._plans.items():
            count = min(plan["source_shards"], plan["num_shards"])
            size = sum(size for size, _ in plan["files"].values()) // count
            folder, shards = os.fspath(self._unfinished), plan["num_shards"]
            found += [_Part(self.task.name, split, folder, index, count, shards, size) for index in range(count)]
        return found

    def publish(self) -> None:
        """Moves the finished splits to where SeqIO looks for them; may be killed and repeated."""
        if not self._plans:
            return
        reports = {split: self._merged_report(split) for split in self._plans}
        plans = {**self._completed_plans(), **self._plans}
        if any(self._is_cached(split) for split in self._plans):
            files.remove(self._completed)  # nobody may read a mixture of old and new
        for split, report in reports.items():
            self._move_shards(split)
            info, stats = self._json_paths(split)
            _write_json(stats, report["stats"])
            _write_json(info, report["info"])
        _write_json(self._completed, plans)
        for split in self._plans:
            self._remove_unfinished(split)
        if not any(name.endswith(".json") for name in files.names_in(self._unfinished)):
            files.remove(self._unfinished)

    def stats(self, splits: Sequence[str]) -> dict[str, dict[str, int]]:
        return {split: _read_json(self._json_paths(split)[1]) for split in splits}

    def _merged_report(self, split: str) -> Report:
        """Returns the content of info.<split>.json and stats.<split>.json, as seqio.beam_utils writes them."""
        reports = [_read_json(part.report_path) for part in self.parts() if part.split == split]
        features = next((r["features"] for r in reports if r["features"]), None)
        if features is None:
            raise CacheError(
                f"{self.task.name}, split {split!r}: the preprocessors leave no example. "
                "Look at the first rows, or leave the split out"
            )
        stats: collections.Counter[str] = collections.Counter()
        for name, value in (item for report in reports for item in report["stats"].items()):
            stats[name] = max(stats[name], value) if _is_maximum(name) else stats[name] + value
        num_shards = self._plans[split]["num_shards"]
        info = {"num_shards": num_shards, "features": features}
        return {"info": {**info, "seqio_version": seqio.__version__}, "stats": dict(stats)}

    def _move_shards(self, split: str) -> None:
        begin, end = f"{split}.tfrecord-", f"-of-{self._plans[split]['num_shards']:05d}"
        for name in files.names_in(self._folder):
            if name.startswith(begin) and not name.endswith(end):
                files.remove(self._folder / name)
        for name in files.names_in(self._unfinished):
            if name.startswith(begin):
                files.move(self._unfinished / name, self._folder / name)

    def _remove_unfinished(self, split: str) -> None:
        files.remove(self._plan_path(split))  # first: what has no plan is void
        for name in files.names_in(self._unfinished):
            if name.startswith(f"{split}."):
                files.remove(self._unfinished / name)

    def _has_begun(self, split: str, plan: Plan) -> bool:
        path = self._plan_path(split)
        return files.exists(path) and _read_json(path) == plan

    def _is_cached(self, split: str) -> bool:
        return files.exists(self._completed) and files.exists(self._json_paths(split)[0])

    def _completed_plans(self) -> dict[str, Plan]:
        """Returns {split: plan} of what is cached; what Beam cached has none."""
        text = files.read_text(self._completed) if files.exists(self._completed) else ""
        plans = json.loads(text) if text.startswith("{") else {}
        return {split: plan for split, plan in plans.items() if self._is_cached(split)}

    def _check_same(self, split: str, found: Plan, wanted: Plan) -> None:
        if differing := [key for key in wanted if found.get(key) != wanted[key]]:
            raise CacheError(
                f"{self._folder}: {split} was cached before, and {', '.join(differing)} changed "
                "since. Write it again with --overwrite, or use another --output_cache_dir"
            )

    def _plan_path(self, split: str) -> Path:
        return self._unfinished / f"{split}.plan.json"

    def _json_paths(self, split: str) -> tuple[Path, Path]:
        paths = (seqio.get_cached_info_path, seqio.get_cached_stats_path)
        info, stats = (stores.path_of(path(os.fspath(self._folder), split)) for path in paths)
        return info, stats


def _plan(task: seqio.Task, split: str, num_shards: int | None) -> Plan:
    if split not in task.splits:
        hint = nearest.hint(split, task.splits)
        raise CacheError(f"{task.name} has no split {split!r}. Use some of {list(task.splits)}{hint}")
    if num_shards is not None and num_shards < 1:
        raise CacheError(f"num_shards must be 1 or more; found {num_shards}. None takes as many as the source lists")
    source = task.source
    shards = [str(shard) for shard in source.list_shards(split)]
    of_files = isinstance(source, sources.JsonlDataSource)
    paths = source.find_files(split) if of_files else filter(files.is_file, shards)
    placeholder = [isinstance(p, seqio.CacheDatasetPlaceholder) for p in task.preprocessors]
    steps = task.preprocessors[: placeholder.index(True)]
    features = task.output_features.items()
    status = {stores.absolute(path): files.status(path) for path in paths}
    return {
        "num_shards": num_shards or max(len(shards), _MIN_SHARDS),
        "source_shards": len(shards),
        "files": {path: [s.size, int(s.version) if s.version.isdigit() else s.version] for path, s in status.items()},
        "preprocessors": [re.sub(r" at 0x\w+", "", repr(step)) for step in steps],
        "vocabularies": {name: _identify(f.vocabulary) for name, f in features},
    }


def _identify(vocabulary: seqio.Vocabulary) -> str:
    """Returns what the vocabulary is and a hash of its model: one that was trained again has other ids."""
    model = getattr(vocabulary, "sp_model", b"")
    if hasattr(vocabulary, "tokenizer_file"):
        model = vocabulary.tokenizer.to_str().encode()
    return f"{vocabularies.describe(vocabulary)} {hashlib.sha256(model).hexdigest()[:16] if model else ''}".strip()


# ---- Writing parts ----


def _write(parts: Sequence[_Part], processes: int | None, register: Callable | None) -> None:
    """Writes the parts that are not finished, under one progress bar."""
    waiting = [part for part in parts if not files.exists(part.report_path)]
    if not waiting:
        return
    total, left = (sum(part.size for part in some) for some in (parts, waiting))
    if processes is None:
        processes = 1 if 0 < left < _LARGE else workers.cores()
    count = max(min(processes, len(waiting)), 1)
    begin = functools.partial(_begin, register)
    with workers.Workers(count, begin) as pool, pool.progress_bar("caching", total, total - left):
        try:
            pool.do(_write_part, waiting)
        except ChildProcessError as error:
            raise CacheError(f"{error}. Run this again with fewer processes: finished shards are kept") from None


def _begin(register: Callable | None) -> None:
    """Prepares a process beside this one."""
    tf.config.set_visible_devices([], "GPU")
    if register:
        register()


def _write_part(part: _Part) -> None:
    task = seqio.TaskRegistry.get(part.task)
    share = seqio.ShardInfo(part.index, part.parts)
    tally = cache_records.Tally()
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(_open_shard(path)) for path in part.paths]
            records = cache_records.records(task, part.split, share, part.seed, part.size, tally)
            for number, record in enumerate(records):
                writers[number % len(writers)].write(record)
    except tf.errors.OpError as error:
        found = jsonl.original_error(error)
        raise CacheError(found or f"{part.task}, split {part.split!r}: {error}") from None
    _write_json(part.report_path, vars(tally))


@contextlib.contextmanager
def _open_shard(path: str) -> Iterator[tf.io.TFRecordWriter]:
    """Opens a shard to write records; TensorFlow writes to the local disk, what is for a URL is then sent there."""
    with files.local_result(path) as local, tf.io.TFRecordWriter(local) as writer:
        yield writer


def _lock(path: Path, locks: contextlib.ExitStack) -> None:
    """Makes the folder and locks it until `locks` closes; at a URL by a file that is there meanwhile.

    Raises:
      CacheError: another process holds the lock.
    """
    taken = f"{path.parent.parent}: another process is writing this cache. Wait for it or stop it"
    files.make_folder(path.parent)
    if stores.is_url(path):
        owner = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex}"
        try:
            files.create(path, owner.encode())
        except FileExistsError:
            holder = files.read_text(path).rpartition(",")[0]
            raise CacheError(f"{taken}; if {holder}, has died, remove {path}") from None
        locks.callback(files.remove, path)
        return
    lock = os.open(path, os.O_CREAT | os.O_RDWR)
    locks.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CacheError(taken) from None


def _is_maximum(stat: str) -> bool:
    return stat.endswith("_max_tokens")


def _read_json(path: Path) -> Any:
    return json.loads(files.read_text(path))


def _write_json(path: Path, content: object) -> None:
    files.write_whole(path, json.dumps(content, sort_keys=True, indent=2) + "\n")
