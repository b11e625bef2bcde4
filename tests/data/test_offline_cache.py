"""The offline cache against SeqIO's own reader and Beam's own writer; killed runs; resumed iterators."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gin
import numpy as np
import pytest
import sentencepiece
import seqio
import tensorflow as tf
from conftest import PROSE, TESTS

from t5xpg import tasks, vocabularies
from t5xpg.cli import cache as cli_cache
from t5xpg.data import finding, jsonl, offline_cache
from t5xpg.vocabularies import training

CachedSource = seqio.dataset_providers._CachedDataSource


def write_corpus(folder: Path, rows: int = 300) -> str:
    """Writes rows of texts and of pairs; returns the pattern. 100 rows are one piece."""
    for split, count in (("train", rows), ("validation", 20)):
        texts = [f"{i}. " + PROSE * (i % 5 + 1) for i in range(count)]
        lines = [json.dumps({"text": t, "inputs": t[:30], "targets": t[-20:]}) for t in texts]
        (folder / f"notes_{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "notes_{split}.jsonl")


@pytest.fixture
def pattern(tmp_path):
    return write_corpus(tmp_path)


def task(name: str, pattern: str, **arguments) -> seqio.Task:
    return seqio.TaskRegistry.get(tasks.jsonl_task(name, pattern, cacheable=True, **arguments))


def cached(folder: Path, split: str = "train", shard=None) -> Counter:
    """How often each example is there, as SeqIO reads a cache."""
    return count(CachedSource(str(folder), split).get_dataset(split, shuffle=False, shard_info=shard))


def before_placeholder(task: seqio.Task, split: str = "train") -> Counter:
    return count(task.preprocess_precache(task.source.get_dataset(split, shuffle=False)))


def count(dataset: tf.data.Dataset) -> Counter:
    def frozen(value):
        value = np.asarray(value)
        return str(value.dtype), value.tolist() if value.ndim == 0 else tuple(value.tolist())

    examples = dataset.as_numpy_iterator()
    return Counter(tuple((name, frozen(x[name])) for name in sorted(x)) for x in examples)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "COMPLETED"}


@pytest.mark.parametrize("num_shards", [2, 7, None])
def test_the_cache_holds_what_comes_before_the_placeholder(num_shards, pattern, tmp_path):
    of_spans = task(f"spans:{num_shards}", pattern)
    stats = offline_cache.cache_tasks([of_spans.name], tmp_path / "c", num_shards=num_shards)
    folder = tmp_path / "c" / "spans" / str(num_shards)
    assert {p.name for p in folder.iterdir() if "tfrecord" not in p.name} == {
        *(f"{kind}.{split}.json" for kind in ("info", "stats") for split in of_spans.splits),
        "COMPLETED",
    }
    for split in of_spans.splits:
        assert len(list(folder.glob(f"{split}.tfrecord-*"))) == (num_shards or 64)
        expected = before_placeholder(of_spans, split)
        assert cached(folder, split) == expected
        assert stats[of_spans.name][split]["examples"] == expected.total()
    rows = list(jsonl.read_rows(pattern.format(split="train")))
    lengths = [len(row["text"].encode()) for row in rows]
    counts = stats[of_spans.name]["train"]
    assert (counts["targets_tokens"], counts["targets_max_tokens"]) == (sum(lengths), max(lengths))


def test_seqio_reads_the_same_examples_cached_and_not(pattern, tmp_path):
    pairs = task("pairs", pattern, objective="supervised")
    offline_cache.cache_tasks(["pairs"], tmp_path / "c", num_shards=4)
    seqio.set_global_cache_dirs([str(tmp_path / "c")])
    lengths = {"inputs": 64, "targets": 16}
    plain, from_cache = (pairs.get_dataset(lengths, "train", use_cached=use, seed=0) for use in (False, True))
    assert count(from_cache) == count(plain)


def test_beam_writes_the_same(pattern, tmp_path):
    pytest.importorskip("apache_beam", reason="no Apache Beam; pip install --no-deps -r tests/beam.txt")
    module = tmp_path / "beam_tasks.py"
    module.write_text(f"from t5xpg import tasks\ntasks.jsonl_task('beamed', {pattern!r}, cacheable=True)\n")
    command = [sys.executable, "-m", "seqio.scripts.cache_tasks_main", "--tasks=beamed", "--min_shards=4"]
    command += ["--module_import=beam_tasks", f"--output_cache_dir={tmp_path / 'beam'}"]
    path = os.pathsep.join([str(TESTS.parent), str(tmp_path)])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True)
    beamed = task("beamed", pattern)
    offline_cache.cache_tasks(["beamed"], tmp_path / "ours", num_shards=4)
    beam, ours = (tmp_path / name / "beamed" for name in ("beam", "ours"))
    assert {p.name for p in beam.iterdir()} == {p.name for p in ours.iterdir()}
    for split in beamed.splits:
        assert cached(ours, split) == cached(beam, split)
        for kind in ("info", "stats"):
            assert (ours / f"{kind}.{split}.json").read_text() == (beam / f"{kind}.{split}.json").read_text()
    before = files(beam)
    offline_cache.cache_tasks(["beamed"], tmp_path / "beam")  # cached already, by Beam
    assert files(beam) == before


def test_two_hosts_share_the_corpus(pattern, tmp_path):
    shared = task("shared", pattern, objective="supervised")
    offline_cache.cache_tasks(["shared"], tmp_path, num_shards=5)
    shares = [cached(tmp_path / "shared", shard=seqio.ShardInfo(i, 2)) for i in (0, 1)]
    assert not shares[0] & shares[1]
    assert shares[0] + shares[1] == before_placeholder(shared)
    assert min(share.total() for share in shares) > 90


STOPS_AT_ITS_SECOND_PART = """
import time
from t5xpg.data import cache_records
records, parts = cache_records.records, []
def records_of_one_part(*arguments):
    parts.append(arguments)
    if len(parts) > 1:
        time.sleep(1000)
    return records(*arguments)
