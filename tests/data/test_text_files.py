"""Text files to JSONL: which rows, in which split and order, in how many files, and what is said about them."""

import ast
import bz2
import functools
import gzip
import json
import lzma
import pathlib
import re
import shlex
import subprocess

import numpy as np
import pytest
from jsonl_files import COMPRESSORS, small_pieces

from t5xpg import name_value, tasks
from t5xpg.cli.main import main
from t5xpg.data import corpora, jsonl, text_files
from t5xpg.data.sources import JsonlDataSource


def read(path):
    return [json.loads(line)["text"] for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def test_every_kind_of_file_gives_its_rows(tmp_path):
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "a.txt").write_bytes("\ufeffOne  \r\n  indented\r\n\r\n \r\nTwo\n".encode())
    with gzip.open(source / "deep" / "b.txt.gz", "wt", encoding="utf-8") as handle:
        handle.write("Three\n\n\nFöur")
    (source / "deep" / "er" / "c.jsonl").write_text('{"text": "Five\\n\\nhalf", "id": 1}\n\n{"text": ""}\n')
    with gzip.open(source / "d.jsonl.gz", "wt") as handle:
        handle.write('{"text": " Six "}\n')
    (source / "e.jsonl.bz2").write_bytes(bz2.compress(b'{"text": "Seven"}'))
    (source / "f.txt.xz").write_bytes(lzma.compress(b"Eight"))
    (source / "ignored.csv").write_text("not,read")
    one = ["One\n  indented", "Two"]
    other = {"a.txt": one, "d.jsonl.gz": [" Six "], "b.txt.gz": ["Three", "Föur"], "c.jsonl": ["Five\n\nhalf"]}
    paths = text_files.prepare_text([source], tmp_path / "folder", validation_fraction=0)
    assert list(paths) == ["train"]
    rows = [*other["a.txt"], *other["d.jsonl.gz"], *other["b.txt.gz"], *other["c.jsonl"]]
    assert sorted(read(paths["train"])) == sorted([*rows, "Seven", "Eight"])

    globs = [source / "deep" / "*.gz", source / "**" / "*.txt", source / "deep" / "b.txt.gz"]
    paths = text_files.prepare_text(globs, tmp_path / "glob", validation_fraction=0, rows="lines", name="mine")
    assert paths["train"].name == "mine_train.jsonl"
    assert read(paths["train"]) == ["Three", "Föur", "One", "indented", "Two"]  # each file once, where first named


def test_the_split_follows_from_seed_and_row_alone(tmp_path, capsys):
    rows = [f"row number {number % 3000}" for number in range(4000)]  # a quarter of them twice
    (tmp_path / "a.txt").write_text("\n".join(rows))
    (tmp_path / "b.txt").write_text("\n".join(f"another {number}" for number in range(1000)))

    def prepare_into(folder, inputs, **options):
        paths = text_files.prepare_text(
            [tmp_path / file for file in inputs], tmp_path / folder, rows="lines", validation_fraction=0.2, **options
        )
        return {split: read(path) for split, path in paths.items()}

    first = prepare_into("1", ["a.txt"])
    assert sorted(first["train"] + first["validation"]) == sorted(rows)
    assert not set(first["train"]) & set(first["validation"])
    assert abs(len(set(first["validation"])) - 600) < 5 * (3000 * 0.2 * 0.8) ** 0.5  # five standard deviations
    assert re.search(r"text_validation.jsonl: \d+ rows, \d\.\d\d MB", capsys.readouterr().out)

    assert prepare_into("2", ["a.txt"]) == first
    more = prepare_into("3", ["b.txt", "a.txt"])
    assert {split: [row for row in more[split] if row.startswith("row")] for split in more} == first
    assert prepare_into("4", ["a.txt"], seed=1)["validation"] != first["validation"]


