"""What has changed in a run's configuration: what is named, what is refused, and what an earlier start leaves."""

import re

import gin
import jax
import numpy as np
import pytest
from conftest import TESTS
from jax.experimental import multihost_utils

import __main__
from t5x import train
from t5x.embedded import run_changes
from t5x.embedded.run_changes import compare, parse


def config(*bindings: str) -> str:
    """The config.gin of a run of tests/micro.gin with these bindings; gin holds them afterwards."""
    given = ["FILES = 'corpus_{split}.jsonl'", "MODEL_DIR = 'run'", *bindings]
    __main__.train = train.train  # in the program itself, __main__ is its module
    with gin.unlock_config():
        gin.clear_config()
        gin.add_config_file_search_path(str(TESTS.parent))
        gin.parse_config_files_and_bindings([str(TESTS / "micro.gin")], given)
    return gin.config_str()


@pytest.fixture(scope="module")
def before() -> run_changes.Bindings:
    return parse(config(), "config.gin")


@pytest.mark.parametrize(
    ("binding", "said", "refused"),
    [
        ("TRAIN_STEPS = 40", "TRAIN_STEPS = 40 (was 20)", False),
        ("MODEL_DIR = 'moved'", "MODEL_DIR = 'moved' (was 'run')", False),
        ("DROPOUT_RATE = 0.1", "DROPOUT_RATE = 0.1 (was 0.0)", False),
        ("Z_LOSS = 0.0", "Z_LOSS = 0.0 (was 0.0001)", False),
        ("NAME = 'other'", "NAME = 'other' (was 'micro')", False),
        ("train.eval_steps = 3", "train.eval_steps = 3 (was 2)", False),
        ("train_eval/utils.DatasetConfig.split = 'test'", "'test' (was 'validation')", False),
        ("train_eval/utils.DatasetConfig.batch_size = 4", "train_eval/utils.DatasetConfig.batch_size = 4", False),
        ("utils.SaveCheckpointConfig.keep = 2", "utils.SaveCheckpointConfig.keep = 2 (was None)", False),
        ("utils.create_learning_rate_scheduler.base_learning_rate = 1.0", "base_learning_rate = 1.0 (was 0.01)", False),
        ("network.T5Config.dtype = 'bfloat16'", "network.T5Config.dtype = 'bfloat16' (was 'float32')", False),
        ("BATCH_SIZE = 16", "BATCH_SIZE = 16 (was 8)", True),
        ("FILES = 'other_{split}.jsonl'", "FILES = 'other_{split}.jsonl' (was 'corpus_{split}.jsonl')", True),
        ("TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 14}", "'targets': 14} (was {'inputs': 64", True),
        ("train/utils.DatasetConfig.seed = 1", "train/utils.DatasetConfig.seed = 1 (was 0)", True),
        ("objectives.SpanCorruption.noise_density = 0.3", "noise_density = 0.3 (was not bound)", True),
        ("tasks.jsonl_task.objective = 'prefix_lm'", "= 'prefix_lm' (was @objectives.SpanCorruption())", True),
        ("seqio.ByteVocabulary.extra_ids = 99", "seqio.ByteVocabulary.extra_ids = 99 (was not bound)", True),
        ("network.T5Config.num_encoder_layers = 2", "network.T5Config.num_encoder_layers = 2 (was 1)", True),
    ],
)
def test_one_change_is_named_once_and_refused_if_it_makes_another_run(before, binding, said, refused):
    changes = compare(before, parse(config(binding), "config.gin"))
    ((name, text),) = changes.bindings.items()
    assert said in f"{name} = {text}"
    assert changes.refused == ({name} if refused else set())
    assert changes.is_other_data == (refused and "BATCH" not in name and "T5Config" not in name)
    assert changes.batch_size == 8


def test_the_same_settings_written_otherwise_are_the_same(before):
    other = "TRAIN_STEPS = 0x14\nDROPOUT_RATE = 0.00\nSTEPS = 20\ntrain.total_steps = %STEPS\nUNUSED = 1"
    assert not compare(before, parse(config(*other.split("\n")), "config.gin")).bindings
    renamed = re.sub(r"\butils\.", "u.", config())
    renamed = renamed.replace("from t5x import utils", "import t5x.utils as u")
    assert "u.DatasetConfig" in renamed
    assert not compare(before, parse(renamed, "config.gin")).bindings


def test_a_macro_that_no_longer_decides_is_not_blamed(before):
    changes = compare(before, parse(config("train/utils.DatasetConfig.batch_size = 16"), "config.gin"))
    assert changes.bindings == {"train/utils.DatasetConfig.batch_size": "16 (was 8)"}


@pytest.fixture
def run(tmp_path):
    """A MODEL_DIR with a checkpoint and the config.gin of tests/micro.gin."""
    (tmp_path / "checkpoint_10").mkdir()
    (tmp_path / "checkpoint_10" / "commit_success.txt").touch()
    (tmp_path / "config.gin").write_text(config())
    return tmp_path


def test_what_would_not_be_continued_needs_permission(run, capsys):
    config("BATCH_SIZE = 16", "TRAIN_STEPS = 40")
    with pytest.raises(ValueError, match=r"would not continue: BATCH_SIZE\. Set them back, .* or pass --allow_changes"):
        run_changes.review(str(run), allow_changes=False)
    line = f"Changed since {run} was last started: BATCH_SIZE = 16 (was 8); TRAIN_STEPS = 40 (was 20)\n"
    assert capsys.readouterr().err == line
    assert run_changes.review(str(run), allow_changes=True).refused == {"BATCH_SIZE"}
    assert capsys.readouterr().err == line


def test_nothing_is_said_of_a_new_run_or_the_same_or_one_without_gin(run, capsys):
    config()
    assert not run_changes.review(str(run), allow_changes=False).bindings
    config("BATCH_SIZE = 16")
    for missing in ("config.gin", "checkpoint_10/commit_success.txt"):
        (run / missing).rename(run / "aside")
        assert not run_changes.review(str(run), allow_changes=False).bindings
        (run / "aside").rename(run / missing)
    gin.clear_config()
    assert not run_changes.review(str(run), allow_changes=False).bindings
    assert not capsys.readouterr().err


def test_of_several_processes_the_first_decides_whether_there_is_a_run(run, monkeypatch):
    config("BATCH_SIZE = 16")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", np.zeros_like)  # the first finds no checkpoint
    assert not run_changes.review(str(run), allow_changes=False).bindings


def test_a_config_that_is_not_gin_is_named(run):
    (run / "config.gin").write_text("TRAIN_STEPS = = 3\n")
    with pytest.raises(ValueError, match=r"config.gin is not gin that can be compared"):
        run_changes.review(str(run), allow_changes=True)


def test_the_configurations_of_earlier_starts_are_kept(run):
    first = (run / "config.gin").read_text()
    run_changes.keep_config(str(run), 10)
    assert not (run / "config.10.gin").exists()  # the same again
    config("TRAIN_STEPS = 40")
    run_changes.keep_config(str(run), 10)
    assert (run / "config.10.gin").read_text() == first
    (run / "config.gin").write_text("TRAIN_STEPS = 40\n")  # that start made no checkpoint
    run_changes.keep_config(str(run), 10)
    assert (run / "config.10.gin").read_text() == first
