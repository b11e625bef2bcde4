"""The README's commands for a trained model, as they stand there."""

import io
import json
import re
import shlex
import sys

import pytest
from conftest import TESTS
from made_runs import make_run

from t5xpg.cli.main import main

COMMANDS = re.findall(
    r"^(?:cat (\S+) \| )?t5xpg ((?:predict|score|export ct2|export savedmodel) .*)$",
    (TESTS.parent / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
QUESTIONS = ["how many words are these", "on clear days"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, corpus):
    """A working directory with what the README's commands read."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "runs").mkdir()
    make_run(folder / "runs" / "pairs", "tests/micro.gin", f"FILES={corpus}")
    (folder / "questions.txt").write_text("".join(text + "\n" for text in QUESTIONS))
    pairs = "".join(json.dumps({"inputs": text, "targets": "yes"}) + "\n" for text in QUESTIONS)
    (folder / "pairs_validation.jsonl").write_text(pairs)
    return folder


def test_all_are_found():
    assert len(COMMANDS) == 7


@pytest.mark.parametrize(("piped", "command"), COMMANDS, ids=lambda text: text[:60])
def test_it_runs(piped, command, folder, monkeypatch, capsys):
    from t5xpg.hf import sample_text

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sample_text, "python_documentation", lambda: QUESTIONS)
    if command.startswith("export ct2"):
        pytest.importorskip("ctranslate2")
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / piped).read_bytes())))
    assert main(shlex.split(command)) == 0
    lines = capsys.readouterr().out.splitlines()
    if command.startswith("export"):
        assert (folder / shlex.split(command)[3] / "README.md").is_file()
    elif "--output" in command:
        assert len((folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    else:
        assert (
            len(lines)
            == {"": 1, "--file pairs": 2, "--samples 3": 6}[
                next((flag for flag in ("--samples 3", "--file pairs") if flag in command), "")
            ]
        )
