"""One run in two processes: the numbers of one process, checkpoints for any number, and stopping together."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from command import run_t5xpg
from conftest import TESTS

from t5x import checkpoints
from t5x.embedded import data_position, folder_lock
from t5xpg import Model

TIMEOUT = 600  # seconds; a machine with two busy cores needs some of it


def start_two(tmp_path, *arguments) -> list[subprocess.Popen]:
    """Starts both processes of a run of tests/micro.gin; what they print goes to process_<i>.log."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = ["--multiprocess_gpu", f"--coordinator_address=localhost:{port}", "--process_count=2"]
    command = [sys.executable, "-m", "t5xpg", "train", TESTS / "micro.gin", *arguments, *flags]
    processes = []
    for index in range(2):
        with open(tmp_path / f"process_{index}.log", "w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [*map(str, command), f"--process_index={index}"], stdout=output, stderr=output, cwd=TESTS.parent
            )
        processes.append(process)
    return processes


def wait_for(processes, tmp_path) -> tuple[list[int], str]:
    """Returns the exit statuses, and what both processes printed."""
    try:
        statuses = [process.wait(TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return statuses, "\n".join((tmp_path / f"process_{index}.log").read_text() for index in range(2))


def curve(folder) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of the numbers in a folder's event files, times aside."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    tags = events.Tags()["tensors"]
    found = {(tag, event.step): make_ndarray(event.tensor_proto) for tag in tags for event in events.Tensors(tag)}
    timed = {key for key in found if key[0].startswith("timing/")}
    return {key: float(value) for key, value in found.items() if value.dtype.kind == "f" and key not in timed}


def params_at(model_dir, step: int) -> dict[str, np.ndarray]:
    state = Model.restore(str(model_dir), step).train_state
    return {k: np.asarray(v) for k, v in checkpoints.flatten(state.state_dict()).items() if checkpoints.has_value(v)}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, corpus):
    """A finished run of two processes with dropout: its MODEL_DIR."""
    folder = tmp_path_factory.mktemp("two")
    processes = start_two(folder, f"FILES={corpus}", f"MODEL_DIR={folder}/run", "DROPOUT_RATE=0.1")
    statuses, output = wait_for(processes, folder)
    assert statuses == [0, 0], output
    assert "on 2 cpu devices" in output
    return folder / "run"


def test_the_losses_are_one_process_s(two_processes, corpus, tmp_path):
    done = run_t5xpg(
        *("train", TESTS / "micro.gin", TESTS / "two_shards.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run"),
        "DROPOUT_RATE=0.1",
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
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
    processes = start_two(tmp_path, *arguments, "TRAIN_STEPS=1000000")
    deadline = time.time() + TIMEOUT
    while checkpoints.all_steps(str(model_dir))[-1] < 30 and time.time() < deadline:
        if any(process.poll() is not None for process in processes):
            break
        time.sleep(0.2)
    processes[1].send_signal(signal.SIGTERM)
    statuses, output = wait_for(processes, tmp_path)
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


def test_a_folder_in_use_refuses_both(corpus, tmp_path):
    with folder_lock.lock_folder(str(tmp_path / "run")):
        processes = start_two(tmp_path, f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run")
        statuses, output = wait_for(processes, tmp_path)
    assert statuses == [1, 1], output
    assert "Another run, process" in output and "Process 0 could not lock MODEL_DIR" in output
    assert not os.path.exists(tmp_path / "run" / "model-info.txt")
