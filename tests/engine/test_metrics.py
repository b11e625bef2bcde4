"""Metrics against T5X's recorded numbers and plain numpy."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from golden import record_optim

from t5x import losses, metrics

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

RECORDED = json.loads(record_optim.PATH.read_text())["metrics"]
OURS = {"nats_per_token", "perplexity"}


def make_batch(vocab=384):
    random = np.random.RandomState(0)
    logits = jnp.asarray(3 * random.randn(4, 9, vocab), jnp.float32)
    targets = jnp.where(
        jnp.asarray(random.rand(4, 9) < 0.5),
        jnp.argmax(logits, axis=-1).astype(jnp.int32),
        jnp.asarray(random.randint(0, vocab, size=(4, 9)), jnp.int32),
    )
    mask = jnp.asarray(random.rand(4, 9) < 0.7, jnp.float32)
    return logits, targets, mask


def test_base_metrics_have_t5x_names_and_numbers():
    actual = record_optim.run_metrics(metrics.compute_base_metrics, metrics)
    assert actual.keys() == RECORDED.keys() | OURS
    for name, expected in RECORDED.items():
        np.testing.assert_allclose(actual[name], expected, rtol=1e-6, err_msg=name)


def test_nats_per_token_is_the_plain_cross_entropy_whatever_is_minimized():
    logits, targets, mask = make_batch()
    nats = np.asarray(optax.softmax_cross_entropy_with_integer_labels(logits, targets))[np.asarray(mask) > 0]
    batch = {"decoder_target_tokens": targets, "decoder_loss_weights": mask}
    for name in (None, "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        factor, weights = losses.get_loss_normalizing_factor_and_weights(name, batch)
        loss, z_loss, _ = losses.compute_weighted_cross_entropy(logits, targets, weights, 0.1, 1e-3, factor)
        computed = metrics.compute_base_metrics(logits, targets, weights, loss, z_loss)
        np.testing.assert_allclose(computed["nats_per_token"].compute(), nats.mean(), rtol=1e-6)
        np.testing.assert_allclose(computed["perplexity"].compute(), np.exp(nats.mean()), rtol=1e-5)
        bits = metrics.BitsPerByte(**vars(computed["nats_per_token"]))
        np.testing.assert_allclose(bits.compute(), nats.mean() / np.log(2), rtol=1e-6)


def test_perplexity_merges_tokens_not_perplexities():
    one, three = jnp.float32(1), jnp.float32(3)
    merged = metrics.Perplexity(total=three, count=one).merge(metrics.Perplexity(total=one, count=three))
    np.testing.assert_allclose(merged.compute(), np.exp(1.0), rtol=1e-6)


@pytest.mark.parametrize("vocab, backend", [(384, "cpu"), (256, "gpu"), (131, "cpu")])
def test_accuracy_is_that_of_argmax(vocab, backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)  # only the CPU's argmax goes by blocks
    logits, targets, mask = make_batch(vocab)
    kept = np.asarray(mask) > 0
    expected = (np.asarray(logits).argmax(-1) == np.asarray(targets))[kept].mean()
    assert 0.2 < expected < 0.8
    computed = metrics.compute_base_metrics(logits, targets, mask, jnp.float32(1))
    np.testing.assert_allclose(computed["accuracy"].compute(), expected, rtol=1e-6)


def test_equal_logits_are_won_by_the_first_class():
    logits = jnp.zeros((1, 4, 256), jnp.float32).at[0, 3, 200:].set(1.0)
    targets = jnp.array([[0, 1, 128, 200]], jnp.int32)
    computed = metrics.compute_base_metrics(logits, targets, None, jnp.float32(1))
    assert computed["accuracy"].compute() == 0.5


def test_without_mask_z_loss_and_segments():
    logits, targets, _ = make_batch()
    computed = metrics.compute_base_metrics(logits, targets, None, jnp.float32(72), segment_ids={"inputs": None})
    assert computed["loss_per_nonpadding_target_token"].compute() == 2
    assert computed["non_padding_fraction/loss_weights"].compute() == 1
    assert not [name for name in computed if "z_loss" in name or "cross_ent" in name or "batch_size" in name]


def test_padding_may_hold_anything():
    logits, targets, mask = make_batch()
    spoiled = jnp.where(mask == 0, -100, targets)
    logits = jnp.where(mask[..., None] == 0, jnp.nan, logits)
    computed = metrics.compute_base_metrics(logits, spoiled, mask, jnp.float32(1))
    assert all(np.isfinite(computed[name].compute()) for name in ("accuracy", *OURS))


def test_loss_and_metrics_share_their_work_and_stay_out_of_the_gradient():
    """One pass of exponentials serves loss, gradient, nats and perplexity; no array of the logits' size is added."""
    logits, targets, mask = make_batch(1024)

    def loss_fn(logits, with_metrics):
        loss, z_loss, _ = losses.compute_weighted_cross_entropy(logits, targets, mask, 0.0, 1e-4)
        return loss, metrics.compute_base_metrics(logits, targets, mask, loss, z_loss) if with_metrics else ()

    grad = jax.value_and_grad(loss_fn, has_aux=True)
    plain, full = (jax.jit(grad, static_argnums=1).lower(logits, flag).compile() for flag in (False, True))
    np.testing.assert_array_equal(plain(logits)[1], full(logits)[1])
    assert full.as_text().count(" exponential(") <= plain.as_text().count(" exponential(")
    if (memory := full.memory_analysis()) is not None:
        assert memory.temp_size_in_bytes < logits.nbytes / 2