def test_a_second_run_keeps_and_half_a_pair_is_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(200))))
    options = {"rows": "lines", "validation_fraction": 0.5}
    paths = text_files.prepare_text([tmp_path / "a.txt"], tmp_path, **options)
    before = {split: path.read_bytes() for split, path in paths.items()}
    capsys.readouterr()
    assert text_files.prepare_text(["never looked at"], tmp_path, **options) == paths
    assert capsys.readouterr().out.count("already there") == 2
    paths["validation"].unlink()
    with pytest.raises(corpora.CorpusError, match="text_train.jsonl exists, and a new file next to it"):
        text_files.prepare_text([tmp_path / "a.txt"], tmp_path, **options)
    text_files.prepare_text([tmp_path / "a.txt"], tmp_path, overwrite=True, **options)
    assert {split: path.read_bytes() for split, path in paths.items()} == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_old_validation_file_is_not_left_beside_a_new_train_file(tmp_path, overwrite):
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(200))))
    paths = text_files.prepare_text([tmp_path / "a.txt"], tmp_path, rows="lines", validation_fraction=0.5)
    if not overwrite:
        paths["train"].unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options = {"rows": "lines", "validation_fraction": 0, "overwrite": overwrite}
    with pytest.raises(corpora.CorpusError, match=r"text_validation\.jsonl exists.* Remove it, write both again"):
        text_files.prepare_text([tmp_path / "a.txt"], tmp_path, **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    paths["validation"].unlink()
    text_files.prepare_text([tmp_path / "a.txt"], tmp_path, **options)
    assert read(paths["train"]) == list(map(str, range(200)))


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("a.txt", b"good\nbad \xff byte\n", r"a\.txt:2: not UTF-8, byte 0xff at position 5"),
        ("a.txt", "text".encode("utf-16"), r"a\.txt:1: not UTF-8"),
        ("a.txt", b"", "not written, 0 rows"),
        ("a.txt", b" \n\n", "not written, 0 rows"),
        ("a.txt", b"only one", "1 rows leave none for .* --validation_fraction"),
        ("a.txt.gz", gzip.compress(b"words " * 99, mtime=0)[:-9], r"a\.txt\.gz: cannot be read to its end"),
        ("a.txt.gz", b"not gzip", r"a\.txt\.gz: cannot be read to its end"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl:2: not a line of JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl:1: not a line of JSON"),
        ("a.jsonl", b'["x"]\n', r"a\.jsonl:1: a JSON list, not an object"),
        ("a.jsonl", b'{"text": 3, "body": "x"}\n', r"a\.jsonl:1: no text under 'text'; found .*body.* --text_key"),
        ("a.pdf", b"%PDF", r"a\.pdf: this kind of file is not read; pass files of \.txt .* \.json \.json\.gz"),
    ],
)
def test_bad_input_is_named_and_costs_nothing(tmp_path, file, content, message):
    (tmp_path / file).write_bytes(content)
    corpora.write_jsonl(tmp_path / "text_train.jsonl", [{"text": "earlier"}])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(corpora.CorpusError, match=message) as raised:
        text_files.prepare_text([tmp_path / file], tmp_path, overwrite=True)
    assert "\n" not in str(raised.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_inputs_that_cannot_be_meant(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("words")
    for wrong in ("absent.txt", "absent*.txt", "empty"):
        with pytest.raises(corpora.CorpusError, match=re.escape(wrong)):
            text_files.prepare_text([tmp_path / "a.txt", tmp_path / wrong], tmp_path)
    with pytest.raises(corpora.CorpusError, match="validation_fraction is 1.5"):
        text_files.prepare_text([tmp_path / "a.txt"], tmp_path, validation_fraction=1.5)
    text_files.prepare_text([tmp_path / "a.txt"], tmp_path, validation_fraction=0)
    with pytest.raises(corpora.CorpusError, match="text_train.jsonl is both input and output"):
        text_files.prepare_text([tmp_path], tmp_path, validation_fraction=0, overwrite=True)


# --- documents, reports, UTF-8


def test_a_file_can_be_one_document_and_stays_whole_in_one_split(tmp_path):
    texts = {f"{number}.txt": f"\nTitle {number}  \r\n\nFirst.\n\n\n  Second.\n\n" for number in range(60)}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "blank.txt").write_text("\n \n")
    paths = text_files.prepare_text([tmp_path], tmp_path / "out", rows="file", validation_fraction=0.3)
    rows = {split: read(path) for split, path in paths.items()}
    assert sorted(rows["train"] + rows["validation"]) == sorted(
        f"Title {number}\n\nFirst.\n\n\n  Second." for number in range(60)
    )
    assert len(rows["validation"]) > 5
    with pytest.raises(corpora.CorpusError, match="rows is 'pages'; it must be one of 'paragraphs', 'lines', 'file'"):
        text_files.prepare_text([tmp_path], tmp_path / "pages", rows="pages")


def test_what_was_taken_and_skipped_is_said_by_suffix(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("a row that is long\n\nshort\n\nanother long row")
    (source / "b.txt").write_text("short")
    (source / "c.txt.gz").write_bytes(gzip.compress(b"a long row in it"))
    (source / "d.jsonl").write_text('{"text": "as long a row"}\n\n{"text": "short"}\n')
    for name in ("e.PDF", "f.pdf", "g.csv.gz", "README"):
        (source / name).write_text("not read")
    text_files.prepare_text([source], tmp_path, min_length=10, validation_fraction=0)
    assert capsys.readouterr().out.splitlines()[1:] == [
        ".jsonl: took 1 file, 1 row; skipped 1 row of fewer than 10 characters",
        ".txt: took 2 files, 2 rows; skipped 2 rows of fewer than 10 characters",
        ".txt.gz: took 1 file, 1 row",
        "(no suffix): skipped 1 file, not of a kind that is read",
        ".csv.gz: skipped 1 file, not of a kind that is read",
        ".pdf: skipped 2 files, not of a kind that is read",
        f"in all: 4 rows of 63 characters; the longest has 18, in {source}/a.txt",
        "characters: Latin 79.4%, digits, spaces and signs 20.6%",
    ]


@pytest.mark.parametrize(
    ("rows", "suffix", "said"), [("paragraphs", "txt", 1), ("lines", "txt", 0), ("paragraphs", "jsonl", 0)]
)
def test_long_rows_of_files_without_empty_lines_are_told_of_lines(rows, suffix, said, tmp_path, capsys):
    text = "a line of a text\n" * 2000
    (tmp_path / f"a.{suffix}").write_text(text if suffix == "txt" else json.dumps({"text": text}) + "\n")
    text_files.prepare_text([tmp_path / f"a.{suffix}"], tmp_path, rows=rows, name="made", validation_fraction=0)
    assert capsys.readouterr().out.count("--rows lines makes a row of each line.\n") == said


def test_utf_8_is_written_as_utf_8(tmp_path):
    text = "Blåbær 水 🦜 \u2028 \x85 \\u00e5"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "\\u6c34"}\n')
    for settings in ({}, {"shards": 1}):
        paths = text_files.prepare_text(
            [tmp_path / "a.txt", tmp_path / "b.jsonl"], tmp_path, validation_fraction=0, **settings
        )
        (path,) = tmp_path.glob(paths["train"].name)
        data = path.read_bytes()
        assert "Blåbær 水 🦜 \u2028 \x85".encode() in data and data.count("水".encode()) == 2
        assert sorted(row["text"] for row in jsonl.read_rows(str(path))) == sorted([text, "水"])


@pytest.mark.parametrize("flags", [[], ["--validation_fraction", "0"], ["--shards", "3"]])
def test_it_ends_with_the_command_to_go_on_with(flags, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n\n".join(map(str, range(200))))
    command = ["prepare", "text", str(tmp_path / "a.txt"), "--output_dir", str(tmp_path / "out"), *flags]
    for _ in range(2):  # written, then kept
        assert main([*command, "--name", "my_train"]) == 0
        *_, before, last = capsys.readouterr().out.splitlines()
        assert before == "go on with:"
        words = shlex.split(last)
        assert words[:3] == ["t5xpg", "train", "configs/byt5_tiny.gin"] and words[4:] == ["MODEL_DIR=runs/my_train"]
        (binding,) = [flag for flag in name_value.program_flags(words[2:], pathlib.Path()) if "FILES" in flag]
        files = ast.literal_eval(binding.partition("FILES = ")[2])  # as gin reads it: a string or a dict
        source = JsonlDataSource(files)
        splits = ["train"] if "0" in flags else ["train", "validation"]
        found = [row["text"] for split in splits for row in jsonl.read_rows(source.find_files(split))]
        assert sorted(found, key=int) == list(map(str, range(200)))


# --- shards


def shards_of(paths) -> dict[str, list[list[str]]]:
    return {split: [read(file) for file in sorted(path.parent.glob(path.name))] for split, path in paths.items()}


@pytest.fixture
def numbered(tmp_path):
    """4,000 rows in order, in one compressed file."""
    path = tmp_path / "numbered.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"text": "row %05d"}\n' % number for number in range(4000)), 1))
    return path


def test_shards_hold_all_rows_in_random_order(numbered, tmp_path, capsys):
    def prepare(folder, **settings):
        paths = text_files.prepare_text([numbered], tmp_path / folder, shards=7, validation_fraction=0.1, **settings)
        return paths, shards_of(paths)

    paths, shards = prepare("a")
    out = capsys.readouterr().out
    assert paths["train"] == tmp_path / "a" / "text_train-*-of-00007.jsonl"
    sizes = [len(shard) for shard in shards["train"]]
    assert len(sizes) == 7 and max(sizes) - min(sizes) <= 1 and len(shards["validation"]) == 1
    rows = {split: [row for shard in shards[split] for row in shard] for split in shards}
    assert sorted(rows["train"] + rows["validation"]) == [f"row {number:05d}" for number in range(4000)]
    plain = text_files.prepare_text([numbered], tmp_path / "plain", validation_fraction=0.1)
    assert {split: sorted(rows[split]) for split in rows} == {split: sorted(read(plain[split])) for split in plain}
    for order in (*rows.values(), *shards["train"]):
        places = np.arange(len(order))
        correlation = np.corrcoef([int(row[4:]) for row in order], places)[0, 1]
        assert abs(correlation) < 5 / len(order) ** 0.5  # five standard deviations
    assert re.search(r"text_train-\*-of-00007.jsonl: \d,\d+ rows, shuffled, 0.\d\d MB in 7 files\n", out)

    assert prepare("b")[1] == shards
    assert prepare("c", seed=1)[1]["train"] != shards["train"]
    names = [path.name for path in (tmp_path / "a").iterdir()]
    assert len(names) == 8 and all(name.startswith("text_") for name in names), "nothing else is left"


def test_exact_duplicates_are_dropped_and_counted(tmp_path, capsys):
    texts = [f"row {number % 300}" for number in range(1000)]
    for name, order in (("a", texts), ("b", sorted(texts))):
        (tmp_path / f"{name}.txt").write_text("\n".join(order))
    settings = {"rows": "lines", "shards": 4, "drop_duplicates": True, "validation_fraction": 0}
    made = [text_files.prepare_text([tmp_path / f"{n}.txt"], tmp_path / n, **settings) for n in "ab"]
    a, b = map(shards_of, made)
    assert a == b, "however the rows come"
    assert sorted(row for shard in a["train"] for row in shard) == sorted(set(texts))
    assert "300 rows, shuffled, 5,890 bytes in 4 files; 700 duplicates dropped" in capsys.readouterr().out
    with pytest.raises(corpora.CorpusError, match="--drop_duplicates goes with --shards"):
        text_files.prepare_text([tmp_path / "a.txt"], tmp_path, drop_duplicates=True)


def test_shards_are_not_mixed_with_older_ones_and_failures_leave_nothing(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(100))))
    (tmp_path / "few.txt").write_text("1\n2")
    (tmp_path / "bad.txt").write_bytes(b"1\n2\n\xff")
    settings = {"rows": "lines", "validation_fraction": 0}
    out = tmp_path / "out"
    for name, message in (
        ("few.txt", "2 rows of train are too few for 5 files. Pass --shards 2"),
        ("bad.txt", ":3: not"),
    ):
        with pytest.raises(corpora.CorpusError, match=message):
            text_files.prepare_text([tmp_path / name], out, shards=5, **settings)
        assert list(out.iterdir()) == []
    with pytest.raises(corpora.CorpusError, match="shards is 1000; it must be 0 .* to 512"):
        text_files.prepare_text([tmp_path / "a.txt"], out, shards=1000, **settings)
    text_files.prepare_text([tmp_path / "a.txt"], out, shards=5, **settings)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    text_files.prepare_text(["never looked at"], out, shards=5, **settings)
    assert "text_train-*-of-00005.jsonl: already there and kept" in capsys.readouterr().out
    for overwrite in (False, True):
        with pytest.raises(corpora.CorpusError, match=r"00000-of-00005.jsonl exists, and new files next to it"):
            text_files.prepare_text([tmp_path / "a.txt"], out, shards=4, overwrite=overwrite, **settings)
    text_files.prepare_text([tmp_path / "a.txt"], out, shards=5, overwrite=True, **settings)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    with pytest.raises(corpora.CorpusError, match="is both input and output"):
        text_files.prepare_text([out], out, shards=5, overwrite=True, **settings)


