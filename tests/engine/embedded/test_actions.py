"""Actions that may stop a run."""

import clu.values
import pytest

from t5x.embedded.actions import EarlyStoppingAction, TerminateOnNanAction


def run_all(action, values, task="task", metric="loss") -> list[bool]:
    return [action.run(None, {task: {metric: clu.values.Scalar(value)}}) for value in values]


def test_early_stopping_needs_patience_values_without_improvement():
    action = EarlyStoppingAction(("task", "loss"), mode="min", patience=3)
    assert run_all(action, [5.0, 4.0, 4.1, 4.2]) == [False, False, False, True]


def test_one_improvement_restarts_the_wait():
    action = EarlyStoppingAction(("task", "loss"), mode="min", patience=3)
    assert not any(run_all(action, [5.0, 5.1, 5.0, 5.1, 5.0]))


def test_max_mode_mirrors_min_mode():
    action = EarlyStoppingAction(("task", "loss"), mode="max", patience=2)
    assert run_all(action, [0.5, 0.6, 0.6]) == [False, False, True]


def test_small_improvements_do_not_count():
    absolute = EarlyStoppingAction(("task", "loss"), mode="min", patience=2, atol=0.2)
    assert run_all(absolute, [5.0, 4.9]) == [False, True]
    relative = EarlyStoppingAction(("task", "loss"), mode="min", patience=2, rtol=0.1)
    assert run_all(relative, [5.0, 4.4]) == [False, False]


@pytest.mark.parametrize(("value", "stops"), [(1.0, False), (float("nan"), True), (float("inf"), True)])
def test_terminate_on_nan(value, stops):
    assert run_all(TerminateOnNanAction("task"), [value]) == [stops]


def test_seqio_metrics_are_plain_numbers():
    action = TerminateOnNanAction("task", "f1")
    assert action.run(None, {"task": {"f1": float("nan")}})


@pytest.mark.parametrize("metrics", [{}, {"other": {"loss": 1.0}}, {"task": {"other": 1.0}}, {"task": {"loss": "x"}}])
def test_a_metric_that_is_not_there_is_warned_of(metrics, caplog):
    assert not TerminateOnNanAction("task").run(None, metrics)
    assert "did not run: no number 'loss' for task 'task'" in caplog.text


def test_bad_arguments():
    with pytest.raises(ValueError, match="'min' or 'max'"):
        EarlyStoppingAction(("task", "loss"), mode="best")
    with pytest.raises(ValueError, match="must not be negative"):
        EarlyStoppingAction(("task", "loss"), mode="min", atol=-1)
    with pytest.raises(ValueError, match="rtol is -1; it must not be negative"):
        EarlyStoppingAction(("task", "loss"), mode="min", rtol=-1)
