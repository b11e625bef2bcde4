"""Shell completion, by bash itself: what a TAB offers."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import TESTS

from t5xpg.cli import completion
from t5xpg.cli.main import main

LINES = {  # {a line before the TAB: (what is offered, what is not)}
    "t5xpg rec": ({"recipes "}, set()),
    "t5xpg recipes ": ({"show", "copy", "diff"}, {"--help"}),
    "t5xpg recipes show configs/squad_b": ({"configs/squad_byt5_tiny.gin "}, set()),
    "t5xpg train con": ({"configs/byt5_tiny.gin", "configs/roberta_base.gin"}, {"corpus_train.jsonl"}),
    "t5xpg train mi": ({"mine.gin "}, set()),
    "t5xpg train configs/byt5_tiny.gin TRAIN_": ({"TRAIN_STEPS=", "TRAIN_STEPS_RELATIVE="}, {"FILES="}),
    "t5xpg train configs/byt5_tiny.gin VOCABULARY_F": (set(), {"VOCABULARY_FILE="}),
    "t5xpg train mine.gin LIGHT": ({"LIGHTHOUSES="}, set()),
    "t5xpg train broken.gin TRAIN_": (set(), {"TRAIN_STEPS="}),
    "t5xpg train --gin_file=mi": ({"mine.gin "}, set()),
    "t5xpg train --gin_file=mine.gin --gin.LI": ({"--gin.LIGHTHOUSES="}, set()),
    "t5xpg train --al": ({"--allow_changes "}, set()),
    "t5xpg train configs/byt5_tiny.gin FILES=corp": (
        {"corpus_train.jsonl", "corpus_validation.jsonl", "corpus_\\{split\\}.jsonl"},
        {"mine.gin"},
    ),
    "t5xpg train configs/byt5_tiny.gin MODEL_DIR=ru": ({"runs/"}, set()),
    "t5xpg train configs/byt5_tiny.gin USE_CACHED_TASKS=": ({"True", "False"}, set()),
    "t5xpg check configs/byt5_tiny.gin --o": ({"--on "}, set()),
    "t5xpg inspect configs/byt5_tiny.gin BATCH": ({"BATCH_SIZE="}, set()),
    "t5xpg inspect configs/byt5_tiny.gin --h": ({"--help", "--html"}, {"--gin_file="}),
    "t5xpg predict runs/a --fi": ({"--file "}, set()),
    "t5xpg predict ru": ({"runs/"}, set()),
    "t5xpg completion z": ({"zsh "}, set()),
}
ASK = """
eval "$(t5xpg completion bash)"
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMPREPLY=()
    _python_argcomplete t5xpg
    (IFS='|'; printf '%s\\n' "${COMPREPLY[*]}")
done
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """(A working directory with a corpus, runs and recipes, the variables with which t5xpg is a command there)."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "bin").mkdir()
    (folder / "bin" / "t5xpg").write_text(f'#!/bin/sh\nexec {sys.executable} -m t5xpg "$@"\n')
    (folder / "bin" / "t5xpg").chmod(0o755)
    (folder / "runs" / "a").mkdir(parents=True)
    for split in ("train", "validation"):
        (folder / f"corpus_{split}.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    (folder / "mine.gin").write_text("LIGHTHOUSES = 3\n")
    (folder / "broken.gin").write_text("TRAIN_STEPS = = 3\n")
    variables = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(TESTS.parent)}
    return folder, variables


@pytest.fixture(scope="module")
def offered(environment) -> dict[str, list[str]]:
    """{a line: what bash's completion function replies}, all asked of one bash."""
    folder, variables = environment
    asked = "".join(f"{line}\n" for line in LINES)
    done = subprocess.run(["bash", "-c", ASK], input=asked, text=True, capture_output=True, cwd=folder, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(zip(LINES, (reply.split("|") for reply in done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_what_may_follow(line, offered):
    expected, others = LINES[line]
    assert expected <= set(offered[line]) and not others & set(offered[line])
    if not expected:
        assert offered[line] == [""]


def test_a_tab_in_an_interactive_bash(environment):
    """Readline itself calls it: what has been completed runs."""
    folder, variables = environment
    keys = 'eval "$(t5xpg completion bash)"\nt5xpg reci\tsho\tmine\t\nexit\n'
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-i"], input=keys, text=True, capture_output=True, cwd=folder, env=variables
    )
    assert re.search(r"^LIGHTHOUSES +3", done.stdout, re.MULTILINE), done.stderr


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_gets_its_code(shell, capsys):
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "_ARGCOMPLETE" in code and "t5xpg" in code


def test_it_loads_nothing_heavy(environment):
    folder, variables = environment
    line = "t5xpg train configs/byt5_tiny.gin TRAIN_"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    code = (
        "import sys, argcomplete\n"
        "argcomplete.autocomplete = lambda parser, **_: print(\n"
        "    completion.recipe_arguments('TR', parser), {'tensorflow', 'jax', 'seqio', 'numpy'} & set(sys.modules))\n"
        "from t5xpg.cli import completion, main\n"
        "completion.answer(main.make_parser())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, cwd=folder, env=variables | asked, check=True
    )
    assert "'TRAIN_STEPS='" in done.stdout and done.stdout.rstrip().endswith("set()")


def test_the_page_names_the_same_lines():
    page = (TESTS.parent / "docs" / "completion.md").read_text(encoding="utf-8").replace("\\|", "|")
    assert re.findall(r"^\| (\w+) \| `(.*)` \| (?=`)", page, re.MULTILINE) == [
        (shell, line) for shell, (_, line) in completion.SHELLS.items()
    ]
