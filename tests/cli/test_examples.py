"""What `--file` of predict and score stands for: files, folders and pipes, of rows and of text."""

import gzip
import json
import os
import threading

import pytest

from t5xpg.cli import examples
from t5xpg.data import finding, jsonl

COLUMNS = {"inputs": "q"}


def read(path, columns=COLUMNS):
    return [example["inputs"] for example in examples.read(str(path), columns)]


def rows(*texts):
    return "".join(json.dumps({"q": text}) + "\n" for text in texts)


@pytest.mark.parametrize(
    "name",
    [
        "p.jsonl-00000-of-00002",
        "books-predict.jsonl-00000-of-00001",
        "p.jsonl-00003-of-00010.gz",
        "p.jsonl-100000-of-200000",
        "p-00000-of-00002.jsonl",
        "p.json",
        "p.parquet",
    ],
)
def test_names_that_say_rows(name):
    assert finding.has_rows(name)


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl.txt", "p.txt-00000-of-00002", "jsonl-00000-of-00002", "p.jsonl-x"])
def test_names_that_say_text(name):
    assert not finding.has_rows(name)


def test_what_t5x_writes_is_read_as_rows(tmp_path):
    (tmp_path / "p.jsonl-00000-of-00002").write_text(rows("a", "b"))
    (tmp_path / "p.jsonl-00001-of-00002.gz").write_bytes(gzip.compress(rows("c").encode()))
    assert read(tmp_path / "p.jsonl-00000-of-00002") == ["a", "b"]
    assert read(tmp_path / "p.jsonl-00001-of-00002.gz") == ["c"]


def test_a_folder_stands_for_its_rows(tmp_path):
    (tmp_path / "b.jsonl").write_text(rows("b"))
    (tmp_path / "a.jsonl").write_text(rows("a"))
    assert finding.has_rows(str(tmp_path)) and read(tmp_path) == ["a", "b"]


def test_what_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    advice = "Name one of text, JSONL, JSON or Parquet, or - for stdin"
    for path, columns, found in [
        ("x.txt", None, "there is no such file"),
        ("x.jsonl", COLUMNS, "there is no such file"),
        ("x.parquet", COLUMNS, "there is no such file"),
        ("*.jsonl", COLUMNS, "there is no such file"),
        ("texts", COLUMNS, "this folder has no JSONL, JSON or Parquet"),
        ("texts", None, "this is a folder"),
    ]:
        with pytest.raises(jsonl.JsonlError) as caught:
            read(path, columns)
        assert str(caught.value) == f"{path}: {found}. {advice}"


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_a_pipe_is_read_as_it_comes(columns):
    """As bash's --file <(command)."""
    read_end, write_end = os.pipe()
    try:
        found = examples.read(f"/dev/fd/{read_end}", columns)
        lines = ["one", "two"] if columns is None else rows("one", "two").splitlines()
        os.write(write_end, f"{lines[0]}\n".encode())
        released = threading.Timer(60, os.close, [write_end])  # a failure does not wait for ever
        released.start()
        assert next(found) == {"inputs": "one"}
        released.cancel()
        os.write(write_end, lines[1].encode())
        os.close(write_end)
        assert list(found) == [{"inputs": "two"}]
    finally:
        os.close(read_end)


def test_a_bad_row_of_a_named_pipe_is_named(tmp_path):
    pipe = tmp_path / "p.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=[rows("a") + "{}\n"], daemon=True)
    writer.start()
    with pytest.raises(jsonl.JsonlError, match=rf"^{pipe}:2: no key 'q'"):
        read(pipe)
    writer.join(60)
