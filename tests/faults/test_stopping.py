"""Runs that end at the first signal whatever they are doing, and runs whose data does not come."""

import functools
import io
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future

import pytest
from command import run_fresh_t5xpg, run_t5xpg, start_t5xpg
from conftest import TESTS

from t5x import checkpoints
from t5x.embedded import signals, waiting

STALLING = "train_script.train.get_dataset_fn=@stalling.get_dataset"
INTERRUPTED_IMPORT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background start with it ignored

class Swallows:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass

sys.meta_path.insert(0, Swallows())
"""
NO_EVALUATION = "train_script.train.train_eval_dataset_cfg=None"


class Program:
    """The command in a process of its own."""

    def __init__(self, folder, *words):
        self._log = folder / "output.txt"
        self._log.touch()
        self.process = start_t5xpg(*words, stdout=self._log, stderr=self._log)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_until(self, condition) -> None:
        deadline = time.time() + 240
        while not condition(self) and self.process.is_alive() and time.time() < deadline:
            time.sleep(0.1)
        assert condition(self), self.output

    def signal(self, number: int) -> None:
        """Sends a signal; the program then ends within a minute, most of which is for a busy machine."""
        os.kill(self.process.pid, number)
        self.process.join(60)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError(f"It goes on after signal {number}: {self.output}")
        assert self.process.exitcode == 128 + number, self.output
        assert "Traceback" not in self.output


class Run(Program):
    """A run of tests/stalling.gin."""

    def __init__(self, folder, corpus, *arguments):
        self.model_dir = folder / "run"
        words = (TESTS / "stalling.gin", f"FILES={corpus}", f"MODEL_DIR={self.model_dir}", *arguments)
        super().__init__(folder, "train", *words)


@pytest.mark.parametrize(
    ("stuck", "step"),
    [
        ([STALLING, NO_EVALUATION], 3),
        (["train_script.train.train_eval_get_dataset_fn=@stalling.get_evaluation"], 10),
    ],
    ids=["training", "evaluating"],
)
def test_a_signal_ends_a_run_that_waits_for_data_and_saves_its_step(corpus, tmp_path, stuck, step):
    run = Run(tmp_path, corpus, *stuck, "train_script.train.stats_period=1", "utils.SaveCheckpointConfig.period=1000")
    run.wait_until(lambda run: f"step {step:>7}  loss" in run.output)
    run.signal(signal.SIGTERM)
    assert f"Stopped at step {step}: saved {run.model_dir}/checkpoint_{step}; the same command" in run.output
    assert checkpoints.all_steps(str(run.model_dir)) == [0, step]


def test_a_signal_ends_a_run_in_native_code(corpus, tmp_path):
    run = Run(tmp_path, corpus, NO_EVALUATION, "train_script.train.trainer_cls=@stalling.CompilingTrainer")
    run.wait_until(lambda run: "in native code" in run.output)
    run.signal(signal.SIGINT)
    assert "Stopped by SIGINT: what is saved stays, and the same command goes on from there." in run.output


def test_a_signal_while_saving_lets_the_save_complete(corpus, tmp_path):
    run = Run(
        *(tmp_path, corpus, NO_EVALUATION, "TRAIN_STEPS=100000"),
        "utils.SaveCheckpointConfig.state_transformation_fns=[@stalling.save_slowly]",
        f"stalling.save_slowly.folder={tmp_path}",
    )
    run.wait_until(lambda run: (tmp_path / "saving").exists())
    run.signal(signal.SIGTERM)
    steps = checkpoints.all_steps(str(run.model_dir))
    assert 10 in steps and f"saved {run.model_dir}/checkpoint_{steps[-1]};" in run.output


@pytest.mark.parametrize(
    ("verb", "under_way", "number"), [("eval", "Evaluating ", signal.SIGINT), ("infer", "Restored ", signal.SIGTERM)]
)
def test_a_signal_ends_the_other_programs(micro_run, tmp_path, verb, under_way, number):
    row = json.dumps({"inputs": "words " * 9, "targets": "no"}) + "\n"
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(row * 30_000)  # which take minutes
    program = Program(
        *(tmp_path, verb, f"configs/byt5_tiny_{verb}.gin", TESTS / "micro_model.gin"),
        *(f"FILES={tmp_path}/{{split}}.jsonl", f"CHECKPOINT_PATH={micro_run[0]}/checkpoint_20"),
        *(f"{verb.upper()}_OUTPUT_DIR={tmp_path}/out", "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}"),
    )
    program.wait_until(lambda program: under_way in program.output)
    program.signal(number)
    assert f"Stopped by {number.name}" in program.output.splitlines()[-1]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_data_that_makes_no_example_is_named(corpus, tmp_path, split):
    for name in ("train", "validation"):
        rows = [{"text": "" if name == split else "The weather was good. " * 9}] * 30
        (tmp_path / f"rows_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # So many epochs of nothing take their time.
    words = (f"FILES={tmp_path}/rows_{{split}}.jsonl", f"MODEL_DIR={tmp_path}/run", "TRAIN_STEPS=1")
    done = run_t5xpg("train", TESTS / "micro.gin", *words, "train_script.train.eval_steps=100000")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"t5xpg: error: micro: none of 30 rows of its split '{split}' makes an example. Are FILES" in last


def test_a_batch_has_a_limit_that_gin_binds(corpus, tmp_path):
    run = Run(tmp_path, corpus, STALLING, NO_EVALUATION, "waiting.batch_limit.seconds=3")
    run.process.join(240)
    assert run.process.exitcode == 1, run.output
    assert "t5xpg: error: No batch of the training data in 3 s" in run.output.splitlines()[-1]


@pytest.fixture
def noted(monkeypatch):
    """Signals as a run that finishes its work notes them; what would end this process is left out."""
    monkeypatch.setattr(signals._State, "received", [])
    monkeypatch.setattr(signals._State, "finishing", lambda: True)
    monkeypatch.setattr(signals, "leave_behind", lambda code, future: None)
    return signals._State.received


def test_one_signal_is_never_taken_for_two(noted, monkeypatch):
    """The thread that watches may note it before the main thread's handler runs."""
    monkeypatch.setattr(signals._State, "handled", 0)
    signals._note(signal.SIGINT)
    signals._on_signal(signal.SIGINT, None)
    assert noted == [signal.SIGINT]
    with pytest.raises(KeyboardInterrupt):
        signals._on_signal(signal.SIGINT, None)


