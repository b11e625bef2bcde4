"""Corpora read by several processes: the same files whatever their number, all of them at once, and through kills."""

import errno
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import tracemalloc
import unicodedata
from collections import Counter

import numpy as np
import psutil
import pytest
import tqdm
from jsonl_files import COMPRESSORS

from t5xpg.data import corpora, corpus_report, sharding, text_files, text_rows, workers
from t5xpg.data.working_folder import working_folder

REPO = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("paragraphs", "lines", "file")


def rows_in(path: str, kind: str) -> list[str]:
    """What the rows of a file are, said in few words: an independent reference."""
    content = pathlib.Path(path).read_bytes().decode("utf-8-sig")
    if path.endswith(".jsonl"):
        return [json.loads(line)["text"] for line in content.split("\n") if line.strip()]
    lines = [line.rstrip() for line in content.split("\n")]
    if kind == "lines":
        return [line.strip() for line in lines if line.strip()]
    if kind == "file":
        return [whole] if (whole := "\n".join(lines).strip("\n")) else []
    return [block.strip("\n") for block in "\n".join(lines).split("\n\n") if block.strip("\n")]


def random_text(rng: random.Random, is_jsonl: bool) -> bytes:
    """Lines of few and of many bytes, blank ones among them, with and without byte order mark and last line end."""
    words = ["word", "é", "水と火", " ", "\t", "\u3000", "\u2028", "\\", '"', "x" * 40]
    lines = ["".join(rng.choices(words, k=rng.randrange(6))) for _ in range(rng.randrange(60))]
    lines = [line if rng.random() < 0.6 else rng.choice(["", "", "  ", "\u3000"]) for line in lines]
    if is_jsonl:
        lines = [json.dumps({"text": line}) if rng.random() < 0.8 else " " for line in lines]
    text = rng.choice(["\n", "\r\n"]).join(lines) + rng.choice(["", "\n"])
    return (rng.choice(["", "\ufeff"]) + text).encode()


def test_spans_have_every_row_once_wherever_they_are_cut(tmp_path, monkeypatch):
    rng = random.Random(0)
    for case in range(150):
        path = tmp_path / f"{case}{rng.choice(['.txt', '.jsonl'])}"
        path.write_bytes(random_text(rng, path.suffix == ".jsonl"))
        kind = rng.choice(KINDS)
        monkeypatch.setattr(text_rows, "_SPAN", rng.choice([1, 2, 5, 30, 100]))
        monkeypatch.setattr(text_rows, "_SPANS_WANTED", 10**9)
        shape = text_rows.Shape(kind, "text", False)
        spans = [span for task in text_rows.tasks([str(path)], kind) for span in task]
        told = []
        monkeypatch.setattr(text_rows, "advance", told.append)
        rows = [row for span in spans for row in text_rows.rows_of(span, shape)]
        assert [row.text for row in rows] == rows_in(str(path), kind), (path, kind)
        assert len({row.start for row in rows}) == len(rows)
        assert sum(told) == path.stat().st_size
        assert all(json.loads(row.line) == {"text": row.text} for row in rows)


def test_a_row_is_written_as_json_dump_writes_it():
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), 0x1F99C, 0x10FFFF]))
    assert text_rows.json_line(text) == json.dumps({"text": text}, ensure_ascii=False).encode()


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.json"])
def test_the_line_that_is_wrong_is_named_in_whichever_span_it_is(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text_rows, "_SPAN", 50)
    line = b'{"text": "good"}\n' if "json" in name else b"good\n"
    path = tmp_path / name
    path.write_bytes(
        COMPRESSORS[path.suffix if path.suffix == ".gz" else ""](b"\xef\xbb\xbf\n" + line * 99 + b"\xff\n")
    )
    with pytest.raises(corpora.CorpusError, match=rf"{name}:101: not UTF-8"):
        text_files.prepare_text([path], tmp_path)


