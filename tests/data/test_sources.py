"""The JSONL source against json.loads, SeqIO's own tasks, and files broken in every way we know."""

import bz2
import collections
import functools
import gzip
import json
import lzma
import math
import random
import re

import pytest
import seqio
import tensorflow as tf

from t5xpg.data import jsonl
from t5xpg.data.jsonl import JsonlError, MissingFileError, read_rows
from t5xpg.data.sources import JsonlDataSource

COMPRESSORS = {"": bytes, ".gz": functools.partial(gzip.compress, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}


# ---- Helpers ----


def write(path, texts):
    lines = [json.dumps({"text": text}) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def texts_of(dataset):
    return [row["text"].decode() for row in dataset.as_numpy_iterator()]


def small_pieces(monkeypatch, length=100):
    monkeypatch.setattr(jsonl, "_MIN_RANGE", length)
    monkeypatch.setattr(jsonl, "_WINDOW", length)


def finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError("JSON's numbers are doubles here")
    return float(number)


def reference_rows(data: bytes):
    """The texts of a file's bytes by json.loads, and the number of its first bad line or None."""
    texts = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(), parse_constant=int, parse_float=finite, parse_int=finite)
            row["text"].encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return texts, number
        texts.append(row["text"])
    return texts, None


def random_text(rng):
    alphabet = "ab \"\\/\t\n\r\0\x7fé\u2028\u0085\ufeff漢字🦜\U0010ffff{}[],:"
    return "".join(rng.choices(alphabet, k=int(rng.expovariate(1 / 30))))


def random_file(rng):
    parts = [b"\xef\xbb\xbf"] if rng.random() < 0.2 else []
    for _ in range(rng.randrange(1, 30)):
        row = {"text": random_text(rng), "id": rng.randrange(9), "more": [None, {"text": 1}]}
        line = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode()
        parts.append(rng.choice([b"", b"", b" ", b"\t"]) + line + rng.choice([b"\n", b"\r\n"]))
        if rng.random() < 0.2:
            parts.append(rng.choice([b"\n", b"\r\n", b"  \t\n", b"\n\n\n"]))
    data = b"".join(parts)
    return data.rstrip() if rng.random() < 0.3 else data


def task_over(source, name, **kwargs):
    features = {"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)}
    to_targets = seqio.map_over_dataset(lambda row: {"targets": row["text"]})
    steps = [to_targets, seqio.preprocessors.tokenize]
    return seqio.Task(name, source, features, preprocessors=steps, **kwargs)


def task_texts(task, **kwargs):
    rows = task.get_dataset(None, **kwargs).as_numpy_iterator()
    return [row["targets_pretokenized"].decode() for row in rows]


# ---- Rows ----


def test_random_files_equal_json_loads_in_every_cut(tmp_path, monkeypatch):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for case in range(200):
        data = random_file(rng)
        expected, bad = reference_rows(data)
        assert bad is None
        suffix = rng.choice(list(COMPRESSORS))
        path = tmp_path / f"{case}.jsonl{suffix}"
        path.write_bytes(COMPRESSORS[suffix](data))
        small_pieces(monkeypatch, rng.choice([1, 2, 7, 50, 300, 10**6]))
        where = f"seed {seed}, case {case}"
        assert [row["text"] for row in read_rows(path)] == expected, where
        assert jsonl.count_rows(str(path)) == len(expected), where
        windows = [jsonl.windows(piece, {"t": "text"}) for piece in jsonl.cut([str(path)])]
        cut = [text for piece in windows for window in piece for text in window[0]]
        assert cut == expected, where


def test_random_files_through_tf_data_and_shards(tmp_path, monkeypatch):
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for case in range(4):
        small_pieces(monkeypatch, rng.choice([40, 200, 10**6]))
        expected = []
        for number, suffix in enumerate(rng.choices(list(COMPRESSORS), k=4)):
            data = random_file(rng)
            (tmp_path / f"{case}-{number}.jsonl{suffix}").write_bytes(COMPRESSORS[suffix](data))
            expected += reference_rows(data)[0]
        source = JsonlDataSource({"train": tmp_path / f"{case}-*"})
        assert texts_of(source.get_dataset("train", shuffle=False)) == expected, f"seed {seed}"
        for shuffle in (False, True):
            shards = [
                texts_of(source.get_dataset("train", shuffle, 1, seqio.ShardInfo(index, 3)))
                for index in range(3)
            ]
            assert sorted(sum(shards, [])) == sorted(expected), f"seed {seed}"


def test_columns(tmp_path):
    path = tmp_path / "qa.jsonl"
    path.write_text('{"q": "why?", "a": "so", "n": 1}\n')
    source = JsonlDataSource({"train": path}, text_key={"inputs": "q", "targets": "a"})
    dataset = source.get_dataset("train", shuffle=False)
    scalar = tf.TensorSpec([], tf.string)
    assert dataset.element_spec == {"inputs": scalar, "targets": scalar}
    assert list(dataset.as_numpy_iterator()) == [{"inputs": b"why?", "targets": b"so"}]
    assert list(read_rows(path, "a")) == [{"text": "so"}]
    with pytest.raises(ValueError, match="names no column"):
        JsonlDataSource({"train": path}, text_key={})


def test_windows_of_a_compressed_file_stay_small(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "0123456789"}\n' * 5000))
    small_pieces(monkeypatch, 1000)
    (piece,) = jsonl.cut([str(path)])
    sizes = [len(window[0]) for window in jsonl.windows(piece, {"text": "text"})]
    assert sum(sizes) == 5000 and max(sizes) <= 1000 // 23 + 1


# ---- Files ----


def test_nothing_is_looked_up_before_rows_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(jsonl.DATA_DIR_VARIABLE, raising=False)
    source = JsonlDataSource("corpus_{split}.jsonl")
    task_over(source, "not_there_yet")
    assert source.splits == ("train", "validation")
    with pytest.raises(MissingFileError, match="t5xpg prepare") as caught:
        source.get_dataset("train")
    assert str(tmp_path / "corpus_train.jsonl") in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError) and "\n" not in str(caught.value)
    write(tmp_path / "corpus_train.jsonl", ["a"])
    assert texts_of(source.get_dataset("train")) == ["a"]


def test_data_dir_is_looked_in_second_and_both_are_named(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv(jsonl.DATA_DIR_VARIABLE, str(there))
    with pytest.raises(MissingFileError) as caught:
        jsonl.find_files("x_*.jsonl")
    assert str(here / "x_*.jsonl") in str(caught.value)
    assert str(there / "x_*.jsonl") in str(caught.value)
    write(there / "x_1.jsonl", ["there"])
    assert [row["text"] for row in read_rows("x_*.jsonl")] == ["there"]
    write(here / "x_1.jsonl", ["here"])
    assert [row["text"] for row in read_rows("x_*.jsonl")] == ["here"]


def test_folders_globs_and_lists(tmp_path):
    names = "b.jsonl a.jsonl.gz c.jsonl.xz d.jsonl.bz2 [e].jsonl x.json .h.jsonl"
    for name in names.split():
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "sub.jsonl").mkdir()

    def found(files):
        return [path.removeprefix(f"{tmp_path}/") for path in jsonl.find_files(files)]

    everything = sorted(["[e].jsonl", "a.jsonl.gz", "b.jsonl", "c.jsonl.xz", "d.jsonl.bz2"])
    assert found(tmp_path) == everything
    assert found(tmp_path / "*.jsonl.?z*") == ["a.jsonl.gz", "c.jsonl.xz", "d.jsonl.bz2"]
    assert found([tmp_path / "x.json", tmp_path / "[e].jsonl"]) == ["x.json", "[e].jsonl"]
    for empty in ([], tmp_path / "sub.jsonl", tmp_path / "*.txt"):
        with pytest.raises(MissingFileError):
            jsonl.find_files(empty)


def test_splits_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"for which split. Pass \{'train': …\}$"):
        JsonlDataSource("corpus.jsonl")
    with pytest.raises(ValueError, match="for which split.* t5xpg prepare text 'book.txt'"):
        JsonlDataSource("book.txt")
    source = JsonlDataSource(["{split}/a.jsonl", "{split}/b.jsonl"], splits=["test"])
    assert source.splits == ("test",)
    assert source.files == {"test": ["test/a.jsonl", "test/b.jsonl"]}
    for call in (source.get_dataset, source.list_shards, source.num_input_examples):
        with pytest.raises(ValueError, match="no split 'train'; found \\['test'\\]"):
            call("train")


