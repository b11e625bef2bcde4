"""Recipes and NAME=VALUE on the command line, and finding the recipes that ship."""

import re
import runpy
import sys

import gin
import pytest
import seqio
from command import run_fresh_t5xpg, run_t5xpg

from t5xpg import name_value, recipes
from t5xpg.cli import programs
from t5xpg.cli.main import main
from t5xpg.name_value import gin_value, given_bindings
from t5xpg.recipes import recipes_root


def program_flags(arguments: list[str]) -> list[str]:
    return name_value.program_flags(arguments, recipes_root())


@pytest.mark.parametrize(
    "text", ["5", "0.1", "None", "True", "'a'", '"a"', "{'inputs': 64, 'targets': 14}", "(1, 2)", "%X", "@f()", "[%X]"]
)
def test_gin_values_stay_as_they_are(text):
    assert gin_value("X", text) == text


@pytest.mark.parametrize(
    "text", ["runs/a", "a b", "it's", "corpus_{split}.jsonl", "{split}@2.gz", "{split}%1", "C:\\x", "1e", ""]
)
def test_other_text_becomes_a_gin_string(text):
    gin.clear_config()
    with gin.unlock_config():
        gin.parse_config(f"X = {gin_value('X', text)}")
        assert gin.query_parameter("%X") == text
    gin.clear_config()


def test_a_number_is_text_where_a_path_belongs():
    assert gin_value("MODEL_DIR", "2024") == "'2024'" and gin_value("FILES", "7") == "'7'"
    assert gin_value("INITIAL_CHECKPOINT_PATH", "None") == "None"


def test_recipes_bindings_and_t5x_flags_keep_their_order():
    flags = program_flags(["a.gin", "MODEL_DIR=runs/a", "--gin.BATCH_SIZE=8", "--gin_file", "b.gin", "c.gin"])
    assert flags[1:] == [
        "--gin_file=a.gin",
        "--gin_bindings=MODEL_DIR = 'runs/a'",
        "--gin.BATCH_SIZE=8",
        "--gin_file=b.gin",
        "--gin_file=c.gin",
    ]


def test_a_flags_value_may_stand_apart():
    assert program_flags(["--wandb", "books", "a.gin"])[1:] == ["--wandb=books", "--gin_file=a.gin"]


def test_the_programs_arguments_have_the_name_that_recipes_give_them():
    assert program_flags(["train_script.train.eval_period=5"])[1:] == ["--gin_bindings=train.eval_period = 5"]


def test_search_paths_end_with_the_recipes_that_ship():
    assert program_flags([])[0] == f"--gin_search_paths=.,{recipes_root()}"
    assert program_flags(["--gin_search_paths=x,y"])[0] == f"--gin_search_paths=x,y,{recipes_root()}"
    assert (recipes_root() / "configs" / "byt5_tiny.gin").exists()


def test_help_names_both_ways():
    done = run_fresh_t5xpg("train", "--help")
    assert done.returncode == 0
    assert "--allow_changes is given." in done.stdout and "--wandb=PROJECT" in done.stdout
    assert "MODEL_DIR=runs/a" in done.stdout and "--gin.MODEL_DIR" in done.stdout


