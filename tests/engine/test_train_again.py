"""A run that is started again: finished, interrupted, or with other settings; and what its last line names."""

import contextlib
import shutil
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
from command import run_t5xpg
from conftest import TESTS, program_settings

from t5x import checkpoints, train, utils
from t5x.embedded import data_position
from t5x.embedded.data_position import Reading
from t5xpg.base import files


def contents(model_dir: Path) -> dict[str, bytes]:
    """Returns {file: what it holds}, but for the log, which every start adds to."""
    names = {path for path in model_dir.rglob("*") if path.is_file()} - {model_dir / ".lock", model_dir / "train.log"}
    return {str(path.relative_to(model_dir)): path.read_bytes() for path in names}


def test_a_finished_fine_tuning_stays_finished_and_an_interrupted_one_ends_where_it_should(
    finetuned, micro_run, pairs, tmp_path
):
    model_dir = tmp_path / "run"
    shutil.copytree(finetuned[0], model_dir)
    arguments = (
        *("train", "configs/byt5_tiny_finetune.gin", TESTS / "micro_model.gin", f"FILES={pairs}"),
        *(f"MODEL_DIR={model_dir}", f"INITIAL_CHECKPOINT_PATH={micro_run[0]}/checkpoint_20"),
        *("TRAIN_STEPS_RELATIVE=40", "EVAL_PERIOD=20", "utils.SaveCheckpointConfig.period=20"),
        *("utils.create_learning_rate_scheduler.base_learning_rate=0.01", "train.stats_period=20"),
        "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}",
    )
    before = contents(model_dir)
    again = run_t5xpg(*arguments)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[-2] == f"Nothing to train: {model_dir} is finished, at step 60."
    assert contents(model_dir) == before

    shutil.rmtree(model_dir / "checkpoint_60")
    interrupted = run_t5xpg(*arguments)
    assert interrupted.returncode == 0, interrupted.stderr
    assert f"step 60 is in {model_dir}" in interrupted.stderr
    assert checkpoints.all_steps(str(model_dir))[-1] == 60


@pytest.fixture
def copied(micro_run, tmp_path) -> Path:
    """A copy of micro_run's MODEL_DIR: at step 20, with batches of 8."""
    return Path(shutil.copytree(micro_run[0], tmp_path / "run"))


def test_other_settings_are_said_and_what_is_another_run_is_refused(copied, corpus):
    before = contents(copied)
    changes = ("BATCH_SIZE=12", "TRAIN_STEPS=22", "network.T5Config.num_heads=4")
    done = run_t5xpg("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={copied}", *changes)
    assert done.returncode == 1
    said, refusal = done.stderr.splitlines()[-2:]
    assert "BATCH_SIZE = 12 (was 8); MODEL_DIR = " in said and "; TRAIN_STEPS = 22 (was 20); network." in said
    assert "would not continue: BATCH_SIZE, network.T5Config.num_heads. Set them back" in refusal
    assert contents(copied) == before


def test_allowed_changes_go_on_with_the_next_example(copied, corpus, tmp_path):
    recipe = tmp_path / "recorded.gin"
    recipe.write_text(
        "from __gin__ import dynamic_registration\n"
        "import recording_trainer\n"
        "from t5x import utils\n"
        "import __main__ as train_script\n"
        f"include '{TESTS}/micro.gin'\n"
        "train_script.train.trainer_cls = @recording_trainer.RecordingTrainer\n"
        "recording_trainer.RecordingTrainer.num_microbatches = None\n"
        "recording_trainer.RecordingTrainer.learning_rate_fn = @utils.create_learning_rate_scheduler()\n"
    )
    first_config = (copied / "config.gin").read_text()
    arguments = ("train", recipe, f"FILES={corpus}", f"MODEL_DIR={copied}", "BATCH_SIZE=12", "TRAIN_STEPS=22")
    done = run_t5xpg(*arguments, "--allow_changes")
    assert done.returncode == 0, done.stderr
    assert "Read past the first 160 examples" in done.stderr
    assert (copied / "config.20.gin").read_text() == first_config
    assert "BATCH_SIZE = 12" in (copied / "config.gin").read_text()
    assert data_position.read(str(copied)) == [Reading(0, 0, 8, 1, 1), Reading(20, 160, 12, 1, 1)]

    bindings = (f"FILES = {corpus!r}", "MODEL_DIR = 'unused'", "BATCH_SIZE = 4", "NAME = 'again'")
    settings = program_settings(train.train, TESTS / "micro.gin", *bindings)
    converter = settings["model"].FEATURE_CONVERTER_CLS
    fours = list(utils.get_dataset(settings["train_dataset_cfg"], 0, 1, converter).take(46).as_numpy_iterator())
    expected = []
    for step, parts in ((20, fours[40:43]), (21, fours[43:46])):
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        checksum = 0
        for name in sorted(batch):
            checksum = zlib.crc32(batch[name].tobytes(), checksum)
        expected.append(f"{step} {checksum:08x}")
    # The trainer asks for a batch more than it trains on.
    assert (copied / "batches.txt").read_text().splitlines()[:2] == expected


@pytest.mark.parametrize(
    ("saved", "received", "line"),
    [
        (20, 0, "; step 20 is in {}"),
        (10, 0, "; the last of them were not saved, and step 10 is in {}"),
        (None, 0, "; the last of them were not saved, and no checkpoint is there"),
        (20, 15, "Stopped at step 20: saved {}/checkpoint_20; the same command continues from there."),
        (10, 15, "Stopped; the last steps were not saved, and step 10 is in {}."),
    ],
)
def test_the_last_line_names_a_step_only_if_it_was_saved(tmp_path, monkeypatch, capsys, saved, received, line):
    monkeypatch.setattr(train.signals, "stopping", lambda: received)
    monkeypatch.setattr(train.signals, "say_once", train.console.say)
    monkeypatch.setattr(train.signals, "end_within", lambda seconds, status: None)
    if saved is not None:
        (tmp_path / f"checkpoint_{saved}").mkdir()
        (tmp_path / f"checkpoint_{saved}" / "commit_success.txt").touch()
    manager = types.SimpleNamespace(wait_until_finished=lambda: None)
    run = train.TrainingRun(None, manager, None, None, {}, {}, str(tmp_path))
    with pytest.raises(SystemExit) if received else contextlib.nullcontext() as stop:
        run._report_end(20, 20, 1.0)
    assert not received or stop.value.code == 128 + received
    last = capsys.readouterr().err
    assert last.endswith(line.format(tmp_path) + "\n")
    assert saved == 20 or "step 20" not in last


def test_a_run_that_is_refused_leaves_no_lock(bucket, corpus):
    def refuse(cfg, model):
        raise ValueError(f"{files.names_in(bucket)}")

    bindings = (f"FILES = {corpus!r}", f"MODEL_DIR = {bucket!r}")
    settings = program_settings(train.train, TESTS / "micro.gin", *bindings)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^\['\.lock'\]$"):
            train.train(**{**settings, "verify_matching_vocabs_fn": refuse})
        assert files.names_in(bucket) == []


def test_nothing_is_saved_where_another_run_has_taken_the_folder_while_this_one_slept(tmp_path):
    def check_now():
        raise ValueError("no longer this run's")

    lock = types.SimpleNamespace(check=lambda: None, check_now=check_now)
    data = types.SimpleNamespace(reading=False)
    run = train.TrainingRun(None, None, None, data, {}, {}, str(tmp_path), lock)
    run._save(1)  # it has nothing to save to
    run._manager = types.SimpleNamespace()
    with pytest.raises(ValueError, match="no longer this run's"):
        run._save(1)
