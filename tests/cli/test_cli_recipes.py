"""`t5xpg recipes` and `t5xpg check`."""

import re
import subprocess
import sys
from pathlib import Path

import gin
import pytest
from command import run_t5xpg
from conftest import TESTS

from t5xpg.cli import programs
from t5xpg.cli.main import main

CONFIGS = TESTS.parent / "configs"
RECIPES = [f"configs/{path.name}" for path in sorted(CONFIGS.glob("*.gin"))]
UNITS = {  # what a line of explanation has a word of, for names that end so
    "STEPS": "steps|batches",
    "PERIOD": "steps",
    "LENGTHS": "tokens",
    "SIZE": "rows",
    "EXAMPLES": "examples",
    "DIR": "folder or URL",
    "PATH": "folder or URL",
    "_FILE": "path or URL",
    "RATE": "share",
}


def shown(recipe, capsys) -> dict[str, list[str]]:
    """{name: [value, explanation]} as `t5xpg recipes show` prints them, in its order."""
    assert main(["recipes", "show", str(recipe)]) == 0
    *lines, how, next_thing, command = capsys.readouterr().out.splitlines()
    rows = {name: rest for name, *rest in (re.split("  +", line) for line in lines)}
    required = "".join(f" {name}=…" for name, rest in rows.items() if rest[0] == "(required)")
    assert "NAME=VALUE here" in how and "--gin.NAME=VALUE, with text in quotes, on T5X" in how
    assert (next_thing, command) == ("go on with:", f"  t5xpg check {recipe}{required}")
    return rows