RATE = "utils.create_learning_rate_scheduler.base_learning_rate"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps=10"], "--steps is not a flag of T5X's programs; write TRAIN_STEPS=10"),
        (["--train_steps", "10"], "--train_steps is not a flag of T5X's programs; write TRAIN_STEPS=10"),
        (["--batch-size", "8"], "--batch-size is not a flag of T5X's programs; write BATCH_SIZE=8"),
        (["--learning_rate=1e-3"], f"--learning_rate is not a flag of T5X's programs; write {RATE}=1e-3"),
        (["--num_train_epochs", "3"], "write TRAIN_STEPS=STEPS (`t5xpg inspect` says how many steps an epoch takes)"),
        (["--per_device_train_batch_size=8"], "write BATCH_SIZE=8 (of all devices together)"),
        (["--save-steps", "50"], "write utils.SaveCheckpointConfig.period=50"),
        (["--weight_decay", "0.1"], "times the learning rate with weight_decay_rate_lr_exponent = 1"),
        (["--mlm_probability=0.3"], "byt5_tiny.gin, and objectives.MaskedLM.noise_density=0.3 in RoBERTa's"),
        (["--max_seq_length=64"], "'selected': 64}\"; `t5xpg check` says what does not go with it)"),
        (
            ["--model_name_or_path", "t5"],
            "and `t5xpg import hf FOLDER OUT`, which prints the command (T5 and mT5 alone)",
        ),
        (["--train_file=a.jsonl"], "write FILES=… (with {split} in it, for train and validation)"),
        (["--adam_beta1", "0.9"], "NAME=VALUE, and `t5xpg recipes show RECIPE.gin` lists it"),
        (["--adam-beta1", "0.9"], "NAME=VALUE, and `t5xpg recipes show RECIPE.gin` lists it"),
        (["--logtostderr", "byt5_tiny"], "nor a binding (NAME=VALUE); did you mean configs/byt5_tiny.gin?"),
        (["--max_target_length", "64"], "write TASK_FEATURE_LENGTHS=\"{'inputs': …, 'targets': 64}\""),
        (["byt5_tiny"], "nor a binding (NAME=VALUE); did you mean configs/byt5_tiny.gin?"),
        (["--model_dir=my runs"], "--model_dir is not a flag of T5X's programs; write MODEL_DIR='my runs'"),
        (["--output_dir", "a"], "write MODEL_DIR=a (for eval EVAL_OUTPUT_DIR=a, for infer INFER_OUTPUT_DIR=a)"),
        (["--output_dir"], "write MODEL_DIR=VALUE (for eval EVAL_OUTPUT_DIR=VALUE, for infer INFER_OUTPUT_DIR=VALUE)"),
    ],
)
def test_a_flag_of_other_trainers_is_answered_with_the_binding(words, said, capsys):
    assert main(["train", "configs/byt5_tiny.gin", *words]) == 1
    err = capsys.readouterr().err
    assert err.startswith("t5xpg: error: ") and err.endswith(f"{said}\n") and err.count("\n") == 1


def test_what_a_flag_is_answered_with_is_something_that_recipes_use(corpus, capsys):
    bindings = {
        flag: words.format(0.3 if "density" in words else 7).split()[0]
        for flag, words in name_value.BINDINGS.items()
        if re.match(r"[\w.]+=({[\d}]|bfloat16)", words)
    }
    adamw = bindings.pop("weight_decay")
    settings = recipes.read(["configs/byt5_tiny.gin", f"FILES={corpus}", *bindings.values()]).settings()
    task = seqio.get_mixture_or_task(settings["train_dataset_cfg"].mixture_or_task_name)
    assert task.objective.noise_density == 0.3
    assert settings["model"].module.config.dtype == "bfloat16"
    assert (settings["total_steps"], settings["random_seed"], settings["model_dir"]) == (7, 7, "7")
    assert settings["train_dataset_cfg"].batch_size == 7
    assert gin.get_configurable("create_learning_rate_scheduler")()(7) == 7.0
    assert not capsys.readouterr().err
    gin.clear_config()
    masks = "objectives.MaskedLM.noise_density=0.3"
    recipes.read(["configs/roberta_base.gin", f"FILES={corpus}", "TOKENIZER_FILE=a", adamw, masks])
    assert gin.query_parameter("objectives.MaskedLM.noise_density") == 0.3
    assert gin.query_parameter("optimizers.adamw.weight_decay") == 7
    gin.clear_config()


@pytest.mark.parametrize("flag", ["--allow_changes", "--wandb=shelf"])
@pytest.mark.parametrize("embedded", [True, False])
def test_a_flag_that_t5x_lacks_is_left_out_with_a_line(embedded, flag, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(programs.t5x_finder, "is_embedded", lambda: embedded)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: ran.extend(sys.argv))
    monkeypatch.setattr(name_value, "check_macros_when_parsed", lambda bindings: None)
    monkeypatch.setattr(sys, "argv", [])
    assert programs.run_program("t5x.train", ["a.gin", flag]) == 0
    assert (flag in ran) == embedded and "--gin_file=a.gin" in ran
    said = f"{flag.partition('=')[0]} is left out: the installed T5X has no such flag.\n"
    assert capsys.readouterr().err == ("" if embedded else said)


@pytest.fixture
def ran_by_t5x(monkeypatch):
    """What the installed T5X's program was called with, which runs nothing, and what was joined before."""
    ran, joined = [], []
    monkeypatch.setattr(programs.t5x_finder, "is_embedded", lambda: False)
    monkeypatch.setattr(programs.clusters, "join", lambda **where: joined.append(where))
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: ran.extend(sys.argv))
    monkeypatch.setattr(name_value, "check_macros_when_parsed", lambda bindings: None)
    monkeypatch.setattr(sys, "argv", [])
    return ran, joined


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ([], {}),
        (["--process_index", "1", "--process_count=2"], {"index": 1, "count": 2}),
        (["--coordinator_address=[::1]:80", "--initialization_timeout=9"], {"address": "[::1]:80", "timeout": 9}),
    ],
)
def test_an_installed_t5x_runs_in_a_process_that_has_joined_the_others(ran_by_t5x, flags, where):
    ran, joined = ran_by_t5x
    assert programs.run_program("t5x.eval", ["a.gin", "--multiprocess", *flags, "--tfds_data_dir=d"]) == 0
    assert ran[2:] == ["--gin_file=a.gin", "--tfds_data_dir=d"] and joined == [where]


