"""Tasks over JSONL files: what is read before the first batch, and what is said about a split."""

from __future__ import annotations

import gzip
import json
import logging
import re
import unicodedata

import numpy as np
import pytest
import seqio
from absl import logging as absl_logging
from command import run_t5xpg
from conftest import TESTS
from jsonl_files import small_pieces

from t5xpg import objectives, tasks
from t5xpg.cli.main import main
from t5xpg.data import jsonl, jsonl_task, remarks
from t5xpg.data.sources import JsonlDataSource
from t5xpg.inspection import measurements

LENGTHS = {"inputs": 64, "targets": 14}


@pytest.fixture
def make_task(request):
    """Registers files as a task with a name of its own; returns it."""

    def make(files, **arguments) -> jsonl_task.JsonlTask:
        name = re.sub(r"\W+", "_", f"{request.node.name}_{len(seqio.TaskRegistry.names())}")
        return seqio.TaskRegistry.get(tasks.jsonl_task(name, {"train": files}, **arguments))

    return make


def write_rows(path, texts) -> str:
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return str(path)


# ---- The first batch ----


def bytes_until_first_example(task, monkeypatch) -> int:
    read, open_binary = [0], jsonl.open_binary

    class Counted:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def __iter__(self):
            return iter(self.readline, b"")

        def readline(self, *size):
            line = self._file.readline(*size)
            read[0] += len(line)
            return line

    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "open_binary", lambda path: Counted(open_binary(path)))
        dataset = task.get_dataset(LENGTHS, "train", shuffle=True, seed=0, num_epochs=None)
        next(dataset.as_numpy_iterator())
        return read[0]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_is_read_before_the_first_batch_does_not_grow_with_the_corpus(suffix, tmp_path, monkeypatch, make_task):
    small_pieces(monkeypatch, 16_384)
    row = "x" * 90  # a line of 102 bytes
    sizes = (15_000, 120_000)
    files = [write_rows(tmp_path / f"{rows}.jsonl{suffix}", [row] * rows) for rows in sizes]
    small, large = (bytes_until_first_example(make_task(file), monkeypatch) for file in files)
    assert 10_000 * 102 < small < 2_500_000
    assert large < small + 500_000, "of 12 MB"


def test_rows_are_counted_no_further_than_needed(tmp_path, monkeypatch):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", tmp_path / "c.jsonl"]
    for file in files:
        write_rows(file, ["text"] * 5)
    with open(files[0], "ab") as file:
        file.write(b"\n \n")
    source = JsonlDataSource({"train": list(map(str, files)), "known": "none"}, num_input_examples={"known": 7})
    assert source.fits_in_memory("train", 16) and not source.fits_in_memory("train", 15)
    assert source.fits_in_memory("known", 8) and not source.fits_in_memory("known", 7)
    opened, open_binary = [], jsonl.open_binary
    monkeypatch.setattr(jsonl, "open_binary", lambda path: opened.append(path) or open_binary(path))
    assert not source.fits_in_memory("train", 10)
    assert opened == [str(files[0]), str(files[1])]
    monkeypatch.setattr(JsonlDataSource, "MOST_BYTES_IN_MEMORY", 50)
    assert not source.fits_in_memory("train", 10**9), "a file of a few long rows is not read, and not kept"


@pytest.mark.parametrize("rows, hosts, kept", [(9_999, 1, True), (10_000, 1, False), (10_000, 2, True)])
def test_what_seqio_keeps_in_memory_stays_the_same(rows, hosts, kept, tmp_path, make_task, caplog):
    task = make_task(write_rows(tmp_path / "rows.jsonl", ["a"] * rows))
    with caplog.at_level(logging.INFO, logger="absl"):
        task.get_dataset(LENGTHS, "train", shard_info=seqio.ShardInfo(0, hosts))
    assert ("caching small dataset in memory" in caplog.text) == kept
    with caplog.at_level(logging.INFO, logger="absl"):
        caplog.clear()
        task.get_dataset(LENGTHS, "train", shard_info=seqio.ShardInfo(0, hosts), try_in_mem_cache=False)
    assert "caching small dataset in memory" not in caplog.text


# ---- Remarks ----


