"""Parquet, .zst and .json beside JSONL: the same rows, and one line that names the file where something is wrong."""

import functools
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from jsonl_files import COMPRESSORS, small_pieces, texts_of, write

from t5xpg import tasks
from t5xpg.data import finding, jsonl
from t5xpg.data.corpora import CorpusError
from t5xpg.data.jsonl import JsonlError, read_rows
from t5xpg.data.sources import JsonlDataSource
from t5xpg.data.text_files import prepare_text

TEXTS = [f"{i} é\n漢" + "word " * (i % 9) for i in range(1000)]


def save(path, columns=None, **settings):
    pq.write_table(pa.table(columns or {"id": range(len(TEXTS)), "text": TEXTS}), path, **settings)
    return str(path)


def rows_of(path, **settings):
    return [row["text"] for row in read_rows(path, **settings)]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_rows(tmp_path, compression, dictionary):
    path = save(tmp_path / "a.parquet", row_group_size=300, compression=compression, use_dictionary=dictionary)
    source = JsonlDataSource({"train": path})
    assert rows_of(path) == TEXTS == texts_of(source.get_dataset("train", shuffle=False))
    assert source.num_input_examples("train") == 1000
    assert source.list_shards("train") == [f"train-{i:05d}-of-00004" for i in range(4)]
    shuffled = texts_of(source.get_dataset("train", shuffle=True, seed=1))
    assert sorted(shuffled) == sorted(TEXTS) and shuffled != TEXTS


def test_windows_of_a_row_group_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "_WINDOW", 1000)
    path = save(tmp_path / "a.parquet", compression="none", use_dictionary=False)
    windows = list(jsonl.windows(jsonl.Piece.whole(path), {"text": "text"}))
    assert max(sum(map(len, window[0])) for window in windows) < 2000
    assert [text for window in windows for text in window[0]] == TEXTS


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_columns(tmp_path, kind):
    columns = {"question": pa.array(TEXTS[:9]).cast(kind), "n": range(9), "answer": pa.array(TEXTS[9:18]).cast(kind)}
    path = save(tmp_path / "a.parquet", columns)
    rows = list(read_rows(path, {"targets": "answer", "inputs": "question"}))
    assert rows == [{"targets": a, "inputs": q} for q, a in zip(TEXTS[:9], TEXTS[9:18], strict=True)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": ["x"], "n": [1]}, r"no column 'text'; found \['body', 'n'\]. Pass text_key='body'"),
        ({"text": [1, 2]}, r"column 'text' holds int64, not strings"),
        ({"text": ["x", None]}, r"row 2 of row group 1: 'text' is null"),
        ({"text": pa.array([b"\xff"]).view(pa.string())}, "damaged"),
    ],
)
def test_wrong_columns_are_named(tmp_path, columns, message):
    path = save(tmp_path / "a.parquet", columns)
    with pytest.raises(JsonlError, match=f"^{path}: {message}"):
        rows_of(path)