def test_a_signal_is_not_lost_where_exceptions_are(monkeypatch):
    class Collected:
        def __del__(self):
            raise signals.Stopped(128 + signal.SIGINT)

    came, shown = [], []
    monkeypatch.setattr("sys.unraisablehook", functools.partial(signals._raise_again, shown.append))
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        Collected()
        deadline = time.monotonic() + 60
        while not came and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT] and not shown


def test_ctrl_c_is_not_lost_on_what_is_being_imported(corpus, tmp_path):
    """Some libraries drop any exception of what they import."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IMPORT)
    done = run_fresh_t5xpg(
        *("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={tmp_path}/run"), PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == -signal.SIGINT and not (tmp_path / "run").exists()


@pytest.fixture
def ending(monkeypatch):
    """Closed outputs, no threads to start, and an os._exit that raises Ended instead."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
        getattr(sys, name).close()
    monkeypatch.setattr(signals._State, "said", False)
    monkeypatch.setattr(signals._State, "received", [])
    monkeypatch.setattr(signals.store_log, "send_rest", refuse)
    monkeypatch.setattr(signals.os, "_exit", end)


class Ended(BaseException):
    pass


def end(code):
    raise Ended(code)


def refuse(*args):
    raise RuntimeError("can't start new thread")


def test_a_process_of_several_ends_though_it_can_tell_nobody(ending, monkeypatch):
    monkeypatch.setattr(signals.jax, "process_count", lambda: 2)
    read, write = os.pipe()
    os.write(write, bytes([signal.SIGTERM]))
    with pytest.raises(Ended, match="^143$"):
        signals._watch(read, refuse)
    os.close(read)
    os.close(write)