def test_few_compressed_files_cannot_be_shuffled_and_the_command_is_named(tmp_path, monkeypatch, make_task):
    small_pieces(monkeypatch, 1000)
    texts = [f"row {number:05d} {'x' * 40}" for number in range(300)]
    one = make_task(write_rows(tmp_path / "one.jsonl.gz", texts))
    (remark,) = one.remarks("train", True, 10)
    assert remark.startswith(f"{one.name}, train: 1 compressed file cannot be shuffled well")
    command = f"t5xpg prepare text {tmp_path}/one.jsonl.gz --name {one.name} --shards 64 --validation_fraction 0"
    command += " --min_length 0"
    assert remark.endswith(command)
    assert one.remarks("train", False, 10) == []
    rows = list(one.source.get_dataset("train", shuffle=True, seed=0).as_numpy_iterator())
    numbers = [int(row["text"][4:9]) for row in rows]
    assert np.corrcoef(numbers, range(300))[0, 1] > 0.99, "which is why"

    for count in (15, 16):
        for number in range(count):
            write_rows(tmp_path / f"of_{count}_{number}.jsonl.gz", texts[:60])
    (remark,) = make_task(f"{tmp_path}/of_15_*.gz").remarks("train", True, 10)
    assert "15 compressed files cannot be shuffled well" in remark
    assert all(f" {tmp_path}/of_15_{number}.jsonl.gz " in remark for number in range(15))
    assert make_task(f"{tmp_path}/of_16_*.gz").remarks("train", True, 10) == []
    assert make_task(write_rows(tmp_path / "plain.jsonl", texts)).remarks("train", True, 10) == []
    tiny = make_task(write_rows(tmp_path / "tiny.jsonl.gz", texts[:5]))  # one window is shuffled as a whole
    assert tiny.remarks("train", True, 10) == []
    for number in range(2):
        (tmp_path / f"object_{number}.json").write_text(json.dumps({"text": "", "more": texts}, indent=1))
    mixed = [str(tmp_path / name) for name in ("one.jsonl.gz", "object_0.json", "object_1.json")]
    assert remarks.poor_shuffling(mixed, {"text": "text"}, 16).startswith("1 compressed file cannot be shuffled well")
    assert remarks.poor_shuffling(mixed[1:], {"text": "text"}, 16) is None
    monkeypatch.setattr(jsonl, "windows", None)
    many = [f"{tmp_path}/of_16_{number}.jsonl.gz" for number in range(16)]
    assert remarks.poor_shuffling(many, {"text": "text"}, 16) is None, "without a look into each"


def test_pairs_are_resharded_whole():
    command = remarks.reshard_command("pairs", ["a b.json.gz"], {"inputs": "question", "targets": "answer"})
    assert command.startswith("t5xpg prepare text 'a b.json.gz' ")
    assert command.endswith("--text_key question --whole_rows")


LIMIT = 65_536
LONG = ["a" * LIMIT, "b" * (LIMIT + 1), "short", "ø" * LIMIT, "c" * 20_000, "d" * 200_000]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_that_are_cut_are_counted(suffix, tmp_path, make_task):
    files = write_rows(tmp_path / f"long.jsonl{suffix}", LONG)
    task = make_task(files)
    (remark,) = task.remarks("train", False, 16)
    found = "3 of 6 rows have more than 65,536 tokens, up to 200,000: "
    assert remark.startswith(f"{task.name}, train: {found}each is cut into chunks")
    (remark,) = make_task(files, objective=objectives.UL2(select_random_chunk=True)).remarks("train", False, 16)
    assert f"{found}every epoch sees one chunk" in remark and "Without objectives.UL2.select_random_chunk" in remark
    assert make_task(files, objective="mlm").remarks("train", False, 16) == [], "it cuts no rows"