def test_damaged_parquet_is_named(tmp_path):
    path = save(tmp_path / "a.parquet", write_page_checksum=True)
    content = (tmp_path / "a.parquet").read_bytes()
    place = pq.read_metadata(path).row_group(0).column(1).data_page_offset + 100
    flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for damaged in (content[:-5], content[: len(content) // 2], b"text" * 50, flipped):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(JsonlError, match=f"^{path}: damaged, or not a Parquet file") as caught:
            rows_of(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("others", [0, 1])
def test_a_file_without_rows_is_refused_by_name(tmp_path, request, suffix, groups, others):
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.touch()
    else:
        table = pa.table({"text": pa.array([], pa.string())})
        with pq.ParquetWriter(path, table.schema) as writer:
            for _ in range(groups):
                writer.write_batch(pa.record_batch(table.to_pydict(), table.schema))
        assert pq.read_metadata(path).num_row_groups == groups
    paths = [str(path), *([write(tmp_path / "b.jsonl", TEXTS)] * others)]
    task = tasks.TaskRegistry.get(tasks.jsonl_task(re.sub(r"\W", "_", request.node.name), {"train": paths}))
    lengths = {"inputs": 64, "targets": 14}
    assert task.source.num_input_examples("train") == others * len(TEXTS)
    for use in (
        lambda: task.source.get_dataset("train", shuffle=True, seed=0),
        lambda: task.get_dataset(lengths, "train", shuffle=True, num_epochs=None),
        lambda: task.remarks("train", True, 4),
        lambda: list(read_rows(paths)),
    ):
        with pytest.raises(JsonlError, match=f"^{path}: the file is empty. Prepare it again or leave it out$"):
            use()


def test_zst_of_several_frames_and_what_is_cut_off(tmp_path):
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    skippable = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    whole = compress(b"".join(lines[:400])) + skippable + compress(b"".join(lines[400:]))
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(whole)
    assert rows_of(path) == TEXTS
    rng = np.random.default_rng(0)
    for cut in rng.choice(len(whole) - 1, 40, replace=False) + 1:
        path.write_bytes(whole[:cut])
        if cut in (len(compress(b"".join(lines[:400]))), len(compress(b"".join(lines[:400])) + skippable)):
            continue
        with pytest.raises(JsonlError, match=rf"^{path}:\d+: cannot be read from here on"):
            rows_of(path)


def test_json_files_hold_lines_or_one_object(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "_MIN_RANGE", 100)
    monkeypatch.setattr(jsonl, "_WINDOW", 100)
    write(tmp_path / "lines.json", TEXTS[:50])
    (tmp_path / "object.json").write_text(json.dumps({"text": TEXTS[50], "more": ["x" * 300]}, indent=2))
    (tmp_path / "short.json").write_text(json.dumps({"text": TEXTS[51]}))
    source = JsonlDataSource({"train": str(tmp_path)})
    assert rows_of(tmp_path) == TEXTS[:52] == texts_of(source.get_dataset("train", shuffle=False))
    assert sorted(texts_of(source.get_dataset("train", shuffle=True, seed=1))) == sorted(TEXTS[:52])
    (tmp_path / "object.json.zst").write_bytes(zstandard.compress((tmp_path / "object.json").read_bytes()))
    assert rows_of(tmp_path / "object.json.zst") == [TEXTS[50]]


@pytest.mark.parametrize("before", [b"", b"\n", b"\xef\xbb\xbf\r\n \n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["lines", "object"])
def test_the_first_line_with_text_says_what_a_json_file_holds(tmp_path, monkeypatch, before, suffix, kind):
    small_pieces(monkeypatch, 100)
    rows = [{"text": text} for text in TEXTS[:50]] if kind == "lines" else [{"text": TEXTS[7], "more": ["x"] * 99}]
    lines = "\n".join(json.dumps(row, indent=None if kind == "lines" else 2) for row in rows).encode()
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(COMPRESSORS[suffix](before + lines))
    source = JsonlDataSource({"train": str(path)})
    texts = [row["text"] for row in rows]
    assert rows_of(path) == texts == texts_of(source.get_dataset("train", shuffle=False))
    assert source.num_input_examples("train") == len(texts)
    assert (len(source.list_shards("train")) > 1) == (kind == "lines" and not suffix), "only lines can be cut"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", ["many lines", "one long line", "rows inside"])
def test_an_object_that_is_too_long_is_refused_by_all(tmp_path, monkeypatch, suffix, shape):
    """Over several lines; the longest that is read ends at the limit, whichever way it is read."""
    monkeypatch.setattr(jsonl, "_DOCUMENT", 2 * 1024**2)
    path = tmp_path / f"a.json{suffix}"

    def save_object(size):
        row = {
            "many lines": {"text": "é", "more": ["x" * 100] * 9000},
            "one long line": {"more": [], "text": "é"},
            "rows inside": {"rows": [{"text": "x" * 100}] * 9000, "text": "é"},
        }[shape]
        row["text"] += "y" * (size - len(json.dumps(row, indent=1, ensure_ascii=False).encode()))
        content = json.dumps(row, indent=1, ensure_ascii=False).encode()
        assert len(content) == size
        path.write_bytes(COMPRESSORS[suffix](content))
        return row["text"]

    text = save_object(2 * 1024**2)
    prepare = functools.partial(prepare_text, [path], tmp_path / "out", validation_fraction=0)
    assert rows_of(path) == [text] == rows_of(prepare()["train"]) and jsonl.count_rows(str(path)) == 1
    save_object(2 * 1024**2 + 1)
    source = JsonlDataSource({"train": str(path)})
    for use in (
        lambda: rows_of(path),
        lambda: jsonl.count_rows(str(path)),
        lambda: source.get_dataset("train", shuffle=False),
        lambda: prepare(overwrite=True),
    ):
        with pytest.raises(ValueError, match=rf"^{path}: one object of more than 2 MiB .* \(jq -c\)\.?$") as caught:
            use()
        assert isinstance(caught.value, JsonlError | CorpusError)


@pytest.mark.parametrize("start", ['{"text": "cut', '{"text": "cut"', '{"text":', "[", '{"a": 1}}'])
def test_a_long_file_that_is_not_one_object_is_not_said_to_be(tmp_path, monkeypatch, start):
    monkeypatch.setattr(jsonl, "_DOCUMENT", 1000)
    path = tmp_path / "a.json"
    path.write_text(start + "\n" + '{"text": "whole"}\n' * 100)
    with pytest.raises(JsonlError, match=rf"^{path}:1: "):
        rows_of(path)


def test_a_folder_holds_one_kind(tmp_path):
    for name in ("config.json", "b.jsonl.zst", "a.jsonl"):
        (tmp_path / name).write_text("{}")
    assert [path[-6:] for path in finding.find_files(tmp_path)] == [".jsonl", "nl.zst"]
    save(tmp_path / "x.parquet")
    with pytest.raises(JsonlError, match=r"the folder holds both a.jsonl and x.parquet. Name one kind"):
        finding.find_files(tmp_path)
    (tmp_path / "a.jsonl").unlink(), (tmp_path / "b.jsonl.zst").unlink()
    assert finding.find_files(tmp_path) == [str(tmp_path / "x.parquet")]
    (tmp_path / "x.parquet").unlink()
    assert finding.find_files(tmp_path) == [str(tmp_path / "config.json")]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_json_array_is_said_to_be_one(tmp_path, monkeypatch, name, indent):
    monkeypatch.setattr(jsonl, "_MIN_RANGE", 100)
    path = tmp_path / name
    path.write_text(json.dumps([{"text": text} for text in TEXTS[:20]], indent=indent))
    source = JsonlDataSource({"train": str(path)})
    for read in (lambda: rows_of(path), lambda: source.get_dataset("train", shuffle=False)):
        with pytest.raises(JsonlError, match=rf"^{path}:1: the file is one JSON array. Write an object a line: jq"):
            read()
