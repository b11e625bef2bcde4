"""The T5 network against T5X's recorded numbers, a NumPy T5 written from the papers, and its own cache."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import unfreeze
from flax.traverse_util import flatten_dict
from golden import record_network as golden

from t5x.examples.t5 import layers, network

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

RECORD = json.loads(golden.PATH.read_text())
KEY = jax.random.PRNGKey(0)


def setup(name: str = "t5_1_1") -> tuple[network.Transformer, dict]:
    """Returns (module, params) of a golden case."""
    module, variables = golden.initialize(name)
    return module, variables["params"]


@functools.partial(jax.jit, static_argnames="module")
def logits_of(module, params, batch, dropout_key=None):
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return module.apply({"params": params}, **batch, enable_dropout=rngs is not None, rngs=rngs)


@functools.partial(jax.jit, static_argnames="module")
def encode(module, params, inputs):
    return module.apply({"params": params}, inputs, enable_dropout=False, method=module.encode)


def unpacked_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in batch.items() if name.endswith("tokens")}


# --- T5X's numbers ---------------------------------------------------------------------------------------------------


@functools.cache
def result_of(name: str) -> dict:
    return golden.run(name)


@pytest.mark.parametrize("name", golden.CASES)
def test_parameters_are_those_of_t5x(name):
    ours, theirs = result_of(name), RECORD[name]
    assert ours["shapes"] == theirs["shapes"]
    assert ours["axes"] == theirs["axes"]
    for path, values in theirs["params"].items():
        np.testing.assert_allclose(ours["params"][path], values, rtol=1e-6, atol=1e-6 * values[1], err_msg=path)


@pytest.mark.parametrize("name", golden.CASES)
def test_logits_and_gradients_are_those_of_t5x(name):
    ours, theirs = result_of(name), RECORD[name]
    bfloat16 = name.startswith("bfloat16")
    for kind in ("deterministic", "dropout"):
        np.testing.assert_allclose(ours[kind]["loss"], theirs[kind]["loss"], rtol=5e-3 if bfloat16 else 1e-6)
        expected = np.array(theirs[kind]["logits"])
        atol = np.abs(expected).max() * (0.05 if bfloat16 else 2e-6)
        np.testing.assert_allclose(ours[kind]["logits"], expected, atol=atol, err_msg=kind)
    for path, values in theirs["grads"].items():
        atol = values[1] * (0.05 if bfloat16 else 2e-5)  # values[1]: the sum of sizes
        np.testing.assert_allclose(ours["grads"][path], values, atol=atol, err_msg=path)


# --- a T5 in NumPy, one example at a time, float64 -------------------------------------------------------------------


def reference_bucket(distance: int, bidirectional: bool) -> int:
    """Bucket of key minus query: https://arxiv.org/abs/1910.10683, with integer powers in place of logarithms."""
    buckets, offset = (16, 16 if distance > 0 else 0) if bidirectional else (32, 0)
    size = abs(distance) if bidirectional else max(-distance, 0)
    exact = buckets // 2
    if size < exact:
        return offset + size
    # The k-th of the far buckets begins at exact * (128 / exact) ** (k / exact).
    far = sum(size**exact >= exact**exact * (128 // exact) ** k for k in range(1, exact))
    return offset + exact + far


def reference_norm(x, scale):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def reference_attention(x, memory, p, heads, visible, bias):
    def split(y):
        return y.reshape(len(y), heads, -1).transpose(1, 0, 2)

    query, key, value = split(x @ p["query/kernel"]), split(memory @ p["key/kernel"]), split(memory @ p["value/kernel"])
    logits = np.where(visible, query @ key.transpose(0, 2, 1) + bias, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ value).transpose(1, 0, 2).reshape(len(x), -1) @ p["out/kernel"]


def reference_mlp(x, p):
    if "wi/kernel" in p:
        return np.maximum(x @ p["wi/kernel"], 0) @ p["wo/kernel"]
    gate = x @ p["wi_0/kernel"]
    gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return gate * (x @ p["wi_1/kernel"]) @ p["wo/kernel"]


def reference_t5(params, heads, tied, inputs, decoder_inputs):
    """Logits [target length, vocab] of one example, int [input length], [target length], without padding."""
    flat = {path: np.asarray(x, np.float64) for path, x in flatten_dict(params, sep="/").items()}

    def inside(prefix):
        return {path[len(prefix) + 1 :]: x for path, x in flat.items() if path.startswith(prefix + "/")}

    def bias(stack, length):
        positions = range(length)
        buckets = [[reference_bucket(k - q, stack == "encoder") for k in positions] for q in positions]
        return flat[f"{stack}/relpos_bias/rel_embedding"][:, buckets]

    def layers_of(stack):
        return range(len({path.split("/")[1] for path in flat if path.startswith(f"{stack}/layers_")}))

    embedding = flat["token_embedder/embedding"]
    x, encoder_bias = embedding[inputs], bias("encoder", len(inputs))
    for i in layers_of("encoder"):
        p = inside(f"encoder/layers_{i}")
        y = reference_norm(x, p["pre_attention_layer_norm/scale"])
        x = x + reference_attention(y, y, inside(f"encoder/layers_{i}/attention"), heads, True, encoder_bias)
        y = reference_norm(x, p["pre_mlp_layer_norm/scale"])
        x = x + reference_mlp(y, inside(f"encoder/layers_{i}/mlp"))
    encoded = reference_norm(x, flat["encoder/encoder_norm/scale"])

    y, decoder_bias = embedding[decoder_inputs], bias("decoder", len(decoder_inputs))
    causal = np.tril(np.ones((len(decoder_inputs),) * 2, bool))
    for i in layers_of("decoder"):
        p, name = inside(f"decoder/layers_{i}"), f"decoder/layers_{i}"
        z = reference_norm(y, p["pre_self_attention_layer_norm/scale"])
        y = y + reference_attention(z, z, inside(f"{name}/self_attention"), heads, causal, decoder_bias)
        z = reference_norm(y, p["pre_cross_attention_layer_norm/scale"])
        y = y + reference_attention(z, encoded, inside(f"{name}/encoder_decoder_attention"), heads, True, 0)
        z = reference_norm(y, p["pre_mlp_layer_norm/scale"])
        y = y + reference_mlp(z, inside(f"{name}/mlp"))
    y = reference_norm(y, flat["decoder/decoder_norm/scale"])
    return y @ embedding.T / np.sqrt(y.shape[-1]) if tied else y @ flat["decoder/logits_dense/kernel"]


@pytest.mark.parametrize("name", ["t5_1_0", "t5_1_1"])
def test_packed_batch_equals_reference_on_each_example_alone(name):
    module, params = setup(name)
    batch = golden.packed_batch()
    logits = np.asarray(logits_of(module, params, batch))
    for row in range(golden.BATCH):
        for segment in (1, 2):
            source = batch["encoder_segment_ids"][row] == segment
            target = batch["decoder_segment_ids"][row] == segment
            expected = reference_t5(
                params,
                module.config.num_heads,
                module.config.logits_via_embedding,
                batch["encoder_input_tokens"][row, source],
                batch["decoder_input_tokens"][row, target],
            )
            np.testing.assert_allclose(logits[row, target], expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_position_buckets(bidirectional):
    distances = np.arange(-300, 301)
    expected = [reference_bucket(int(d), bidirectional) for d in distances]
    assert layers.relative_position_bucket(distances, bidirectional).tolist() == expected


# --- dtypes and shapes -----------------------------------------------------------------------------------------------


def test_bfloat16_keeps_parameters_and_logits_in_float32():
    module, params = setup("bfloat16")
    batch = golden.packed_batch()
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert encode(module, params, batch["encoder_input_tokens"]).dtype == jnp.bfloat16
    logits = logits_of(module, params, batch)
    assert logits.dtype == jnp.float32
    exact = logits_of(setup("t5_1_1")[0], params, batch)
    assert np.abs(logits - exact).max() < 0.05 * np.abs(exact).max()


def test_float32_attention_logits():
    rngs = jax.random.split(KEY, 3)
    query = 4 * jax.random.normal(rngs[0], (1, 8, 2, 16), jnp.bfloat16)
    key, value = (jax.random.normal(rng, (1, 8, 2, 16), jnp.bfloat16) for rng in rngs[1:])
    exact = layers.dot_product_attention(*(x.astype(jnp.float32) for x in (query, key, value)))
    rounded, kept = (
        layers.dot_product_attention(query, key, value, dtype=jnp.bfloat16, float32_logits=float32_logits)
        for float32_logits in (False, True)
    )
    assert rounded.dtype == kept.dtype == jnp.bfloat16
    kept_error, rounded_error = (np.abs(x.astype(jnp.float32) - exact).mean() for x in (kept, rounded))
    assert kept_error < 0.5 * rounded_error


def test_padding_is_never_attended_to():
    module, params = setup()
    batch = unpacked_batch(golden.packed_batch())
    longer = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in batch.items()}
    real = batch["decoder_target_tokens"] > 0
    expected = np.asarray(logits_of(module, params, batch))[real]
    actual = np.asarray(logits_of(module, params, longer))[:, : real.shape[1]][real]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_tokens_must_have_two_dimensions():
    module, params = setup()
    with pytest.raises(ValueError, match=r"has shape \(3,\); it must be \[batch, length\]"):
        encode(module, params, jnp.ones(3, jnp.int32))


# --- dropout ---------------------------------------------------------------------------------------------------------


def test_attention_dropout_drops_weights_of_all_queries_alike():
    batch, queries, keys, heads, depth, rate = 2, 5, 7, 3, 4, 0.5
    rngs = jax.random.split(KEY, 4)
    query = jax.random.normal(rngs[0], (batch, queries, heads, depth))
    key, value = (jax.random.normal(rng, (batch, keys, heads, depth)) for rng in rngs[1:3])
    actual = layers.dot_product_attention(query, key, value, dropout_rng=rngs[3], dropout_rate=rate)

    keep = np.asarray(jax.random.bernoulli(rngs[3], 1 - rate, (batch, heads, 1, keys)))
    weights = np.asarray(jax.nn.softmax(np.einsum("bqhd,bkhd->bhqk", query, key)))
    expected = np.einsum("bhqk,bkhd->bqhd", weights * keep / (1 - rate), value)
    assert 0 < keep.mean() < 1
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    all_kept = np.einsum("bhqk,bkhd->bqhd", weights, value)
    for arguments in (dict(dropout_rng=rngs[3], dropout_rate=rate, deterministic=True), dict(dropout_rng=rngs[3])):
        np.testing.assert_allclose(layers.dot_product_attention(query, key, value, **arguments), all_kept, atol=1e-5)


def test_mlp_dropout_is_shared_along_the_length():
    mlp = layers.MlpBlock(intermediate_dim=64, activations=("relu",), intermediate_dropout_rate=0.5)
    inputs = jnp.broadcast_to(jax.random.normal(KEY, (3, 1, 8)), (3, 6, 8))  # every position alike
    variables = mlp.init(KEY, inputs, deterministic=True)
    outputs = mlp.apply(variables, inputs, deterministic=False, rngs={"dropout": KEY})
    np.testing.assert_array_equal(outputs, np.broadcast_to(outputs[:, :1], outputs.shape))
    assert not np.allclose(outputs, mlp.apply(variables, inputs, deterministic=True))


def test_dropout_follows_its_key_and_vanishes_at_rate_zero():
    module, params = setup()
    batch = golden.packed_batch()
    first, again, other = (logits_of(module, params, batch, jax.random.PRNGKey(i)) for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1

    without = network.Transformer(module.config.replace(dropout_rate=0.0))
    np.testing.assert_array_equal(logits_of(without, params, batch, KEY), logits_of(module, params, batch))


# --- decoding step by step -------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("module", "length"))
def create_cache(module, params, inputs, length):
    targets = jnp.ones((len(inputs), length), jnp.int32)
    return module.apply(
        {"params": params}, inputs, targets, targets, decode=True, enable_dropout=False, mutable=["cache"]
    )[1]["cache"]


@functools.partial(jax.jit, static_argnames=("module", "max_decode_length"))
def decode_step(module, params, cache, encoded, inputs, tokens, **kwargs):
    """Returns (logits [batch, 1, vocab], the new cache)."""
    logits, changed = module.apply(
        {"params": params, "cache": cache},
        encoded,
        inputs,
        tokens,
        tokens,
        decode=True,
        enable_dropout=False,
        mutable=["cache"],
        method=module.decode,
        **kwargs,
    )
    return logits, changed["cache"]


@pytest.mark.parametrize("name", ["t5_1_0", "t5_1_1"])
def test_decoding_step_by_step_equals_the_whole_decoder(name):
    module, params = setup(name)
    batch = unpacked_batch(golden.packed_batch())
    length = 9
    batch["decoder_target_tokens"] = np.maximum(batch["decoder_target_tokens"][:, :length], 1)
    batch["decoder_input_tokens"] = batch["decoder_input_tokens"][:, :length]  # 0 inside counts as a token
    expected = logits_of(module, params, batch)

    inputs = batch["encoder_input_tokens"]
    encoded = encode(module, params, inputs)
    cache = create_cache(module, params, inputs, length)
    steps = []
    for i in range(length):
        token = batch["decoder_input_tokens"][:, i : i + 1]
        logits, cache = decode_step(module, params, cache, encoded, inputs, token, max_decode_length=length)
        steps.append(logits)
    np.testing.assert_allclose(np.concatenate(steps, axis=1), expected, atol=2e-5)
    assert int(cache["decoder"]["layers_0"]["self_attention"]["cache_index"]) == length


def test_cache_has_the_layout_of_t5x():
    module, params = setup("bfloat16")
    cache = flatten_dict(unfreeze(create_cache(module, params, jnp.ones((2, 6), jnp.int32), 9)), sep="/")
    attentions = [f"decoder/layers_{i}/self_attention" for i in range(module.config.num_decoder_layers)]
    expected = {}
    for attention in attentions:
        expected[f"{attention}/cached_key"] = expected[f"{attention}/cached_value"] = ((2, 3, 7, 9), "bfloat16")
        expected[f"{attention}/cache_index"] = ((), "int32")
    assert {path: (x.shape, str(x.dtype)) for path, x in cache.items()} == expected
    assert not any(np.asarray(x, np.float32).any() for x in cache.values())


def test_decoding_refuses_what_does_not_fit_the_cache():
    module, params = setup()
    inputs = jnp.ones((2, 6), jnp.int32)
    encoded = encode(module, params, inputs)
    cache = create_cache(module, params, inputs, 9)
    step = functools.partial(decode_step, module, params, cache, encoded, inputs)
    with pytest.raises(ValueError, match=r"self_attention: .* shape \(2, 3, 7, 9\) takes one position"):
        step(jnp.ones((2, 2), jnp.int32), max_decode_length=9)
    with pytest.raises(ValueError, match="pass max_decode_length=9"):
        step(jnp.ones((2, 1), jnp.int32))
    with pytest.raises(ValueError, match="decode unpacked examples"):
        step(jnp.ones((2, 1), jnp.int32), encoder_segment_ids=inputs)


def test_forward_mode_differentiation_agrees_with_reverse_mode():
    module = network.Transformer(network.T5Config(16, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12))
    tokens = np.array([[3, 5, 1], [7, 1, 0]], np.int32)
    params = module.init(jax.random.PRNGKey(0), tokens, tokens, tokens, enable_dropout=False)

    def loss(params):
        return jnp.mean(module.apply(params, tokens, tokens, tokens, enable_dropout=False) ** 2)

    tangent = jax.tree.map(jnp.ones_like, params)
    expected = sum(x.sum() for x in jax.tree.leaves(jax.grad(loss)(params)))
    np.testing.assert_allclose(jax.jvp(loss, (params,), (tangent,))[1], expected, rtol=1e-4)
