"""One run in two processes: the numbers of one process, checkpoints for any number, and ending together."""

import os
import re
import shutil
import signal

import numpy as np
import pytest
from command import run_t5xpg
from conftest import TESTS
from event_files import curve
from processes import TIMEOUT, Processes

from t5x import checkpoints
from t5x.embedded import data_position, folder_lock
from t5xpg import Model


def params_at(model_dir, step: int) -> dict[str, np.ndarray]:
    state = Model.restore(str(model_dir), step, trust=True).train_state
    return {k: np.asarray(v) for k, v in checkpoints.flatten(state.state_dict()).items() if checkpoints.has_value(v)}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, corpus):
    """A finished run of two processes with dropout: its MODEL_DIR."""
    folder = tmp_path_factory.mktemp("two")
    settings = (f"FILES={corpus}", f"MODEL_DIR={folder}/run", "DROPOUT_RATE=0.1", "train.num_predictions=5")
    two = Processes(folder, TESTS / "micro.gin", *settings)
    assert two.end() == [0, 0], two.output
    assert "on 2 cpu devices" in two.output
    return folder / "run"


def test_the_losses_are_one_process_s(two_processes, corpus, tmp_path):
    done = run_t5xpg(
        *("train", TESTS / "micro.gin", TESTS / "two_shards.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run"),
        *("DROPOUT_RATE=0.1", "train.num_predictions=5"),
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    shown = [(folder / "predictions.jsonl").read_text().splitlines() for folder in (two_processes, tmp_path / "run")]
    untimed = [[line.partition(", ")[2] for line in lines] for lines in shown]
    assert untimed[0] == untimed[1] and len(untimed[0]) == 10
    for collection in ("train", "training_eval/micro"):
        two, one = curve(two_processes / collection), curve(tmp_path / "run" / collection)
        assert ("loss", 20) in two and two.keys() == one.keys()
        for key, value in one.items():
            np.testing.assert_allclose(two[key], value, rtol=1e-5, atol=1e-6, err_msg=f"{collection} {key}")
    two, one = params_at(two_processes, 20), params_at(tmp_path / "run", 20)
    assert two.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_sigterm_to_one_stops_both_at_a_step_that_any_number_goes_on_from(two_processes, corpus, tmp_path):
    model_dir = tmp_path / "run"
    shutil.copytree(two_processes, model_dir)
    arguments = (f"FILES={corpus}", f"MODEL_DIR={model_dir}", "DROPOUT_RATE=0.1")
    two = Processes(
        tmp_path,
        TESTS / "micro.gin",
        *arguments,
        "TRAIN_STEPS=1000000",
        "train_script.train.train_eval_dataset_cfg=None",
    )
    two.wait_until(lambda: checkpoints.all_steps(str(model_dir))[-1] >= 30)
    os.kill(two.processes[1].pid, signal.SIGTERM)
    statuses, output = two.end(), two.output
    assert statuses == [128 + signal.SIGTERM] * 2, output
    assert f"Continuing from step 20 ({model_dir}/checkpoint_20)" in output
    step = int(re.search(r"Stopped at step ([\d,]+): saved", output)[1].replace(",", ""))
    assert checkpoints.all_steps(str(model_dir))[-1] == step

    done = run_t5xpg("train", TESTS / "micro.gin", *arguments, f"TRAIN_STEPS={step + 2}", timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert f"Continuing from step {step:,} " in done.stderr
    assert f"Read past the first {step * 8:,} examples" in done.stderr
    (reading,) = {(reading.shards, reading.processes) for reading in data_position.read(str(model_dir))[1:]}
    assert reading == (2, 1)  # one process reads the two shards


def test_both_go_round_what_one_finds_damaged(two_processes, corpus, tmp_path):
    model_dir = tmp_path / "run"
    shutil.copytree(two_processes, model_dir)
    words = (f"FILES={corpus}", f"MODEL_DIR={model_dir}", "DROPOUT_RATE=0.1")
    (tmp_path / "flipped.gin").write_text(
        "from __gin__ import dynamic_registration\nimport stalling\nfrom t5x import utils\ninclude 'tests/micro.gin'\n"
        "utils.SaveCheckpointConfig.checkpoint_manager_cls = @stalling.FlippedInOne\n"
    )
    two = Processes(tmp_path, tmp_path / "flipped.gin", *words)
    assert two.end() == [0, 0], two.output
    said = f"{model_dir}/checkpoint_20 cannot be read by process 1; moved to {model_dir}/damaged_checkpoint_20.\n"
    assert said in two.logs[0].read_text() and "Continuing from step 10" in two.logs[0].read_text(), two.output
    expected, found = params_at(two_processes, 20), params_at(model_dir, 20)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_folder_in_use_refuses_both(corpus, tmp_path):
    with folder_lock.lock_folder(str(tmp_path / "run")):
        two = Processes(tmp_path, TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run")
        assert two.end() == [1, 1], two.output
    # Both are refused at once: which of them is first to say so, to the other too, is open.
    said = "t5xpg: error: (process [01] of 2 failed first: )?(Another run, process|Process 0 could not lock)"
    assert re.search(said, two.output) and "Traceback" not in two.output
    assert not os.path.exists(tmp_path / "run" / "model-info.txt")


VERBS = {  # verb: (what it is called with, what it says when it is under way)
    "train": (["tests/micro.gin", "MODEL_DIR={tmp}/run", "TRAIN_STEPS=1000000"], "step       5  loss"),
    "eval": (["configs/byt5_tiny_eval.gin", "CHECKPOINT_PATH={run}", "EVAL_OUTPUT_DIR={tmp}/out"], "Evaluating "),
    "infer": (["configs/byt5_tiny_infer.gin", "CHECKPOINT_PATH={run}", "INFER_OUTPUT_DIR={tmp}/out"], "Restored "),
}


@pytest.fixture
def start(two_processes, corpus, tmp_path):
    """Starts a verb in two processes, which have long to do."""
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text('{"inputs": "many words", "targets": "no"}\n' * 10_000)

    def start(verb: str, *more) -> Processes:
        words = [word.format(tmp=tmp_path, run=two_processes / "checkpoint_20") for word in VERBS[verb][0]]
        if verb == "train":
            words += [f"FILES={corpus}"]
        else:
            words += [TESTS / "micro_model.gin", f"FILES={tmp_path}/{{split}}.jsonl"]
            words += ["TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}"]
        return Processes(tmp_path, *words, *more, verb=verb)

    return start


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("verb", VERBS)
def test_kill_9_of_one_ends_both_and_is_named(start, verb, killed):
    two = start(verb)
    two.wait_until(lambda: VERBS[verb][1] in two.output)
    two.processes[killed].kill()
    statuses = two.end(30)
    assert statuses[killed] == -signal.SIGKILL and statuses[1 - killed] == 1, two.output
    last = two.logs[1 - killed].read_text().splitlines()[-1]
    assert last.startswith(f"t5xpg: error: process {killed} of 2 failed first: it ended without a word"), two.output


@pytest.mark.parametrize("verb", ["eval", "infer"])
def test_an_error_of_one_ends_the_other_programs_too(start, tmp_path, verb):
    (tmp_path / "failing.gin").write_text(
        "from __gin__ import dynamic_registration\nimport stalling\nfrom t5x import utils\n"
        "utils.RestoreCheckpointConfig.state_transformation_fns = [@stalling.fail_in_one]\n"
    )
    two = start(verb, tmp_path / "failing.gin")
    assert two.end() == [1, 1], two.output
    first, second = (log.read_text().splitlines()[-1] for log in two.logs)
    assert second == "t5xpg: error: process 1 cannot go on", two.output
    assert first == "t5xpg: error: process 1 of 2 failed first: process 1 cannot go on", two.output


def test_the_error_of_one_is_the_last_line_of_both(corpus, tmp_path):
    words = (f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run", "train_script.train.get_dataset_fn=@stalling.get_dataset")
    two = Processes(tmp_path, TESTS / "stalling.gin", *words, "stalling.get_dataset.fails_in=1")
    assert two.end() == [1, 1], two.output
    first, second = (log.read_text().splitlines()[-1] for log in two.logs)
    assert second == "t5xpg: error: the data of shard 1 are gone", two.output
    assert first == "t5xpg: error: process 1 of 2 failed first: the data of shard 1 are gone", two.output
    assert {"train.log", "train.process_1.log"} <= set(os.listdir(tmp_path / "run"))


def test_sigterm_to_one_ends_both_while_they_wait_for_data(corpus, tmp_path):
    words = (f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run", "train_script.train.get_dataset_fn=@stalling.get_dataset")
    two = Processes(tmp_path, TESTS / "stalling.gin", *words, "train_script.train.stats_period=1")
    two.wait_until(lambda: "step       3  loss" in two.output)
    os.kill(two.processes[1].pid, signal.SIGTERM)
    assert two.end(30) == [128 + signal.SIGTERM] * 2, two.output
    assert "process 1 of 2 failed first: Stopped by SIGTERM" in two.logs[0].read_text()