cache_records.records = records_of_one_part
"""


def test_a_killed_run_goes_on_and_ends_with_the_same_files(tmp_path):
    pattern = write_corpus(tmp_path, 600)
    (tmp_path / "killed_tasks.py").write_text(
        f"from t5xpg import tasks\ntasks.jsonl_task('killed', {pattern!r}, cacheable=True)\n{STOPS_AT_ITS_SECOND_PART}"
    )
    unfinished = tmp_path / "c" / "killed" / "unfinished"
    command = [sys.executable, "-m", "t5xpg", "cache", "killed", "--module", "killed_tasks"]
    command += ["--output_cache_dir", str(tmp_path / "c"), "--num_shards", "6", "--processes", "2"]
    path = os.pathsep.join([str(TESTS.parent), str(tmp_path)])
    run = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL)
    finished: list[Path] = []
    while not finished and run.poll() is None:
        time.sleep(0.01)
        finished = list(unfinished.glob("*.part-*.json"))
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "finished before it could be killed"
    assert [p.name for p in unfinished.parent.iterdir()] == ["unfinished"]
    killed = task("killed", pattern)
    shard = unfinished / finished[0].name.replace("part", "tfrecord").removesuffix(".json")
    inode = shard.stat().st_ino
    processes_end(str(tmp_path / "c"))
    offline_cache.cache_tasks(["killed"], tmp_path / "c", num_shards=6)
    offline_cache.cache_tasks(["killed"], tmp_path / "whole", num_shards=6)
    assert (unfinished.parent / shard.name).stat().st_ino == inode  # kept, not written again
    assert files(tmp_path / "c" / "killed") == files(tmp_path / "whole" / "killed")
    assert cached(tmp_path / "c" / "killed") == before_placeholder(killed)


def processes_end(mark: str) -> None:
    """Waits until the killed run's processes, which hold its lock or shards open, have ended too."""
    for _ in range(1000):
        open_files = []
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                open_files.append(os.readlink(link))
        if not any(name.startswith(mark) for name in open_files):
            return
        time.sleep(0.01)
    raise AssertionError("processes of the killed run live on")


