"""Wrapped optax optimizers and MultiOptimizer against T5X's recorded numbers and optax itself."""

import json

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from flax.core import freeze
from golden import record_optim
from jax.sharding import PartitionSpec

from t5x import adafactor, optimizers

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

RECORDED = json.loads(record_optim.PATH.read_text())["optimizers"]
WRAPPED = {
    "adabelief": optax.adabelief,
    "adagrad": optax.adagrad,
    "adam": optax.adam,
    "adamw": optax.adamw,
    "fromage": optax.fromage,
    "lamb": optax.lamb,
    "lars": optax.lars,
    "lion": optax.lion,
    "radam": optax.radam,
    "rmsprop": optax.rmsprop,
    "sgd": optax.sgd,
    "yogi": optax.yogi,
}
AXES = {"encoder": {"kernel": PartitionSpec("embed", "mlp")}, "bias": PartitionSpec("mlp")}


@pytest.fixture(autouse=True)
def optax_promotes_dtypes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def make_params(seed=0):
    random = np.random.RandomState(seed)
    return {
        "encoder": {"kernel": jnp.asarray(random.randn(4, 3), jnp.float32)},
        "bias": jnp.asarray(random.randn(3), jnp.float32),
    }


def all_but_bias(params):
    return type(params)({"encoder": True, "bias": False})


def is_axes(x):
    return x is None or isinstance(x, PartitionSpec)


