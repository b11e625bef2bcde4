"""`t5xpg recipes` and `t5xpg check`."""

from pathlib import Path

import gin
import pytest
from command import run_t5xpg
from conftest import TESTS

from t5xpg.cli import programs
from t5xpg.cli.main import main


def test_lists_every_recipe_in_a_line(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [path.name for path in (TESTS.parent / "configs").glob("*.gin")]
    assert [line.split()[0] for line in lines] == [f"configs/{name}" for name in sorted(names)]
    assert all(len(line.split()) > 4 and line.endswith(".") for line in lines)


def test_copies_a_recipe_and_overwrites_nothing(tmp_path, capsys):
    mine = tmp_path / "mine.gin"
    assert main(["recipes", "configs/byt5_tiny.gin", str(mine)]) == 0
    assert mine.read_text() == (TESTS.parent / "configs" / "byt5_tiny.gin").read_text()
    mine.write_text("precious")
    assert main(["recipes", "configs/byt5_tiny.gin", str(mine)]) == 1
    assert mine.read_text() == "precious" and "exists already" in capsys.readouterr().err
    assert main(["recipes", "configs/nothing.gin"]) == 1


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
        programs.show_scores()
        gin.parse_config("MODEL_DIR = %gin.REQUIRED")
        programs.show_scores()
        gin.clear_config()
    assert capsys.readouterr().out == ""
