"""The loss against T5X's recorded numbers, optax and plain formulas."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from golden import record_optim

from t5x import losses

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

RECORDED = json.loads(record_optim.PATH.read_text())
VOCAB = 11


@pytest.fixture(name="data")
def make_data():
    random = np.random.RandomState(0)
    logits = jnp.asarray(4 * random.randn(3, 6, VOCAB), jnp.float32)
    targets = jnp.asarray(random.randint(0, VOCAB, size=(3, 6)), jnp.int32)
    weights = jnp.asarray(random.rand(3, 6), jnp.float32)
    return logits, targets, weights


@pytest.mark.parametrize("name", record_optim.LOSSES)
def test_losses_and_gradients_equal_t5x(name):
    expected = RECORDED["losses"][name]
    for key, value in record_optim.run_loss(losses, name).items():
        scale = np.abs(expected[key]).max()
        np.testing.assert_allclose(value, expected[key], rtol=1e-6, atol=3e-7 * scale, err_msg=key)


@pytest.mark.parametrize("name", record_optim.factor_cases())
def test_normalizing_factors_and_weights_equal_t5x(name):
    actual = record_optim.run_factor(losses, *record_optim.factor_cases()[name])
    for key, expected in RECORDED["factors"][name].items():
        if expected is None:
            assert actual[key] is None
        else:
            np.testing.assert_allclose(actual[key], expected, rtol=1e-6)


def test_integer_and_soft_targets_equal_optax(data):
    logits, targets, _ = data
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    one_hot = jax.nn.one_hot(targets, VOCAB, dtype=jnp.float32)
    for form in (targets, one_hot):
        loss, z_loss = losses.cross_entropy_with_logits(logits, form)
        np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-6)
        assert not z_loss.any()


@pytest.mark.parametrize("label_smoothing, z_loss", [(0.0, 0.0), (0.0, 0.02), (0.1, 0.0), (0.3, 1e-3)])
def test_gradient_is_that_of_the_written_out_formula(data, label_smoothing, z_loss):
    logits, targets, weights = data

    def written_out(logits):
        one_hot = jax.nn.one_hot(targets, VOCAB, dtype=jnp.float32)
        share = label_smoothing / (VOCAB - 1)
        soft = one_hot * (1 - label_smoothing - share) + share
        entropy = -jnp.sum(jnp.where(soft > 0, soft * jnp.log(jnp.maximum(soft, 1e-30)), 0), axis=-1)
        z = z_loss * jax.nn.logsumexp(logits, axis=-1) ** 2
        return jnp.sum((optax.softmax_cross_entropy(logits, soft) - entropy + z) * weights) / 5.0

    def ours(logits):
        return losses.compute_weighted_cross_entropy(logits, targets, weights, label_smoothing, z_loss, 5.0)[0]

    expected, expected_gradient = jax.value_and_grad(written_out)(logits)
    loss, gradient = jax.jit(jax.value_and_grad(ours))(logits)
    np.testing.assert_allclose(loss, expected, rtol=2e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-7)


def test_the_z_loss_output_carries_no_gradient(data):
    """It is a part of the first output and there to be shown; T5X's custom gradient ignores it too."""
    logits, targets, _ = data
    for form in (targets, jax.nn.one_hot(targets, VOCAB, dtype=jnp.float32)):
        gradient = jax.grad(lambda x, form=form: jnp.sum(losses.cross_entropy_with_logits(x, form, 0.1)[1]))(logits)
        assert not gradient.any()


def test_a_smoothed_target_that_is_met_exactly_costs_nothing():
    confidence, vocab = 0.9, 5
    soft = np.full(vocab, (1 - confidence) / (vocab - 1), np.float32)
    soft[2] = confidence
    loss, _, _ = losses.compute_weighted_cross_entropy(jnp.log(soft)[None], jnp.array([2]), None, 1 - confidence)
    assert abs(float(loss)) < 1e-6


def test_bfloat16_logits_are_summed_in_float32(data):
    logits, targets, weights = data
    low = logits.astype(jnp.bfloat16)

    def loss(x):
        return losses.compute_weighted_cross_entropy(x, targets, weights, 0.1, 1e-4)[0]

    assert loss(low).dtype == jnp.float32
    np.testing.assert_allclose(loss(low), loss(low.astype(jnp.float32)), rtol=1e-6)
    assert jax.grad(loss)(low).dtype == jnp.bfloat16