def test_characters_that_a_normalizer_expands_are_counted(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", ["\ufdfa" * 10, "e\u0301" * 10, "short"])
    tokens = {"nfkc": lambda text: len(unicodedata.normalize("NFKC", text)), "bytes": lambda text: len(text.encode())}
    assert remarks.find_long_rows([path], {"text": "text"}, 100, tokens["nfkc"], 4) == (1, 180, 3, True)
    assert remarks.find_long_rows([path], {"text": "text"}, 29, tokens["bytes"], 4) == (2, 30, 3, True)


def test_no_long_row_no_remark(tmp_path, make_task):
    assert make_task(write_rows(tmp_path / "rows.jsonl", [LONG[0], "a"])).remarks("train", True, 16) == []


def test_of_a_large_corpus_an_even_sample_is_looked_at(tmp_path, monkeypatch, make_task):
    small_pieces(monkeypatch, 100_000)
    texts = [("a" * 70_000 if number % 10 == 0 else "b" * 9_000) for number in range(1000)]
    (remark,) = make_task(write_rows(tmp_path / "rows.jsonl", texts)).remarks("train", True, 16)
    assert " rows that were looked at have more than 65,536 tokens, up to 70,000" in remark
    beyond, looked_at = map(int, re.search(r"(\d+) of (\d+) rows", remark).groups())
    assert 1 <= beyond < looked_at < 200


# ---- Where they are said ----


def test_training_says_it_once_from_the_first_host(tmp_path, make_task, caplog, capsys, monkeypatch):
    mixed = tasks.mixture("training_says_it", {make_task(write_rows(tmp_path / "long.jsonl", LONG)).name: 1})
    read = seqio.get_mixture_or_task(mixed).get_dataset

    def said(**settings) -> tuple[int, int]:
        caplog.clear()
        read(LENGTHS, "train", **settings)
        found = "3 of 6 rows have more than 65,536 tokens"
        return caplog.text.count(found), capsys.readouterr().err.count(found)

    assert said(num_epochs=None, shard_info=seqio.ShardInfo(0, 2))[0] == 1
    assert said(num_epochs=None, shard_info=seqio.ShardInfo(1, 2))[0] == 0
    assert said(num_epochs=1)[0] == 0, "an evaluation, or a look at the data"
    monkeypatch.setattr(absl_logging.get_absl_handler(), "level", logging.CRITICAL)  # as the embedded engine has it
    assert said(num_epochs=None) == (1, 1)


@pytest.fixture
def odd_files(tmp_path, monkeypatch):
    small_pieces(monkeypatch, 100_000)
    write_rows(tmp_path / "odd_validation.jsonl.gz", ["text " * 40] * 20)
    write_rows(tmp_path / "odd_train.jsonl.gz", [*LONG, *["text " * 40] * 500])
    return f"{tmp_path}/odd_{{split}}.jsonl.gz"


def expected_remarks(text: str) -> bool:
    """Whether both are there, however lines are wrapped."""
    words = " ".join(text.split())
    long, shuffling = "3 of 506 rows have more than 65,536 tokens", "1 compressed file cannot be shuffled well"
    return long in words and shuffling in words and "t5xpg prepare text" in words and "--shards 64" in words


def test_inspect_says_it(odd_files, capsys):
    name = tasks.jsonl_task("odd_inspected", odd_files)
    assert main(["inspect", name, "--sample", "5", "--lengths", "inputs=64,targets=14"]) == 0
    assert expected_remarks(capsys.readouterr().out)
    assert measurements.inspect(name, LENGTHS, "validation", rows=5).remarks == []


def test_check_says_it(odd_files, capsys):
    assert main(["check", "configs/byt5_tiny.gin", f"FILES={odd_files}", "NAME=odd_checked"]) == 0
    out = capsys.readouterr().out
    assert expected_remarks(out) and out.count("note ") == 2


def test_train_says_it(tmp_path):
    """On the terminal and in train.log, once each."""
    texts = ["a" * (LIMIT + 1), *["plain words " * 60] * 14_000]  # more than one window of a compressed file
    files = {"train": write_rows(tmp_path / "odd.jsonl.gz", texts)}
    files["validation"] = write_rows(tmp_path / "validation.jsonl", texts[-20:])
    done = run_t5xpg("train", TESTS / "micro.gin", f"FILES={files}", f"MODEL_DIR={tmp_path}/run", "TRAIN_STEPS=1")
    assert done.returncode == 0, done.stderr
    for text in (done.stderr, (tmp_path / "run" / "train.log").read_text()):
        assert text.count("1 compressed file cannot be shuffled well") == 1, text
        assert text.count("t5xpg prepare text") == 1 and "--shards 64" in text
        assert text.count(" more than 65,536 tokens") == 1
