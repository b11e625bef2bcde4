"""The way as a whole: what is known is SeqIO's to the bit, and all else is left to SeqIO."""

import dataclasses
import functools
import gc
import importlib.util
import itertools
import random
import time
import weakref
from unittest import mock

import numpy as np
import pytest
import seqio
import tensorflow as tf
from conftest import TESTS

from t5x import utils
from t5xpg import objectives, tasks
from t5xpg.batchwise import dataset, reading, stages
from t5xpg.data import jsonl, offline_cache
from t5xpg.data.jsonl_task import JsonlTask

LENGTHS = {"inputs": 64, "targets": 14}
ENC_DEC = seqio.EncDecFeatureConverter
SHARD = seqio.ShardInfo(0, 1)


@pytest.fixture(scope="module")
def task(corpus):
    return seqio.get_mixture_or_task(tasks.jsonl_task("read_in_arrays", corpus))


@pytest.fixture(scope="module")
def cfg(task):
    return utils.DatasetConfig(task, LENGTHS, "train", 4, shuffle=True, seed=3, pack=True)


def program():
    """benchmarks/equal_batches.py, which draws random tasks."""
    spec = importlib.util.spec_from_file_location("equal_batches", TESTS.parent / "benchmarks" / "equal_batches.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_tasks_are_seqios_to_the_bit(tmp_path, monkeypatch):
    """One of each objective, which the program's own runs have by the hundred."""
    draws = program()
    monkeypatch.setattr(draws, "BATCHES", 6)
    monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])  # to which it adds
    known = draws.make_vocabularies(tmp_path, random.Random(0))
    seen: set[type] = set()
    for number in itertools.count():
        if len(seen) == len(objectives.OBJECTIVES):
            break
        case = draws.draw(number, 5, tmp_path, known)
        kind = type(seqio.get_subtasks(case.provider)[0].objective)
        if kind not in seen:
            seen.add(kind)
            assert draws.difference(case, str(tmp_path / "place"), len(seen) if len(seen) % 2 else None) is None, case


def test_training_reads_in_arrays(cfg, monkeypatch):
    by_arrays = utils.get_dataset(cfg, 0, 1, ENC_DEC)
    monkeypatch.setattr(JsonlTask, "batches", lambda *_: None)
    by_seqio = utils.get_dataset(cfg, 0, 1, ENC_DEC)
    assert by_arrays.element_spec == by_seqio.element_spec
    for a, b in itertools.islice(zip(by_arrays.as_numpy_iterator(), by_seqio.as_numpy_iterator(), strict=True), 9):
        for name in b:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.fixture(scope="module")
def cached(corpus, tmp_path_factory):
    """Two tasks in SeqIO's offline cache, of more files than are open at a time."""
    names = [
        tasks.jsonl_task("cached_spans", corpus, cacheable=True),
        tasks.jsonl_task("cached_pairs", corpus, "supervised", inputs_key="text", targets_key="text", cacheable=True),
    ]
    folder = str(tmp_path_factory.mktemp("cache"))
    offline_cache.cache_tasks(names, folder, splits=["train"], num_shards=20)
    before = seqio.get_global_cache_dirs()
    seqio.set_global_cache_dirs([folder])
    yield names
    seqio.set_global_cache_dirs(before)


# Blocks of one turn, so that one without rows ends each epoch, and others have none for a share of them.
TURNS = (1, 2**21, 2**20, 4096)


@pytest.mark.parametrize(
    ("shuffle", "shard", "in_memory", "block"),
    [
        (True, (0, 1), 0, None),
        (False, (1, 3), 10_000, None),
        (True, (0, 1), 0, TURNS),
        (False, (20, 21), 10_000, TURNS),
    ],
)
@pytest.mark.parametrize("name", ["cached_spans", "cached_pairs"])
def test_a_cache_is_read_as_seqio_reads_it(cached, cfg, monkeypatch, tmp_path, name, shuffle, shard, in_memory, block):
    changes = {"mixture_or_task_name": name, "use_cached": True, "shuffle": shuffle, "batch_size": 3 * shard[1]}
    cfg = dataclasses.replace(cfg, **changes)
    draws = program()
    monkeypatch.setattr(draws, "BATCHES", 100)  # several epochs
    case = draws.Case(seqio.get_mixture_or_task(name), cfg, ENC_DEC, seqio.ShardInfo(*shard), in_memory)
    case = case._replace(block=block or case.block)
    assert draws.difference(case, str(tmp_path / "place"), 20) is None


