"""What a training run carries from step to step: parameters, optimizer state, step, and their axis names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax.numpy as jnp
from flax import traverse_util
from flax.core import FrozenDict, freeze, unfreeze
from flax.core.scope import FrozenVariableDict, MutableVariableDict, VariableDict
from flax.linen import partitioning as flax_partitioning

from t5x.embedded import console
from t5x.embedded.contract import refuse_missing

refuse_missing(globals(), "train_state")

__all__ = [
    "EMPTY_DICT",
    "FlaxOptimTrainState",
    "FrozenDict",
    "FrozenVariableDict",
    "InferenceState",
    "MutableVariableDict",
    "TrainState",
    "VariableDict",
]

EMPTY_DICT = freeze({})


@runtime_checkable
class TrainState(Protocol):
    """What the trainer, the partitioner and checkpoints need from a state; a class that has it all need not inherit.

    Every method returns a new state. `state_dict` gives what a checkpoint holds, as nested plain dicts {"target": …,
    "state": {"step": …, "param_states": …}, ["flax_mutables": …]}, and `restore_state` takes it. `as_logical_axes`
    puts logical axis names (PartitionSpec), or None for a replicated array, in the arrays' places.
    """

    @property
    def step(self) -> Any: ...

    @property
    def params(self) -> FrozenVariableDict: ...

    @property
    def param_states(self) -> FrozenVariableDict: ...

    @property
    def flax_mutables(self) -> FrozenVariableDict: ...

    def state_dict(self) -> MutableVariableDict: ...

    def restore_state(self, state_dict: Mapping[str, Any]) -> TrainState: ...

    def replace_params(self, params: VariableDict) -> TrainState: ...

    def replace_flax_mutables(self, flax_mutables: FrozenDict) -> TrainState: ...

    def replace_step(self, step) -> TrainState: ...

    def apply_gradient(self, grads, learning_rate, flax_mutables: FrozenDict = EMPTY_DICT) -> TrainState: ...

    def as_logical_axes(self) -> TrainState: ...


class FlaxOptimTrainState(flax.struct.PyTreeNode):
    """The state of training: an optimizer (which holds the parameters) and the model's mutable variables.

    Attributes:
      _optimizer: `optimizers.Optimizer`; its `target` are the parameters, its `state` holds step and
        param_states.
      params_axes: logical axis names as the model emitted them, in the parameters' tree.
      flax_mutables: other variable collections of the model (usually empty).
      flax_mutables_axes: their axis names.
    """

    _optimizer: Any
    params_axes: FrozenDict | None = None
    flax_mutables: FrozenDict = EMPTY_DICT
    flax_mutables_axes: FrozenDict | None = None

    @classmethod
    def create(cls, optimizer_def, model_variables: Mapping) -> FlaxOptimTrainState:
        """Returns step 0 for freshly initialized `model_variables` ({"params", "params_axes", …})."""
        params, params_axes, mutables, mutables_axes = split_variables(model_variables)
        if hasattr(optimizer_def, "set_param_axes"):
            if params_axes is None:
                raise ValueError(
                    f"{type(optimizer_def).__name__} factors parameters by their axis names and the model "
                    "emits none; create them with flax.linen.partitioning.param_with_axes."
                )
            optimizer_def.set_param_axes(flax_partitioning.get_axis_names(params_axes))
        return cls(optimizer_def.create(params), params_axes, mutables, mutables_axes)

    @property
    def step(self):
        return self._optimizer.state.step

    @property
    def params(self):
        return self._optimizer.target

    @property
    def param_states(self):
        return self._optimizer.state.param_states

    def apply_gradient(self, grads, learning_rate, flax_mutables=EMPTY_DICT) -> FlaxOptimTrainState:
        optimizer = self._optimizer.apply_gradient(grads, learning_rate=learning_rate)
        return self.replace(_optimizer=optimizer, flax_mutables=flax_mutables)

    def replace_params(self, params) -> FlaxOptimTrainState:
        return self.replace(_optimizer=self._optimizer.replace(target=params))

    def replace_flax_mutables(self, flax_mutables) -> FlaxOptimTrainState:
        return self.replace(flax_mutables=flax_mutables)

    def replace_step(self, step) -> FlaxOptimTrainState:
        state_dict = self.state_dict()
        state_dict["state"]["step"] = step
        return self.restore_state(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Returns nested plain dicts {"target", "state", ["flax_mutables"]}: a checkpoint's content."""
        return with_mutables(self._optimizer.state_dict(), self.flax_mutables)

    def restore_state(self, state_dict: Mapping[str, Any]) -> FlaxOptimTrainState:
        return self.replace(
            _optimizer=self._optimizer.restore_state(state_dict),
            flax_mutables=freeze(state_dict.get("flax_mutables", {})),
        )

    def as_logical_axes(self) -> FlaxOptimTrainState:
        """Returns the same tree with logical axis names (PartitionSpec) in the arrays' places."""
        axes = flax_partitioning.get_axis_names(self.params_axes)
        return self.replace(
            _optimizer=self._optimizer.optimizer_def.derive_logical_axes(self._optimizer, axes),
            params_axes=None,
            flax_mutables=flax_partitioning.get_axis_names(self.flax_mutables_axes or EMPTY_DICT),
            flax_mutables_axes=None,
        )