def test_damage_is_named_and_what_was_good_is_kept(pattern, tmp_path):
    task("damaged", pattern)
    train = Path(pattern.format(split="train"))
    good = train.read_text()
    lines = good.splitlines()
    train.write_text("\n".join([*lines[:250], '{"text": 5}', *lines[250:]]))
    with pytest.raises(ValueError, match=r"^\S+notes_train.jsonl:251: 'text' is of type int"):
        offline_cache.cache_tasks(["damaged"], tmp_path / "c", num_shards=3)
    folder = tmp_path / "c" / "damaged"
    assert not (folder / "COMPLETED").exists()
    train.write_text(good)
    offline_cache.cache_tasks(["damaged"], tmp_path / "c", num_shards=3)
    before = files(folder)
    train.unlink()
    for overwrite in (False, True):
        with pytest.raises(finding.MissingFileError, match="no JSONL file for"):
            offline_cache.cache_tasks(["damaged"], tmp_path / "c", num_shards=3, overwrite=overwrite)
    assert files(folder) == before and (folder / "COMPLETED").exists()


def test_a_cache_of_a_changed_corpus_is_refused_and_overwritten_on_demand(pattern, tmp_path):
    changing = task("changing", pattern)
    offline_cache.cache_tasks(["changing"], tmp_path / "c", ["validation"], num_shards=5)
    offline_cache.cache_tasks(["changing"], tmp_path / "c", num_shards=5)  # adds train
    before = files(tmp_path / "c" / "changing")
    offline_cache.cache_tasks(["changing"], tmp_path / "c", num_shards=5)
    with open(pattern.format(split="train"), "a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(offline_cache.CacheError, match="train was cached before, and num_shards, files changed"):
        offline_cache.cache_tasks(["changing"], tmp_path / "c", num_shards=4)
    assert files(tmp_path / "c" / "changing") == before
    offline_cache.cache_tasks(["changing"], tmp_path / "c", num_shards=4, overwrite=True)
    assert len(list((tmp_path / "c" / "changing").glob("*.tfrecord-*"))) == 8
    assert cached(tmp_path / "c" / "changing") == before_placeholder(changing)


def test_what_cannot_be_cached_is_refused(pattern, tmp_path):
    tasks.jsonl_task("uncacheable", pattern)
    with pytest.raises(offline_cache.CacheError, match="^uncacheable is not cacheable.*cacheable=True"):
        offline_cache.cache_tasks(["uncacheable"], tmp_path)
    task("splits", pattern)
    with pytest.raises(offline_cache.CacheError, match="splits has no split 'test'"):
        offline_cache.cache_tasks(["splits"], tmp_path, ["test"])
    with pytest.raises(offline_cache.CacheError, match=r"splits has no split 'trian'.*; did you mean train\?$"):
        offline_cache.cache_tasks(["splits"], tmp_path, ["trian"])
    assert not (tmp_path / "splits").exists()


def test_any_task_of_seqio_can_be_cached(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(f"line {i}" for i in range(10)) + "\n")

    @seqio.map_over_dataset
    def ragged(x):
        words = tf.strings.split([x, "a b c"])
        return {"targets": x, "words": tf.strings.length(words), "table": tf.zeros([2, 3])}

    seqio.TaskRegistry.add(
        "text_lines",
        source=seqio.TextLineDataSource({"train": str(tmp_path / "lines.txt")}),
        preprocessors=[ragged, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder()],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )
    offline_cache.cache_tasks(["text_lines"], tmp_path, num_shards=4)
    found = list(CachedSource(str(tmp_path / "text_lines"), "train").get_dataset("train", shuffle=False))
    assert sorted(x["targets_pretokenized"].numpy().decode() for x in found) == [f"line {i}" for i in range(10)]
    for x in found:
        assert x["words"].to_list() == [[4, 1], [1, 1, 1]]
        assert x["table"].shape == (2, 3) and x["table"].dtype == tf.float32


def test_a_resumed_iterator_continues_at_the_very_next_batch(tmp_path):
    task("resumed", write_corpus(tmp_path, 100))
    offline_cache.cache_tasks(["resumed"], tmp_path / "c", num_shards=8)
    seqio.set_global_cache_dirs([str(tmp_path / "c")])

    def batches():
        return iter(
            seqio.get_dataset(
                mixture_or_task_name="resumed",
                task_feature_lengths={"inputs": 64, "targets": 14},
                dataset_split="train",
                shuffle=True,
                seed=1,
                num_epochs=None,
                use_cached=True,
                batch_size=4,
                feature_converter=seqio.EncDecFeatureConverter(pack=True),
            )
        )

    iterator = batches()
    for _ in range(250):  # beyond the first epoch, which is kept in memory
        next(iterator)
    saved = tf.train.Checkpoint(ds=iterator).write(str(tmp_path / "position"))
    expected = [next(iterator) for _ in range(20)]
    resumed = batches()
    tf.train.Checkpoint(ds=resumed).read(saved).assert_consumed()
    for batch in expected:
        again = next(resumed)
        assert again.keys() == batch.keys()
        for name in batch:
            np.testing.assert_array_equal(again[name], batch[name])


def test_a_recipe_names_its_task(pattern):
    recipe = [str(TESTS / "micro.gin"), f"FILES={pattern}", "NAME=of_recipe", "tasks.jsonl_task.cacheable=True"]
    assert cli_cache.find_tasks(recipe, "unused") == ["of_recipe"]
    assert seqio.TaskRegistry.get("of_recipe").supports_caching
    with pytest.raises(ValueError, match="micro.gin names no task"):
        cli_cache.find_tasks([*recipe, "MIXTURE_OR_TASK_NAME=None"], "unused")
    gin.clear_config()


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="t5xpg.tasks registers no task 'nothing'.*--module"):
        cli_cache.find_tasks(["nothing"], "t5xpg.tasks")
    with pytest.raises(
        ValueError, match=r"no task 'wikitext_span_corupted'.*; did you mean wikitext_span_corruption\?$"
    ):
        cli_cache.find_tasks(["wikitext_span_corupted"], "t5xpg.tasks")


