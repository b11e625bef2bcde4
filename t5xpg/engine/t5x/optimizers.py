"""Optimizers in T5X's form: a definition (how to update), and an optimizer (parameters and state).

`adafactor.Adafactor` is T5X's own. Every optax optimizer works too: `adamw`, `lion`, … take optax's arguments,
and `chain` combines transformations. Their learning rate, a number or a schedule, is optax's own; the trainer's
learning_rate_fn does not reach them.

T5X also wraps amos, from jestimator, which is not on any package registry; it is left out here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import traverse_util
from flax.core import FrozenDict, freeze
from flax.serialization import from_state_dict, to_state_dict

from t5x.embedded.contract import refuse_missing

refuse_missing(globals(), "optimizers")


@flax.struct.dataclass
class OptimizerState:
    """The step (int32 scalar) and the optimizer's state for each parameter."""

    step: Any
    param_states: Any


class OptimizerDef:
    """How parameters are updated; `hyper_params` are the numbers, replaceable for a single update."""

    def __init__(self, hyper_params: Any):
        self.hyper_params = hyper_params

    def init_state(self, params) -> OptimizerState:
        raise NotImplementedError

    def apply_gradient(self, hyper_params, params, state: OptimizerState, grads) -> tuple[Any, OptimizerState]:
        """Returns the new parameters and the new state."""
        raise NotImplementedError

    def derive_logical_axes(self, optimizer: Optimizer, param_logical_axes) -> Optimizer:
        """Returns the optimizer's tree with axis names for arrays, None where replicated."""
        raise ValueError(
            f"{type(self).__name__} needs a derive_logical_axes method to be partitioned; see optimizers.OptaxWrapper."
        )

    def update_hyper_params(self, **overrides):
        """Returns the hyper parameters with some replaced; `hyper_params=…` replaces them all."""
        hyper_params = overrides.pop("hyper_params", self.hyper_params)
        return hyper_params.replace(**overrides) if overrides else hyper_params

    def create(self, target) -> Optimizer:
        """Returns an optimizer at step 0 for the parameters `target`."""
        return Optimizer(self, self.init_state(target), target)

    def state_dict(self, target, state: OptimizerState) -> dict[str, Any]:
        """Returns nested dicts {"target": …, "state": {"step": …, "param_states": …}}: a checkpoint's content."""
        return {"target": to_state_dict(target), "state": to_state_dict(state)}

    def restore_state(self, opt_target, opt_state: OptimizerState, state_dict: Mapping) -> tuple[Any, OptimizerState]:
        """Returns the target and state that `state_dict` describes, in the form of those given."""
        return from_state_dict(opt_target, state_dict["target"]), from_state_dict(opt_state, state_dict["state"])


class Optimizer(flax.struct.PyTreeNode):
    """Parameters (`target`) with the state of their optimization."""

    optimizer_def: OptimizerDef = flax.struct.field(pytree_node=False)
    state: Any
    target: Any

    def apply_gradient(self, grads, **hyper_param_overrides) -> Optimizer:
        """Returns the optimizer after one update, for example `apply_gradient(grads, learning_rate=0.1)`."""
        hyper_params = self.optimizer_def.update_hyper_params(**hyper_param_overrides)
        target, state = self.optimizer_def.apply_gradient(hyper_params, self.target, self.state, grads)
        return self.replace(target=target, state=state)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer_def.state_dict(self.target, self.state)

    def restore_state(self, state: Mapping) -> Optimizer:
        """Returns the optimizer that `state`, what `state_dict` gave, describes."""
        target, restored = self.optimizer_def.restore_state(self.target, self.state, state)
        return self.replace(target=target, state=restored)

    def with_axes(self, param_axes, param_state_axes) -> Optimizer:
        """Returns the same tree with axis names in the arrays' places; the step has none."""
        target = unflatten_like(self.target, flatten_paths(param_axes))
        return self.replace(target=target, state=OptimizerState(None, param_state_axes))


OptimizerType = Optimizer
OptimizerDefType = OptimizerDef
OptimizerStateType = OptimizerState | Mapping[str, Any]


def flatten_paths(tree: Mapping) -> dict[str, Any]:
    """Flattens nested dicts to {"encoder/layers_0/…": leaf}."""
    return traverse_util.flatten_dict(tree, sep="/")


def unflatten_like(tree: Mapping, flat: Mapping[str, Any]) -> Mapping:
    """Nests what `flatten_paths` flattened; frozen when `tree` is."""
    nested = traverse_util.unflatten_dict(dict(flat), sep="/")
    return freeze(nested) if isinstance(tree, FrozenDict) else nested