def test_lists_every_recipe_in_a_line_and_says_what_is_next(capsys):
    assert main(["recipes"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == RECIPES
    assert all(len(line.split()) > 4 and line.endswith(".") for line in lines)
    assert "t5xpg recipes show RECIPE" in last and "t5xpg recipes copy RECIPE mine.gin" in last


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_name_of_every_recipe_is_explained_with_its_unit(recipe, capsys):
    macros = shown(recipe, capsys)
    assert {"MODEL", "VOCABULARY", "FILES"} <= macros.keys() or "wikitext" in recipe
    for name, (_value, note) in macros.items():
        assert len(note.split()) >= 3, name
        for ending, unit in UNITS.items():
            assert not name.endswith(ending) or re.search(unit, note), (name, note)


@pytest.mark.parametrize("recipe", RECIPES)
def test_shows_first_what_the_recipes_own_command_gives(recipe, capsys):
    macros = shown(recipe, capsys)
    usage = (TESTS.parent / recipe).read_text().partition("\nfrom __gin__")[0]
    given = re.findall(r" ([A-Z_]+)=", usage)
    assert list(macros)[: len(given)] == sorted(given)
    assert [value for value, _ in macros.values()].count("(required)") == len(given)


def test_shows_a_recipe_of_ones_own(tmp_path, capsys):
    lines = ["include 'configs/byt5_tiny.gin'", "# Two hours of it,", "# or so.", "HOURS = '# not a comment'"]
    lines += ["BATCH_SIZE = 8  # rows that fit", "TRAIN_STEPS = %HOURS", "NAME = %MISSING"]
    (tmp_path / "mine.gin").write_text("\n".join(lines) + "\n")
    macros = shown(tmp_path / "mine.gin", capsys)
    assert macros["HOURS"] == ["'# not a comment'", "Two hours of it, or so."]
    assert macros["BATCH_SIZE"] == ["8", "rows that fit"]
    assert macros["TRAIN_STEPS"][0] == "%HOURS" and "steps" in macros["TRAIN_STEPS"][1]
    assert next(iter(macros)) == "FILES" and macros["FILES"][0] == "(required)"
    assert macros["MISSING"][0] == "(required)" and "bound nowhere" in macros["MISSING"][1]


def test_copies_a_recipe_and_overwrites_nothing(tmp_path, capsys):
    mine = tmp_path / "mine.gin"
    assert main(["recipes", "copy", "configs/byt5_tiny.gin", str(mine)]) == 0
    assert mine.read_text() == (CONFIGS / "byt5_tiny.gin").read_text()
    mine.write_text("precious")
    assert main(["recipes", "copy", "configs/byt5_tiny.gin", str(mine)]) == 1
    assert mine.read_text() == "precious" and "exists already" in capsys.readouterr().err


def test_a_recipe_in_the_place_of_an_action_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["recipes", "configs/byt5_tiny.gin", str(tmp_path / "mine.gin")])
    assert "show" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_compares_two_recipes_over_their_parts(tmp_path, capsys):
    lines = ["from __gin__ import dynamic_registration", "import __main__ as my_script", "import seqio"]
    lines += ["include 'configs/byt5_tiny.gin'", "BATCH_SIZE = 32", "EXTRA = None"]
    lines += ["my_script.train.stats_period = 7", "my_script.train.eval_steps = 10", "seqio.Evaluator.num_examples = 5"]
    (tmp_path / "mine.gin").write_text("\n".join(lines) + "\n")
    two = [f"{tmp_path}/mine.gin", "configs/byt5_tiny.gin"]
    assert main(["recipes", "diff", *two]) == 0
    heading, *rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert heading == ["", *two]
    assert rows == [
        ["BATCH_SIZE", "32", "16"],
        ["EXTRA", "None", "(not bound)"],
        ["train_script.train.stats_period", "7", "50"],
        ["seqio.Evaluator.num_examples", "5", "(not bound)"],
    ]
    assert main(["recipes", "diff", "configs/byt5_tiny.gin", "configs/byt5_tiny.gin"]) == 0
    assert "bind the same values" in capsys.readouterr().out


def test_tells_modules_of_one_name_apart(capsys):
    assert main(["recipes", "diff", "configs/t5_1_1_tiny.gin", "configs/t5_scan_tiny.gin"]) == 0
    rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert ["t5x.examples.t5.network.T5Config.emb_dim", "128", "(not bound)"] in rows
    assert ["t5x.examples.scalable_t5.network.T5Config.emb_dim", "(not bound)", "128"] in rows
    assert len({name for name, *_ in rows}) == len(rows)


@pytest.mark.parametrize("verb", [["show"], ["copy", "mine.gin"], ["diff", "configs/byt5_tiny.gin"]])
@pytest.mark.parametrize("recipe", ["byt5_tny", "configs/byt5_tiny", "byt5_tiny.gin"])
def test_an_unknown_recipe_names_the_nearest(verb, recipe, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", verb[0], recipe, *verb[1:]]) == 1
    assert f"no recipe {recipe}; did you mean configs/byt5_tiny.gin? `t5xpg recipes` lists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_like_no_recipe_is_told_how_to_list_them(capsys):
    assert main(["recipes", "show", "qqq"]) == 1
    assert "There is no recipe qqq; `t5xpg recipes` lists those that ship." in capsys.readouterr().err


def test_recipes_are_read_without_tensorflow_or_jax():
    code = (
        "import sys\nfrom t5xpg.cli.main import main\n"
        "main(['recipes', 'show', 'configs/byt5_tiny.gin'])\n"
        "main(['recipes', 'diff', 'configs/byt5_tiny.gin', 'configs/t5_scan_tiny.gin'])\n"
        "print(sorted({'tensorflow', 'jax', 'seqio', 't5x', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("recipe", ["tests/micro.gin", "configs/byt5_tiny_infer.gin"])
def test_check_says_what_a_run_will_be(recipe, corpus, pairs):
    files = pairs if "infer" in recipe else corpus
    done = run_t5xpg("check", recipe, f"FILES={files}")
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {"batch", "model", "step", "memory", "ready"} <= facts.keys()
    assert "49,504 parameters" in facts["model"] or "infer" in recipe
    assert "free on the cpu device" in facts["memory"]
    assert facts["ready"].endswith("CHECKPOINT_PATH=…" if "infer" in recipe else "MODEL_DIR=…")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tests/micro.gin", "FILES={corpus}", "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 5}"], "targets"),
        (["tests/micro.gin", "FILES={corpus}", "network.T5Config.emb_dims=3"], "emb_dims"),
        (["configs/byt5_tiny_infer.gin", "FILES={corpus}", "CHECKPOINT_PATH=nowhere"], "no checkpoint nowhere"),
        (["configs/parts/pairs.gin", "FILES={corpus}", "VOCABULARY=None"], "binds no program"),
        (["configs/byt5_tiny.gin"], "FILES is not set; add FILES=VALUE"),
        (["tests/micro.gin", "FILES={corpus}", "train.eval_steps=abc"], "train.eval_steps (EVAL_STEPS) is 'abc'"),
        (["tests/micro.gin", "FILES={corpus}", "utils.SaveCheckpointConfig.period=1.5"], "period is 1.5; set it to a"),
        (["configs/byt5_tiny_finetune.gin", "FILES={corpus}", "TRAIN_STEPS=9"], "TRAIN_STEPS_RELATIVE, which counts"),
        (["tests/micro.gin", "FILES={empty}"], "split train: no row makes an example"),
    ],
)
def test_check_names_what_cannot_work(arguments, message, corpus, tmp_path):
    empty = tmp_path / "empty_{split}.jsonl"
    for split in ("train", "validation"):
        Path(str(empty).format(split=split)).write_text('{"text": ""}\n' * 3)
    done = run_t5xpg("check", *[a.replace("{corpus}", corpus).replace("{empty}", str(empty)) for a in arguments])
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1], done.stderr


def test_check_takes_a_model_dir_for_a_checkpoint_and_lists_those_that_are_there(micro_run, pairs):
    model_dir, _ = micro_run
    arguments = ("check", "configs/byt5_tiny_infer.gin", "tests/micro_model.gin", f"FILES={pairs}")
    done = run_t5xpg(*arguments, f"CHECKPOINT_PATH={model_dir}")
    assert done.returncode == 0 and f"restores   {model_dir}/checkpoint_20\n" in done.stdout, done.stderr
    done = run_t5xpg(*arguments, f"CHECKPOINT_PATH={model_dir}/checkpoint_15")
    assert done.stderr.splitlines()[-1].endswith(f"Those in {model_dir}: 0, 10, 20.")


def test_what_a_recipe_gives_need_not_be_given_again(corpus, tmp_path):
    recipe = tmp_path / "mine.gin"
    recipe.write_text("include 'tests/micro.gin'\nMODEL_DIR = 'runs/mine'\n")
    done = run_t5xpg("check", recipe, f"FILES={corpus}")
    assert done.returncode == 0, done.stderr
    assert "MODEL_DIR" not in done.stdout


def test_a_run_without_the_macro_has_no_scores_to_show(capsys):
    with gin.unlock_config():
        gin.clear_config()
        programs.show_end()
        gin.parse_config("MODEL_DIR = %gin.REQUIRED")
        programs.show_end()
        gin.clear_config()
    assert capsys.readouterr().out == ""