def test_no_array_of_the_logits_size_is_made():
    """T5X's one-hot targets, exponentials and log probabilities take several times the logits' memory."""
    logits = jax.ShapeDtypeStruct((4, 32, 1024), jnp.float32)
    targets = jax.ShapeDtypeStruct((4, 32), jnp.int32)

    def loss(logits, targets):
        return losses.compute_weighted_cross_entropy(logits, targets, None, 0.1, 1e-4)[0]

    compiled = jax.jit(jax.grad(loss)).lower(logits, targets).compile()
    memory = compiled.memory_analysis()
    if memory is None:
        pytest.skip("this backend does not tell memory use")
    assert memory.temp_size_in_bytes < 4 * 32 * 1024 * 4 / 4


def test_ids_outside_the_vocabulary_are_nan_unless_their_weight_is_zero(data):
    logits, targets, _ = data
    for bad in (VOCAB, -1, -100):
        spoiled = targets.at[1, 2].set(bad)
        assert np.isnan(losses.compute_weighted_cross_entropy(logits, spoiled)[0])
        weights = jnp.ones(targets.shape, jnp.float32).at[1, 2].set(0.0)

        def loss(x, ids, weights=weights):
            return losses.compute_weighted_cross_entropy(x, ids, weights)[0]

        value, gradient = jax.value_and_grad(loss)(logits, spoiled)
        expected, expected_gradient = jax.value_and_grad(loss)(logits, targets)
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_array_equal(gradient, expected_gradient)


def test_average_per_sequence_means_that_every_packed_sequence_weighs_one():
    """Against loops, with weights of zero, ids beyond the row's length and segments without any weight."""
    random = np.random.RandomState(1)
    length = 12
    segments, weights = np.zeros((8, length), np.int32), np.zeros((8, length), np.float32)
    expected = np.zeros_like(weights)
    for row in range(8):
        at, number = 0, 0
        while at < length - 2:
            size = random.randint(1, 5)
            number += random.randint(1, 9)
            part = slice(at, at + size)
            segments[row, part] = number
            weights[row, part] = random.rand(len(weights[row, part])) * (random.rand() > 0.3)
            if weights[row, part].sum():
                expected[row, part] = weights[row, part] / weights[row, part].sum()
            at += size
    assert segments.max() > length
    batch = {
        "decoder_target_tokens": jnp.asarray(segments),
        "decoder_loss_weights": jnp.asarray(weights),
        "decoder_segment_ids": jnp.asarray(segments),
    }
    factor, actual = losses.get_loss_normalizing_factor_and_weights("AVERAGE_PER_SEQUENCE", batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(factor, expected.sum(), rtol=1e-6)


def test_factor_names_convert_in_any_case_and_pass_through():
    enum = losses.SpecialLossNormalizingFactor
    convert = losses.convert_special_loss_normalizing_factor_to_enum
    assert [convert(member.name.lower()) for member in enum] == list(enum)
    batch = {"decoder_target_tokens": jnp.ones((2, 3), jnp.int32)}
    by_name = losses.get_loss_normalizing_factor_and_weights("NUM_TOTAL_TARGET_TOKENS", batch)
    by_member = losses.get_loss_normalizing_factor_and_weights(enum.NUM_TOTAL_TARGET_TOKENS, batch)
    assert by_name[0] == by_member[0] == 6


def test_errors_say_what_was_found(data):
    logits, targets, _ = data
    with pytest.raises(ValueError, match=r"logits \(3, 6, 11\) and targets \(3, 5\)"):
        losses.compute_weighted_cross_entropy(logits, targets[:, 1:])
    with pytest.raises(ValueError, match=r"targets must be \(3, 6\)"):
        losses.cross_entropy_with_logits(logits, targets[0])
    with pytest.raises(ValueError, match="label_smoothing is 1.0"):
        losses.compute_weighted_cross_entropy(logits, targets, label_smoothing=1.0)
    with pytest.raises(ValueError, match="'PER_TOKEN'; use a number, None or one of NUM_REAL_TARGET_TOKENS"):
        losses.get_loss_normalizing_factor_and_weights("PER_TOKEN", {"decoder_target_tokens": targets})


def test_class_ids_may_be_floats():
    logits = jnp.asarray(np.random.RandomState(0).standard_normal((2, 3, 5)), jnp.float32)
    ids = jnp.array([[1, 0, 4], [2, 3, 0]])

    def loss(logits, targets):
        return losses.compute_weighted_cross_entropy(logits, targets, None, 0.1, 1e-3)[0]

    whole, floating = (jax.value_and_grad(loss)(logits, x) for x in (ids, ids.astype(jnp.float32)))
    jax.tree.map(np.testing.assert_array_equal, floating, whole)
    plain = losses.cross_entropy_with_logits(logits, ids)[0]
    np.testing.assert_array_equal(losses.cross_entropy_with_logits(logits, ids.astype(jnp.float32))[0], plain)