def test_the_command_that_a_remark_names_mends_what_it_remarks_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{number:05d}" + "?" * 300, "answer": "yes", "id": number} for number in range(10_000)]
    pathlib.Path("pairs.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), 1)
    )

    def correlation_and_remarks(name, files) -> tuple[float, list[str]]:
        keys = {"inputs_key": "question", "targets_key": "answer", "objective": "supervised"}
        task = tasks.TaskRegistry.get(tasks.jsonl_task(name, {"train": files}, **keys))
        order = [int(row["inputs"][:5]) for row in task.source.get_dataset(seed=0).as_numpy_iterator()]
        assert sorted(order) == list(range(10_000))
        return float(np.corrcoef(order, range(10_000))[0, 1]), task.remarks("train", True, 16)

    before, (remark,) = correlation_and_remarks("before_resharding", "pairs.jsonl.gz")
    assert before > 0.9
    command = shlex.split(remark[remark.index("t5xpg prepare text") :])
    assert main(command[1:]) == 0
    (resharded,) = set(pathlib.Path().glob("*_train-00000-of-00064.jsonl"))
    assert set(json.loads(resharded.read_text().split("\n")[0])) == {"question", "answer", "id"}
    after, remarks = correlation_and_remarks("after_resharding", "*-of-00064.jsonl")
    assert abs(after) < 0.05 and remarks == []


