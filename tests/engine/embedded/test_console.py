"""The progress line on a terminal, its absence elsewhere, and what is logged."""

import io
import logging
import sys
import types
from concurrent.futures import Future

import jax
import numpy as np
import pytest

from t5x.embedded import console


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch) -> Terminal:
    """To be called in the test itself: pytest puts its own stderr back after a fixture."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def metrics(nats: float, tokens: int) -> dict:
    """As a training step gives them: a clu metric with a total and a count."""
    return {"nats_per_token": types.SimpleNamespace(count=tokens, compute=lambda: nats)}


def test_the_line_shows_the_step_before_and_the_speed_since(monkeypatch):
    terminal = open_terminal(monkeypatch)
    now = iter([0.0, 1.0, 3.0, 3.1])
    monkeypatch.setattr(console, "time", types.SimpleNamespace(time=lambda: next(now)))
    progress = console.Progress(100, 0)
    progress.on_step(1, metrics(5.0, 40))  # started; its loss is not looked at yet
    progress.on_step(2, metrics(4.0, 40))  # two steps in three seconds since the line was made
    progress.on_step(3, metrics(3.0, 40))  # too soon to look again
    progress._bar.refresh()
    progress.close()
    last = next(line for line in reversed(terminal.getvalue().split("\r")) if "3/100" in line)
    assert "loss 5.000 nats/token" in last and "27 target tokens/s" in last


def test_nothing_is_drawn_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = console.Progress(10, 0)
    for step in (1, 2, 3):
        progress.on_step(step, {})  # not even looked at
    progress.close()
    assert sys.stderr.getvalue() == ""


def round_metrics(**values: float) -> Future:
    """As the trainer gives a round's: a future of {name: something with a value}."""
    done = Future()
    done.set_result({name.replace("__", "/"): types.SimpleNamespace(value=np.float32(x)) for name, x in values.items()})
    return done


ROUND = {"nats_per_token": 2.5, "learning_rate__current": 0.01, "timing__target_tokens_per_second": 1234.4}


@pytest.mark.parametrize("shown", [True, False])
def test_a_round_is_a_line_in_the_log_and_off_a_terminal(monkeypatch, tmp_path, shown):
    output = open_terminal(monkeypatch) if shown else io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    lines = []
    monkeypatch.setattr(console.absl_logging, "info", lines.append)
    now = iter([1000.0])
    monkeypatch.setattr(console, "time", types.SimpleNamespace(time=lambda: next(now, 1060.0)))
    progress = console.Progress(100, 40)
    progress.on_round(60, round_metrics(loss=5e6, **ROUND))  # 20 steps in a minute, so 40 in two
    progress.close()
    line = "step      60  loss 2.5000 nats/token, learning rate 0.01, 1,234 target tokens/s, 02:00 left"
    assert lines == [line]
    assert (line in output.getvalue().splitlines()) == (not shown)


def test_a_model_with_metrics_of_its_own_gets_what_there_is(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = console.Progress(100, 0)
    progress.on_round(50, round_metrics(loss=7.25))
    failed = Future()
    failed.set_exception(ValueError("for whoever waits"))
    progress.on_round(51, failed)
    assert "step      50  loss 7.2500, 00:00 left" in sys.stderr.getvalue()
    assert "step      51" not in sys.stderr.getvalue()


def test_each_process_has_a_log_of_its_own(monkeypatch, tmp_path):
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        for index in range(3):
            monkeypatch.setattr(jax, "process_index", lambda index=index: index)
            console.log_to_file(str(tmp_path / "train.log"))
    finally:
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    assert {path.name for path in tmp_path.iterdir()} == {"train.log", "train.process_1.log", "train.process_2.log"}


def test_a_line_said_stands_above_the_progress_line(monkeypatch):
    terminal = open_terminal(monkeypatch)
    progress = console.Progress(10, 4)
    console.say("Saved step 4")
    progress.close()
    assert "Saved step 4\n" in terminal.getvalue()


def test_the_log_file_gets_records_and_warnings(tmp_path):
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        console.log_to_file(str(tmp_path / "run" / "train.log"))
        logging.getLogger("anything").info("noticed")
    finally:
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    assert "I anything: noticed" in (tmp_path / "run" / "train.log").read_text()
