"""The JSONL source against SeqIO's own tasks: shares of hosts, order, and what a run depends on."""

import collections
import gzip
import json

import pytest
import seqio
import tensorflow as tf
from jsonl_files import COMPRESSORS, small_pieces, task_over, task_texts, texts_of, write

from t5xpg.data import jsonl
from t5xpg.data.sources import JsonlDataSource

# ---- Shards ----


def test_a_small_file_is_enough_for_many_hosts_and_the_cut_depends_on_sizes_alone(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", [name * 970] * 1250)
    shards = {name: JsonlDataSource(f"{tmp_path}/{name}.jsonl{{split}}", [""]) for name in "ab"}
    listed = shards["a"].list_shards("")
    assert 16 <= len(listed) <= 64 and len(set(listed)) == len(listed)
    assert listed == shards["b"].list_shards("")


@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
def test_task_hosts_read_disjoint_shares(tmp_path, monkeypatch, hosts):
    small_pieces(monkeypatch, 500)  # 137 pieces: shares differ by one piece at most
    texts = [f"{number:04d}" + "x" * (number % 90) for number in range(1000)]
    task = task_over(JsonlDataSource({"train": write(tmp_path / "a.jsonl", texts)}), f"h{hosts}")
    parsed = []
    parse = jsonl._parse
    monkeypatch.setattr(jsonl, "_parse", lambda lines, *rest: parsed.append(len(lines)) or parse(lines, *rest))
    shares = []
    for index in range(hosts):
        parsed.clear()
        info = seqio.ShardInfo(index, hosts)
        shares.append(task_texts(task, split="train", shuffle=False, shard_info=info))
        # Its own rows once, and its first piece once more to check it.
        assert sum(parsed) <= len(shares[-1]) + max(parsed)
    assert sorted(sum(shares, [])) == texts
    assert max(map(len, shares)) < 1.3 * len(texts) / hosts


def test_more_hosts_than_pieces_share_rows_by_seqio(tmp_path):
    texts = [str(number) for number in range(50)]
    source = JsonlDataSource({"train": write(tmp_path / "a.jsonl", texts)})
    assert len(source.list_shards("train")) == 1
    with pytest.raises(ValueError, match="1 pieces are too few for 4 shards"):
        source.get_dataset("train", shard_info=seqio.ShardInfo(0, 4))
    for shuffle in (False, True):
        task = task_over(source, f"many_hosts_{shuffle}")
        infos = [seqio.ShardInfo(index, 4) for index in range(4)]
        shares = [task_texts(task, shuffle=shuffle, seed=3, shard_info=info) for info in infos]
        assert sorted(sum(shares, [])) == sorted(texts)
        assert [len(share) for share in shares] == [13, 13, 12, 12]


@pytest.mark.parametrize("hosts", [1, 3, 4, 30])
def test_rows_longer_than_a_piece_are_shared_too(tmp_path, monkeypatch, hosts):
    small_pieces(monkeypatch, 100)
    long, short = ["long" * 400, "longer" * 600] * 4, ["short"] * 5  # of 211 byte ranges most are within one row
    source = JsonlDataSource({"train": [write(tmp_path / f"{n}.jsonl", t) for n, t in enumerate((long, short))]})
    assert len(source.list_shards("train")) in (9, 10, 11)  # the short rows may take 3
    task = task_over(source, f"long_rows_{hosts}")
    infos = [seqio.ShardInfo(index, hosts) for index in range(hosts)]
    shares = [task_texts(task, split="train", shuffle=False, shard_info=info) for info in infos]
    assert sorted(sum(shares, [])) == sorted(long + short)
    assert hosts > 9 or all(shares)


# ---- Order ----


@pytest.mark.parametrize(("suffix", "length"), [("", 16), ("", 300), (".gz", 300)])
def test_shuffling_follows_the_seed_and_differs_by_epoch(tmp_path, monkeypatch, suffix, length):
    small_pieces(monkeypatch, length)  # 16 bytes hold one row: then only pieces can move
    texts = [f"{number:03d}" for number in range(200)]
    path = write(tmp_path / "a.jsonl", texts)
    if suffix:
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    source = JsonlDataSource({"train": path + suffix})

    def epochs(seed):
        rows = texts_of(source.get_dataset("train", shuffle=True, seed=seed).repeat(3))
        return [rows[:200], rows[200:400], rows[400:]]

    first = epochs(5)
    assert all(sorted(epoch) == texts for epoch in first)
    assert len({tuple(epoch) for epoch in [texts, *first]}) == 4
    assert epochs(5) == first
    assert epochs(6)[0] != first[0]
    assert epochs(None)[0] != epochs(None)[0]


def test_shuffling_mixes_pieces(tmp_path, monkeypatch):
    small_pieces(monkeypatch, 1000)
    texts = [f"{number:04d}" for number in range(2000)]
    source = JsonlDataSource({"train": write(tmp_path / "a.jsonl", texts)})
    start = [int(text) for text in texts_of(source.get_dataset("train", seed=0).take(400))]
    spread = collections.Counter(number // 200 for number in start)
    assert len(spread) >= 5, spread


def test_a_task_may_rely_on_the_sources_own_shuffling(tmp_path):
    texts = [f"{number:03d}" for number in range(300)]
    source = JsonlDataSource({"train": write(tmp_path / "a.jsonl", texts)})
    task = task_over(source, "no_buffer", shuffle_buffer_size=None)
    shuffled = task_texts(task, shuffle=True, seed=1)
    assert sorted(shuffled) == texts != shuffled


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_saved_iterator_resumes_in_a_new_dataset(tmp_path, monkeypatch, suffix, shuffle):
    small_pieces(monkeypatch, 300)
    path = tmp_path / f"a.jsonl{suffix}"
    data = "".join(json.dumps({"text": str(number)}) + "\n" for number in range(200)).encode()
    path.write_bytes(COMPRESSORS[suffix](data))

    def iterator():
        return iter(JsonlDataSource({"train": path}).get_dataset("train", shuffle, 1).repeat())

    def take(rows, count):
        return [next(rows)["text"].numpy() for _ in range(count)]

    rows = iterator()
    take(rows, 333)
    saved = tf.train.Checkpoint(rows=rows).write(str(tmp_path / "saved"))
    rest = take(rows, 300)
    resumed = iterator()
    tf.train.Checkpoint(rows=resumed).read(saved).assert_consumed()
    assert take(resumed, 300) == rest