def test_a_stuck_process_ends_though_it_can_tell_nobody(ending, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    with pytest.raises(Ended, match="^143$"):
        signals.end_within(0, 143, "Stopped")


def test_what_never_comes_ends_with_the_process_and_what_comes_late_lets_it_end_as_it_would(ending, monkeypatch):
    at_exit, late = [], Future()
    monkeypatch.setattr(signals.atexit, "register", at_exit.append)
    with pytest.raises(RuntimeError, match="can't start"):
        waiting.wait_for(late, 0, refuse)
    with pytest.raises(Ended, match="^1$"):
        at_exit[0]()
    late.set_result("it came")
    at_exit[0]()


def test_what_takes_long_is_given_up_at_a_signal(noted):
    started, never = threading.Event(), threading.Event()

    def work():
        started.set()
        never.wait()

    threading.Thread(target=lambda: started.wait() and noted.append(signal.SIGTERM), daemon=True).start()
    with pytest.raises(signals.Interrupted):
        waiting.run(work)
    never.set()
    noted.clear()
    assert waiting.run(lambda: 5) == 5
    with pytest.raises(KeyError, match="its own"):
        waiting.run(lambda: {}["its own"])


def test_what_is_done_meanwhile_is_waited_for_and_its_error_passes(noted):
    with waiting.meanwhile() as submit:
        first, second = submit(lambda: noted.append(1)), submit(lambda: 2)
    assert noted == [1] and first.done() and second.result() == 2
    with pytest.raises(KeyError, match="its own"), waiting.meanwhile() as submit:
        submit(lambda: {}["its own"])


@pytest.mark.parametrize(("error", "code"), [(ValueError("no"), 1), (signals.Stopped(143), 143)])
def test_what_fails_does_not_wait_for_what_is_done_meanwhile(monkeypatch, error, code):
    left, never = [], threading.Event()
    monkeypatch.setattr(signals, "leave_behind", lambda code, future: left.append((code, future.done())))
    with pytest.raises(type(error)), waiting.meanwhile() as submit:
        submit(never.wait)
        submit(never.wait)
        raise error
    assert left == [(code, False)] * 2
    never.set()


def test_a_batch_that_comes_soon_after_a_signal_is_used(noted, monkeypatch):
    batch: Future = Future()

    def look(seconds):
        noted.append(signal.SIGINT)
        batch.set_result("batch")

    assert waiting.wait_for(batch, 60, look) == "batch"


def test_items_come_in_order_and_end_and_errors_pass(noted):
    assert list(waiting.Batches(iter(range(5)).__next__, "numbers")) == [0, 1, 2, 3, 4]
    batches = waiting.Batches(iter([1, 0]).__next__, "numbers")
    batches.start()
    assert batches.reading and next(batches) == 1 and not batches.reading

    def fail():
        raise OSError("gone")

    failing = waiting.Batches(fail, "numbers")
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            next(failing)


def test_an_explanation_is_asked_for_once_and_only_before_the_first_batch(noted, monkeypatch):
    monkeypatch.setattr(waiting, "EXPLAIN_AFTER", 0.0)
    never = threading.Event()
    with pytest.raises(ValueError, match="nothing is left"):
        next(waiting.Batches(never.wait, "rows", lambda: "nothing is left"))
    never.set()

    slow, asked = threading.Event(), []
    items = iter([lambda: "first", lambda: slow.wait() and "second"])
    batches = waiting.Batches(lambda: next(items)(), "rows", lambda: asked.append(1))
    assert next(batches) == "first"
    threading.Timer(0.5, slow.set).start()
    assert next(batches) == "second" and not asked
