"""The tasks that ship, on either engine, and the first t5xpg's names."""

from __future__ import annotations

import contextlib
import functools

import pytest
import seqio
import tensorflow as tf
from wikitext_tasks import LENGTHS, TEXTS, ids

from t5xpg import tasks
from t5xpg.data import finding, jsonl

# ---- Shipped tasks ----


def test_shipped_tasks(folder):
    task = seqio.TaskRegistry.get("wikitext_span_corruption")
    assert set(task.splits) == {"train", "validation", "test"}
    assert task.output_features == {name: seqio.Feature(seqio.ByteVocabulary(100), add_eos=True) for name in LENGTHS}
    for split in task.splits:
        made = ids(task.name, split, seed=1)
        assert made and all(inputs[-1] == targets[-1] == 1 for inputs, targets in made)
    byt5 = seqio.TaskRegistry.get("wikitext_byt5_span_corruption")
    assert byt5.output_features["targets"].vocabulary == seqio.ByteVocabulary()
    ds = byt5.get_dataset({"inputs": 128, "targets": 24}, "train", shuffle=False)
    assert {len(e["targets"]) for e in ds.take(3).as_numpy_iterator()} == {24}


def test_shipped_files_are_found_from_elsewhere(folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(finding.MissingFileError, match="wikitext_train.jsonl"):
        ids("wikitext_span_corruption")
    monkeypatch.setenv(finding.DATA_DIR_VARIABLE, str(folder))
    assert ids("wikitext_span_corruption")


def test_two_hosts_share_the_rows(folder):
    whole, halves = [], []
    task = seqio.TaskRegistry.get("wikitext_span_corruption")
    for shards, found in ((1, whole), (2, halves)):
        for index in range(shards):
            ds = task.get_dataset(LENGTHS, "train", shuffle=False, shard_info=seqio.ShardInfo(index, shards))
            for e in ds.as_numpy_iterator():
                found += [t for t in [*e["inputs"], *e["targets"]] if 3 <= t <= 258]
    assert sorted(halves) == sorted(whole)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_through_t5x(folder, split):
    utils = pytest.importorskip("t5x.utils")
    cfg = utils.DatasetConfig("wikitext_span_corruption", LENGTHS, split, 4, True, 7, pack=True)

    def batches(name):
        ds = utils.get_dataset(cfg, 0, 1, seqio.EncDecFeatureConverter)
        return [batch[name].tolist() for batch in ds.take(3).as_numpy_iterator()]

    made = batches("decoder_target_tokens")
    assert [(len(rows), len(rows[0])) for rows in made] == [(4, 14)] * 3
    assert batches("decoder_target_tokens") == made


# ---- The first t5xpg's names ----


@pytest.mark.parametrize("limit, rows", [(0, 0), (1, 1), (2, 2), (10, 10), (99, 24), (None, 24)])
def test_rows_end_and_limits_are_exact(folder, limit, rows):
    assert list(tasks.dataset_rows_generator("train", limit_rec=limit)) == TEXTS[:rows]
    ds = tasks.dataset_generator("train", False, limit_rec=limit)
    assert [text.decode() for text in ds.as_numpy_iterator()] == TEXTS[:rows]
    assert ds.element_spec == tf.TensorSpec((), tf.string)


def test_shuffling_takes_a_seed(folder):
    def texts(**kwargs):
        ds = tasks.dataset_generator("train", **kwargs).as_numpy_iterator()
        return [text.decode() for text in ds]

    shuffled = texts(shuffle_files=True, seed=1)
    assert sorted(shuffled) == sorted(TEXTS) and shuffled != TEXTS
    assert texts(shuffle_files=True, seed=1) == shuffled


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_ends(folder, content):
    (folder / "wikitext_train.jsonl").write_text(content)
    with pytest.raises(jsonl.JsonlError, match="wikitext_train.jsonl"):
        tasks.dataset_generator("train", False)
    with contextlib.suppress(jsonl.JsonlError):
        assert list(tasks.dataset_rows_generator("train")) == []


@pytest.mark.parametrize("features", [("targets",), ("inputs", "targets")])
def test_the_first_recipe_runs(folder, features):
    from t5.data import preprocessors

    task = seqio.Task(
        "first_recipe",
        source=seqio.FunctionDataSource(
            functools.partial(tasks.dataset_generator), splits=("train",), caching_permitted=False
        ),
        preprocessors=[
            functools.partial(
                tasks.target_to_key,
                key_map={"inputs": None, "targets": None},
                target_key="targets",
            ),
            seqio.preprocessors.tokenize,
            preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={name: tasks.DEFAULT_OUTPUT_FEATURES[name] for name in features},
        metric_fns=[],
    )
    made = list(task.get_dataset(LENGTHS, "train", shuffle=False, seed=42).as_numpy_iterator())
    if features == ("inputs", "targets"):
        found = [(e["inputs"].tolist(), e["targets"].tolist()) for e in made]
        assert found == ids("wikitext_span_corruption", seed=42)
    assert made[0]["targets"][-1] == 1
    assert tasks.TaskRegistry is seqio.TaskRegistry
    assert tasks.vocabulary == seqio.ByteVocabulary(extra_ids=100)
