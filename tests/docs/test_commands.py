"""Every command and every block of Python and gin in README.md and docs/, run from the text itself, page by page.

Training is made short and models tiny (helpers/doc_worlds.py); a command that an earlier page has is only read again.
README.md, docs/start/ and docs/reference/ are run each time; all pages, which takes minutes, with T5XPG_ALL_PAGES=1.
What cannot run here is in NOT_RUN with its reason; of it, all that t5xpg, gin or a script would read is read.
"""

import contextlib
import io
import os
import re
import shlex

import doc_pages
import doc_worlds
import pytest
from command import run_t5xpg
from doc_pages import ROOT

from t5xpg import name_value, recipes
from t5xpg.cli import main as command_line

ALWAYS = ("README.md", "docs/start/", "docs/reference/")
NAMES = ("",) if os.environ.get("T5XPG_ALL_PAGES") else ALWAYS  # what the pages' names begin with
PAGES = [page for page in doc_pages.pages() if page.blocks() and page.name.startswith(NAMES)]
PROGRAMS = ("train", "eval", "infer", "check", "inspect", "cache")  # that read a recipe
READERS = {"COLUMNS": "100", "JAX_NUMPY_DTYPE_PROMOTION": "standard", "JAX_NUMPY_RANK_PROMOTION": "allow"}
NOT_RUN = {  # {what a command has: why it is not run}
    r"^(pip|python3 -m venv|cd) ": "installs from the network, and in the reader's folder",
    r"^(make|pre-commit) ": "is how these tests are run themselves",
    r"(gs|s3|hf|https)://": "needs somebody's bucket; tests/faults and tests/data run on emulated ones",
    r" --on ": "compiles for minutes, for a compiler that is not installed; tests/inspection has it",
    r"--multiprocess": "needs several machines; tests/faults/test_processes.py starts several",
    r"^t5xpg prepare wikitext": "fetches from the network; tests/data/test_corpora.py has a hub of its own",
    r"^t5xpg demo": "takes minutes",
    r"--push|^hf download": "needs somebody else's machine",
    r"^python -m t5x\.": "needs google-research/t5x",
    r"^python -m t5xpg\.t5x": "is run by tests/test_t5x_finder.py",
    r"^python benchmarks/": "takes minutes, and a quiet machine",
    r"(nano|norwegian|wikitext_t5_flax)\.gin": "trains as another page's recipe does, at its own size",
    r"MODEL_DIR=.{0,2}runs/(wider|t5x_flags|flags)": "trains as the command before it does",
    r"^(tensorboard|docker|gcloud|kubectl|sbatch|mpirun) ": "is not ours",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in page.given():
        doc_worlds.GIVEN[name](tmp_path)
    for block in page.blocks():
        if block.note[0] == "file":
            (tmp_path / block.note[1]).write_text(block.text, encoding="utf-8")
    printed = ""
    for block in page.blocks():
        where, name = f"{page.name}:{block.line}", block.note[0]
        if name == "file" or block.text.startswith("#!"):  # tests/cli/test_clusters_page.py reads the scripts
            continue
        if block.kind == "bash":
            for command in doc_pages.commands(block):
                printed = run_or_read(command, where, tmp_path)
        elif block.kind == "python":
            (tmp_path / "block.py").write_text(block.text, encoding="utf-8")
            printed = finished(where, tmp_path, "python", "block.py") if is_first(block.text, page) else ""
        elif block.kind == "gin":
            read_gin(block, where, tmp_path)
        elif name == "output":
            lines = [line.rstrip() for line in printed.splitlines()]
            for line in filter(lambda line: line != "…", block.text.splitlines()):
                assert line in lines, f"{where}: {line!r} is not printed, but\n{printed}"
        else:
            assert block.kind in ("text", "yaml", "dockerfile"), f"{where}: what kind of block is {block.kind!r}?"


def run_or_read(command: str, where: str, folder) -> str:
    """Runs a command, or reads it where that is all that can be done; returns what it printed."""
    page = where.partition(":")[0]
    source, _, piped = command.rpartition(" | ")
    words = shlex.split(piped)
    if any(re.search(pattern, command) for pattern in NOT_RUN) or not is_first(command, page):
        read(words, where)
        return ""
    assert words[0] == "t5xpg", f"{where}: {command}: neither t5xpg's nor in NOT_RUN"
    settings = {"stdin": folder / shlex.split(source)[1]} if source else {}
    return finished(f"{where}: {command}", folder, *doc_worlds.small(words[1:], folder), **settings)


def finished(where: str, folder, *words: str, **settings) -> str:
    done = run_t5xpg(*words, folder=folder, **READERS, **settings)
    assert done.returncode == 0, f"{where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def is_first(text: str, page: str) -> bool:
    """Whether no page before this one has this command or this block; cheap ones are run wherever they are."""
    if text.startswith(("t5xpg prepare", "t5xpg recipes")):
        return True
    name = getattr(page, "name", page)
    before = [other for other in PAGES if other.name != name][: [each.name for each in PAGES].index(name)]
    return not any(text in known for other in before for known in texts_of(other))


def texts_of(page: doc_pages.Page) -> list[list[str]]:
    return [doc_pages.commands(block) if block.kind == "bash" else [block.text] for block in page.blocks()]


def read(words: list[str], where: str) -> None:
    """Reads a command as far as it is ours: its verb and flags, its recipe and bindings, a script's flags."""
    if words[0] == "t5xpg":
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                args = command_line.parse(words[1:])
            except SystemExit:
                raise AssertionError(f"{where}: {said.getvalue()}") from None
        if words[1] in PROGRAMS and any(word.endswith(".gin") for word in words):
            flags = {"--on", "--dump", "--html", "--output_cache_dir"}
            given = getattr(args, "arguments", None) or getattr(args, "what", None) or words[2:]
            given = [word for i, word in enumerate(given) if not {word, given[i - 1]} & flags]
            with contextlib.redirect_stderr(io.StringIO()) as said:
                recipes.read([word for word in given if word.partition("=")[0] not in name_value.OWN_FLAGS])
            assert "no use for" not in said.getvalue(), f"{where}: {said.getvalue()}"
    elif words[:1] == ["python"] and words[1].endswith(".py"):
        text = (ROOT / words[1]).read_text(encoding="utf-8")
        for flag in (word.partition("=")[0] for word in words[2:] if word.startswith("--")):
            assert f'"{flag}"' in text, f"{where}: {words[1]} has no {flag}"


def read_gin(block: doc_pages.Block, where: str, folder) -> None:
    """Reads gin after the arguments of its comment `over`, and resolves what it binds."""
    assert block.note[0] == "over", f"{where}: say after which recipe gin reads this, or which file it is"
    (folder / "block.gin").write_text(block.text, encoding="utf-8")
    recipes.read([*shlex.split(block.note[1]), "block.gin"]).settings()
