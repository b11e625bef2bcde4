"""JSONL files against json.loads: found, read, counted, and broken in every way we know."""

import gzip
import json
import random
import re

import pytest
import seqio
import tensorflow as tf
from jsonl_files import COMPRESSORS, random_file, reference_rows, small_pieces, task_over, task_texts, texts_of, write

from t5xpg.data import finding, jsonl
from t5xpg.data.finding import MissingFileError
from t5xpg.data.jsonl import JsonlError, read_rows
from t5xpg.data.sources import JsonlDataSource

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
                texts_of(source.get_dataset("train", shuffle, 1, seqio.ShardInfo(index, 3))) for index in range(3)
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
    monkeypatch.delenv(finding.DATA_DIR_VARIABLE, raising=False)
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
    monkeypatch.setenv(finding.DATA_DIR_VARIABLE, str(there))
    with pytest.raises(MissingFileError) as caught:
        finding.find_files("x_*.jsonl")
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
        return [path.removeprefix(f"{tmp_path}/") for path in finding.find_files(files)]

    everything = sorted(["[e].jsonl", "a.jsonl.gz", "b.jsonl", "c.jsonl.xz", "d.jsonl.bz2"])
    assert found(tmp_path) == everything
    assert found(tmp_path / "*.jsonl.?z*") == ["a.jsonl.gz", "c.jsonl.xz", "d.jsonl.bz2"]
    assert found([tmp_path / "x.json", tmp_path / "[e].jsonl"]) == ["x.json", "[e].jsonl"]
    for empty in ([], tmp_path / "sub.jsonl", tmp_path / "*.txt"):
        with pytest.raises(MissingFileError):
            finding.find_files(empty)


def test_splits_are_checked(tmp_path):
    with pytest.raises(
        ValueError, match=r"for which split. Write FILES=\"\{'train': 'corpus.jsonl', 'validation': …\}\"$"
    ):
        JsonlDataSource("corpus.jsonl")
    with pytest.raises(ValueError, match="for which split.* t5xpg prepare text 'book.txt'"):
        JsonlDataSource("book.txt")
    source = JsonlDataSource(["{split}/a.jsonl", "{split}/b.jsonl"], splits=["test"])
    assert source.splits == ("test",)
    assert source.files == {"test": ["test/a.jsonl", "test/b.jsonl"]}
    for call in (source.get_dataset, source.list_shards, source.num_input_examples):
        with pytest.raises(ValueError, match="no split 'train'; found \\['test'\\]"):
            call("train")
    with pytest.raises(ValueError, match=r"no split 'tets'.*; did you mean test\?$"):
        source.get_dataset("tets")


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
        path.write_bytes(b"\n".join([*good[: number - 1], line, *good[number - 1 :]]))
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
