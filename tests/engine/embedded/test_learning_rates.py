"""Learning rate schedules against T5X's recorded numbers, optax, and Hugging Face's linear schedule."""

import json

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from golden import record_optim

from t5x.embedded.learning_rates import create_learning_rate_scheduler, why_still_rising

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

RECORDED = json.loads(record_optim.PATH.read_text())["learning_rates"]
FACTORS = (
    "constant",
    "linear_warmup",
    "linear_decay",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
)


@pytest.mark.parametrize("name", record_optim.LEARNING_RATES_BY_CASE)
def test_equals_t5x(name):
    actual = record_optim.run_learning_rate(create_learning_rate_scheduler, name)
    np.testing.assert_allclose(actual, RECORDED[name], rtol=1e-6)


def test_equals_optax():
    steps = jnp.arange(0, 300)
    cases = [
        (
            dict(factors="constant * linear_warmup", base_learning_rate=0.3, warmup_steps=50),
            optax.linear_schedule(0.0, 0.3, 50),
        ),
        (
            dict(factors="constant * decay_every", base_learning_rate=0.3, decay_factor=0.5, steps_per_decay=40),
            optax.exponential_decay(0.3, 40, 0.5, staircase=True),
        ),
        (
            dict(factors="constant * cosine_decay", base_learning_rate=0.3, warmup_steps=0, steps_per_cycle=1000),
            optax.cosine_decay_schedule(0.3, 1000),
        ),
    ]
    for options, reference in cases:
        actual = jax.vmap(create_learning_rate_scheduler(**options))(steps)
        with jax.numpy_dtype_promotion("standard"):
            expected = jax.vmap(reference)(steps)
        np.testing.assert_allclose(actual, np.maximum(expected, 1e-8), rtol=1e-5, err_msg=str(options))


def test_linear_decay_is_hugging_faces_linear_schedule():
    """lr 0.005, 2,000 warmup steps of 20,000: up to the rate, then down to nothing."""
    schedule = create_learning_rate_scheduler("linear_decay", 0.005, warmup_steps=2000, decay_factor=1 / 18000)
    expected = {1: 2.5e-6, 1000: 0.0025, 2000: 0.005, 11000: 0.0025, 19999: 2.7776e-7, 20000: 1e-8}
    for step, rate in expected.items():
        # Near the end 1 - (step - 2000) / 18000 in float32 has few digits left.
        np.testing.assert_allclose(schedule(step), rate, rtol=1e-6 if step < 19999 else 2e-3)


@pytest.mark.parametrize("factor", FACTORS)
def test_no_warmup_is_no_division_by_zero(factor):
    """T5X gives NaN or infinity at step 0; without warmup a schedule starts at its full rate."""
    schedule = create_learning_rate_scheduler(factor, 0.5, warmup_steps=0, decay_factor=0.01)
    rates = [float(schedule(step)) for step in range(3)]
    assert np.isfinite(rates).all()
    assert rates[0] == (0.5 if factor in ("constant", "linear_decay") else 1.0)


def test_steps_may_be_numbers_or_arrays_compiled_or_not():
    schedule = create_learning_rate_scheduler("constant * linear_warmup * rsqrt_decay", warmup_steps=10)
    expected = schedule(7)
    assert expected.dtype == jnp.float32 and expected.shape == ()
    for step in (np.int64(7), jnp.int32(7), jnp.float32(7)):
        np.testing.assert_array_equal(schedule(step), expected)
    np.testing.assert_allclose(jax.jit(schedule)(jnp.int32(7)), expected, rtol=1e-6)


def test_decay_every_drops_exactly_at_its_multiples():
    schedule = jax.jit(create_learning_rate_scheduler("decay_every", decay_factor=0.5, steps_per_decay=3))
    steps = [3_000_000, 2_999_999, 14, 15]
    assert [float(schedule(step)) for step in steps[2:]] == [0.0625, 0.03125]
    slow = create_learning_rate_scheduler("decay_every", decay_factor=0.5, steps_per_decay=1_000_000)
    assert [float(slow(step)) for step in steps[:2]] == [0.125, 0.25]


@pytest.mark.parametrize(
    ("factors", "offset", "step", "total", "says"),
    [
        ("constant * linear_warmup", 0, 0, 20, True),
        ("constant * linear_warmup", 0, 0, 100, False),
        ("linear_decay", 0, 0, 20, True),
        ("constant * linear_warmup", 1000, 1000, 1020, True),
        ("constant * linear_warmup", 0, 1000, 1020, False),
        ("constant * rsqrt_decay", 0, 0, 20, False),
    ],
)
def test_a_run_that_ends_before_the_rate_has_risen_is_told_what_to_bind(factors, offset, step, total, says):
    schedule = create_learning_rate_scheduler(factors, warmup_steps=100, step_offset=offset)
    line = why_still_rising(schedule, step, total)
    rises = float(schedule(total)) < float(schedule(total + 1)) and float(schedule(total)) < float(
        schedule(offset + 100)
    )
    assert (line is not None) == says == rises
    if says:
        assert f"until step {offset + 100:,}, and this run ends at step {total:,}" in line
        assert f"utils.create_learning_rate_scheduler.warmup_steps={total // 10}." in line


def test_a_schedule_of_a_user_s_says_nothing():
    assert why_still_rising(lambda step: step, 0, 20) is None and why_still_rising(None, 0, 20) is None


def test_unknown_factors_are_refused_at_once():
    with pytest.raises(ValueError, match="unknown warmup, cosine; known are constant, linear_warmup, linear_decay"):
        create_learning_rate_scheduler("constant * warmup * cosine")


def test_gin_binds_it_by_either_path():
    """T5X's gin files say utils.create_learning_rate_scheduler; utils re-exports the function from here."""
    config = "\n".join(
        [
            "from __gin__ import dynamic_registration",
            "from t5x import utils",
            "from t5x.embedded import learning_rates",
            "RATE = @utils.create_learning_rate_scheduler()",  # first: gin keeps the first name for good
            "utils.create_learning_rate_scheduler.factors = 'constant'",
            "learning_rates.create_learning_rate_scheduler.base_learning_rate = 0.125",
        ]
    )
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config(config)
        try:
            schedule = gin.query_parameter("%RATE").scoped_configurable_fn()
            assert "base_learning_rate = 0.125" in gin.config_str()
        finally:
            gin.clear_config()
    assert schedule(0) == 0.125
