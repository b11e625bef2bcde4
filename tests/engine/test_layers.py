"""T5X's layers one by one: their arguments, initial values, masks and biases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from t5x.embedded import platforms
from t5x.examples.t5 import layers

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

KEY = jax.random.PRNGKey(0)


# --- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "axis", "shape"), [(7, -1, (2, 3, 8)), ((4, 5), -1, (2, 3, 8)), (6, (-2, -1), (2, 3, 4, 5))]
)
def test_products_for_a_tpu_are_those_for_a_cpu(features, axis, shape, monkeypatch):
    inputs = jax.random.normal(KEY, shape)
    dense = layers.DenseGeneral(features, axis, kernel_axes=("embed", "mlp"))
    params = dense.init(KEY, inputs)

    def run(params, inputs):
        outputs = dense.apply(params, inputs)
        return jnp.sum(jnp.sin(outputs)), outputs

    def shape_of_product() -> tuple[int, ...]:
        operations = jax.make_jaxpr(dense.apply)(params, inputs).eqns
        return next(x.outvars[0].aval.shape for x in operations if x.primitive.name == "dot_general")

    compute = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
    expected, on_cpu = compute(params, inputs), shape_of_product()
    monkeypatch.setattr(platforms, "of_this_trace", lambda: "tpu")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), compute(params, inputs), expected)
    assert len(on_cpu) == 2 and shape_of_product()[:2] == (2, 3)


# --- embedding -------------------------------------------------------------------------------------------------------


def test_embedding_equals_product_with_one_hot_vectors():
    embed = layers.Embed(num_embeddings=11, features=5, dtype=jnp.bfloat16)
    ids = jnp.array([[0, 10, 3, 3], [-1, 11, 2, 3]])  # -1 and 11 are outside the table
    params = embed.init(KEY, ids)["params"]

    def gathered(params):
        return embed.apply({"params": params}, ids)

    def multiplied(params):
        return jax.nn.one_hot(ids, 11, dtype=jnp.bfloat16) @ params["embedding"].astype(jnp.bfloat16)

    assert gathered(params).dtype == jnp.bfloat16
    np.testing.assert_array_equal(gathered(params), multiplied(params))
    weights = jax.random.normal(KEY, (2, 4, 5), jnp.bfloat16)
    ours, theirs = (
        jax.grad(lambda params, f=f: jnp.sum((f(params) * weights).astype(jnp.float32)))(params)["embedding"]
        for f in (gathered, multiplied)
    )
    np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_one_hot_embedding_is_the_same_function():
    ids = jnp.array([[0, 10, 3, 3], [-1, 11, 2, 3]])
    gathering, multiplying = (layers.Embed(11, 5, dtype=jnp.bfloat16, one_hot=one_hot) for one_hot in (False, True))
    params = gathering.init(KEY, ids)
    np.testing.assert_array_equal(multiplying.apply(params, ids), gathering.apply(params, ids))


def test_embedding_takes_float_ids_only_to_cast_them():
    ids = jnp.array([[0.0, 4.0]])
    params = layers.Embed(5, 3).init(KEY, jnp.zeros((1, 2), jnp.int32))
    with pytest.raises(ValueError, match="integer.*float32; set cast_input_dtype"):
        layers.Embed(5, 3).apply(params, ids)
    vectors = layers.Embed(5, 3, cast_input_dtype=jnp.int32).apply(params, ids)
    np.testing.assert_array_equal(vectors[0], params["params"]["embedding"][jnp.array([0, 4])])


def test_embedding_attends_in_its_attend_dtype():
    query = jax.random.normal(KEY, (2, 3, 8))
    params = layers.Embed(5, 8).init(KEY, jnp.zeros((1, 2), jnp.int32))
    table = params["params"]["embedding"]
    rounding, whole = layers.Embed(5, 8, dtype=jnp.bfloat16), layers.Embed(5, 8, None, jnp.bfloat16, jnp.float32)
    exact = np.einsum("bld,vd->blv", query, table)
    np.testing.assert_allclose(whole.apply(params, query, method=whole.attend), exact, rtol=1e-5, atol=1e-5)
    rounded = rounding.apply(params, query.astype(jnp.bfloat16), method=rounding.attend)
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), exact, atol=0.1)


def test_default_initial_values_are_scaled_as_in_t5x():
    table = layers.Embed(200, 100).init(KEY, jnp.zeros((1, 1), jnp.int32))["params"]["embedding"]
    biases = layers.RelativePositionBiases(50, 128, 400, jnp.float32).init(KEY, 2, 2)["params"]["rel_embedding"]
    # Normal, its variance one by the second axis.
    np.testing.assert_allclose([table.std(), biases.std()], [100**-0.5, 50**-0.5], rtol=0.05)
    assert max(table.max() * 100**0.5, biases.max() * 50**0.5) > 3


@pytest.mark.parametrize(("lengths", "bidirectional"), [((9, 9), True), ((5, 140), True), ((140, 5), False)])
def test_position_biases_for_a_tpu_are_those_for_a_cpu(lengths, bidirectional, monkeypatch):
    biases = layers.RelativePositionBiases(32, 128, 3)
    params = biases.init(KEY, 2, 2)

    def run(params):
        bias = biases.apply(params, *lengths, bidirectional)
        return jnp.sum(jnp.sin(bias)), bias

    compute = jax.value_and_grad(run, has_aux=True)
    expected = compute(params)
    monkeypatch.setattr(platforms, "of_this_trace", lambda: "tpu")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), compute(params), expected)
    assert "gather" not in str(jax.make_jaxpr(run)(params))


# --- other layers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_decodes_of_an_example_may_share_what_they_attend_to(masked):
    attention = layers.MultiHeadDotProductAttention(num_heads=2, head_dim=4)
    decodes, inputs = jax.random.normal(KEY, (6, 1, 8)), jax.random.normal(jax.random.PRNGKey(1), (2, 5, 8))
    mask = jax.random.bernoulli(KEY, 0.6, (6, 1, 1, 5)).at[..., 0].set(True) if masked else None
    repeated = jnp.repeat(inputs, 3, axis=0)
    params = attention.init(KEY, decodes, repeated, mask)
    expected = attention.apply(params, decodes, repeated, mask)
    np.testing.assert_allclose(attention.apply(params, decodes, inputs, mask), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1, (1, 2), (2, 1), (-2, 2), (0, 2)])
def test_a_dense_layer_multiplies_any_axes_away(axis):
    x = jax.random.normal(KEY, (2, 3, 4))
    dense = layers.DenseGeneral((5, 6), axis=axis)
    variables = dense.init(KEY, x)
    axes = [a % 3 for a in np.atleast_1d(axis)]
    kernel = variables["params"]["kernel"].reshape(*(x.shape[a] for a in axes), 5, 6)
    expected = np.tensordot(x, kernel, (axes, range(len(axes))))
    np.testing.assert_allclose(dense.apply(variables, x), expected, rtol=1e-5, atol=1e-5)


def test_activations_may_be_functions():
    x = jax.random.normal(KEY, (2, 3, 4))
    named, given = (layers.MlpBlock(8, activations=(f, "linear")) for f in ("gelu", nn.gelu))
    variables = named.init(KEY, x, deterministic=True)
    expected = named.apply(variables, x, deterministic=True)
    np.testing.assert_array_equal(given.apply(variables, x, decode=True, deterministic=True), expected)


def test_an_unknown_activation_is_named():
    with pytest.raises(AttributeError, match="gelo"):
        layers.MlpBlock(8, activations=("gelo",)).init(KEY, jnp.ones((2, 3, 4)), deterministic=True)


def test_a_norms_scale_has_its_initializer():
    x = jax.random.normal(KEY, (2, 3, 4))
    doubled, _ = layers.LayerNorm(scale_init=nn.initializers.constant(2.0)).init_with_output(KEY, x)
    plain, _ = layers.LayerNorm().init_with_output(KEY, x)
    np.testing.assert_array_equal(doubled, 2 * plain)


def test_frequent_tokens_gradient_is_summed_in_float32():
    embed = layers.Embed(num_embeddings=2, features=1, dtype=jnp.bfloat16)
    ids = jnp.zeros((1, 5000), jnp.int32)
    params = embed.init(KEY, ids)
    grads = jax.grad(lambda params: jnp.sum(embed.apply(params, ids).astype(jnp.float32)))({"params": params["params"]})
    assert grads["params"]["embedding"][0, 0] == 5000  # bfloat16 would stop at 256


# --- masks -----------------------------------------------------------------------------------------------------------


def test_decoder_mask_of_a_packed_prefix_lm():
    # Two examples, inputs 6 7 -> target 8 and inputs 3 -> targets 4 5, then padding.
    targets, segments = jnp.array([[6, 7, 8, 3, 4, 5, 0]]), jnp.array([[1, 1, 1, 2, 2, 2, 0]])
    prefix = jnp.array([[1, 1, 0, 1, 0, 0, 0]])
    mask = layers.make_decoder_mask(targets, jnp.float32, prefix, segments)
    assert mask.dtype == jnp.float32
    expected = """1100000 1100000 1110000 0001000 0001100 0001110 0000000"""
    np.testing.assert_array_equal(mask[0, 0], [[int(x) for x in row] for row in expected.split()])


@pytest.mark.parametrize("length", [16, 256])
def test_queries_that_see_nothing_get_numbers_in_bfloat16(length):
    """Compiled, where XLA may keep logits in float32 and their maximum in bfloat16 (seen with 8 rows of 256)."""
    attention = layers.MultiHeadDotProductAttention(num_heads=2, head_dim=16, dtype=jnp.bfloat16)
    x, real = jax.random.normal(KEY, (8, length, 32)), jnp.tile(jnp.arange(length) < length // 2, (8, 1))
    mask = layers.make_attention_mask(real, real, jnp.logical_and)
    bias = jax.random.normal(KEY, (1, 2, length, length))
    params = attention.init(KEY, x, x, mask, bias, deterministic=True)
    outputs = jax.jit(lambda params: attention.apply(params, x, x, mask, bias, deterministic=True))(params)
    assert jnp.isfinite(outputs).all()


def test_combine_masks_skips_none():
    a, b = jnp.array([1.0, 1.0, 0.0]), jnp.array([1.0, 0.0, 0.0])
    assert layers.combine_masks(None, None) is None
    np.testing.assert_array_equal(layers.combine_masks(a, None, b), [1.0, 0.0, 0.0])


def test_biases_are_added_up_where_there_are_any():
    a, b = jnp.array([[1.0, 2.0]]), jnp.array([[3.0], [4.0]])
    np.testing.assert_array_equal(layers.combine_biases(None, a, b), [[4, 5], [5, 6]])
    assert layers.combine_biases(None, None) is None
    for combine in (layers.combine_biases, layers.combine_masks):
        with pytest.raises(ValueError, match="give them one rank"):
            combine(a, b[0])


def test_masks_take_any_batch_axes():
    tokens = jnp.array([[[7, 8, 0], [5, 0, 0]]])
    mask = layers.make_decoder_mask(tokens, jnp.float32)
    assert mask.shape == (1, 2, 1, 3, 3)
    for row, ids in zip(mask[0], tokens[0], strict=True):
        np.testing.assert_array_equal(row, layers.make_decoder_mask(ids, jnp.float32))
        np.testing.assert_array_equal(row, layers.make_decoder_mask(ids.astype(jnp.float32), jnp.float32))
    assert layers.make_causal_mask(tokens, extra_batch_dims=2).shape == (1, 1, 1, 2, 1, 3, 3)
    pairs = layers.make_attention_mask(tokens, tokens[..., :2], jnp.add, 1, jnp.int32)
    np.testing.assert_array_equal(pairs[0, 0, 0, 0], [[14, 15], [15, 16], [7, 8]])
