import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x.embedded import vocab_axis

LOGITS = jnp.asarray(np.random.RandomState(0).randn(3, 5, 384), jnp.float32)
IDS = jnp.asarray(np.random.RandomState(1).randint(0, 384, (3, 5)), jnp.int32)


@pytest.mark.parametrize(
    "select",
    [vocab_axis.select, vocab_axis._select_by_gather, vocab_axis._select_by_comparing],
    ids=lambda f: f.__name__,
)
def test_every_form_selects_the_same(select):
    ids = IDS.at[0, :2].set(jnp.array([-1, 384]))
    expected = np.take_along_axis(np.asarray(LOGITS), np.asarray(IDS)[..., None], -1)[..., 0]
    expected[0, :2] = np.nan
    np.testing.assert_array_equal(jax.jit(select)(LOGITS, ids), expected)


@pytest.mark.parametrize("vocab", [384, 250, 7])
def test_argmax_is_numpys_where_two_are_equal_too(vocab):
    logits = jnp.round(LOGITS[..., :vocab])
    np.testing.assert_array_equal(jax.jit(vocab_axis.argmax)(logits), np.argmax(logits, axis=-1))


def test_a_tpu_gets_one_pass_over_the_logits_and_a_cpu_no_slow_argmax():
    def program(fn, platform: str, *arguments) -> str:
        return jax.jit(fn).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()

    assert "gather" not in program(vocab_axis.select, "tpu", LOGITS, IDS)
    assert "gather" in program(vocab_axis.select, "cpu", LOGITS, IDS)
    assert "3x128" not in program(vocab_axis.argmax, "tpu", LOGITS)
    assert "3x128" in program(vocab_axis.argmax, "cpu", LOGITS)