TEXTS = [f"row {number % 3000} {'é' * (number % 80)}." for number in range(0, 50_000, 5)]  # some repeat others


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> pathlib.Path:
    """A folder of files of several kinds, which hold TEXTS in order, each text a paragraph or a line of JSON."""
    folder = tmp_path_factory.mktemp("mixed")
    for number, name in enumerate(("a.txt", "b.jsonl", "c.txt.gz", "d.jsonl.zst", "e.jsonl")):
        texts = TEXTS[2000 * number : 2000 * (number + 1)]
        lines = [json.dumps({"text": text}) for text in texts] if "jsonl" in name else texts
        suffix = os.path.splitext(name)[1]
        (folder / name).write_bytes(COMPRESSORS.get(suffix, bytes)("\n\n".join(lines).encode()))
    return folder


@pytest.fixture
def three_processes(monkeypatch):
    """Has a small corpus treated as a large one is on three cores."""
    monkeypatch.setattr(text_files, "_LARGE", 0)
    monkeypatch.setattr(text_files, "_SAMPLED", 1)
    monkeypatch.setattr(text_files, "_FEW_BUCKETS", 0)
    monkeypatch.setattr(text_rows, "_SPAN", 10_000)
    monkeypatch.setattr(workers, "available", lambda: 3)


SETTINGS = {"in order": {}, "shuffled": {"shards": 5}, "distinct": {"shards": 3, "drop_duplicates": True}}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_files_do_not_depend_on_the_number_of_processes(mixed, tmp_path, request, capsys, settings):
    contents, said = [], []
    for folder in (tmp_path / "1", tmp_path / "3"):
        if folder.name == "3":
            request.getfixturevalue("three_processes")
        text_files.prepare_text([mixed], folder, validation_fraction=0.2, **settings)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
        said.append(capsys.readouterr().out.replace(str(folder), ""))
    assert contents[0] == contents[1] and said[0] == said[1]
    rows = [json.loads(line)["text"] for content in contents[0].values() for line in content.splitlines()]
    repeated = f"; {len(TEXTS) - len(set(TEXTS)):,} rows repeating another's text\n"
    if "drop_duplicates" in settings:
        assert sorted(rows) == sorted(set(TEXTS)) and repeated not in said[0]
    else:
        assert sorted(rows) == sorted(TEXTS) and repeated in said[0]
    characters = (
        f"10,000 rows of {sum(map(len, TEXTS)):,} characters; the longest has {max(map(len, TEXTS)):,}, in {mixed}"
    )
    assert f"in all: {characters}" in said[0]


def test_an_error_is_the_first_one_and_ends_the_processes(mixed, tmp_path, three_processes):
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "good"}\n' * 5000 + b"bad\n")
    (tmp_path / "c.jsonl").write_bytes(b"also bad\n")
    with pytest.raises(corpora.CorpusError, match=r"b.jsonl:5001: not a line of JSON"):
        text_files.prepare_text([mixed, tmp_path / "b.jsonl", tmp_path / "c.jsonl"], tmp_path / "out", shards=2)
    assert os.listdir(tmp_path / "out") == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_progress_is_told_within_a_file(tmp_path, monkeypatch, name):
    rng = random.Random(0)
    content = b"".join(b'{"text": "%d"}\n' % rng.randrange(10**9) for _ in range(50_000))
    (tmp_path / name).write_bytes(COMPRESSORS[".gz" if name.endswith(".gz") else ""](content))
    told = []
    monkeypatch.setattr(text_rows, "advance", told.append)
    text_files.prepare_text([tmp_path / name], tmp_path / "out")
    size = (tmp_path / name).stat().st_size
    assert sum(told) == size and len(told) > 10 and max(told) < size / 2


def test_the_bar_shows_what_all_processes_have_done(monkeypatch, capfd):
    real = tqdm.tqdm.__init__
    monkeypatch.setattr(
        tqdm.tqdm, "__init__", lambda bar, **given: real(bar, **{**given, "disable": False, "ncols": 60})
    )
    for count in (1, 2):
        with workers.Workers(count) as processes, processes.progress_bar("reading", 1000):
            assert list(processes.map(workers.advance, [100] * 10)) == [None] * 10
    assert len(re.findall(r"reading: 100%[^\r]* 1.00k/1.00k [^\r]*\n", capfd.readouterr().err)) == 2, "at the end"


