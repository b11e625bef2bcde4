"""Adafactor against T5X's recorded numbers, optax, and what factorization rules mean."""

import json

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict, freeze
from golden import record_optim
from jax.sharding import PartitionSpec

from t5x import adafactor, optimizers
from t5x.adafactor import Adafactor, FactorDim, HParamMap

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

RECORDED = json.loads(record_optim.PATH.read_text())
BATCH, ROW, COLUMN, NONE = FactorDim.BATCH, FactorDim.ROW, FactorDim.COLUMN, FactorDim.NONE


def random_tree(seed, shapes, scale=1.0):
    random = np.random.RandomState(seed)
    return {name: jnp.asarray(scale * random.randn(*shape), jnp.float32) for name, shape in shapes.items()}


def run(definition, shapes, steps=3, params=None, grads=None):
    """Returns the optimizer after `steps` updates with the gradients 1, 2, … of `random_tree`."""
    optimizer = definition.create(params or random_tree(0, shapes, 0.1))
    for step in range(steps):
        step_grads = random_tree(step + 1, shapes) if grads is None else grads[step]
        optimizer = optimizer.apply_gradient(step_grads, learning_rate=jnp.float32(0.1))
    return optimizer


@pytest.mark.parametrize("name", record_optim.ADAFACTOR)
def test_parameters_and_states_equal_t5x_under_every_option(name):
    actual, expected = record_optim.run_adafactor(adafactor, name), RECORDED["adafactor"][name]
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        value = np.asarray(value, np.float32)
        got = np.asarray(actual[path], np.float32)
        assert got.shape == value.shape, path
        np.testing.assert_allclose(got, value, rtol=3e-6, atol=1e-6 * np.abs(value).max(), err_msg=path)


def test_standard_rules_are_t5x():
    rules = adafactor.standard_logical_factor_rules()
    assert {axis: dim.name for axis, dim in rules.items()} == RECORDED["factor_rules"]