def test_a_dataset_that_is_gone_keeps_no_rows(task, cfg):
    """Though TensorFlow keeps each function of its own for as long as the process runs."""
    ways: list[weakref.ref] = []

    class Watched(stages.Way):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            ways.append(weakref.ref(self))

    with mock.patch.object(dataset, "Way", Watched):
        made = reading.batches(task, cfg, SHARD, ENC_DEC, 3, None)
    iterator = made.map(lambda batch: batch).as_numpy_iterator()
    next(iterator)
    del made
    gc.collect()
    next(iterator)  # an iterator keeps its dataset
    assert any(way() for way in ways)
    del iterator
    ends = time.monotonic() + 60
    while any(way() for way in ways) and time.monotonic() < ends:  # what is read ahead may yet come
        gc.collect()
    assert not any(way() for way in ways)


class OwnVocabulary(seqio.ByteVocabulary):
    pass


class OwnConverter(seqio.EncDecFeatureConverter):
    pass


class OwnObjective(objectives.SpanCorruption):
    pass


@pytest.mark.parametrize(
    ("change", "converter_cls", "said"),
    [
        ({}, OwnConverter, "OwnConverter"),
        ({}, functools.partial(ENC_DEC, bos_id=3), "bos_id"),
        ({}, seqio.LMFeatureConverter, "LMFeatureConverter"),
        ({"use_custom_packing_ops": True}, ENC_DEC, "use_custom_packing_ops"),
        ({"trim_output_features": False}, ENC_DEC, "trim_output_features"),
        ({"task_feature_lengths": {"inputs": 64}}, ENC_DEC, "converter"),
        ({"split": "test"}, ENC_DEC, "lacks a split"),
    ],
)
def test_other_settings_are_left_to_seqio(cfg, task, change, converter_cls, said):
    assert reading.unknown(task, cfg, ENC_DEC) is None
    changed = dataclasses.replace(cfg, **change)
    assert said in reading.unknown(task, changed, converter_cls)
    assert reading.batches(task, changed, SHARD, converter_cls, 3, None) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vocabulary": OwnVocabulary(100)}, "OwnVocabulary"),
        ({"objective": OwnObjective()}, "OwnObjective"),
        ({"cacheable": True}, "cache"),
    ],
)
def test_other_tasks_are_left_to_seqio(cfg, corpus, settings, said):
    name = tasks.jsonl_task(f"other_{said}", corpus, **settings)
    found = reading.unknown(seqio.get_mixture_or_task(name), dataclasses.replace(cfg, use_cached=True), ENC_DEC)
    assert said in found
    if "vocabulary" in settings:
        return  # no mixture has two
    mixed = seqio.get_mixture_or_task(tasks.mixture(f"mixed_{said}", [(name, 1), ("read_in_arrays", 2)]))
    assert said in reading.unknown(mixed, dataclasses.replace(cfg, use_cached=True), ENC_DEC)


def test_data_that_end_and_other_classes_of_tasks_are_left_to_seqio(cfg, task):
    assert reading.unknown(task, cfg, ENC_DEC, num_epochs=1) == "data that end"
    other = seqio.Task("a_task_of_seqio", task.source, task.output_features, task.preprocessors)
    assert reading.unknown(other, cfg, ENC_DEC) == "a_task_of_seqio, a Task"
    assert not hasattr(other, "batches")


def test_lengths_that_lose_tokens_are_refused(cfg):
    short = dataclasses.replace(cfg, task_feature_lengths={"inputs": 64, "targets": 9})
    with pytest.raises(ValueError, match="which 9 would cut"):
        utils.get_dataset(short, 0, 1, ENC_DEC)


def test_a_broken_row_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(JsonlTask, "say_remarks", lambda *_: None)  # which look into the whole of a small file
    path = tmp_path / "broken.jsonl"
    path.write_text('{"text": "good"}\n' * 20_000 + "{\n")
    name = tasks.jsonl_task("with_a_broken_row", {"train": str(path)})
    cfg = utils.DatasetConfig(name, LENGTHS, "train", 4, shuffle=False, seed=3, pack=True)
    with pytest.raises(tf.errors.OpError) as raised:
        for _ in utils.get_dataset(cfg, 0, 1, ENC_DEC):
            pass
    assert f"{path}:20001: broken JSON" in jsonl.original_error(raised.value)
    path.write_text("{\n")
    with pytest.raises(jsonl.JsonlError, match="broken.jsonl:1: broken JSON"):
        utils.get_dataset(cfg, 0, 1, ENC_DEC)


def test_parts_of_two_iterators_do_not_meet(task, cfg):
    made = reading.batches(task, cfg, SHARD, ENC_DEC, 3, None)
    one, other = made.as_numpy_iterator(), made.as_numpy_iterator()
    for _ in range(40):
        np.testing.assert_equal(next(one), next(other))
