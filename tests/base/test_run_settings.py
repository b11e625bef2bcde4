"""The numbers of a training run: what cannot be meant is refused, by the name of the binding to change."""

import types

import numpy as np
import pytest

from t5xpg.base import run_settings


def settings(**changes) -> dict:
    config = types.SimpleNamespace(dropout_rate=changes.pop("dropout_rate", 0.1))
    save = types.SimpleNamespace(period=changes.pop("save_period", 20))
    return {
        "total_steps": 100,
        "relative_steps": None,
        "eval_steps": 2,
        "eval_period": 10,
        "stats_period": None,
        "gc_period": 0,
        "train_eval_dataset_cfg": object(),
        "infer_eval_dataset_cfg": None,
        "checkpoint_cfg": types.SimpleNamespace(save=save),
        "model": types.SimpleNamespace(module=types.SimpleNamespace(config=config)),
        **changes,
    }


@pytest.mark.parametrize("value", [10.5, "abc", -1, True, "10"])
@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("total_steps", "TRAIN_STEPS is"),
        ("eval_steps", "train.eval_steps (EVAL_STEPS) is"),
        ("save_period", "SaveCheckpointConfig.period is"),
        ("eval_period", "train.eval_period is"),
        ("stats_period", "train.stats_period is"),
        ("gc_period", "train.gc_period is"),
    ],
)
def test_what_is_not_a_whole_number_is_refused_by_name(name, called, value):
    with pytest.raises(ValueError) as error:
        run_settings.check_training(settings(**{name: value}))
    assert str(error.value).startswith(f"{called} {value!r}; set it to a whole number")


@pytest.mark.parametrize("value", [1.5, 1.0, -0.1, "abc", "0.1", None, float("nan"), True])
def test_a_dropout_rate_that_is_not_a_share_is_refused(value):
    with pytest.raises(ValueError, match="dropout rate is .*; set DROPOUT_RATE to a number from 0 to below 1"):
        run_settings.check_training(settings(dropout_rate=value))


def test_steps_are_given_in_one_way():
    with pytest.raises(ValueError, match=r"TRAIN_STEPS is 100 and TRAIN_STEPS_RELATIVE.* is 5; set one of them to N"):
        run_settings.check_training(settings(relative_steps=5))
    with pytest.raises(ValueError, match=r"TRAIN_STEPS_RELATIVE is 0; set it to a whole number above 0"):
        run_settings.check_training(settings(total_steps=None, relative_steps=0))
    with pytest.raises(ValueError, match=r"TRAIN_STEPS is None"):
        run_settings.check_training(settings(total_steps=None))


def test_periods_that_t5x_refuses_are_refused():
    with pytest.raises(ValueError, match=r"SaveCheckpointConfig.period 30, train.eval_period 20: the smallest"):
        run_settings.check_training(settings(save_period=30, eval_period=20))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"total_steps": np.int64(7), "dropout_rate": 0},
        {"total_steps": None, "relative_steps": 5},
        {"total_steps": 0, "save_period": None, "eval_period": 0},
        {"save_period": 30, "eval_period": 20, "eval_steps": "unused", "train_eval_dataset_cfg": None},
        {"model": object(), "checkpoint_cfg": types.SimpleNamespace(save=None)},
    ],
)
def test_what_can_be_meant_passes(changes):
    run_settings.check_training(settings(**changes))