def test_the_command_to_train_with_the_cache():
    command = cli_cache.train_command(["a.gin", "FILES=b c"], "my cache").replace("\\\n", "")
    assert shlex.split(command) == [
        *("t5xpg", "train", "a.gin", "FILES=b c", "MODEL_DIR=runs/cached", "USE_CACHED_TASKS=True"),
        *("--seqio_additional_cache_dirs=my cache", "utils.SaveCheckpointConfig.save_dataset=True"),
    ]


def test_a_vocabulary_trained_anew_is_another(tmp_path):
    """Of the same size, its ids are others: what was cached with the old one is of no use. SeqIO reads a path once."""
    identities = []
    for words in (("keeper", "shore"), ("lantern", "water")):
        prefix = tmp_path / words[0]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([f"the {w} of the {v}" for w in words for v in words] * 9),
            model_prefix=str(prefix),
            vocab_size=30,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        identities.append(offline_cache._identify(seqio.SentencePieceVocabulary(f"{prefix}.model")))
    hashes = {identity.split()[-1] for identity in identities}
    assert len(hashes) == 2 and all(re.fullmatch("[0-9a-f]{16}", found) for found in hashes)


def test_a_byte_level_bpe_trained_anew_is_another(tmp_path):
    identities = set()
    for text in ("the keeper of the shore " * 9, "a lantern and the water " * 9):
        (tmp_path / "a.txt").write_text(text)
        file = training.train_byte_level_bpe(str(tmp_path / "a.txt"), tmp_path / "bpe", 280, overwrite=True)
        identities.add(offline_cache._identify(vocabularies.byte_level_bpe(str(file))))
    assert len(identities) == 2