@pytest.mark.parametrize(
    "ours, optax_options",
    [
        ({}, {}),
        ({"min_dim_size_to_factor": 16}, {"min_dim_size_to_factor": 16}),
        ({"factored": False}, {"factored": False}),
        ({"decay_rate": 0.9, "step_offset": -3}, {"decay_rate": 0.9, "decay_offset": -3}),
        ({"multiply_by_parameter_scale": False}, {"multiply_by_parameter_scale": False}),
        ({"clipping_threshold": 0.5}, {"clipping_threshold": 0.5}),
        ({"beta1": 0.9}, {"momentum": 0.9}),
        ({"weight_decay_rate": 0.01}, {"weight_decay_rate": 0.01}),
        ({"epsilon1": 1e-4}, {"eps": 1e-4}),
    ],
)
def test_equals_optax_over_five_steps(ours, optax_options):
    shapes = {"wide": (20, 160), "tall": (150, 130), "bias": (140,)}
    params = random_tree(0, shapes, 0.1)
    optimizer = run(Adafactor(**ours), shapes, steps=5, params=params)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        reference = optax.adafactor(learning_rate=0.1, **optax_options)
        state = reference.init(params)
        for step in range(5):
            updates, state = reference.update(random_tree(step + 1, shapes), state, params)
            params = optax.apply_updates(params, updates)
    for name in shapes:
        np.testing.assert_allclose(optimizer.target[name], params[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_global_norm_clipping_equals_optax():
    shapes = {"a": (6, 8), "b": (5,)}
    grads = [random_tree(step + 1, shapes) for step in range(3)]
    clipped = [optax.clip_by_global_norm(0.3).update(g, optax.EmptyState())[0] for g in grads]
    options = {"epsilon1": 1e-3}  # without it Adafactor does not see the gradients' scale
    expected = run(Adafactor(**options), shapes, grads=clipped)
    actual = run(Adafactor(**options, global_norm_clip_threshold=0.3), shapes, grads=grads)
    unclipped = run(Adafactor(**options), shapes, grads=grads)
    np.testing.assert_allclose(actual.target["a"], expected.target["a"], rtol=1e-5)
    assert np.abs(actual.target["a"] - unclipped.target["a"]).max() > 1e-4


def test_zero_gradients_are_harmless():
    shapes = {"a": (6, 8), "b": (5,)}
    zeros = jax.tree.map(jnp.zeros_like, random_tree(0, shapes))
    optimizer = run(Adafactor(global_norm_clip_threshold=1.0), shapes, grads=[zeros] * 3)
    np.testing.assert_array_equal(optimizer.target["a"], random_tree(0, shapes, 0.1)["a"])


def test_batch_dimensions_are_separate_parameters():
    """A scanned stack of layers is updated as each layer would be on its own."""
    stacked = {"kernel": (3, 6, 8), "scale": (3, 5)}
    rules = {"kernel": (BATCH, ROW, COLUMN), "scale": (BATCH, NONE)}
    options = {"min_dim_size_to_factor": 4, "clipping_threshold": 0.5, "beta1": 0.5}
    together = run(Adafactor(factor_map=rules, **options), stacked)
    for layer in range(3):
        params, *grads = (
            jax.tree.map(lambda x, layer=layer: x[layer], random_tree(seed, stacked, 1.0 if seed else 0.1))
            for seed in range(4)
        )
        alone = run(Adafactor(**options), None, params=params, grads=grads)
        for name in stacked:
            np.testing.assert_allclose(together.target[name][layer], alone.target[name], rtol=1e-5, atol=1e-7)


def test_several_column_dimensions_are_one_matrix_side():
    """An attention kernel [embed, heads, kv] is updated as the matrix [embed, heads * kv]."""
    wide, flat = {"qkv": (6, 2, 4)}, {"qkv": (6, 8)}
    grads = [random_tree(step + 1, flat) for step in range(3)]
    params = random_tree(0, flat, 0.1)
    as_3d = [jax.tree.map(lambda x: x.reshape(6, 2, 4), tree) for tree in (params, *grads)]
    actual = run(Adafactor(factor_map={"qkv": (ROW, COLUMN, COLUMN)}), wide, params=as_3d[0], grads=as_3d[1:])
    expected = run(Adafactor(min_dim_size_to_factor=4), flat, params=params, grads=grads)
    np.testing.assert_allclose(actual.target["qkv"].reshape(6, 8), expected.target["qkv"], rtol=1e-5, atol=1e-7)
    assert actual.state.param_states["qkv"].v_row.shape == (6,)
    assert actual.state.param_states["qkv"].v_col.shape == (2, 4)


def test_skipped_nans_leave_parameters_and_states_as_they_were():
    shapes = {"a": (3, 4), "b": (5,)}
    grads = [random_tree(step + 1, shapes) for step in range(3)]
    grads[2]["b"] = grads[2]["b"].at[1].set(jnp.nan)
    definition = Adafactor(skip_nan_updates=True, clipping_threshold=None, beta1=0.9)
    before, after = (run(definition, shapes, steps=n, grads=grads) for n in (2, 3))
    moved = np.asarray(before.target["b"] != after.target["b"])
    np.testing.assert_array_equal(moved, [True, False, True, True, True])
    assert before.state.param_states["b"].v[1] == after.state.param_states["b"].v[1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
    careless = Adafactor(clipping_threshold=None, beta1=0.9)
    assert np.isnan(run(careless, shapes, grads=grads).target["b"][1])


def test_bfloat16_parameters_keep_their_dtype():
    params = {"a": jnp.ones((3, 4), jnp.bfloat16)}
    optimizer = run(Adafactor(beta1=0.9), None, 1, params, [{"a": jnp.full((3, 4), 0.5, jnp.bfloat16)}])
    assert optimizer.target["a"].dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(optimizer.state.param_states)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("container", [dict, freeze])
def test_checkpoint_layout_and_round_trip(container):
    params = container({"decoder": {"kernel": jnp.ones((130, 128)), "bias": jnp.zeros(3)}})
    optimizer = Adafactor().create(params)
    states = optimizer.state_dict()["state"]["param_states"]["decoder"]
    shapes = jax.tree.map(jnp.shape, states)
    # np.argsort is not told to be stable, but two different sizes leave it no choice.
    assert shapes["kernel"] == {"v_row": (128,), "v_col": (130,), "v": (1,), "m": (1,)}
    assert shapes["bias"] == {"v_row": (1,), "v_col": (1,), "v": (3,), "m": (1,)}
    assert type(optimizer.state.param_states) is type(params) in (dict, FrozenDict)

    trained = optimizer.apply_gradient(jax.tree.map(jnp.ones_like, params), learning_rate=jnp.float32(1))
    restored = optimizer.restore_state(jax.device_get(trained.state_dict()))
    jax.tree.map(np.testing.assert_array_equal, restored, trained)
    assert restored.state.step == 1


@pytest.mark.parametrize("container", [dict, freeze])
def test_logical_axes_have_the_optimizers_tree(container):
    params = container({"kernel": jnp.ones((130, 128)), "bias": jnp.zeros(3)})
    axes = freeze({"kernel": PartitionSpec("embed", "mlp"), "bias": PartitionSpec("mlp")})
    definition = Adafactor(beta1=0.9)
    optimizer = definition.create(params)
    derived = definition.derive_logical_axes(optimizer, axes)
    is_leaf = lambda x: x is None or isinstance(x, PartitionSpec)  # noqa: E731
    assert jax.tree.structure(derived, is_leaf=is_leaf) == jax.tree.structure(optimizer)
    states = derived.state.param_states
    assert states["kernel"].v is None and states["kernel"].v_row is None and states["kernel"].v_col is None
    assert states["kernel"].m == derived.target["kernel"] == PartitionSpec("embed", "mlp")
    assert states["bias"].v == PartitionSpec("mlp")
    assert derived.state.step is None


def test_equal_definitions_compile_once_and_map_together():
    shapes = {"a": (3, 4)}
    one, other = (run(Adafactor(), shapes) for _ in range(2))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.structure(one) != jax.tree.structure(run(Adafactor(decay_rate=0.7), shapes))
    update = jax.jit(lambda optimizer, grads, rate: optimizer.apply_gradient(grads, learning_rate=rate))
    grads = random_tree(9, shapes)
    compiled = update(one, grads, jnp.float32(0.1))
    update(other, grads, jnp.float32(0.2))
    assert update._cache_size() == 1
    expected = one.apply_gradient(grads, learning_rate=jnp.float32(0.1))
    np.testing.assert_allclose(compiled.target["a"], expected.target["a"], rtol=1e-6)


def test_subclasses_override_the_decay_and_take_arguments_of_their_own():
    class Forgetful(Adafactor):
        def __init__(self, memory: float):
            super().__init__(min_dim_size_to_factor=4)
            self.memory = memory

        def _decay_rate_pow(self, i, exponent=0.8):
            return jnp.float32(self.memory)

    definition = Forgetful(0.25)
    grads = random_tree(1, {"a": (3,)})
    optimizer = run(definition, None, 2, random_tree(0, {"a": (3,)}), [grads, grads])
    np.testing.assert_allclose(optimizer.state.param_states["a"].v, (1 - 0.25**2) * grads["a"] ** 2, rtol=1e-6)
    assert definition != Adafactor(min_dim_size_to_factor=4) and definition.hyper_params.beta1 is None


def test_rules_are_parsed_for_subclasses_too():
    definition = Adafactor(min_dim_size_to_factor=4)
    assert definition._parse_rule((ROW, COLUMN), (8, 9), "a") == ((0, 1), adafactor.HEURISTIC_RULE)
    assert definition._parse_rule((ROW, COLUMN), (8, 9), "a", fallback_to_heuristics=False) == ((0, 1), ((0,), (1,)))
    assert definition._parse_rule((BATCH, COLUMN, ROW, ROW), (2, 3, 4, 5), "a") == ((1, 2, 3), ((2, 3), (1,)))
    assert definition._factored_dims((9, 8)) == ((1,), (0,))
    assert definition._factored_dims((9, 3)) is None


def test_hparam_map_takes_the_first_rule_that_is_found():
    rules = HParamMap([("layers_[0-9]+/", "layer"), ("bias$", "bias"), (".*", "rest")])
    params = {"layers_10": {"bias": 0}, "head": {"bias": 0, "kernel": 0}}
    assert rules(params) == {"layers_10": {"bias": "layer"}, "head": {"bias": "bias", "kernel": "rest"}}
    with pytest.raises(KeyError, match="no rule for parameter 'head/kernel' among"):
        HParamMap([("bias", 1)])["head/kernel"]


def test_gin_binds_adafactor_as_t5x_gin_files_do():
    config = """
        from __gin__ import dynamic_registration
        from t5x import adafactor
        from t5x import optimizers
        OPTIMIZER = @adafactor.Adafactor()
        adafactor.Adafactor:
          decay_rate = 0.7
          step_offset = 3
          multiply_by_parameter_scale = @adafactor.HParamMap()
          logical_factor_rules = @adafactor.standard_logical_factor_rules()
        adafactor.HParamMap.rules = (("bias", False), (".*", True))
        optimizers.OptaxWrapper.optax_optimizer = %OPTIMIZER
    """
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config("\n".join(line[8:] for line in config.splitlines()))
        try:
            definition = gin.query_parameter("%OPTIMIZER").scoped_configurable_fn()
        finally:
            gin.clear_config()
    bound = definition.hyper_params
    assert (bound.decay_rate, bound.step_offset) == (0.7, 3)
    assert bound.multiply_by_parameter_scale["mlp/bias"] is False
    assert bound.logical_factor_rules["embed"] is ROW
    updated = definition.update_hyper_params(learning_rate=0.5)
    assert (updated.learning_rate, updated.decay_rate, bound.learning_rate) == (0.5, 0.7, None)


def test_errors_name_the_parameter():
    cube = {"qkv": jnp.ones((2, 3, 4))}
    axes = {"qkv": PartitionSpec("embed", "heads", "kv")}
    with pytest.raises(ValueError, match=r"'qkv' \(2, 3, 4\) has more than 2 dimensions and no factor rule"):
        Adafactor().create(cube)
    with pytest.raises(ValueError, match="'qkv' .* has another rank"):
        Adafactor(factor_map={"qkv": (ROW, COLUMN)}).create(cube)
    with pytest.raises(ValueError, match="'qkv' .* needs both sides"):
        Adafactor(factor_map={"qkv": (ROW, NONE, NONE)}).create(cube)
    with pytest.raises(ValueError, match=r"'qkv' .* no logical_factor_rules for \['heads', 'kv'\]"):
        Adafactor(logical_factor_rules={"embed": ROW}).set_param_axes(axes)
    with pytest.raises(ValueError, match="'qkv' .* mixes ROW, COLUMN and NONE"):
        Adafactor(logical_factor_rules={"embed": "row", "heads": "col", "kv": "none"}).set_param_axes(axes)
    with pytest.raises(ValueError, match="unknown factor dimension 'rows'; known are row, col"):
        Adafactor(logical_factor_rules={"embed": "rows", "heads": "col", "kv": "col"}).set_param_axes(axes)
    with pytest.raises(ValueError, match="no learning rate"):
        Adafactor().create({"b": jnp.ones(3)}).apply_gradient({"b": jnp.ones(3)})
    with pytest.raises(TypeError, match="multiply_by_parameter_scale must be a bool or an HParamMap, not 'yes'"):
        Adafactor(multiply_by_parameter_scale="yes")
    with pytest.raises(TypeError, match="factor_map must be"):
        Adafactor(factor_map=3)
    with pytest.raises(ValueError, match="factored is False"):
        Adafactor(factored=False, factor_map=HParamMap([]))
    assert isinstance(Adafactor(), optimizers.OptimizerDef)