@flax.struct.dataclass
class _OptaxHyperParams:
    learning_rate: Any = None  # the trainer sets it; optax has its own


class OptaxWrapper(OptimizerDef):
    """Turns an optax.GradientTransformation into an optimizer definition."""

    def __init__(self, optax_optimizer: optax.GradientTransformation):
        super().__init__(_OptaxHyperParams())
        self.optax_optimizer = optax_optimizer

    def init_state(self, params) -> OptimizerState:
        return OptimizerState(jnp.int32(0), self.optax_optimizer.init(params))

    def apply_gradient(self, hyper_params, params, state: OptimizerState, grads) -> tuple[Any, OptimizerState]:
        updates, optax_state = self.optax_optimizer.update(grads, state.param_states, params)
        return optax.apply_updates(params, updates), OptimizerState(state.step + 1, optax_state)

    def derive_logical_axes(self, optimizer: Optimizer, param_logical_axes) -> Optimizer:
        """Returns the optimizer's tree with axis names for arrays, None where replicated.

        An array of the optax state is partitioned like a parameter when its path ends in that parameter's and
        their shapes agree: true of moments, traces and accumulated gradients, wherever optax keeps them.
        """
        params, axes = flatten_paths(optimizer.target), flatten_paths(param_logical_axes)

        def axes_of(path, leaf):
            name = _trailing_dict_path(path)
            return axes[name] if name in params and params[name].shape == jnp.shape(leaf) else None

        return optimizer.with_axes(
            param_logical_axes, jax.tree_util.tree_map_with_path(axes_of, optimizer.state.param_states)
        )

    def state_dict(self, target, state: OptimizerState) -> dict[str, Any]:
        """As OptimizerDef; optax's states without arrays are left out, since checkpoints hold none."""
        flat = traverse_util.flatten_dict(to_state_dict(state), sep="/")
        return {"target": to_state_dict(target), "state": traverse_util.unflatten_dict(flat, sep="/")}

    def restore_state(self, opt_target, opt_state: OptimizerState, state_dict: Mapping) -> tuple[Any, OptimizerState]:
        current = traverse_util.flatten_dict(to_state_dict(opt_state), keep_empty_nodes=True, sep="/")
        saved = flatten_paths(state_dict["state"])
        empty = {path: leaf for path, leaf in current.items() if leaf is traverse_util.empty_node}
        if missing := sorted(current.keys() - empty.keys() - saved.keys()):
            raise ValueError(
                f"optimizer state to restore has no {missing[0]!r} ({len(missing)} missing in all); "
                "was it saved by another optimizer?"
            )
        full = {"target": state_dict["target"], "state": traverse_util.unflatten_dict(saved | empty, sep="/")}
        return super().restore_state(opt_target, opt_state, full)


def _trailing_dict_path(path: Sequence) -> str:
    """Joins the dict keys that end a key path: (0, .mu, 'decoder', 'kernel') -> "decoder/kernel"."""
    keys: list[str] = []
    for key in reversed(path):
        if not isinstance(key, jax.tree_util.DictKey):
            break
        keys.insert(0, str(key.key))
    return "/".join(keys)


def wrap_optax_optimizer(optax_optimizer: Callable[..., optax.GradientTransformation]) -> Callable[..., OptaxWrapper]:
    """Turns an optax constructor into one of optimizer definitions with the same arguments."""

    @functools.wraps(optax_optimizer)
    def wrapped(*args, **kwargs) -> OptaxWrapper:
        return OptaxWrapper(optax_optimizer(*args, **kwargs))

    return wrapped


@wrap_optax_optimizer
def chain(transformations: Sequence[optax.GradientTransformation]) -> optax.GradientTransformation:
    """optax.chain, of a list: gin cannot write positional arguments."""
    return optax.chain(*transformations)


adabelief = wrap_optax_optimizer(optax.adabelief)
adagrad = wrap_optax_optimizer(optax.adagrad)
adam = wrap_optax_optimizer(optax.adam)
adamw = wrap_optax_optimizer(optax.adamw)
dpsgd = wrap_optax_optimizer(optax.contrib.dpsgd)
fromage = wrap_optax_optimizer(optax.fromage)
lamb = wrap_optax_optimizer(optax.lamb)
lars = wrap_optax_optimizer(optax.lars)
lion = wrap_optax_optimizer(optax.lion)
noisy_sgd = wrap_optax_optimizer(optax.noisy_sgd)
radam = wrap_optax_optimizer(optax.radam)
rmsprop = wrap_optax_optimizer(optax.rmsprop)
sgd = wrap_optax_optimizer(optax.sgd)
yogi = wrap_optax_optimizer(optax.yogi)


