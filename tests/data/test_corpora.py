"""Corpora to JSONL: the Hub's protocol over loopback, the user's files, Python's own docs, and what can go wrong."""

import argparse
import errno
import inspect
import io
import itertools
import json
import os
import pathlib
import pydoc_data.topics
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from hub_server import HubServer

from t5xpg.cli import prepare
from t5xpg.data import corpora, python_sources

REPO = pathlib.Path(__file__).resolve().parents[2]
PROSE = 'Röyksopp came from Tromsø \u2028 and "Melody A.M." sold more than a million copies , said the label . '
ROWS = {
    "train": ["", " = A heading = \n", PROSE * 2, "x" * 100, "y" * 101, PROSE * 5],
    "validation": [PROSE + "validation" * 9, ""],
    "test": ["test " * 40],
}


def read(path):
    return [json.loads(line)["text"] for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def run(arguments, folder, **environment):
    """`python -m t5xpg ARGUMENTS` in a folder, with a Hugging Face home of its own and none of the caller's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    private = {"PYTHONPATH": str(REPO), "HF_HOME": str(folder / "hf_home"), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "t5xpg", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env={**inherited, **private, **environment}, capture_output=True, text=True, timeout=120
    )


def assert_one_line_error(finished, *parts):
    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr
    message = finished.stderr.strip().splitlines()[-1]
    assert message.startswith("t5xpg: error: ")
    for part in parts:
        assert part in message


def wikitext_repository():
    import pyarrow
    import pyarrow.parquet

    card = ["---", "configs:", f"- config_name: {corpora.WIKITEXT_CONFIG}", "  data_files:"]
    files = {}
    for split, texts in ROWS.items():
        name = f"{corpora.WIKITEXT_CONFIG}/{split}-00000-of-00001.parquet"
        card += [f"  - split: {split}", f"    path: {name}"]
        parquet = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), parquet)
        files[name] = parquet.getvalue()
    return {"README.md": "\n".join([*card, "---", ""]).encode(), **files}


def what_the_original_script_writes(texts):
    out = io.StringIO()
    for item in ({"text": text} for text in texts if len(text) > 100):
        json.dump(item, out)
        out.write("\n")
    return out.getvalue()


# --- the Hub


def test_wikitext_from_a_hub_then_kept_then_from_the_cache(tmp_path):
    paths = {split: tmp_path / "data" / f"wikitext_{split}.jsonl" for split in ROWS}
    arguments = ["prepare", "wikitext", "--output_dir", "data"]
    with HubServer(corpora.WIKITEXT, wikitext_repository()) as hub:
        first = run(arguments, tmp_path, HF_ENDPOINT=hub.endpoint)
        assert first.returncode == 0, first.stderr
        for split, path in paths.items():
            assert path.read_text() == what_the_original_script_writes(ROWS[split])
            assert f"writing {split} split" in first.stderr
        assert re.search(r"data/wikitext_train.jsonl: 3 rows, \d+ bytes", first.stdout)
        kept = [text for texts in ROWS.values() for text in texts if len(text) > 100]
        report = f"in all: {len(kept)} rows of {sum(map(len, kept)):,} characters; the longest has {len(PROSE) * 5}, in"
        assert report in first.stdout

        hub.requests.clear()
        written = {path: path.stat().st_mtime_ns for path in paths.values()}
        second = run(arguments, tmp_path, HF_ENDPOINT=hub.endpoint)
        assert second.returncode == 0
        assert hub.requests == []  # nothing is asked of the network when nothing is missing
        assert {path: path.stat().st_mtime_ns for path in paths.values()} == written
        assert re.search(r"wikitext_train.jsonl: 3 rows, .* already there", second.stdout)

    paths["test"].unlink()
    offline = run(arguments, tmp_path, HF_ENDPOINT=hub.endpoint)  # the hub is gone; the cache is not
    assert offline.returncode == 0, offline.stderr
    assert read(paths["test"]) == ROWS["test"]
    assert sorted(path.name for path in paths["test"].parent.iterdir()) == sorted(p.name for p in paths.values())


def test_the_script_at_the_root_is_the_same_program(tmp_path):
    with HubServer(corpora.WIKITEXT, wikitext_repository()) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf_home")}
        subprocess.run([sys.executable, REPO / "prepare_wikitext.py"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "wikitext_train.jsonl").read_text() == what_the_original_script_writes(ROWS["train"])


def test_another_data_set_without_a_card(tmp_path):
    lines = [{"id": number, "body": f"note {number}"} for number in range(2500)]
    jsonl = "".join(json.dumps(line) + "\n" for line in [*lines, {"id": -1, "body": None}]).encode()
    arguments = ["prepare", "wikitext", "--dataset", "someone/notes", "--name", "notes"]
    with HubServer("someone/notes", {"data/train.jsonl": jsonl}) as hub:
        whole = [*arguments, "--text_column", "body", "--splits", "train", "--min_length", 1]
        finished = run(whole, tmp_path, HF_ENDPOINT=hub.endpoint)
        assert finished.returncode == 0, finished.stderr
        assert read(tmp_path / "notes_train.jsonl") == [line["body"] for line in lines]

        wrong_split = run(arguments, tmp_path, HF_ENDPOINT=hub.endpoint)
        assert_one_line_error(wrong_split, "no split 'validation'", "found train", "--splits")
        wrong_column = run([*arguments, "--splits", "train", "--overwrite"], tmp_path, HF_ENDPOINT=hub.endpoint)
        assert_one_line_error(wrong_column, "no text column 'text'", "body (string)", "--text_column")
        assert len(read(tmp_path / "notes_train.jsonl")) == len(lines)  # the failed --overwrite cost nothing


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--dataset", "someone/else"], ["someone/else", "doesn't exist on the Hub"]),
        (["--config", "wikitext-104"], ["wikitext-104", f"Available: ['{corpora.WIKITEXT_CONFIG}']"]),
        (["--min_length", "5000"], ["wikitext_train.jsonl: not written", "--min_length"]),
    ],
)
def test_what_the_hub_does_not_have(tmp_path, arguments, parts):
    with HubServer(corpora.WIKITEXT, wikitext_repository()) as hub:
        finished = run(["prepare", "wikitext", *arguments], tmp_path, HF_ENDPOINT=hub.endpoint)
    assert_one_line_error(finished, *parts)
    assert not list(tmp_path.glob("wikitext*"))


def test_no_network_is_one_clear_error_and_no_file(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        finished = run(["prepare", "wikitext", "--output_dir", "data"], tmp_path, HF_ENDPOINT=endpoint)
    assert_one_line_error(finished, "Hub cannot be reached", endpoint, "refused", "t5xpg prepare python-docs")
    assert "Retrying" not in finished.stderr  # the client's own retries take 23 seconds to say the same
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_a_misspelt_split_is_answered_with_the_nearest():
    said = r"^notes: no split 'trian'; found train test\..*; did you mean train\?$"
    with pytest.raises(corpora.CorpusError, match=said):
        corpora._check_split({"train": None, "test": None}, "notes", "trian", "text")


# --- files appear whole or not at all


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_while_writing_leaves_what_was_there(tmp_path, sent):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "before"}\n')
    script = (
        "import itertools, signal, sys; from t5xpg.data import corpora; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell's background job ignores it
        "corpora.write_jsonl(sys.argv[1], itertools.repeat({'text': 'endless'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    process = subprocess.Popen([sys.executable, "-c", script, path], env=environment, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if any(part.stat().st_size > 100_000 for part in tmp_path.glob("corpus.jsonl.*")):
                break
            time.sleep(0.05)
        else:
            pytest.fail("the writer never began")
    finally:
        process.send_signal(sent)
        process.wait()
    assert path.read_text() == '{"text": "before"}\n'
    assert list(tmp_path.glob("*.jsonl")) == [path]
    assert sent == signal.SIGKILL or list(tmp_path.iterdir()) == [path]  # Ctrl-C leaves nothing behind


def test_write_jsonl_takes_rows_one_at_a_time_and_refuses_none(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    with pytest.raises(ZeroDivisionError):
        corpora.write_jsonl(path, ({"text": str(1 // (3 - number))} for number in itertools.count()))
    with pytest.raises(corpora.CorpusError, match="no row"):
        corpora.write_jsonl(path, [])
    assert list(path.parent.iterdir()) == []
    assert corpora.write_jsonl(path, [{"text": "a\nb"}, {"text": "ü", "id": 1}]) == 2
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"text": "a\nb"}, {"text": "ü", "id": 1}]


def test_a_full_disk_is_named_and_what_was_there_stays(tmp_path):
    def full():
        yield {"text": "one"}
        raise OSError(errno.ENOSPC, "No space left on device")

    corpora.write_jsonl(path := tmp_path / "a_train.jsonl", [{"text": "before"}])
    said = f"^{re.escape(str(tmp_path))}: its disk is full \\(No space left on device\\)\\. What was there stays"
    with pytest.raises(corpora.CorpusError, match=said):
        corpora.write_jsonl(path, full())
    with pytest.raises(corpora.CorpusError, match=said):
        corpora.write_pair({"train": path}, ((False, str(row)) for row in full()))
    assert read(path) == ["before"] and os.listdir(tmp_path) == [path.name]


# --- text files


def test_bad_input_on_the_command_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xe9t\xe9")
    finished = run(["prepare", "text", "a.txt"], tmp_path)
    assert_one_line_error(finished, "a.txt:1: not UTF-8, byte 0xe9 at position 1")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


# --- Python's own docs


def test_python_docs_are_pythons_docs(tmp_path):
    paths = python_sources.prepare_python_docs(tmp_path)
    train, validation = read(paths["train"]), read(paths["validation"])
    rows = train + validation
    assert sum(map(len, rows)) > 1_000_000
    assert len(set(rows)) == len(rows)
    assert min(map(len, rows)) > 100
    share = sum(map(len, validation)) / sum(map(len, rows))
    assert 0.09 < share <= 0.1

    for documented in (json.loads, json, textwrap.TextWrapper, argparse.ArgumentParser, itertools, subprocess.Popen):
        doc = inspect.cleandoc(documented.__doc__)
        assert (doc in rows) == (documented is not itertools)  # itertools is C, no source to read
    topics = pydoc_data.topics.topics
    assert topics["compound"].strip() in rows
    assert topics["with"].strip() not in rows  # "compound" quotes all of it

    again = run(["prepare", "python-docs", "--name", "again"], tmp_path)  # another process, with other string hashes
    assert again.returncode == 0, again.stderr
    for split, path in paths.items():
        assert (tmp_path / f"again_{split}.jsonl").read_bytes() == path.read_bytes()
        assert re.search(rf"again_{split}.jsonl: [\d,]+ rows, [0-2]\.\d\d MB", again.stdout)
    assert f"in all: {len(rows):,} rows of {sum(map(len, rows)):,} characters; the longest has" in again.stdout
    assert re.search(r"\ncharacters: Latin 7\d\.\d%.*, digits, spaces and signs 2\d\.\d%\n", again.stdout)


def test_python_docs_of_a_small_library(tmp_path, monkeypatch):
    quoted = "Title\n*****\n\nA part\nof it.\n"
    whole = "Whole\n*****\n\nBefore.\n\nTitle\n=====\n\nA part\nof it.\n\nAfter.\n"
    sources = {
        "pydoc_data/topics.py": f"topics = {{'part': {quoted!r}, 'whole': {whole!r}}}",
        "abc.py": "raise RuntimeError('imported')\ndef f():\n    'repeated'\n    async def g():\n        'inner'\n",
        "json/__init__.py": "'First.\\n\\n    Second.\\n    '\nclass C:\n    'repeated'\n    def m(self): 'method'\n",
        "json/deep/er.py": "'deep'\n'not a docstring'\n",
        "heapq.py": f"'{'heap ' * 9}.'",
        "json/tests/test_it.py": "'tested'",
        "site-packages/other.py": "'other'",
    }
    for path, source in sources.items():
        (tmp_path / "lib" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / path).write_text(source)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "lib"))

    documents = [{whole.strip()}, {"repeated", "inner"}, {"First.\n\nSecond.", "method", "deep"}, {"heap " * 9 + "."}]
    ever_held_out = set()
    for seed in range(20):
        options = {"min_length": 1, "validation_fraction": 0.5, "seed": seed, "overwrite": True}
        paths = python_sources.prepare_python_docs(tmp_path / "out", **options)
        train, validation = read(paths["train"]), read(paths["validation"])
        assert sorted(train + validation) == sorted(set.union(*documents))
        assert all(document <= set(train) or document <= set(validation) for document in documents)
        assert sum(map(len, validation)) <= sum(map(len, train))  # the fraction is an upper bound
        ever_held_out.add(frozenset(validation))
    assert len(ever_held_out) > 1

    (tmp_path / "lib" / "pydoc_data" / "topics.py").unlink()
    with pytest.raises(corpora.CorpusError, match="came without its library's sources"):
        python_sources.prepare_python_docs(tmp_path / "none")


def test_docstrings_of_packages_are_added_without_importing_them(tmp_path, monkeypatch, capsys):
    for path, source in {
        "some/__init__.py": "'Some.'\nraise RuntimeError('imported')\n",
        "some/deep/one.py": "def f():\n    'One.'\n",
        "some/template.py": "{{ name }} = this is no Python\n",
        "some/tests/test_it.py": "'tested'",
        "single.py": "'Single.'",
    }.items():
        (tmp_path / "site" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / path).write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "site")
    options = {"min_length": 1, "validation_fraction": 0}
    plain = set(read(python_sources.prepare_python_docs(tmp_path / "plain", **options)["train"]))
    more = read(python_sources.prepare_python_docs(tmp_path / "more", packages=["some", "single"], **options)["train"])
    assert len(more) == len(set(more)) and set(more) - plain == {"Some.", "One.", "Single."}
    assert re.search(r"template\.py: left out, this Python cannot read it \(.+\)", "".join(capsys.readouterr()))
    (tmp_path / "site" / "null.py").write_text("'\0'")
    assert read(python_sources.prepare_python_docs(tmp_path / "null", packages=["null"], **options)["train"])
    with pytest.raises(corpora.CorpusError, match="--packages sys: it came without Python sources"):
        python_sources.prepare_python_docs(tmp_path / "none", packages=["sys"])
    with pytest.raises(corpora.CorpusError, match="--packages numpyy: nothing of that name is installed"):
        python_sources.prepare_python_docs(tmp_path / "none", packages=["numpyy"])


def test_python_code_is_pythons_functions_split_by_module(tmp_path, monkeypatch):
    method = "    @cached\n    def m(self):\n        def inner(): pass\n        return '\f'\n"
    sources = {
        "pydoc_data/topics.py": "topics = {}",
        "abc.py": f"raise RuntimeError('imported')\nclass C:\n{method}\nif True:\n    async def g(): pass\n",
        "json/__init__.py": "def dumps(): pass\n",
        "json/tests/test_it.py": "def tested(): pass\n",
        "heapq.py": "# -*- coding: latin-1 -*-\ndef heap(): return '\xe4'\ndef again(): pass\n",
        "types.py": "def again(): pass\n",
    }
    for path, source in sources.items():
        (tmp_path / "lib" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / path).write_text(source, encoding="latin-1")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "lib"))
    paths = python_sources.prepare_python_code(tmp_path / "out", min_length=1, validation_fraction=0.5)
    train, validation = (read(paths[split]) for split in ("train", "validation"))
    modules = [
        {"def m(self):\n    def inner(): pass\n    return '\f'", "async def g(): pass"},
        {"def dumps(): pass"},
        {"def heap(): return '\xe4'", "def again(): pass"},
    ]
    assert sorted(train + validation) == sorted(set.union(*modules))
    assert all(module <= set(train) or module <= set(validation) for module in modules)


# --- the command line


def test_the_verb_is_light_and_hands_its_flags_on(tmp_path):
    script = "import sys, t5xpg.cli.prepare; print([m for m in ('tqdm', 'numpy', 'datasets') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    loaded = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert loaded.stdout == "[]\n"

    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": str(n)}) + "\n" for n in range(100)))
    parser = argparse.ArgumentParser()
    prepare.register(parser.add_subparsers())
    flags = ["--text_key", "body", "--min_length", "2", "--validation_fraction", "0", "--name", "n", "--output_dir"]
    args = parser.parse_args(["prepare", "text", str(tmp_path / "a.jsonl"), *flags, str(tmp_path)])
    assert args.run(args) == 0
    assert read(tmp_path / "n_train.jsonl") == [str(number) for number in range(10, 100)]
