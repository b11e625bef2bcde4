"""Recipes read without running them; and what `import` finds where the commands run."""

import importlib.util
import re
import subprocess
import sys

import gin
import pytest
from conftest import TESTS

import __main__
from t5xpg import recipes
from t5xpg.cli import demo
from t5xpg.cli.main import main


@pytest.fixture(autouse=True)
def forget_bindings():
    yield
    gin.clear_config()


def test_a_recipe_is_read_with_what_the_command_line_adds(corpus):
    recipe = recipes.read(["tests/micro.gin", f"FILES={corpus}", "train_script.train.eval_period=7", "BATCH_SIZE=3"])
    assert (recipe.program, recipe.function.__name__) == ("train", "train")
    assert recipe.not_given() == ["MODEL_DIR"]
    settings = recipe.settings()
    assert (settings["eval_period"], settings["train_dataset_cfg"].batch_size) == (7, 3)
    assert recipe.dataset_config().mixture_or_task_name == "micro"
    assert settings["model"].module.config.emb_dim == 32


@pytest.mark.parametrize(("recipe", "program"), [("byt5_tiny_eval", "eval"), ("byt5_tiny_infer", "infer")])
def test_each_program_is_told_by_what_its_recipe_binds(recipe, program, pairs):
    found = recipes.read([f"configs/{recipe}.gin", f"FILES={pairs}"])
    assert found.program == program
    assert "CHECKPOINT_PATH" in found.not_given()
    assert found.dataset_config().split == "validation"


def test_all_values_that_are_missing_are_asked_for_at_once():
    with pytest.raises(ValueError) as refused:
        recipes.read(["configs/t5_1_1_small.gin"])
    assert str(refused.value) == (
        "FILES, VOCABULARY_FILE are not set; add FILES=VALUE VOCABULARY_FILE=VALUE to the command line. "
        "`t5xpg tokenizer train` makes a VOCABULARY_FILE."
    )


def test_the_users_own_script_is_left_alone(monkeypatch, corpus):
    monkeypatch.setattr(__main__, "train", "mine", raising=False)
    main_module = sys.modules["__main__"]
    recipes.read(["tests/micro.gin", f"FILES={corpus}"])
    assert sys.modules["__main__"] is main_module and __main__.train == "mine"
    with pytest.raises(ImportError):
        recipes.read_text("import no_such_module")
    assert sys.modules["__main__"] is main_module


def test_a_runs_own_configuration(micro_run, tmp_path):
    recipe = recipes.read_run(str(micro_run[0]))
    assert recipe.settings()["total_steps"] == 20
    with pytest.raises(ValueError, match="config.gin is missing"):
        recipes.read_run(str(tmp_path))
    (tmp_path / "config.gin").write_text(
        "from __gin__ import dynamic_registration\nimport __main__ as infer_script\ninfer_script.infer.mode = 'score'\n"
    )
    with pytest.raises(ValueError, match="is of t5xpg infer"):
        recipes.read_run(str(tmp_path))


def test_what_no_program_takes_is_refused(corpus):
    with pytest.raises(ValueError, match="binds no program"):
        recipes.read_text("X = 3")
    with pytest.raises(ValueError, match="--wrong is not a flag"):
        recipes.read(["tests/micro.gin", f"FILES={corpus}", "--wrong"])


# ---- How the command starts ----


START = """
import os, sys
def execv(program, words):
    print([program, *words[1:]], os.environ["GLIBC_TUNABLES"])
    sys.exit()
os.execv = execv
from t5xpg.cli.main import main
sys.exit(main())
"""


def start(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=TESTS.parent, env={"PATH": "", **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked of glibc")
@pytest.mark.parametrize("verb", ["train", "demo"])
def test_training_starts_anew_with_huge_pages_and_pythons_own_arguments(verb):
    words = ["-X", "utf8", "-W", "ignore", "-c", START, verb, "--help"]
    assert start(*words).strip() == f"{[sys.executable, *words]} glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(("verb", "environment"), [("train", {"GLIBC_TUNABLES": ""}), ("check", {})])
def test_nothing_starts_anew_without_need(verb, environment):
    assert start("-c", START, verb, "--help", **environment).startswith("usage: ")


def test_files_beside_the_corpus_do_not_stand_for_pythons_own(tmp_path):
    for name in ("html", "json", "random"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    (tmp_path / "my_tasks.py").write_text("print('my_tasks is found')\n")
    done = subprocess.run(
        [sys.executable, "-m", "t5xpg", "tasks", "--module", "my_tasks"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(TESTS.parent), "T5XPG_ENGINE": "embedded"},
    )
    assert done.returncode == 0, done.stderr
    assert "my_tasks is found" in done.stdout


def test_the_working_directory_comes_last(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/somewhere"])
    for _ in range(2):
        assert main(["recipes"]) == 0
    assert sys.path == ["/somewhere", ""]


# ---- The demo ----


SMALL_DEMO = """
import functools
from t5xpg.cli import demo, main
demo.PACKAGES, demo.SAMPLE_BYTES = demo.PACKAGES[3:4], 500_000
demo.show_fillings = functools.partial(demo.show_fillings, counted=64)
main.main()
"""


def test_the_demo_prepares_trains_and_shows_what_was_learned(tmp_path):
    words = [sys.executable, "-c", SMALL_DEMO, "demo", "--dir", str(tmp_path), "--steps", "3"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stderr
    headings = [line[:2] for line in done.stdout.splitlines() if line[:2] in ("1.", "2.", "3.", "4.", "5.")]
    assert headings == ["1.", "2.", "3.", "4.", "5."]
    for name in ("text", "trained", "untrained"):
        assert len(re.findall(rf"^   {name:10} .*\[.+\]", done.stdout, re.MULTILINE)) == 4
    assert re.search(r"\d+ of them words( +\d+%){3}\n", done.stdout)
    assert (tmp_path / "run" / "checkpoint_3").is_dir() and (tmp_path / "report.html").is_file()


def test_the_demos_packages_are_there():
    assert len(demo.PACKAGES) == 5 and all(map(importlib.util.find_spec, demo.PACKAGES))
