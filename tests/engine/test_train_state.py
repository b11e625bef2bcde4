"""Train states: what a class must have to be one, and what subclasses of ours keep."""

from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen.partitioning import AxisMetadata

from t5x import optimizers, partitioning
from t5x.train_state import FlaxOptimTrainState, InferenceState, TrainState

VARIABLES = {
    "params": {"kernel": jnp.ones((4, 2))},
    "params_axes": {"kernel_axes": AxisMetadata(names=("embed", "mlp"))},
    "statistics": {"mean": jnp.zeros(2)},
    "statistics_axes": {"mean_axes": AxisMetadata(names=("mlp",))},
}


class OfMyOwn(TrainState):
    """A user's state: inherits the protocol and gives only what its use needs."""

    def __init__(self, step: int):
        self._step = step

    @property
    def step(self) -> int:
        return self._step

    def replace_step(self, step) -> "OfMyOwn":
        return OfMyOwn(step)


def test_users_subclass_the_protocol():
    state = OfMyOwn(3).replace_step(4)
    assert isinstance(state, TrainState) and state.step == 4


def test_whatever_has_its_members_is_a_train_state():
    assert isinstance(FlaxOptimTrainState.create(optimizers.sgd(0.1), VARIABLES), TrainState)
    assert not isinstance(optimizers.sgd(0.1).create(VARIABLES["params"]), TrainState)
    assert not isinstance(OrderedDict(), TrainState)


class Averaged(FlaxOptimTrainState):
    """A user's state with one field more."""

    ema: Any = None


def test_a_subclass_stays_itself_and_keeps_its_fields():
    state = Averaged.create(optimizers.sgd(0.5), VARIABLES).replace(ema=jnp.float32(0.9))
    grads = jax.tree.map(jnp.ones_like, state.params)
    stepped = state.apply_gradient(grads, learning_rate=None, flax_mutables=state.flax_mutables)
    assert type(stepped) is Averaged and stepped.ema == state.ema and stepped.step == 1
    np.testing.assert_array_equal(stepped.params["kernel"], np.full((4, 2), 0.5))
    axes = partitioning.PjitPartitioner(num_partitions=1).get_mesh_axes(state)
    assert type(axes) is Averaged
    assert axes.params["kernel"] == partitioning.PartitionSpec(None, "model")
    assert axes.flax_mutables["statistics"]["mean"] == partitioning.PartitionSpec("model")


def test_an_inference_state_has_no_optimizer():
    state = InferenceState.create(VARIABLES)
    with pytest.raises(NotImplementedError, match="no param_states"):
        _ = state.param_states
    with pytest.raises(NotImplementedError, match="use FlaxOptimTrainState"):
        state.apply_gradient({}, learning_rate=0.1)
    axes = state.as_logical_axes()
    assert axes.step is None and axes.params["kernel"] == partitioning.PartitionSpec("embed", "mlp")
