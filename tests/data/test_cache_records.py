"""Records made many at a time against those that tf.data and SeqIO make one by one, byte for byte."""

import dataclasses
import gzip
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencepiece
import seqio
import tensorflow as tf
import tqdm
from conftest import PROSE
from jsonl_files import small_pieces, write
from test_offline_cache import before_placeholder, cached, files

from t5xpg import objectives, tasks, vocabularies
from t5xpg.batchwise import reading
from t5xpg.data import cache_records, offline_cache, workers
from t5xpg.vocabularies import training

TEXTS = [f"{i}. {PROSE[: i % 150]}" + ["", "é漢\x00", "\n\t "][i % 3] for i in range(1300)]
TEXTS[7] = TEXTS[1200] = ""


def known_task(name, files, *arguments, **settings) -> seqio.Task:
    return seqio.TaskRegistry.get(tasks.jsonl_task(name, files, *arguments, cacheable=True, **settings))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, str]:
    """The same rows in files of several kinds; more of them in the first than a buffer for shuffling holds."""
    folder = tmp_path_factory.mktemp("corpora")
    plain = write(folder / "a_train.jsonl", TEXTS)
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress((folder / "a_train.jsonl").read_bytes()[:20_000].rsplit(b"\n", 1)[0])
    )
    rows = pa.table({"text": TEXTS[:200], "answer": TEXTS[200:400]})
    pq.write_table(rows, folder / "c.parquet", row_group_size=30)
    return {"plain": plain, "gz": str(folder / "b.jsonl.gz"), "parquet": str(folder / "c.parquet")}


@pytest.fixture(scope="module")
def pieces(corpora, tmp_path_factory) -> seqio.Vocabulary:
    prefix = str(tmp_path_factory.mktemp("vocabulary") / "pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:300]),
        model_prefix=prefix,
        vocab_size=100,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    )
    return vocabularies.sentencepiece(f"{prefix}.model")


def caches(task: seqio.Task, folder, monkeypatch, num_shards: int) -> list[dict[str, bytes]]:
    """The files of a cache written both ways."""
    assert not any(reading.unknown_task(task))
    made = []
    for way in ("many at a time", "one by one"):
        with monkeypatch.context() as patch:
            if way == "one by one":
                patch.setattr(reading, "unknown_task", lambda task: ["the task"])
            offline_cache.cache_tasks([task.name], folder / way, num_shards=num_shards)
        made.append(files(folder / way / task.name))
    return made


def test_bytes_of_more_rows_than_the_buffer_holds(corpora, tmp_path, monkeypatch):
    task = known_task("bytes", {"train": corpora["plain"], "validation": corpora["gz"]})
    many, one_by_one = caches(task, tmp_path, monkeypatch, 1)
    assert many == one_by_one and len(many) == 6
    before = cached(tmp_path / "many at a time" / "bytes")
    assert before == before_placeholder(task) and before.total() == len(TEXTS)


def test_pairs_with_a_prefix_in_pieces(corpora, pieces, tmp_path, monkeypatch):
    objective = objectives.Supervised(prefix="étude: ")
    columns = {"inputs_key": "text", "targets_key": "answer"}
    task = known_task("pairs", {"train": corpora["parquet"]}, objective, pieces, **columns)
    many, one_by_one = caches(task, tmp_path, monkeypatch, 3)
    assert many == one_by_one and len(many) == 5


@pytest.mark.parametrize("objective", ["mlm", "full_lm", "ul2"])
def test_objectives_of_byte_level_bpe(corpora, objective, tmp_path, monkeypatch):
    file = training.train_byte_level_bpe(corpora["plain"], tmp_path / "bpe", 280)
    task = known_task(objective, {"train": corpora["gz"]}, objective, vocabularies.byte_level_bpe(str(file)))
    many, one_by_one = caches(task, tmp_path, monkeypatch, 2)  # of one part
    assert many == one_by_one and len(many) == 4


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_the_order_is_that_of_tf_data(count):
    numbers = [b"%d" % number for number in range(count)]
    blocks = [numbers[start : start + 700] for start in range(0, count, 700)]
    expected = tf.data.Dataset.from_tensor_slices(tf.constant(numbers, tf.string)).shuffle(1000, seed=2**55 + 1)
    assert list(cache_records._shuffled(blocks, 2**55 + 1)) == list(expected.as_numpy_iterator())