def test_what_is_under_way_ends_when_another_process_has_failed():
    begun = time.monotonic()
    long_work = map(workers.advance, range(1, 10**9))  # ten minutes
    with pytest.raises(TypeError, match="'int' object is not iterable"), workers.Workers(2) as processes:
        list(processes.map(any, [5, long_work]))
    assert time.monotonic() - begun < 100


def test_a_process_that_is_killed_is_said(three_processes):
    with workers.Workers(2) as processes, pytest.raises(ChildProcessError, match="one of 2 processes ended.* killed"):
        list(processes.map(signal.raise_signal, [signal.SIGKILL]))


def test_what_is_done_in_no_order_does_not_wait_for_the_first(tmp_path):
    """`map` has few under way, and so would never come to the last one."""
    paths = [str(tmp_path / str(number)) for number in range(20)]
    wait = ["timeout", "100", "sh", "-c", f"until [ -e {paths[-1]} ]; do sleep 0.05; done"]
    with workers.Workers(2) as processes:
        processes.do(subprocess.check_call, [wait, *(["touch", path] for path in paths)])
    assert len(os.listdir(tmp_path)) == 20


@pytest.mark.parametrize("drop_duplicates", [False, True])
def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch, drop_duplicates):
    monkeypatch.setattr(sharding, "_MEMORY", 200_000)
    monkeypatch.setattr(sharding, "_BUCKET", 100_000)
    rng = random.Random(0)
    # Distinct rows, rows that occur often, and more of one row than fits into memory.
    numbers = [*range(2500), *(rng.randrange(100) for _ in range(300)), *[7] * 700]
    writer = sharding.Writer(str(tmp_path), 1)
    counts = np.zeros(2500, int)
    tracemalloc.start()
    for place, number in enumerate(numbers):
        line = f"{number:05d}" * 200
        writer.add(sharding.key_of((line if drop_duplicates else str(place)).encode(), 0) + f"t{line}\n".encode())
    writer.flush()
    with workers.Workers(1) as here:
        for bucket in sharding.buckets(str(tmp_path), here):
            dealt = sharding.deal({"train": 3, "validation": 1}, bucket)
            assert dealt.rows == {"train": sum(part.count(b"\n") for part in dealt.parts["train"]), "validation": 0}
            np.add.at(counts, [int(row[:5]) for part in dealt.parts["train"] for row in part.splitlines()], 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000, "of 3.6 MB"
    assert np.array_equal(counts, np.ones(2500) if drop_duplicates else np.bincount(numbers))
    assert list(tmp_path.iterdir()) == []


# --- kills


def start(folder: pathlib.Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "t5xpg", "prepare", "text", "in.jsonl", "--output_dir", "out", *flags]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def wait_for(condition, process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, "it ended before"
        time.sleep(0.005)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_leaves_no_file_and_the_next_run_begins_anew(tmp_path, sent):
    with open(tmp_path / "in.jsonl", "w") as file:
        file.writelines(f'{{"text": "row {number} {"word " * 200}"}}\n' for number in range(36_000))  # 36 MB
    out, waiting = tmp_path / "out", tmp_path / "out" / ".text.preparing"
    flags = ("--shards", "4", "--validation_fraction", "0")
    process = start(tmp_path, *flags)
    wait_for(lambda: (waiting / "rows").exists() and os.listdir(waiting / "rows"), process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(sent)
    process.wait()
    psutil.wait_procs(children, timeout=60)
    assert not any(child.is_running() for child in children)
    assert os.listdir(out) == ([".text.preparing"] if sent == signal.SIGKILL else [])
    done = start(tmp_path, *flags)
    assert done.wait() == 0
    assert sorted(os.listdir(out)) == [f"text_train-{shard:05d}-of-00004.jsonl" for shard in range(4)]
    rows = [line for path in out.iterdir() for line in path.read_text().splitlines()]
    assert sorted(rows) == sorted((tmp_path / "in.jsonl").read_text().splitlines())


@pytest.mark.parametrize("shards", [0, 2])
def test_a_full_disk_is_named_and_what_was_there_stays(tmp_path, monkeypatch, shards):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "in.txt").write_text("one\n\ntwo\n\nthree\n")
    out = tmp_path / "out"
    settings = {"validation_fraction": 0, "shards": shards, "overwrite": True}
    text_files.prepare_text([tmp_path / "in.txt"], out, **settings)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(sharding.Writer, "flush", full)
    with pytest.raises(corpora.CorpusError, match=r"\.text\.preparing: its disk is full \(.*make room for it\.$"):
        text_files.prepare_text([tmp_path / "in.txt"], out, **settings)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_two_runs_do_not_write_the_same_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("One")
    with working_folder(tmp_path / "text_train.jsonl", "text"):
        with pytest.raises(corpora.CorpusError, match=r"\.text\.preparing: another run is writing this corpus\. Wait"):
            text_files.prepare_text([tmp_path / "a.txt"], tmp_path, validation_fraction=0)
        text_files.prepare_text([tmp_path / "a.txt"], tmp_path, name="other", validation_fraction=0)
    text_files.prepare_text([tmp_path], tmp_path, validation_fraction=0)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "other_train.jsonl", "text_train.jsonl"]


def test_what_a_killed_run_left_is_no_input(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("One")
    (tmp_path / ".text.preparing").mkdir()
    (tmp_path / ".text.preparing" / "b.txt").write_text("Two")
    text_files.prepare_text([tmp_path], tmp_path, validation_fraction=0)
    assert ".txt: took 1 file, 1 row\nin all: 1 row of 3 characters" in capsys.readouterr().out


# --- the report


def test_scripts_are_unicodes():
    names = {
        "LATIN": "Latin",
        "CYRILLIC": "Cyrillic",
        "CJK": "Han",
        "HANGUL": "Hangul",
        "ARABIC": "Arabic",
        "THAI": "Thai",
    }
    text = "Łódź ﬁre Москва 漢字 한국어 العربية ไทย"
    counts = Counter(text.replace(" ", ""))
    expected = Counter()
    for character, count in counts.items():
        expected[names[unicodedata.name(character).split()[0]]] += count
    found = corpus_report.scripts_of(counts)
    # Of Arabic and Thai, the marks too have the script's name; none of these is shared with other scripts.
    assert found == dict(expected)
    assert corpus_report.scripts_of(Counter("12 .,;\nµ\u0301")) == {"digits, spaces and signs": 9}
    assert corpus_report.scripts_of({"\U00010330": 2}) == {"other scripts": 2}, "Gothic"


def test_the_report_of_a_corpus(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Hello\n\nмир!!\n\n漢字\n\nHello\n\n\U00010330")
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n{"text": " "}\n')
    text_files.prepare_text([tmp_path / "a.txt", tmp_path / "b.jsonl"], tmp_path, validation_fraction=0)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"in all: 6 rows of 19 characters; the longest has 5, in {tmp_path}/a.txt; 2 rows without text; "
        "1 row repeating another's text",
        "characters: Latin 52.6%, Cyrillic 15.8%, Han 10.5%, other scripts 5.3%, digits, spaces and signs 15.8%",
    ]


def test_the_share_that_was_looked_into_is_said_and_even(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(text_files, "_LARGE", 0)
    monkeypatch.setattr(workers, "available", lambda: 1)
    rows = [("abcd" if number % 16 else "абвг") + f"{number:06d}" for number in range(40_000)]
    (tmp_path / "a.txt").write_text("\n".join(rows))
    text_files.prepare_text([tmp_path / "a.txt"], tmp_path, rows="lines", validation_fraction=0)
    shares = re.search(
        r"characters \(of (\d\.\d)% of them, drawn\): Latin (\d+\.\d)%, Cyrillic (\d\.\d)%, d", capsys.readouterr().out
    )
    share, latin, cyrillic = map(float, shares.groups())
    deviation = (40_000 / 16 * 15 / 16) ** 0.5 / 400  # of the share, in per cent
    assert abs(share - 6.25) < 5 * deviation + 0.05
    assert abs(latin - 37.5) < 1 and abs(cyrillic - 2.5) < 1