@pytest.mark.parametrize("name", record_optim.OPTIMIZERS)
def test_numbers_checkpoint_names_and_axes_equal_t5x(name):
    actual, expected = record_optim.run_optimizer(optimizers, adafactor, name), RECORDED[name]
    assert actual["axes"] == expected["axes"]
    assert actual["arrays"].keys() == expected["arrays"].keys()
    for path, value in expected["arrays"].items():
        if value is None:
            assert actual["arrays"][path] is None
        else:
            scale = np.abs(value).max()
            np.testing.assert_allclose(actual["arrays"][path], value, rtol=3e-6, atol=1e-6 * scale, err_msg=path)


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_optimizers_are_optax(name):
    definition, reference = getattr(optimizers, name)(0.1), WRAPPED[name](0.1)
    params = make_params()
    optimizer, state = definition.create(params), reference.init(params)
    for seed in (1, 2):
        optimizer = optimizer.apply_gradient(make_params(seed), learning_rate=jnp.float32(123))
        updates, state = reference.update(make_params(seed), state, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(np.testing.assert_array_equal, optimizer.target, params)
    jax.tree.map(np.testing.assert_array_equal, optimizer.state.param_states, state)
    assert optimizer.state.step == 2 and optimizer.state.step.dtype == jnp.int32


DEFINITIONS = {name: lambda name=name: getattr(optimizers, name)(0.1) for name in WRAPPED} | {
    "chain": lambda: optimizers.chain([optax.clip_by_global_norm(1.0), optax.adamw(optax.constant_schedule(0.1))]),
    "ema": lambda: optimizers.chain([optax.ema(0.9), optax.scale(-0.1)]),
    "masked": lambda: optimizers.OptaxWrapper(optax.masked(optax.adam(0.1), all_but_bias)),
    "inject": lambda: optimizers.OptaxWrapper(optax.inject_hyperparams(optax.adam)(learning_rate=0.1)),
    "multi_steps": lambda: optimizers.OptaxWrapper(optax.MultiSteps(optax.adam(0.1), 2)),
    "if_finite": lambda: optimizers.OptaxWrapper(optax.apply_if_finite(optax.adam(0.1), 2)),
    "factored": lambda: optimizers.OptaxWrapper(optax.adafactor(0.1, min_dim_size_to_factor=2)),
}


@pytest.mark.parametrize("container", [dict, freeze])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_axes_mirror_the_state_and_checkpoints_restore_it(name, container):
    definition = DEFINITIONS[name]()
    optimizer = definition.create(container(make_params()))
    trained = optimizer.apply_gradient(container(make_params(1)))

    axes = definition.derive_logical_axes(trained, freeze(AXES))
    assert jax.tree.structure(axes, is_leaf=is_axes) == jax.tree.structure(trained)
    for spec, leaf in zip(jax.tree.leaves(axes, is_leaf=is_axes), jax.tree.leaves(trained), strict=True):
        assert spec is None or len(spec) == leaf.ndim

    saved = trained.state_dict()
    flat = traverse_util.flatten_dict(saved, keep_empty_nodes=True)
    assert traverse_util.empty_node not in flat.values()
    restored = optimizer.restore_state(jax.device_get(saved))
    assert jax.tree.structure(restored) == jax.tree.structure(trained)
    jax.tree.map(np.testing.assert_array_equal, restored, trained)


def test_noise_comes_from_the_key_given():
    updates = [
        optimizers.noisy_sgd(0.1, key=key).create(make_params()).apply_gradient(make_params(1)).target["bias"]
        for key in (0, 0, 1)
    ]
    np.testing.assert_array_equal(updates[0], updates[1])
    assert (updates[0] != updates[2]).all()


def test_gin_chains_optax_transformations_as_t5x_gin_files_do():
    config = [
        "from __gin__ import dynamic_registration",
        "from t5x import optimizers",
        "import optax",
        "OPTIMIZER = @optimizers.chain()",
        "optimizers.chain.transformations = [@optax.clip(), @optax.adamw()]",
        "optax.clip.max_delta = 0.5",
        "optax.adamw.learning_rate = @optax.linear_schedule()",
        "optax.linear_schedule.init_value = 0.1",
        "optax.linear_schedule.end_value = 0.0",
        "optax.linear_schedule.transition_steps = 10",
        "optimizers.adamw.learning_rate = 7.0",  # the wrapped namesake: another configurable
    ]
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config("\n".join(config))
        try:
            definition = gin.query_parameter("%OPTIMIZER").scoped_configurable_fn()
            optimizer = definition.create(make_params()).apply_gradient(make_params(1))
        finally:
            gin.clear_config()
    reference = optax.chain(optax.clip(0.5), optax.adamw(optax.linear_schedule(0.1, 0.0, 10)))
    updates, _ = reference.update(make_params(1), reference.init(make_params()), make_params())
    np.testing.assert_array_equal(optimizer.target["bias"], optax.apply_updates(make_params(), updates)["bias"])


def test_moments_are_partitioned_like_their_parameters_wherever_optax_keeps_them():
    for name, keys in {"adamw": ["mu", "nu"], "masked": ["mu", "nu"], "multi_steps": ["acc_grads", "mu"]}.items():
        definition = DEFINITIONS[name]()
        axes = definition.derive_logical_axes(definition.create(make_params()), AXES)
        flat = traverse_util.flatten_dict(optimizers.to_state_dict(axes.state.param_states), sep="/")
        kernels = {path: spec for path, spec in flat.items() if path.endswith("/kernel")}
        assert kernels and set(kernels.values()) == {PartitionSpec("embed", "mlp")}
        assert all(any(f"{key}/" in f"{path}/" for path in kernels) for key in keys)
        assert all(spec is None for path, spec in flat.items() if path.endswith("count"))


def test_restoring_another_optimizers_state_is_refused():
    saved = optimizers.sgd(0.1, momentum=0.9).create(make_params()).state_dict()
    with pytest.raises(ValueError, match=r"no 'param_states/0/count' \(5 missing in all\)"):
        optimizers.adam(0.1).create(make_params()).restore_state(saved)


def test_hyper_params_are_replaced_for_one_update():
    definition = adafactor.Adafactor(learning_rate=0.5)
    assert definition.update_hyper_params().learning_rate == 0.5
    assert definition.update_hyper_params(learning_rate=0.1, beta1=0.9).beta1 == 0.9
    other = definition.hyper_params.replace(learning_rate=0.2)
    assert definition.update_hyper_params(hyper_params=other) is other


def test_multi_optimizer_updates_each_group_as_its_optimizer_alone():
    kernels = traverse_util.ModelParamTraversal(lambda path, _: path.endswith("kernel"))
    vectors = traverse_util.ModelParamTraversal(lambda path, value: value.ndim == 1)
    first, second = adafactor.Adafactor(), adafactor.Adafactor(decay_rate=0.5, beta1=0.9)
    rate = jnp.float32(0.1)

    def run(definition):
        return definition.create(make_params()).apply_gradient(make_params(1), learning_rate=rate)

    both = run(optimizers.MultiOptimizer([(kernels, first), (vectors, second)]))
    np.testing.assert_array_equal(both.target["encoder"]["kernel"], run(first).target["encoder"]["kernel"])
    np.testing.assert_array_equal(both.target["bias"], run(second).target["bias"])

    one = run(optimizers.MultiOptimizer([(kernels, first)]))
    np.testing.assert_array_equal(one.target["encoder"]["kernel"], both.target["encoder"]["kernel"])
    np.testing.assert_array_equal(one.target["bias"], make_params()["bias"])
    assert one.state.param_states["bias"] is None

    definition = optimizers.MultiOptimizer([(kernels, first), (vectors, second)])
    restored = definition.create(make_params()).restore_state(jax.device_get(both.state_dict()))
    jax.tree.map(np.testing.assert_array_equal, restored.state, both.state)


def test_multi_optimizer_takes_a_learning_rate_per_group():
    kernels = traverse_util.ModelParamTraversal(lambda path, _: path == "/encoder/kernel")
    biases = traverse_util.ModelParamTraversal(lambda path, _: path == "/bias")
    definition = optimizers.MultiOptimizer([(kernels, adafactor.Adafactor()), (biases, adafactor.Adafactor())])
    rates = [hp.replace(learning_rate=rate) for hp, rate in zip(definition.hyper_params, (0.0, 0.1), strict=True)]
    updated = definition.create(make_params()).apply_gradient(make_params(1), hyper_params=rates)
    np.testing.assert_array_equal(updated.target["encoder"]["kernel"], make_params()["encoder"]["kernel"])
    assert (updated.target["bias"] != make_params()["bias"]).all()


def test_multi_optimizer_refuses_what_it_cannot_do():
    everything = traverse_util.ModelParamTraversal(lambda *_: True)
    twice = optimizers.MultiOptimizer([(everything, adafactor.Adafactor())] * 2)
    with pytest.raises(ValueError, match="two optimizers select bias, encoder/kernel"):
        twice.create(make_params())
    with pytest.raises(ValueError, match=r"optax.multi_transform"):
        optimizers.MultiOptimizer([(everything, optimizers.adam(0.1))])


def test_an_optimizer_that_cannot_be_partitioned_says_so():
    class Still(optimizers.OptimizerDef):
        def init_state(self, params):
            return optimizers.OptimizerState(0, params)

    everything = traverse_util.ModelParamTraversal(lambda *_: True)
    for definition in (Still({}), optimizers.MultiOptimizer([(everything, Still({}))])):
        with pytest.raises(ValueError, match="Still needs a derive_logical_axes method"):
            definition.derive_logical_axes(definition.create(make_params()), AXES)