def write_packed(path, rows, **json_settings):
    lines = "\n".join(json.dumps(row, **json_settings) for row in rows).encode()
    path.write_bytes(COMPRESSORS[path.suffix](lines))


@pytest.mark.parametrize("case", ["json.zst", "objects", "folder", "home", "data_dir"])
def test_the_command_that_a_remark_names_takes_the_rows_of_the_source(tmp_path, monkeypatch, case):
    """Run as in a shell: empty rows included, and none of other files in the folder or below it."""
    small_pieces(monkeypatch, 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    corpus = tmp_path / "my corpus"
    (corpus / "deep").mkdir(parents=True)
    texts = ["", *(f"row {number} {'x' * 40}" for number in range(99))]
    if case == "objects":
        for number, text in enumerate(texts[:2]):
            write_packed(corpus / f"{number}.json.gz", [{"more": text, "text": text + "y" * 3000}], indent=1)
        write_packed(corpus / "lines.json.gz", [{"text": text} for text in texts])
        texts = [*(text + "y" * 3000 for text in texts[:2]), *texts]
    else:
        write_packed(corpus / ("a.json.zst" if case == "json.zst" else "a.jsonl.gz"), [{"text": t} for t in texts])
    if case != "objects":
        (corpus / "b.txt").write_text("not a row of the source")
        write_packed(corpus / "deep" / "c.jsonl.gz", [{"text": "nor is this"}])
    files = {"home": "~/my corpus/*.gz", "data_dir": "my corpus/a.jsonl.gz"}.get(case, str(corpus))
    task = tasks.TaskRegistry.get(tasks.jsonl_task(f"resharded_{case.replace('.', '_')}", {"train": files}))
    (remark,) = task.remarks("train", True, 16)
    command = remark[remark.index("t5xpg prepare text ") :]
    expanded = subprocess.run(["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
    assert main(expanded.stdout.split("\0")[1:-1]) == 0
    found = [row["text"] for row in jsonl.read_rows(f"{task.name}_train-*-of-00064.jsonl")]
    assert sorted(found) == sorted(texts) == sorted(row["text"] for row in jsonl.read_rows(files))


def test_no_command_is_named_that_would_not_read_the_files(tmp_path, monkeypatch):
    small_pieces(monkeypatch, 1000)
    write_packed(tmp_path / "rows.gz", [{"text": "x" * 500}] * 9)
    task = tasks.TaskRegistry.get(tasks.jsonl_task("not_called_json", {"train": str(tmp_path / "rows.gz")}))
    (remark,) = task.remarks("train", True, 16)
    assert remark.endswith("Write them anew, shuffled: in 64 files, not compressed")


def test_json_files_are_taken_where_there_are_no_others(tmp_path, capsys):
    write_packed(tmp_path / "a.json.xz", [{"text": "from .json"}], indent=2)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "b.txt").write_text("from .txt")
    write_packed(tmp_path / "texts" / "a.json.xz", [{"text": "beside it"}])
    prepare = functools.partial(text_files.prepare_text, output_dir=tmp_path / "out", validation_fraction=0)
    assert read(prepare([tmp_path / "texts"])["train"]) == ["from .txt"]
    assert ".json.xz: skipped 1 file, taken beside .txt and .jsonl only where named\n" in capsys.readouterr().out
    named = prepare([tmp_path / "a.json.xz", tmp_path / "texts"], name="named", whole_rows=True)
    assert read(named["train"]) == ["from .json", "from .txt"]
    everything = prepare([tmp_path / "texts", tmp_path / "texts" / "a.json.xz"], name="everything")
    assert read(everything["train"]) == ["from .txt", "beside it"]
    assert "skipped" not in capsys.readouterr().out.split("everything_train")[1]
    (tmp_path / "texts" / "C.JSON").write_text("named, it is not read")
    prepare([tmp_path / "texts"], name="again")
    assert ".json: skipped 1 file, not of a kind that is read" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    with pytest.raises(corpora.CorpusError, match=r"empty: has no \.txt .*\.jsonl .*\.json .*in it"):
        prepare([tmp_path / "empty"], name="nothing")