def test_an_installed_t5x_joins_by_itself_as_it_always_did(ran_by_t5x):
    ran, joined = ran_by_t5x
    flags = ["--multiprocess_gpu", "--process_count=2", "--process_index=0", "--coordinator_address=localhost:80"]
    assert programs.run_program("t5x.train", ["a.gin", *flags]) == 0
    assert ran[3:] == flags and joined == []


def test_a_process_count_that_is_not_a_number_is_named(ran_by_t5x):
    with pytest.raises(ValueError, match="^--process_count=two is not a number.$"):
        programs.run_program("t5x.train", ["a.gin", "--multiprocess", "--process_count=two"])


@pytest.mark.parametrize("verb", ["train", "eval", "infer"])
def test_where_no_cluster_is_found_one_line_says_what_was_looked_for(verb):
    words = ("configs/byt5_tiny.gin", "MODEL_DIR=unused", "FILES=unused", "--multiprocess")
    done = run_t5xpg(verb, *words)
    assert done.returncode == 1 and not done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("t5xpg: error: --multiprocess has not found this run's other processes: it looked for")
    assert "SLURM_STEP_NODELIST" in line and "--coordinator_address=HOST:PORT" in line


def test_a_flag_of_our_own_is_no_error_in_a_recipe_that_is_read():
    assert name_value.gin_arguments(program_flags(["a.gin", "--allow_changes", "--multiprocess"]))[0] == ["a.gin"]
    assert name_value.gin_arguments(program_flags(["a.gin", "--multiprocess_gpu"]))[0] == ["a.gin"]


@pytest.fixture
def parsed():
    """A recipe that uses BATCH_SIZE and TRAIN_STEPS."""
    gin.clear_config()
    yield lambda *bindings: gin.parse_config(
        ["a/macro.value = %BATCH_SIZE", "b/macro.value = %TRAIN_STEPS", "BATCH_SIZE = 1", "TRAIN_STEPS = 1", *bindings]
    )
    gin.clear_config()


def test_a_misspelt_macro_is_refused_and_one_of_no_use_is_warned_of(parsed, capsys):
    parsed("TRAIN_STEP = 5", "ELSEWHERE = 1")
    with pytest.raises(ValueError, match="has no use for TRAIN_STEP; did you mean TRAIN_STEPS?"):
        name_value.check_macros(["TRAIN_STEP = 5"])
    name_value.check_macros(["BATCH_SIZE = 2", "train.eval_period = 3"])
    assert not capsys.readouterr().err
    name_value.check_macros(["ELSEWHERE = 1"])
    assert "Warning: the recipe has no use for ELSEWHERE; it uses BATCH_SIZE, TRAIN_STEPS." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        ("learning_rate = 1e-3", f"no use for learning_rate; write {RATE}=1e-3"),
        ("base_learning_rate = 0.1", f"no use for base_learning_rate; write {RATE}=0.1"),
        ("LR = 0.1", f"no use for LR; write {RATE}=0.1"),
        ("save_steps = 50", "no use for save_steps; write utils.SaveCheckpointConfig.period=50"),
        ("train_steps = 5", "no use for train_steps; did you mean TRAIN_STEPS?"),
    ],
)
def test_a_binding_by_another_trainers_name_is_refused_with_the_one_that_does_it(binding, said, parsed):
    parsed(binding)
    with pytest.raises(ValueError) as refused:
        name_value.check_macros([binding])
    assert str(refused.value) == f"The recipe has {said}"


def test_macros_are_checked_when_either_engine_has_parsed_its_recipe():
    done = run_fresh_t5xpg("train", "configs/wikitext_byt5_tiny.gin", "MODEL_DIR=x", "TRAIN_STEP=5")
    assert done.returncode == 1 and "did you mean TRAIN_STEPS?" in done.stderr


def test_bindings_are_read_from_both_kinds_of_flags():
    assert given_bindings(program_flags(["a.gin", "X=5", "--gin.Y=6"])) == ["X = 5", "Y=6"]