# ---- Counts ----


def test_counts_are_remembered_until_the_file_changes(tmp_path, monkeypatch):
    opened = []
    real_open = jsonl.open_binary
    monkeypatch.setattr(jsonl, "open_binary", lambda path: opened.append(path) or real_open(path))
    path = write(tmp_path / "a.jsonl", "abc")
    files = {"train": [path, path], "known": path}
    source = JsonlDataSource(files, num_input_examples={"known": 7})
    assert source.num_input_examples("train") == 6
    assert source.num_input_examples("known") == 7
    opened.clear()
    assert source.num_input_examples("train") == 6 and not opened
    write(tmp_path / "a.jsonl", "abcd")
    assert source.num_input_examples("train") == 8 and opened


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
    monkeypatch.setattr(
        jsonl, "_parse", lambda lines, *rest: parsed.append(len(lines)) or parse(lines, *rest)
    )
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


# ---- Faults ----

FAULTS = {
    b'{"text": "a"': "broken JSON at character 13 (",
    b'{"text": "a"} {"text": "b"}': "broken JSON at character 15 (",
    b"Once upon a time": "the line starts 'Once upon a time'",
    b'{"text": NaN}': "broken JSON at character 10",
    b'{"text": "\xe9t\xe9"}': "byte 11 (0xe9) is not UTF-8. Save the file as UTF-8",
    b'{"text": "\\ud800"}': "broken JSON",
    b'["a"]': "the row is of type list, not an object",
    b"null": "the row is null, not an object",
    b'{"id": "7", "body": "long"}': "no key 'text'; found ['body', 'id']. Pass text_key='body'",
    b'{"id": 7}': "no key 'text'; found ['id']. Mend or delete the row",
    b'{"text": null}': "'text' is null, not a string",
    b'{"text": 3}': "'text' is of type int, not a string",
    b'{"text": ["a"]}': "'text' is of type list, not a string",
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_bad_line_is_named(tmp_path, monkeypatch, line):
    small_pieces(monkeypatch, 40)
    path = tmp_path / "bad.jsonl"
    for number in (1, 2, 6, 9):
        good = [b'{"text": "some"}', b"", b'{"text": "more text"}\r'] * 3
        path.write_bytes(b"\n".join([*good[:number - 1], line, *good[number - 1:]]))
        expected = f"{path}:{number}: "
        with pytest.raises(JsonlError) as caught:
            list(read_rows(path))
        message = str(caught.value)
        assert message.startswith(expected) and FAULTS[line] in message and "\n" not in message
        for piece in jsonl.cut([str(path)]):  # counted right from any byte range
            try:
                list(jsonl.windows(piece, {"text": "text"}))
            except JsonlError as error:
                assert str(error) == message
    path.write_bytes(b'{"text": "good"}\n' * 20 + line)
    with pytest.raises(tf.errors.OpError) as wrapped:
        texts_of(JsonlDataSource({"train": path}).get_dataset("train", shuffle=False))
    assert jsonl.original_error(wrapped.value).startswith(f"{path}:21: ")
    assert f"{path}:21: " in str(wrapped.value).splitlines()[0]


def test_what_is_wrong_from_the_start_is_raised_before_tf_data_runs(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": "short", "body": "a long body"}\n' * 9)
    with pytest.raises(JsonlError, match="Pass text_key='body' or mend the row"):
        task_over(JsonlDataSource({"train": path}), "wrong_key").get_dataset(None, "train")
    source = JsonlDataSource({"train": path}, text_key={"inputs": "q", "targets": "answer"})
    with pytest.raises(JsonlError, match="Pass targets_key='body' or mend the row"):
        source.get_dataset("train")


def test_the_line_reaches_the_user_of_a_task_through_wrappers(tmp_path, monkeypatch):
    small_pieces(monkeypatch, 100)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' * 50 + "{}\n")
    task = task_over(JsonlDataSource({"train": path}), "bad_at_the_end")
    with pytest.raises(RuntimeError) as caught:
        try:
            task_texts(task, split="train", shuffle=True, seed=0)
        except tf.errors.OpError as error:
            raise RuntimeError("training stopped") from error
    assert jsonl.original_error(caught.value).startswith(f"{path}:51: no key 'text'; found []")
    assert jsonl.original_error(KeyError("other")) is None


@pytest.mark.parametrize("line", ["It was a dark and stormy night.", "1984", '"Quoted."'])
def test_text_where_jsonl_is_expected_names_the_command(tmp_path, line):
    path = tmp_path / "book.txt"
    path.write_text(f"{line}\n")
    with pytest.raises(JsonlError, match=rf"{path}:1: .* t5xpg prepare text '{path}'"):
        JsonlDataSource({"train": path}).get_dataset("train")


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_no_rows_is_an_error(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    source = JsonlDataSource({"train": path})
    with pytest.raises(JsonlError, match="no rows begin" if content else f"{path}: the file is empty"):
        source.get_dataset("train")
    assert source.num_input_examples("train") == 0


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_damaged_compressed_files(tmp_path, suffix):
    rng = random.Random(0)
    lines = [json.dumps({"text": f"{rng.random()}" * 5}) for _ in range(20000)]
    whole = COMPRESSORS[suffix]("\n".join(lines).encode())
    cut, fake = tmp_path / f"cut.jsonl{suffix}", tmp_path / f"fake.jsonl{suffix}"
    cut.write_bytes(whole[: len(whole) // 2])
    fake.write_text("\n".join(lines))
    for path in (cut, fake):
        dataset = None
        with pytest.raises((JsonlError, tf.errors.OpError)) as caught:
            dataset = JsonlDataSource({"train": path}).get_dataset("train", shuffle=False)
            texts_of(dataset)
        message = jsonl.original_error(caught.value)
        number = int(re.match(rf"{path}:(\d+): cannot be read from here on", message)[1])
        assert number == 1 if path == fake else number > 1000
        with pytest.raises(JsonlError, match=re.escape(f"{path}:{number}: ")):
            jsonl.count_rows(str(path))


def test_a_file_that_changes_while_in_use_is_refused(tmp_path, monkeypatch):
    small_pieces(monkeypatch, 100)
    path = write(tmp_path / "a.jsonl", ["text"] * 100)
    dataset = JsonlDataSource({"train": path}).get_dataset("train", shuffle=False)
    write(tmp_path / "a.jsonl", ["text"] * 50)
    with pytest.raises(tf.errors.OpError) as caught:
        texts_of(dataset)
    assert "bytes became" in jsonl.original_error(caught.value)