class InferenceState(flax.struct.PyTreeNode):
    """A train state without an optimizer: what evaluation and inference restore."""

    step: Any
    params: FrozenDict
    params_axes: FrozenDict | None = None
    flax_mutables: FrozenDict = EMPTY_DICT
    flax_mutables_axes: FrozenDict | None = None

    @classmethod
    def create(cls, model_variables: Mapping) -> InferenceState:
        return cls(jnp.array(0), *split_variables(model_variables))

    def replace_params(self, params) -> InferenceState:
        return self.replace(params=params)

    def replace_flax_mutables(self, flax_mutables) -> InferenceState:
        return self.replace(flax_mutables=flax_mutables)

    def replace_step(self, step) -> InferenceState:
        return self.replace(step=step)

    def state_dict(self) -> dict[str, Any]:
        state_dict = {"target": unfreeze(self.params), "state": {"step": self.step}}
        return with_mutables(state_dict, self.flax_mutables)

    def restore_state(self, state_dict: Mapping[str, Any]) -> InferenceState:
        return self.replace(
            params=freeze(state_dict["target"]),
            step=state_dict["state"]["step"],
            flax_mutables=freeze(state_dict.get("flax_mutables", {})),
        )

    @property
    def param_states(self):
        raise NotImplementedError("InferenceState has no optimizer, and so no param_states.")

    def apply_gradient(self, *args, **kwargs) -> InferenceState:
        raise NotImplementedError("InferenceState has no optimizer, and so no apply_gradient; use FlaxOptimTrainState.")

    def as_logical_axes(self) -> InferenceState:
        return self.replace(
            step=None,
            params=flax_partitioning.get_axis_names(self.params_axes),
            params_axes=None,
            flax_mutables=flax_partitioning.get_axis_names(self.flax_mutables_axes or EMPTY_DICT),
            flax_mutables_axes=None,
        )


def with_mutables(state_dict: dict, flax_mutables: FrozenDict) -> dict:
    """Adds the mutable variables to `state_dict`, when there are any."""
    return {**state_dict, "flax_mutables": unfreeze(flax_mutables)} if flax_mutables else state_dict


def split_variables(variables: Mapping) -> tuple:
    """Splits a model's variables into (params, params_axes, mutables, mutables_axes).

    A collection `x_axes` holds the axis names of collection `x`; every parameter must have some if its
    collection has any.
    """
    for name in variables:
        if name.endswith("_axes"):
            check_axes(name, variables[name], variables[name.removesuffix("_axes")])
    rest = {k: v for k, v in variables.items() if k not in ("params", "params_axes")}
    mutables = {k: v for k, v in rest.items() if not k.endswith("_axes")}
    mutables_axes = {k.removesuffix("_axes"): v for k, v in rest.items() if k.endswith("_axes")}
    axes = variables.get("params_axes")
    return (
        freeze(variables["params"]),
        None if axes is None else freeze(axes),
        freeze(mutables),
        freeze(mutables_axes) if mutables_axes else None,
    )


def check_axes(name: str, axes: Mapping, values: Mapping) -> None:
    """Raises ValueError when some of `values` has no axis names in `axes`."""
    named = traverse_util.flatten_dict(flax_partitioning.get_axis_names(axes), sep="/")
    missing = sorted(set(traverse_util.flatten_dict(values, sep="/")) - set(named))
    if missing:
        raise ValueError(f"{name} has no axis names for {console.name_some(missing)}; make them with param_with_axes.")