class OwnVocabulary(seqio.ByteVocabulary):
    pass


@dataclasses.dataclass(frozen=True)
class OwnObjective(objectives.Supervised):
    @property
    def text_steps(self):
        return [seqio.map_over_dataset(lambda row: {**row, "inputs": tf.strings.upper(row["inputs"])})]


def test_what_a_user_derived_is_made_by_tf_data(corpora, tmp_path):
    assert any(reading.unknown_task(known_task("own_ids", {"train": corpora["plain"]}, vocabulary=OwnVocabulary())))
    columns = {"inputs_key": "text", "targets_key": "answer"}
    task = known_task("own_texts", {"train": corpora["parquet"]}, OwnObjective(), **columns)
    offline_cache.cache_tasks(["own_texts"], tmp_path, num_shards=1)
    found = cached(tmp_path / "own_texts")
    assert found == before_placeholder(task) and any(b"LIGHTHOUSE" in str(example).encode() for example in found)


def test_rows_are_read_as_records_are_asked_for(corpora, monkeypatch):
    """So memory holds a buffer's records and a window's."""
    small_pieces(monkeypatch, 10_000)
    task = known_task("lazy", {"train": corpora["plain"]})
    tally = cache_records.Tally()
    records = cache_records.records(task, "train", seqio.ShardInfo(0, 1), 3, 10, tally)
    next(records)
    assert 1000 < tally.stats["examples"] < len(TEXTS)
    assert sum(1 for _ in records) == len(TEXTS) - 1 and tally.stats["examples"] == len(TEXTS)


def test_the_bar_shows_bytes_and_rows_and_what_was_finished_before(corpora, tmp_path, monkeypatch, capfd):
    real = tqdm.tqdm.__init__
    monkeypatch.setattr(
        tqdm.tqdm, "__init__", lambda bar, **given: real(bar, **{**given, "disable": False, "ncols": 100})
    )
    known_task("barred", {"train": corpora["parquet"]})
    size = tqdm.tqdm.format_sizeof(Path(corpora["parquet"]).stat().st_size // 6 * 6)
    for known in (True, False):
        monkeypatch.setattr(reading, "unknown_task", lambda task, known=known: [] if known else ["the task"])
        with monkeypatch.context() as patch:
            patch.setattr(offline_cache, "_write_json", failing_at(offline_cache._write_json, "part-00004"))
            with pytest.raises(OSError, match="full"):
                offline_cache.cache_tasks(["barred"], tmp_path, num_shards=6)
        capfd.readouterr()
        offline_cache.cache_tasks(["barred"], tmp_path, num_shards=6)
        said = capfd.readouterr().err
        assert re.search(r"\rcaching:  67%", said), "four of six parts were finished"
        assert re.search(rf"caching: 100%\S* {size}/{size} \[[^\r]*, 60 rows\]\n", said), said
        shutil.rmtree(tmp_path / "barred")


def failing_at(write_json, mark: str):
    def write_or_fail(path, content):
        if mark in str(path):
            raise OSError("the disk is full")
        write_json(path, content)

    return write_or_fail


@pytest.mark.parametrize(("processes", "large", "count"), [(None, 2**40, 1), (None, 0, 3), (2, 2**40, 2), (9, 0, 5)])
def test_other_processes_begin_where_they_are_of_use(corpora, tmp_path, monkeypatch, processes, large, count):
    counts = []

    class Here(workers.Workers):
        def __init__(self, count, begin):
            counts.append(count)
            super().__init__(1)

        def do(self, function, items):
            raise ChildProcessError("one ended")

    monkeypatch.setattr(workers, "Workers", Here)
    monkeypatch.setattr(workers, "cores", lambda: 3)
    monkeypatch.setattr(offline_cache, "_LARGE", large)
    known_task("spread", {"train": corpora["parquet"]})
    with pytest.raises(offline_cache.CacheError, match="^one ended. Run this again with fewer processes"):
        offline_cache.cache_tasks(["spread"], tmp_path, num_shards=5, processes=processes)
    assert counts == [count]