class MultiOptimizer(OptimizerDef):
    """Gives groups of parameters their own optimizers; parameters in no group stay as they are.

    For optimizers that keep one state per parameter (Adafactor). With optax use optax.multi_transform.

    Args:
      traversals_and_optimizers: pairs of a flax.traverse_util.Traversal, usually
        ModelParamTraversal(lambda path, value: …) with paths like "/decoder/logits_dense/kernel", and the
        definition for the parameters it selects. No parameter may be selected twice.
    """

    def __init__(self, traversals_and_optimizers: Sequence[tuple[traverse_util.Traversal, OptimizerDef]]):
        self.traversals, self.sub_optimizers = zip(*traversals_and_optimizers, strict=True)
        if any(isinstance(sub, OptaxWrapper) for sub in self.sub_optimizers):
            raise ValueError(
                "MultiOptimizer: optax optimizers do not keep one state per parameter; "
                "combine them with OptaxWrapper(optax.multi_transform(…))."
            )
        super().__init__([sub.hyper_params for sub in self.sub_optimizers])

    def update_hyper_params(self, **overrides) -> list:
        hyper_params = overrides.pop("hyper_params", self.hyper_params)
        return [each.replace(**overrides) if overrides else each for each in hyper_params]

    def init_state(self, params) -> OptimizerState:
        states = dict.fromkeys(flatten_paths(params))
        for sub, paths in self._groups(params):
            state = sub.init_state(_select(params, paths))
            states |= flatten_paths(state.param_states)
        return OptimizerState(jnp.int32(0), unflatten_like(params, states))

    def apply_gradient(self, hyper_params, params, state: OptimizerState, grads) -> tuple[Any, OptimizerState]:
        new_params, new_states = flatten_paths(params), flatten_paths(state.param_states)
        for (sub, paths), sub_hyper_params in zip(self._groups(params), hyper_params, strict=True):
            sub_state = OptimizerState(state.step, _select(state.param_states, paths))
            sub_params, sub_state = sub.apply_gradient(
                sub_hyper_params, _select(params, paths), sub_state, _select(grads, paths)
            )
            new_params |= flatten_paths(sub_params)
            new_states |= flatten_paths(sub_state.param_states)
        new_state = OptimizerState(state.step + 1, unflatten_like(params, new_states))
        return unflatten_like(params, new_params), new_state

    def set_param_axes(self, param_logical_axes) -> None:
        for sub, paths in self._groups(param_logical_axes):
            if hasattr(sub, "set_param_axes"):
                sub.set_param_axes(_select(param_logical_axes, paths))

    def derive_logical_axes(self, optimizer: Optimizer, param_logical_axes) -> Optimizer:
        state_axes = dict.fromkeys(flatten_paths(optimizer.target))
        for sub, paths in self._groups(optimizer.target):
            sub_state = OptimizerState(None, _select(optimizer.state.param_states, paths))
            sub_optimizer = Optimizer(sub, sub_state, _select(optimizer.target, paths))
            sub_axes = sub.derive_logical_axes(sub_optimizer, _select(param_logical_axes, paths))
            state_axes |= flatten_paths(sub_axes.state.param_states)
        return optimizer.with_axes(param_logical_axes, unflatten_like(optimizer.target, state_axes))

    def _groups(self, params) -> list[tuple[OptimizerDef, list[str]]]:
        """Returns each optimizer with the paths of its parameters."""
        groups: list[tuple[OptimizerDef, list[str]]] = []
        taken: set[str] = set()
        for traversal, sub in zip(self.traversals, self.sub_optimizers, strict=True):
            chosen = object()
            marked = flatten_paths(traversal.update(lambda _, chosen=chosen: chosen, params))
            paths = [path for path, leaf in marked.items() if leaf is chosen]
            if twice := taken.intersection(paths):
                raise ValueError(f"MultiOptimizer: two optimizers select {', '.join(sorted(twice))}.")
            taken.update(paths)
            groups.append((sub, paths))
        return groups


def _select(tree: Mapping, paths: Sequence[str]) -> Mapping:
    flat = flatten_paths(tree)
    return unflatten_like(tree, {path: flat[path] for path in paths})
