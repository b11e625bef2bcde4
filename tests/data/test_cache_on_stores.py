"""An offline cache at a URL holds what one on a disk holds, and is read in the same order."""

import emulators
import numpy as np
import pytest
import seqio
import tensorflow as tf
from faulty_proxy import faulty_store
from test_offline_cache import before_placeholder, count, task, write_corpus

from t5xpg.base import files
from t5xpg.data import jsonl, offline_cache, stored_cache
from t5xpg.data.stored_cache import StoredCache

LENGTHS = {"inputs": 64, "targets": 32}


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), 100)


def examples(of_task, folder):
    seqio.set_global_cache_dirs([str(folder)])
    of_task._cache_dir = None  # what SeqIO remembers
    return [list(map(str, row.values())) for row in of_task.get_dataset(LENGTHS, "train", use_cached=True, seed=3)]


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_cache_at_a_url_is_the_one_on_a_disk(stores, pattern, tmp_path, scheme):
    bucket = emulators.new_bucket(scheme)
    of_spans = task(f"stored:{scheme}", pattern)
    stats = offline_cache.cache_tasks([of_spans.name], tmp_path / "c", num_shards=2)
    with faulty_store(stores, scheme, every=20):
        assert offline_cache.cache_tasks([of_spans.name], f"{bucket}/c", num_shards=2) == stats
        names = [path.removeprefix(f"{bucket}/c/") for path in files.files_below(f"{bucket}/c")]
        here = [str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*") if path.is_file()]
        assert sorted(names) == sorted(here)
        for name in names:
            assert files.read_bytes(f"{bucket}/c/{name}") == (tmp_path / "c" / name).read_bytes()
        assert offline_cache.cache_tasks([of_spans.name], f"{bucket}/c", num_shards=2) == stats  # nothing to do
        of_disk = examples(of_spans, tmp_path / "c")
        assert examples(of_spans, f"{bucket}/c") == of_disk and len(of_disk) > 100
        assert of_spans.get_cached_stats("train") == stats[of_spans.name]["train"]
        assert count(StoredCache(of_spans.cache_dir, "train").get_dataset("train")) == before_placeholder(of_spans)


def test_an_iterator_over_a_cache_at_a_url_is_saved_and_resumed(stores, pattern, tmp_path):
    bucket = emulators.new_bucket("s3")
    of_spans = task("stored:saved", pattern)
    offline_cache.cache_tasks([of_spans.name], f"{bucket}/c", num_shards=2)
    dataset = StoredCache(f"{bucket}/c/stored/saved", "train").get_dataset("train", shuffle=True, seed=1)
    iterator = iter(dataset)
    for _ in range(30):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "place"))
    rest = [row["targets"].numpy().tolist() for row in iterator]
    again = iter(StoredCache(f"{bucket}/c/stored/saved", "train").get_dataset("train", shuffle=True, seed=1))
    tf.train.Checkpoint(iterator=again).restore(path)
    assert [row["targets"].numpy().tolist() for row in again] == rest and len(rest) == 70


def test_a_file_is_at_its_end_only_right_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_cache, "_WINDOW", 0)  # a record each
    path, records = tmp_path / "a.tfrecord", [f"record {number}".encode() for number in range(6)]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    whole, name = path.read_bytes(), str(path).encode()
    reader = stored_cache.RecordReader()

    def read(number):
        return reader(name, np.int64(number)).tolist()

    for resumed_at in (0, 4):  # by the same tf.data.Dataset, once the file is mended
        path.write_bytes(whole.replace(b"record 2", b"damaged!"))
        assert [read(0), read(1)] == [[records[0]], [records[1]]]
        with pytest.raises(jsonl.JsonlError, match="a record is damaged or cut off"):
            read(2)
        assert read(3) == [], "the end, for tf.data"
        path.write_bytes(whole)
        assert [read(number) for number in range(resumed_at, 7)] == [*([r] for r in records[resumed_at:]), []]


def test_a_stream_that_is_left_when_python_exits_ends_in_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_cache, "_WINDOW", 0)
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(b"one")
        writer.write(b"two")
    stream = stored_cache._windows(str(tmp_path / "a.tfrecord"))
    assert next(stream) == [b"one"]
    monkeypatch.setattr(stored_cache, "stores", None)  # as modules are emptied at the end
    stream.close()


def test_a_damaged_record_and_another_writer_are_one_line(stores, bucket, pattern):
    scheme = bucket.split(":")[0]
    of_spans = task(f"stored:{scheme}_damaged", pattern)
    folder = f"{bucket}/c/stored/{scheme}_damaged"
    files.create(f"{folder}/unfinished/lock", b"process 7 on elsewhere, 1")
    refused = pytest.raises(
        offline_cache.CacheError, match="another process is writing .* if process 7 on elsewhere, has"
    )
    with faulty_store(stores, scheme, every=0), refused:
        offline_cache.cache_tasks([of_spans.name], f"{bucket}/c", num_shards=1)
    files.remove(f"{folder}/unfinished/lock")
    offline_cache.cache_tasks([of_spans.name], f"{bucket}/c", num_shards=1)
    shard = f"{folder}/train.tfrecord-00000-of-00001"
    content = files.read_bytes(shard)
    for damaged in (content[:-1], content[:500] + b"\0\0" + content[502:]):
        files.write_whole(shard, damaged)
        with pytest.raises(Exception) as caught:
            count(StoredCache(folder, "train").get_dataset("train"))
        assert jsonl.original_error(caught.value).startswith(f"{shard}: ")