def test_count_packed_examples():
    ids = jnp.array([[1, 1, 3, 3, 0, 0], [2, 2, 2, 2, 2, 2], [2, 7, 7, 7, 7, 0], [0, 0, 0, 0, 0, 0]])
    assert metrics.count_packed_examples(ids) == 5
    assert metrics.count_packed_examples(ids != 0) == 3


def test_steps_and_seconds_are_set_on_the_host():
    tree = {
        "loss": metrics.AveragePerStep.from_model_output(jnp.array([1.0, 5.0])),
        "speed": metrics.StepsPerTime.from_model_output(),
        "rate": metrics.TimeRate.from_model_output(numerator=6.0),
        "seconds": metrics.Time(),
        "sum": metrics.Sum.from_model_output(jnp.array([1, 2])),
    }

    @jax.jit
    def merge(a, b):
        return jax.tree.map(lambda x, y: x.merge(y), a, b, is_leaf=metrics.is_metric_obj)

    tree = merge(tree, tree)  # as two microbatches of one step
    tree = metrics.set_time_metrics_duration(tree, 0.5)
    tree = metrics.set_step_metrics_num_steps(tree, 1)
    values = {name: float(metric.compute_value().value) for name, metric in tree.items()}
    assert values == {"loss": 12, "speed": 2, "rate": 24, "seconds": 0.5, "sum": 6}


def test_unset_numbers_are_errors():
    with pytest.raises(ValueError, match="Time: `duration` is not set"):
        metrics.Time().compute()
    with pytest.raises(ValueError, match="TimeRate: `duration` is not set"):
        metrics.TimeRate(numerator=1.0).compute()
    with pytest.raises(ValueError, match="AveragePerStep: `steps` is not set"):
        metrics.AveragePerStep(total=1.0, steps=None).compute()
    with pytest.raises(ValueError, match="AveragePerStep: `total` is not set"):
        metrics.AveragePerStep(total=1.0).merge(metrics.AveragePerStep())
    with pytest.raises(ValueError, match="merge first"):
        metrics.TimeRate(numerator=1.0, duration=1.0).merge(metrics.TimeRate(numerator=1.0))


def test_metrics_loop_over_microbatches():
    """Zeros of the right shapes start a compiled loop, whose carry must keep its dtypes."""
    logits, targets, mask = make_batch()

    def compute(row):
        part = [jax.lax.dynamic_slice_in_dim(x, row, 1) for x in (logits, targets, mask)]
        return metrics.compute_base_metrics(*part, loss=jnp.float32(3), segment_ids={"targets": part[1]})

    def body(row, so_far):
        return {name: metric.merge(so_far[name]) for name, metric in compute(row).items()}

    shapes = jax.eval_shape(compute, 0)
    start = {name: metrics.shape_obj_to_defined_obj(shape) for name, shape in shapes.items()}
    looped = jax.lax.fori_loop(0, 4, body, start)
    whole = metrics.compute_base_metrics(logits, targets, mask, jnp.float32(12), segment_ids={"targets": targets})
    for metrics_ in (looped, whole):
        metrics_.update(metrics.set_time_metrics_duration(metrics.set_step_metrics_num_steps(metrics_, 1), 1.0))
    for name in whole.keys() - {"timing/steps_per_second"}:
        np.testing.assert_allclose(looped[name].compute(), whole[name].compute(), rtol=1e-5, err_msg=name)


def test_importing_the_numeric_modules_loads_no_data_library():
    code = (
        "import sys, t5xpg; from t5x import adafactor, losses, metrics, optimizers;"
        "from t5x.embedded import learning_rates;"
        "print([m for m in ('tensorflow', 'seqio', 't5', 'orbax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sums_take_lists_of_numbers():
    assert metrics.Sum.from_model_output([[1.0, 2.0], [3.0, 4.0]]).compute() == 10
    assert metrics.AveragePerStep.from_model_output([1.0, 2.0, 3.0], steps=2).compute() == 3


def test_weighted_accuracy_sums_the_weights_of_what_is_right():
    logits, targets, mask = make_batch()
    right = np.argmax(np.asarray(logits), axis=-1) == np.asarray(targets)
    assert float(metrics.compute_weighted_accuracy(logits, targets)) == right.sum()
    weighted = metrics.compute_weighted_accuracy(logits, targets.astype(jnp.float32), 2 * mask)
    assert float(weighted) == 2 * np.asarray(mask)[right].sum()
    with pytest.raises(ValueError, match="must be \\(4, 9\\) class ids"):
        metrics.compute_weighted_accuracy(logits, targets[:, 0])


def test_summary_metrics_are_sums():
    logits, targets, mask = make_batch()
    more = {"extra": metrics.Sum(total=jnp.float32(7))}
    made = metrics.compute_metrics(logits, targets, mask, jnp.float32(5), jnp.sum(mask), more)
    twice = {name: metric.merge(metric).compute() for name, metric in made.items()}
    accuracy = metrics.compute_weighted_accuracy(logits, targets, mask)
    expected = dict(loss=5, accuracy=accuracy, weight_sum=mask.sum(), num_examples=4, num_tokens=36, extra=7)
    assert twice == {name: 2 * value for name, value in expected.items()}
