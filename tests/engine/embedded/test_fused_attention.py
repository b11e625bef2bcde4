"""The kernels, interpreted, against the plain form; what they are compiled to is in benchmarks/accelerators.py.

cuDNN's runs on a GPU only: the same function, differentiated as cuDNN does it, stands in for it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import record_network as golden

from t5x.embedded import fused_attention, masks, platforms
from t5x.examples.t5 import layers, network

pytestmark = pytest.mark.usefixtures("compiled_for_speed")


def plain(query, key, value, bias, mask):
    return layers._attend(query, key, value, masks.add_mask(mask, bias), query.dtype, False)


def arguments(batch, q_len, k_len, heads, head_dim, dtype=jnp.float32):
    """Returns query, key, value, bias and mask; one example of the mask hides everything from its first query."""
    rng = np.random.default_rng(0)
    query = rng.normal(size=(batch, q_len, heads, head_dim))
    key, value = rng.normal(size=(2, batch, heads, head_dim, k_len))
    bias, mask = rng.normal(size=(1, heads, q_len, k_len)), rng.random((batch, 1, q_len, k_len)) < 0.7
    mask[0, :, 0] = False
    return *(jnp.asarray(x, dtype) for x in (query, key, value)), jnp.asarray(bias, jnp.float32), jnp.asarray(mask)


def value_and_gradients(attend, given):
    """Returns the output, and the gradients of query, key, value and, where there is one, bias."""
    wanted = tuple(i for i in range(4) if given[i] is not None)
    weights = jnp.cos(jnp.arange(given[0].size, dtype=jnp.float32)).reshape(given[0].shape)

    def weighted(*given):
        output = attend(*given)
        return jnp.sum(output.astype(jnp.float32) * weights), output

    (_, output), gradients = jax.jit(jax.value_and_grad(weighted, wanted, has_aux=True))(*given)
    return output, *gradients


@pytest.mark.parametrize("shape", [(2, 8, 8, 4, 64), (3, 5, 7, 2, 64), (2, 12, 9, 3, 8)], ids=str)
@pytest.mark.parametrize("without", [(), (3,), (4,), (3, 4)], ids=["both", "mask", "bias", "neither"])
def test_values_and_gradients_are_the_plain_forms(shape, without):
    given = [None if i in without else x for i, x in enumerate(arguments(*shape))]
    actual = value_and_gradients(fused_attention.fused_attention, given)
    # Where no query sees nothing, which float32 alone makes of -1e10, against float64: the plain form's own rounding
    # differs between CPUs.
    with jax.enable_x64(given[4] is None):
        exact = [x if x is None or given[4] is not None else np.asarray(x, np.float64) for x in given]
        expected = [np.asarray(y) for y in value_and_gradients(plain, exact)]
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, atol=1e-5)


def kept_by_cudnn(query, key, value, bias, *, scale, implementation):
    """jax.nn.dot_product_attention as cuDNN differentiates it: from float32 max + log(sum) of each row of logits."""
    assert (scale, implementation) == (1.0, "cudnn")
    bias = jnp.zeros((1, 1, 1, 1)) if bias is None else bias

    @jax.custom_vjp
    def attend(query, key, value, bias):
        weights = jnp.exp(logits(query, key, bias) - kept(query, key, bias))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    def logits(query, key, bias):
        return jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias

    def kept(query, key, bias):
        return jax.nn.logsumexp(logits(query, key, bias), axis=-1, keepdims=True)

    def forward(query, key, value, bias):
        weights = jax.nn.softmax(logits(query, key, bias))
        output = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return output, (query, key, value, bias, kept(query, key, bias), output)

    def backward(saved, gradient):
        query, key, value, bias, row, output = saved
        weights = jnp.exp(logits(query, key, bias) - row)
        mean = jnp.einsum("bqhd,bqhd->bhq", gradient, output)[..., None]
        d_logits = weights * (jnp.einsum("bqhd,bkhd->bhqk", gradient, value) - mean)
        d_bias = jnp.sum(d_logits, [i for i, size in enumerate(bias.shape) if size == 1], keepdims=True)
        d_query, d_key = jnp.einsum("bhqk,bkhd->bqhd", d_logits, key), jnp.einsum("bhqk,bqhd->bkhd", d_logits, query)
        return d_query, d_key, jnp.einsum("bhqk,bqhd->bkhd", weights, gradient), d_bias

    attend.defvjp(forward, backward)
    return attend(query, key, value, bias)


@pytest.mark.parametrize("without", [(), (3,), (4,), (3, 4)], ids=["both", "mask", "bias", "neither"])
def test_on_a_gpu_values_and_gradients_are_the_plain_forms(monkeypatch, without):
    given = [None if i in without else x for i, x in enumerate(arguments(3, 6, 8, 2, 16))]
    sees = jnp.ones((3, 6, 1, 1), bool) if given[4] is None else jnp.any(given[4], -1).swapaxes(1, 2)[..., None]
    monkeypatch.setattr(platforms, "of_this_trace", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", kept_by_cudnn)
    actual, expected = (
        value_and_gradients(lambda *given, attend=attend: jnp.where(sees, attend(*given), 0), given)
        for attend in (fused_attention.fused_attention, plain)
    )
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_on_a_gpu_a_query_that_sees_nothing_has_gradients_of_what_it_gets(monkeypatch):
    query, key, value, bias, _ = arguments(1, 4, 64, 2, 16)
    given = query, key, value, bias, jnp.zeros((1, 1, 4, 64), bool)
    monkeypatch.setattr(platforms, "of_this_trace", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", kept_by_cudnn)
    output, *gradients = value_and_gradients(fused_attention.fused_attention, given)
    expected, *by_jax = value_and_gradients(lambda *x: plain(*x[:4], None), given)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for x, y in zip(gradients, by_jax, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_on_a_gpu_it_is_for_bfloat16_and_even_lengths(monkeypatch):
    monkeypatch.setattr(platforms, "of_this_trace", lambda: "gpu")
    for dtype, expected in ((jnp.bfloat16, True), (jnp.float16, False), (jnp.float32, False)):
        query, key, *_ = arguments(2, 8, 6, 4, 64, dtype)
        assert fused_attention.is_possible(query, key) == expected
    for shape in ((2, 7, 6, 4, 64), (2, 8, 5, 4, 64), (2, 1, 8, 4, 64), (2, 8, 8, 4, 12), (2, 8, 8, 1, 136)):
        query, key, *_ = arguments(*shape, jnp.bfloat16)
        assert not fused_attention.is_possible(query, key)


def test_blocks_of_queries_sum_their_gradients(monkeypatch):
    monkeypatch.setattr(fused_attention, "MEMORY", 60_000)
    assert fused_attention._block(192, 16, 2, 8) == 64 and fused_attention._block(190, 16, 2, 8) == 0
    given = arguments(2, 192, 16, 2, 8)
    expected = value_and_gradients(plain, given)
    for x, y in zip(value_and_gradients(fused_attention.fused_attention, given), expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_bfloat16_is_as_close_to_float32_as_the_plain_form():
    given = arguments(2, 16, 16, 2, 64, jnp.bfloat16)
    exact = value_and_gradients(plain, [x.astype(jnp.float32) for x in given[:4]] + [given[4]])
    fused = value_and_gradients(fused_attention.fused_attention, given)
    rounded = value_and_gradients(plain, given)
    for x, y, z in zip(exact, fused, rounded, strict=True):
        error, usual = (float(jnp.sqrt(jnp.mean((x - other.astype(jnp.float32)) ** 2))) for other in (y, z))
        assert error < usual


def test_a_network_is_the_same_with_dropout_too(monkeypatch):
    module, variables = golden.initialize("t5_1_1")
    fused = network.Transformer(module.config.replace(fused_attention=True))
    batch, rngs = golden.packed_batch(), {"dropout": jax.random.PRNGKey(1)}
    calls, original = [], fused_attention.fused_attention
    monkeypatch.setattr(fused_attention, "fused_attention", lambda *args: calls.append(1) or original(*args))

    def loss(module, params):
        return jnp.mean(module.apply({"params": params}, **batch, enable_dropout=True, rngs=rngs) ** 2)

    expected = jax.jit(jax.value_and_grad(lambda params: loss(module, params)))(variables["params"])
    jax.jit(jax.value_and_grad(lambda params: loss(fused, params)))(variables["params"])
    assert not calls  # not for a CPU
    monkeypatch.setattr(fused_attention, "is_possible", lambda *_: True)
    actual = jax.jit(jax.value_and_grad(lambda params: loss(fused, params)))(variables["params"])
    assert len(calls) == module.config.num_encoder_layers + 2 * module.config.num_decoder_layers
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_it_is_for_tpus_and_for_what_divides(monkeypatch):
    query, key, *_ = arguments(2, 8, 8, 4, 64)
    assert not fused_attention.is_possible(query, key)
    monkeypatch.setattr(platforms, "of_this_trace", lambda: "tpu")
    assert fused_attention.is_possible(query, key)
    assert not fused_attention.is_possible(jnp.zeros((1, 1022, 1, 8)), jnp.zeros((1, 1, 8, 1024)))
    assert not fused_attention.is_possible(query[:, :1], key)  # as in decoding
    assert fused_attention.is_possible(query, key, jnp.zeros((1, 4, 8, 8)), jnp.zeros((1, 1, 1, 8)))
    for bias in ((2, 4, 8, 8), (1, 1, 8, 8)):
        assert not fused_attention.is_possible(query, key, jnp.zeros(bias))
    assert not fused_attention.is_possible(query, key, None, jnp.zeros((2, 4, 8, 8)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 7), (3, 1, 1, 7), (1, 1, 5, 7)], ids=str)
def test_a_mask_is_broadcast(shape):
    query, key, value, _, _ = arguments(3, 5, 7, 2, 64)
    mask = jnp.asarray(np.random.default_rng(0).random(shape) < 0.7)
    expected = plain(query, key, value, None, mask)
    np.testing.assert_allclose(fused_attention.fused_attention(query, key, value, None, mask), expected, atol=1e-5)
