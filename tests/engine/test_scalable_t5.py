"""Scanned and rematerialised layers: the same function as one layer after the other, in less memory.

T5X's numbers for them are held in test_golden.py and test_models.py.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x.examples.scalable_t5 import network
from t5x.examples.t5 import network as t5

SIZES = dict(vocab_size=48, emb_dim=16, num_heads=2, head_dim=6, mlp_dim=40, num_encoder_layers=4, num_decoder_layers=3)
KEY = jax.random.PRNGKey(0)
TOKENS = jax.random.randint(KEY, (4, 24), 1, 48)


def transformer(**config) -> network.Transformer:
    return network.Transformer(network.T5Config(**SIZES, mlp_activations=("gelu", "linear"), **config))


@functools.cache
def scanned_params(axis: int = 1) -> dict:
    module = transformer(param_scan_axis=axis)
    return jax.jit(functools.partial(module.init, enable_dropout=False))(KEY, TOKENS, TOKENS, TOKENS)["params"]


@functools.cache
def compiled(policy: str):
    """Returns the compiled function params -> (loss, gradients), with dropout."""
    module = transformer(remat_policy=policy)

    def loss(params):
        logits = module.apply({"params": params}, TOKENS, TOKENS, TOKENS, rngs={"dropout": KEY})
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2)

    return jax.jit(jax.value_and_grad(loss)).lower(scanned_params()).compile()


@pytest.mark.parametrize("policy", ["minimal", "full"])
def test_rematerialised_layers_have_the_same_loss_and_gradients(policy):
    expected, expected_grads = compiled("none")(scanned_params())
    loss, grads = compiled(policy)(scanned_params())
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for path, expected in flatten_dict(expected_grads, sep="/").items():
        np.testing.assert_allclose(flatten_dict(grads, sep="/")[path], expected, atol=1e-6, rtol=1e-4, err_msg=path)


def test_rematerialised_layers_need_less_memory():
    none, minimal, full = (
        compiled(policy).memory_analysis().temp_size_in_bytes for policy in ("none", "minimal", "full")
    )
    assert full < minimal < none


@pytest.mark.parametrize("axis", [0, 1])
def test_scanned_layers_equal_layers_one_after_the_other(axis):
    one_by_one = {}
    for path, array in flatten_dict(scanned_params(axis)).items():
        if path[0] == path[1]:  # "encoder/encoder/…" and "decoder/decoder/…" are scanned
            for i, layer in enumerate(np.moveaxis(np.asarray(array), axis, 0)):
                one_by_one[(path[0], f"layers_{i}", *path[2:])] = layer
        else:
            one_by_one[path] = array
    actual, expected = (
        jax.jit(functools.partial(module.apply, enable_dropout=False))({"params": params}, TOKENS, TOKENS, TOKENS)
        for module, params in (
            (transformer(param_scan_axis=axis), scanned_params(axis)),
            (transformer(scan_layers=False), unflatten_dict(one_by_one)),
        )
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_layers_one_after_the_other_are_rematerialised_too():
    module = t5.Transformer(t5.T5Config(**SIZES))
    init = functools.partial(module.init, enable_dropout=False)
    params = jax.jit(init)(KEY, TOKENS, TOKENS, TOKENS)

    def compute(policy):
        module = t5.Transformer(t5.T5Config(**SIZES, remat_policy=policy))

        def loss(params):
            return jnp.mean(module.apply(params, TOKENS, TOKENS, TOKENS, rngs={"dropout": KEY}) ** 2)

        step = jax.jit(jax.value_and_grad(loss)).lower(params)
        return step.compile()(params), step.as_text().count("optimization_barrier")

    (expected, barriers), (found, more) = compute("none"), compute("minimal")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)
    assert barriers == 0 and more > 0  # without them XLA would keep what is to be computed again


def test_no_remat_policy_is_none_as_in_t5x():
    shapes = [jax.eval_shape(transformer(remat_policy=x).init, KEY, TOKENS, TOKENS, TOKENS) for x in (None, "none")]
    assert jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])


def test_unknown_remat_policy():
    with pytest.raises(ValueError, match="remat_policy is 'some'; it must be one of none, minimal, full"):
        jax.eval_shape(transformer(remat_policy="some").init, KEY, TOKENS, TOKENS, TOKENS)
