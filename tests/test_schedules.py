"""The Flax example's learning rates: its own formula, and numbers recorded from it."""

import pytest
from conftest import TESTS, program_settings

import __main__
from t5x import train, trainer
from t5xpg import schedules

RATES = {0: 1e-8, 1: 2.5e-6, 1000: 0.0025, 2000: 0.005, 11000: 0.0025, 19999: 2.7776e-7, 20000: 1e-8}


def test_the_recipe_has_the_examples_rates(monkeypatch):
    monkeypatch.setattr(__main__, "train", train.train, raising=False)  # the recipe binds the program's periods
    recipe = TESTS.parent / "configs" / "wikitext_t5_flax.gin"
    given = ("TRAIN_STEPS = 20000", "MODEL_DIR = ''", "VOCABULARY_FILE = ''")
    rate = program_settings(trainer.Trainer, recipe, *given)["learning_rate_fn"]
    for step, expected in RATES.items():
        assert float(rate(step)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("total", "warmup", "advice"), [(100, 0, 10), (100, 100, 10), (5, 200, 1)])
def test_a_schedule_without_warmup_or_decay_is_refused(total, warmup, advice):
    with pytest.raises(ValueError, match=f"{warmup} warmup steps of {total}: .* add WARMUP_STEPS={advice}$"):
        schedules.linear_decay_factor(total, warmup)
