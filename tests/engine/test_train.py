"""The training program as a user runs it: its files, what it prints, resuming, and what it says of bad input."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from command import run_t5xpg
from conftest import TESTS

from t5x import checkpoints
from t5xpg import Model


def evaluations(output: str) -> list[float]:
    """Returns the nats per token of each evaluation a run printed."""
    return [float(nats) for nats in re.findall(r"micro: ([\d.]+) nats/token", output)]


def recorded(model_dir) -> list[tuple]:
    """Returns the (step, name, metrics) of metrics.jsonl, times aside, sorted."""
    lines = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    found = [(line["step"], line["name"], sorted(untimed(line["metrics"]).items())) for line in lines]
    return sorted(each for each in found if each[2])


def untimed(metrics: dict) -> dict:
    return {name: value for name, value in metrics.items() if not name.startswith(("timing/", "memory/"))}


def params_at(model_dir, step: int) -> dict[str, np.ndarray]:
    state = Model.restore(str(model_dir), step).train_state
    return {k: np.asarray(v) for k, v in checkpoints.flatten(state.state_dict()).items() if checkpoints.has_value(v)}


def test_writes_t5x_files(micro_run):
    model_dir, _ = micro_run
    assert checkpoints.all_steps(str(model_dir)) == [0, 10, 20]
    assert "train_script.train.model = %MODEL" in (model_dir / "config.gin").read_text()
    info = (model_dir / "model-info.txt").read_text()
    assert re.search(r"Variable encoder/layers_0/mlp/wi_0/kernel +size 2048 +shape \(embed=32, mlp=64\)", info)
    assert re.search(r"Total number of parameters: \d+", info)
    assert list((model_dir / "train").glob("events*"))
    assert list((model_dir / "training_eval" / "micro").glob("events*"))


def test_prints_little_and_logs_the_rest(micro_run):
    model_dir, done = micro_run
    assert len(done.stderr.splitlines()) < 14, done.stderr
    assert "Gin configuration" in (model_dir / "train.log").read_text()


def test_says_every_round_s_numbers(micro_run):
    model_dir, done = micro_run
    numbers = r"step +{}  loss [\d.]+ nats/token, learning rate 0.01, [\d,]+ target tokens/s, \d\d:\d\d left"
    for text in (done.stderr, (model_dir / "train.log").read_text()):
        for step in (5, 10, 15, 20):
            assert re.search(numbers.format(step), text), text


def test_loss_falls(micro_run):
    first, last = evaluations(micro_run[1].stderr)
    assert last < first < np.log(384) + 1


def test_tensorboard_has_t5x_names_and_ours(micro_run):
    from tensorflow.python.summary.summary_iterator import summary_iterator

    (path,) = (micro_run[0] / "train").glob("events*")
    tags = {(value.tag, event.step) for event in summary_iterator(str(path)) for value in event.summary.value}
    names = {"loss", "accuracy", "z_loss", "learning_rate", "timing/steps_per_second", "nats_per_token"}
    assert {(name, step) for name in names for step in (5, 10, 15, 20)} <= tags


def test_resumed_runs_equal_an_uninterrupted_one_and_go_round_damage(micro_run, corpus, tmp_path):
    arguments = ("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}")
    first = run_t5xpg(*arguments, "TRAIN_STEPS=10")
    assert first.returncode == 0, first.stderr
    second = run_t5xpg(*arguments)
    assert f"Continuing from step 10 ({tmp_path}/checkpoint_10)" in second.stderr
    assert "Read past the first 80 examples" in second.stderr
    resumed, straight = params_at(tmp_path, 20), params_at(micro_run[0], 20)
    assert resumed.keys() == straight.keys()
    for name in straight:
        np.testing.assert_array_equal(resumed[name], straight[name], err_msg=name)
    assert recorded(tmp_path) == recorded(micro_run[0])

    damaged = max((tmp_path / "checkpoint_20" / "state").rglob("*"), key=lambda p: p.stat().st_size * p.is_file())
    os.truncate(damaged, damaged.stat().st_size // 2)
    third = run_t5xpg(*arguments)
    assert third.returncode == 0, third.stderr
    assert "checkpoint_20 cannot be read: " in third.stderr
    assert f"; moved to {tmp_path}/damaged_checkpoint_20." in third.stderr
    assert f"Continuing from step 10 ({tmp_path}/checkpoint_10)" in third.stderr
    for name, value in params_at(tmp_path, 20).items():
        np.testing.assert_array_equal(value, straight[name], err_msg=name)
    assert recorded(tmp_path) == recorded(micro_run[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(corpus, tmp_path, number):
    arguments = [TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}", "TRAIN_STEPS=1000000"]
    command = [sys.executable, "-m", "t5xpg", "train", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=TESTS.parent)
    deadline = time.time() + 240
    while not checkpoints.all_steps(str(tmp_path))[1:] and process.poll() is None and time.time() < deadline:
        time.sleep(0.2)
    process.send_signal(number)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output
    step = int(re.search(r"Stopped at step ([\d,]+): saved", output)[1].replace(",", ""))
    assert checkpoints.all_steps(str(tmp_path))[-1] == step


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.gin", "MODEL_DIR=x"], "nowhere.gin"),
        ([TESTS / "micro.gin", "FILES=nowhere_{split}.jsonl", "MODEL_DIR={tmp}"], "nowhere_train.jsonl"),
        ([TESTS / "micro.gin", "FILES={corpus}"], "MODEL_DIR is not set; add MODEL_DIR=VALUE"),
        (["configs/wikitext_byt5_tiny.gin", "MODEL_DIR={tmp}", "seqio.ByteVocabulary.extra_ids=9"], "extra_ids 9"),
        ([TESTS / "micro.gin", "oops"], "neither a recipe"),
        ([TESTS / "micro.gin", "FILES={corpus}", "MODEL_DIR={tmp}", "BATCH_SIZE=abc"], "BATCH_SIZE is 'abc'"),
        ([TESTS / "micro.gin", "FILES={corpus}", "MODEL_DIR={tmp}", "TRAIN_STEPS=10.5"], "TRAIN_STEPS is 10.5; set it"),
        ([TESTS / "micro.gin", "FILES={corpus}", "MODEL_DIR={tmp}", "DROPOUT_RATE=1.5"], "dropout rate is 1.5; set DR"),
        (
            [TESTS / "micro.gin", "FILES={corpus}", "MODEL_DIR={tmp}", "TRAIN_STEPS_RELATIVE=5"],
            "TRAIN_STEPS is 20 and TRAIN_STEPS_RELATIVE, which counts from the initial checkpoint, is 5",
        ),
        ([TESTS / "micro.gin", "MODEL_DIR={tmp}", "TRAIN_STEP=9"], "no use for TRAIN_STEP; did you mean TRAIN_STEPS?"),
    ],
)
def test_bad_input_is_one_line(arguments, message, corpus, tmp_path):
    filled = [str(a).replace("{tmp}", str(tmp_path)).replace("{corpus}", corpus) for a in arguments]
    done = run_t5xpg("train", *filled)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("t5xpg: error: ") and message in last, done.stderr
    assert "Traceback" not in done.stderr and "Starting from scratch" not in done.stderr


def test_a_restored_model_predicts_scores_and_trains(micro_run):
    model = Model.restore(str(micro_run[0]), batch_size=4)
    inputs, targets = ["the far shore", "a thin grey line", "water"], ["x", "yy", "zzz"]
    assert len(model.predict(inputs)) == 3
    assert int(Model(model.settings, str(micro_run[0])).train_state.step) == 20  # a MODEL_DIR is its latest checkpoint
    before = model.score(inputs, targets)
    assert before.shape == (3,) and (before < 0).all()
    batched = Model.restore(str(micro_run[0]), batch_size=2).score(inputs, targets)
    np.testing.assert_allclose(batched, before, rtol=1e-5)
    for _ in range(5):
        metrics = model.train_step(inputs, targets)
    assert np.isfinite(metrics["loss"])
    assert model.score(inputs, targets).sum() > before.sum()
    jax.clear_caches()


def test_a_resumed_fine_tuning_reads_past_its_own_batches_alone(micro_run, corpus, tmp_path):
    arguments = [TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}"]
    arguments.append(f"utils.RestoreCheckpointConfig.path={micro_run[0]}/checkpoint_20")
    arguments.append("utils.RestoreCheckpointConfig.mode=specific")
    first = run_t5xpg("train", *arguments, "TRAIN_STEPS=30")
    assert first.returncode == 0 and "Starting from step 20 of" in first.stderr, first.stderr
    second = run_t5xpg("train", *arguments, "TRAIN_STEPS=32")
    assert second.returncode == 0 and "Read past the first 80 examples" in second.stderr, second.stderr


def test_what_an_evaluation_stops_is_saved(corpus, tmp_path):
    recipe = tmp_path / "stopping.gin"
    recipe.write_text(
        "from __gin__ import dynamic_registration\n"
        "from t5x import trainer\n"
        "import __main__ as train_script\n"
        f"include '{TESTS}/micro.gin'\n"
        "train_script.train.actions = {'TRAIN_EVAL': [@trainer.EarlyStoppingAction()]}\n"
        "trainer.EarlyStoppingAction.metric = ('micro', 'loss')\n"
        "trainer.EarlyStoppingAction.mode = 'min'\n"
        "trainer.EarlyStoppingAction.patience = 2\n"
        "trainer.EarlyStoppingAction.atol = 1e9\n"  # nothing is an improvement
    )
    arguments = (f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run", "utils.SaveCheckpointConfig.period=1000")
    done = run_t5xpg("train", recipe, *arguments, "TRAIN_STEPS=1000")
    assert done.returncode == 0, done.stderr
    stopped = int(re.search(r"step ([\d,]+) is in", done.stderr)[1].replace(",", ""))
    assert stopped < 100 and checkpoints.all_steps(f"{tmp_path}/run") == [0, stopped]


def test_a_place_in_the_data_that_an_interruption_would_lose_is_refused(corpus, micro_run, tmp_path):
    done = run_t5xpg(
        *("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}"),
        "utils.CheckpointConfig.restore=@utils.RestoreCheckpointConfig()",
        f"utils.RestoreCheckpointConfig.path={micro_run[0]}/checkpoint_10",
        "utils.RestoreCheckpointConfig.restore_dataset=True",
    )
    assert done.returncode == 1 and "save_dataset = True too" in done.stderr.splitlines()[-1], done.stderr
    assert not checkpoints.all_steps(str(tmp_path))


def test_a_message_names_three_parameters_and_the_log_all(corpus, micro_run, tmp_path):
    done = run_t5xpg(
        *("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}"),
        "utils.CheckpointConfig.restore=@utils.RestoreCheckpointConfig()",
        f"utils.RestoreCheckpointConfig.path={micro_run[0]}/checkpoint_20",
        "utils.RestoreCheckpointConfig.mode=specific",
        "network.T5Config.num_decoder_layers=2",
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and f"{micro_run[0]}/checkpoint_20 lacks " in last, done.stderr
    assert last.count("target/decoder/layers_1/") == 3
    more = int(re.search(r" and (\d+) more, which the log names", last)[1])
    names = re.search(rf"All {3 + more}: (.*)", (tmp_path / "train.log").read_text())[1].split(", ")
    assert len(names) == 3 + more > 13 and all("/decoder/layers_1/" in name for name in names)
