"""A SeqIO task over JSONL files: starts as fast on a large corpus as on a small one, and says what is odd about it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import seqio
import tensorflow as tf

from t5xpg import objectives
from t5xpg.base import files
from t5xpg.base.notices import notice
from t5xpg.data import remarks, stored_cache
from t5xpg.data.sources import JsonlDataSource
from t5xpg.data.tf_functions import without_autograph
from t5xpg.objectives.base import Objective
from t5xpg.objectives.documents import CHUNK, DocumentObjective

MOST_ROWS_IN_MEMORY = 10_000  # of a host's share; SeqIO's own bound
FEWEST_FILES = 16  # that the source reads from at a time when it shuffles
WINDOWS_AT_START = 16  # of up to 1 MiB, looked at for remarks when training starts


class JsonlTask(seqio.Task):
    """A task whose source is a JsonlDataSource.

    Deviation from SeqIO's: to learn whether a split has fewer than 10,000 rows per host, which are then kept in memory,
    no more than these are counted, and files of more than `JsonlDataSource.MOST_BYTES_IN_MEMORY` are not kept.

    Attributes:
      objective: of its preprocessors, which are `objectives.preprocessors(objective, cacheable)`.
    """

    source: JsonlDataSource
    _cache_dir: str | None  # SeqIO's, found when it is first asked for

    def __init__(self, name: str, *, objective: Objective, cacheable: bool = False, **parts):
        super().__init__(name, **{**parts, "preprocessors": objectives.preprocessors(objective, cacheable)})
        self.objective = objective

    def get_dataset(
        self,
        sequence_length: Mapping[str, int] | None = None,
        split: str = "train",
        use_cached: bool = False,
        shuffle: bool = True,
        *,
        shard_info: seqio.ShardInfo | None = None,
        num_epochs: int | None = 1,
        try_in_mem_cache: bool = True,
        **settings,
    ) -> tf.data.Dataset:
        """As SeqIO's. Endless data is for training: then `remarks` are said, by the first host."""
        if not (use_cached and self.supports_caching):
            try_in_mem_cache = try_in_mem_cache and self.keeps_rows(split, shard_info)
            if num_epochs is None:
                self.say_remarks(split, shuffle, shard_info)
        return without_autograph(super().get_dataset)(
            sequence_length,
            split,
            use_cached,
            shuffle,
            shard_info=shard_info,
            num_epochs=num_epochs,
            try_in_mem_cache=try_in_mem_cache,
            **settings,
        )

    def batches(self, *arguments) -> tf.data.Dataset | None:
        """Returns batches made in arrays, where all that is asked for is known; see `batchwise.reading.batches`."""
        from t5xpg.batchwise import reading  # late: it knows this class

        return reading.batches(self, *arguments)

    def seed_after_cache(self, seed: int) -> int:
        """Returns the seed of the preprocessors that follow a cache; SeqIO leaves out those of the ones before."""
        return seed + 42 * self._cache_step_idx if self.supports_caching else seed

    def keeps_rows(self, split: str, shard_info: seqio.ShardInfo | None) -> bool:
        """Whether a host keeps the rows in memory."""
        hosts = shard_info.num_shards if shard_info else 1
        return self.source.fits_in_memory(split, MOST_ROWS_IN_MEMORY * hosts)

    @property
    def cache_dir(self) -> str | None:
        """The task's folder in the first of SeqIO's cache directories that has it; they may be at any URL."""
        for folder in seqio.get_global_cache_dirs():
            found = os.path.join(folder, seqio.get_task_dir_from_name(self.name))
            exists = files.exists if stored_cache.is_needed(folder) else tf.io.gfile.exists
            if not self._cache_dir and exists(os.path.join(found, "COMPLETED")):
                self._cache_dir = found
        return self._cache_dir

    def get_cached_stats(self, split: str = "train") -> Mapping[str, int]:
        if not stored_cache.is_needed(self.cache_dir or ""):
            return super().get_cached_stats(split)
        return json.loads(files.read_text(seqio.get_cached_stats_path(self.cache_dir, split)))

    def _get_cached_source(self, split: str, file_shuffle_buffer_size: int | None = None) -> seqio.DataSource:
        folder = self.cache_dir or ""
        if not stored_cache.is_needed(folder):
            return super()._get_cached_source(split, file_shuffle_buffer_size)
        return stored_cache.StoredCache(folder, split, file_shuffle_buffer_size)

    def say_remarks(self, split: str, shuffle: bool, shard_info: seqio.ShardInfo | None) -> None:
        """Says the remarks on training data, once: by the first host."""
        if shard_info is None or shard_info.index == 0:
            for remark in self.remarks(split, shuffle, WINDOWS_AT_START):
                notice(remark)

    def remarks(self, split: str, shuffle: bool, windows: int) -> list[str]:
        """Returns what a user should know about a split, a line each; `windows` of its files are looked at."""
        found = [self._on_shuffling(split)] if shuffle else []
        if isinstance(self.objective, DocumentObjective):
            found.append(self._on_long_rows(split, self.objective, windows))
        return [f"{self.name}, {split}: {remark}" for remark in found if remark]

    def _on_shuffling(self, split: str) -> str | None:
        paths, columns = self.source.find_files(split), self.source.columns
        found = remarks.poor_shuffling(paths, columns, FEWEST_FILES)
        advice = remarks.reshard_command(self.name, paths, columns) or f"in {remarks.SHARDS} files, not compressed"
        return found and f"{found}. Write them anew, shuffled: {advice}"

    def _on_long_rows(self, split: str, objective: DocumentObjective, windows: int) -> str | None:
        vocabulary = self.output_features["targets"].vocabulary
        found = remarks.find_long_rows(
            self.source.find_files(split),
            self.source.columns,
            CHUNK,
            lambda text: len(vocabulary.encode(text)),
            windows,
        )
        if not found.beyond:
            return None
        fate = "each is cut into chunks of that length, and every epoch sees all of them"
        if objective.select_random_chunk:
            fate = (
                "every epoch sees one chunk of that length of each, at random. "
                f"Without objectives.{type(objective).__name__}.select_random_chunk it sees all of them"
            )
        looked_at = "" if found.all_rows else " that were looked at"
        rows = f"{found.beyond:,} of {found.looked_at:,} rows{looked_at}"
        return f"{rows} have more than {CHUNK:,} tokens, up to {found.longest:,}: {fate}"


class JsonlMixture(seqio.Mixture):
    """A mixture whose tasks may be JsonlTasks."""

    def batches(self, *arguments) -> tf.data.Dataset | None:
        """As `JsonlTask.batches`."""
        from t5xpg.batchwise import reading

        return reading.batches(self, *arguments)
