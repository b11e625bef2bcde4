"""What a run survives: a full disk, a second run in its folder, NaNs, a folder it may not write to."""

import subprocess
import sys
from concurrent.futures import Future

import jax.numpy as jnp
import pytest
from command import run_t5xpg
from conftest import TESTS

from t5x import checkpoints
from t5x.embedded import folder_lock, loss_watch


class Value:
    def __init__(self, value):
        self.value = value


def summary(loss: float) -> Future:
    future = Future()
    future.set_result({"loss": Value(loss)})
    return future


class State:
    def __init__(self, value: float):
        self.params = {"a": jnp.ones(3), "b": {"c": jnp.array([1.0, value])}}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_the_run(bad):
    watch = loss_watch.LossWatch()
    watch.look(summary(1.0), State(1.0), 10)
    watch.look(summary(bad), State(bad), 20)
    with pytest.raises(FloatingPointError, match=f"The loss is {bad} by step 20"):
        watch.check(State(bad), 20)


def test_a_bad_loss_with_good_parameters_is_let_pass():
    watch = loss_watch.LossWatch()
    watch.look(summary(float("nan")), State(1.0), 10)
    assert watch.check(State(1.0), 10) is None


def test_one_run_to_a_folder(tmp_path):
    with folder_lock.lock_folder(str(tmp_path)), pytest.raises(ValueError, match="Another run, process [0-9]+, writes"):
        folder_lock.lock_folder(str(tmp_path))
    with folder_lock.lock_folder(str(tmp_path)):
        pass


def test_the_lock_ends_with_its_process(tmp_path):
    lock = f"lock = folder_lock.lock_folder({str(tmp_path)!r})"
    code = f"import t5xpg, os; from t5x.embedded import folder_lock; {lock}; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent).returncode == 9
    with folder_lock.lock_folder(str(tmp_path)):
        pass


def test_a_second_run_and_a_folder_that_cannot_be_written_are_refused_in_one_line(corpus, tmp_path):
    arguments = ("train", TESTS / "micro.gin", f"FILES={corpus}")
    with folder_lock.lock_folder(str(tmp_path / "run")):
        done = run_t5xpg(*arguments, f"MODEL_DIR={tmp_path}/run")
    assert done.returncode == 1 and "t5xpg: error: Another run, process" in done.stderr.splitlines()[-1]
    (tmp_path / "file").write_text("")
    done = run_t5xpg(*arguments, f"MODEL_DIR={tmp_path}/file")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("t5xpg: error: "), done.stderr
    assert f"{tmp_path}/file" in done.stderr.splitlines()[-1]


def test_a_diverging_run_saves_no_nans(corpus, tmp_path):
    done = run_t5xpg(
        "train",
        TESTS / "micro.gin",
        f"FILES={corpus}",
        f"MODEL_DIR={tmp_path}",
        "utils.create_learning_rate_scheduler.factors=constant",
        "utils.create_learning_rate_scheduler.base_learning_rate=1e30",
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "The loss is nan by step" in last and "goes on from there" in last, done.stderr
    assert checkpoints.all_steps(str(tmp_path)) == [0]


def test_a_full_disk_is_one_line_and_costs_no_checkpoint(corpus, tmp_path):
    """The limit on file sizes makes writes fail as a full disk does."""
    arguments = ["train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}"]
    first = run_t5xpg(*arguments, "TRAIN_STEPS=10")
    assert first.returncode == 0, first.stderr
    (tmp_path / "train.log").unlink()
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); "
        "os.execv(sys.executable, [sys.executable, '-m', 't5xpg', *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", limited, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert last.startswith(f"t5xpg: error: A checkpoint could not be written to {tmp_path}: "), done.stderr
    assert f"the last whole one is {tmp_path}/checkpoint_10" in last
    assert checkpoints.all_steps(str(tmp_path)) == [0, 10]
    resumed = run_t5xpg(*arguments)
    assert resumed.returncode == 0 and "Continuing from step 10" in resumed.stderr, resumed.stderr
