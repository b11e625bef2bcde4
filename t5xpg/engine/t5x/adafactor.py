"""Adafactor (Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235) with T5X's factorization rules.

The second moment of a matrix is kept as row and column means. A parameter may have more dimensions: an attention
kernel is [embed, heads, kv], a scanned layer adds [layers, …]. Rules say what each dimension is: ROW and COLUMN
dimensions form the two sides of a matrix, BATCH dimensions number separate matrices that share no statistics, and
a parameter without both sides is not factored.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from t5x.embedded.contract import refuse_missing
from t5x.optimizers import Optimizer, OptimizerDef, OptimizerState, flatten_paths, unflatten_like

refuse_missing(globals(), "adafactor")


class FactorDim(enum.Enum):
    """What a dimension is to the factored second moment."""

    NONE = None
    BATCH = 1
    ROW = 2
    COLUMN = 3


class HeuristicRule(enum.Enum):
    """A rule that looks at the shape: the larger of two big dimensions is COLUMN, the smaller ROW."""

    token = 1


HEURISTIC_RULE = HeuristicRule.token
FactorRule = HeuristicRule | tuple[FactorDim, ...]
Axes = tuple[int, ...]

_FACTOR_DIM_NAMES = {
    "row": FactorDim.ROW,
    "col": FactorDim.COLUMN,
    "column": FactorDim.COLUMN,
    "batch": FactorDim.BATCH,
    "none": FactorDim.NONE,
    "unfactorized": FactorDim.NONE,
}


def factor_name_to_factordim(name: str | FactorDim) -> FactorDim:
    """Converts a name as gin files write it ("row", "column", "batch", "none")."""
    if isinstance(name, FactorDim):
        return name
    if str(name).lower() not in _FACTOR_DIM_NAMES:
        raise ValueError(f"unknown factor dimension {name!r}; known are {', '.join(_FACTOR_DIM_NAMES)}.")
    return _FACTOR_DIM_NAMES[name.lower()]


def standard_logical_factor_rules() -> FrozenDict:
    """Returns T5X's rules, by logical axis name."""
    columns = (
        "vocab", "mlp", "heads", "kv", "joined_kv", "q_wi_fused", "o_wo_fused", "multiquery_heads", "kv_fused",
        "mlp_activations",
    )  # fmt: skip
    return FrozenDict(
        dict.fromkeys(columns, FactorDim.COLUMN)
        | {"embed": FactorDim.ROW}
        | dict.fromkeys(("relpos_buckets", "layer_norm_scale"), FactorDim.NONE)
        | dict.fromkeys(("layers", "stack"), FactorDim.BATCH)
    )


class HParamMap:
    """Hyper parameters by parameter path: the first rule whose regular expression is found in the path decides.

    Args:
      rules: pairs (regular expression, value); paths look like "decoder/layers_0/mlp/wo/kernel".
    """

    def __init__(self, rules: Iterable[tuple[str, Any]]):
        self._rules = [(re.compile(pattern), value) for pattern, value in rules]

    def __getitem__(self, key: str) -> Any:
        for pattern, value in self._rules:
            if pattern.search(key):
                return value
        patterns = [pattern.pattern for pattern, _ in self._rules]
        raise KeyError(f"no rule for parameter {key!r} among {patterns}; add (r'.*', default) at the end.")

    def __call__(self, params: Mapping) -> Mapping:
        """Returns the values as a tree like `params`."""
        return unflatten_like(params, {path: self[path] for path in flatten_paths(params)})


class _AdafactorParamState(flax.struct.PyTreeNode):
    """The optimizer state of one parameter; unused arrays have shape [1], as in T5X's checkpoints."""

    v_row: jax.Array  # factored second moment, averaged over the column dimensions
    v_col: jax.Array  # factored second moment, averaged over the row dimensions
    v: jax.Array  # second moment of an unfactored parameter
    m: jax.Array  # momentum, with beta1


@flax.struct.dataclass
class _AdafactorHyperParams:
    """The numbers and rules of Adafactor, as its constructor takes them; `replace` gives those of one update."""

    learning_rate: float | None
    factored: bool
    multiply_by_parameter_scale: bool | HParamMap
    beta1: float | None
    decay_rate: float
    step_offset: int
    clipping_threshold: float | None
    weight_decay_rate: float | None
    min_dim_size_to_factor: int
    epsilon1: float
    epsilon2: float
    factor_map: HParamMap | Mapping[str, FactorRule | None] | None = None
    logical_factor_rules: Mapping[str, FactorDim | str] | None = None
    weight_decay_rate_lr_exponent: float | None = None
    global_norm_clip_threshold: float | None = None
    max_parameter_scale: float | None = None
    skip_nan_updates: bool = False


class Adafactor(OptimizerDef):
    """T5X's Adafactor.

    With s the step since `step_offset`, g the gradient and mean() over a parameter's non-BATCH dimensions:

      v = d v + (1 - d) (g^2 + epsilon1),  d = 1 - (s + 1)^-decay_rate;  factored: v = v_row v_col / mean(v_row)
      u = g / sqrt(v), divided by max(1, sqrt(mean(u^2)) / clipping_threshold)
      u = learning_rate * max(epsilon2, sqrt(mean(param^2))) * u
      param = (1 - weight_decay) param - u

    Two definitions are equal when their hyper parameters are, so that a compiled step serves both.

    Args:
      learning_rate: needed at each update; the trainer passes it.
      factored: whether to factor at all.
      multiply_by_parameter_scale: whether the update is relative to the parameter's size, or an HParamMap of it.
      beta1: momentum of the update u, or None.
      decay_rate: see above.
      step_offset: the step at which second moments start afresh, for finetuning.
      clipping_threshold: bound on the root mean square of u, or None.
      weight_decay_rate: weight decay per update (not times the learning rate), or None.
      min_dim_size_to_factor: the heuristic factors when two dimensions are at least this big.
      epsilon1: see above.
      epsilon2: see above.
      dtype_momentum: dtype of the momentum.
      factor_map: rule by parameter path (an HParamMap or a dict); None is the heuristic, which takes two
        dimensions at most. It also decides for one or two dimensions without BATCH, whatever the rule.
      logical_factor_rules: FactorDim, or its name, by logical axis name; `set_param_axes` makes factor_map of it.
      weight_decay_rate_lr_exponent: multiplies the weight decay (1 if None) by learning_rate to this power.
      global_norm_clip_threshold: bound on the norm of all gradients together, or None.
      max_parameter_scale: upper bound on the parameter's root mean square above, or None.
      skip_nan_updates: whether numbers that would become NaN keep their value.
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        factored: bool = True,
        multiply_by_parameter_scale: bool | HParamMap = True,
        beta1: float | None = None,
        decay_rate: float = 0.8,
        step_offset: int = 0,
        clipping_threshold: float | None = 1.0,
        weight_decay_rate: float | None = None,
        min_dim_size_to_factor: int = 128,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        dtype_momentum: Any = jnp.float32,
        factor_map: HParamMap | Mapping[str, FactorRule | None] | None = None,
        logical_factor_rules: Mapping[str, FactorDim | str] | None = None,
        weight_decay_rate_lr_exponent: float | None = None,
        global_norm_clip_threshold: float | None = None,
        max_parameter_scale: float | None = None,
        skip_nan_updates: bool = False,
    ):
        if not factored and factor_map is not None:
            raise ValueError("Adafactor: factor_map is given and factored is False; drop one of them.")
        if not isinstance(multiply_by_parameter_scale, bool | HParamMap):
            raise TypeError(
                "Adafactor: multiply_by_parameter_scale must be a bool or an HParamMap, "
                f"not {multiply_by_parameter_scale!r}."
            )
        if not isinstance(factor_map, HParamMap | Mapping | None):
            raise TypeError(f"Adafactor: factor_map must be an HParamMap or a dict, not {factor_map!r}.")
        self.dtype_momentum = jax.dtypes.canonicalize_dtype(dtype_momentum)
        hyper_params = _AdafactorHyperParams(
            learning_rate,
            factored,
            multiply_by_parameter_scale,
            beta1,
            decay_rate,
            step_offset,
            clipping_threshold,
            weight_decay_rate,
            min_dim_size_to_factor,
            epsilon1,
            epsilon2,
            factor_map,
            logical_factor_rules,
            weight_decay_rate_lr_exponent,
            global_norm_clip_threshold,
            max_parameter_scale,
            skip_nan_updates,
        )
        super().__init__(hyper_params)

    def __eq__(self, other) -> bool:
        return type(other) is type(self) and (other.hyper_params, other.dtype_momentum) == (
            self.hyper_params,
            self.dtype_momentum,
        )

    def __hash__(self):
        return hash(type(self))  # equal definitions are interchangeable; set_param_axes must not move them

    def set_param_axes(self, param_logical_axes) -> None:
        """Makes factor_map of logical_factor_rules, given each parameter's logical axis names."""
        if self.hyper_params.logical_factor_rules is not None:
            axes_by_path = flatten_paths(param_logical_axes)
            factor_map = {path: self._rule_for_axes(path, axes) for path, axes in axes_by_path.items()}
            self.hyper_params = self.hyper_params.replace(factor_map=factor_map)

    def init_state(self, params) -> OptimizerState:
        states = {path: self.init_param_state(param, path) for path, param in flatten_paths(params).items()}
        return OptimizerState(jnp.int32(0), unflatten_like(params, states))

    def init_param_state(self, param: jax.Array, path: str) -> _AdafactorParamState:
        v_row = v_col = v = m = jnp.zeros((1,), jnp.float32)
        _, factors = self._factorization(path, param.shape)
        if factors is None:
            v = jnp.zeros(param.shape, jnp.float32)
        else:
            rows, columns = factors
            v_row = jnp.zeros(np.delete(param.shape, columns), jnp.float32)
            v_col = jnp.zeros(np.delete(param.shape, rows), jnp.float32)
        if self.hyper_params.beta1 is not None:
            m = jnp.zeros(param.shape, self.dtype_momentum)
        return _AdafactorParamState(v_row=v_row, v_col=v_col, v=v, m=m)

    def apply_gradient(self, hyper_params, params, state: OptimizerState, grads) -> tuple[Any, OptimizerState]:
        params_by_path, states, grads = map(flatten_paths, (params, state.param_states, grads))
        if hyper_params.global_norm_clip_threshold:
            grads = _clip_by_global_norm(grads, hyper_params.global_norm_clip_threshold)
        updated = {
            path: self.apply_param_gradient(state.step, hyper_params, param, states[path], grads[path], path)
            for path, param in params_by_path.items()
        }
        new_params = unflatten_like(params, {path: param for path, (param, _) in updated.items()})
        new_states = unflatten_like(params, {path: param_state for path, (_, param_state) in updated.items()})
        return new_params, OptimizerState(state.step + 1, new_states)

    def apply_param_gradient(
        self, step, hyper_params: _AdafactorHyperParams, param, state: _AdafactorParamState, grad, path: str
    ) -> tuple[jax.Array, _AdafactorParamState]:
        """Updates one parameter, in float32 whatever its dtype; returns it and its state."""
        hp = hyper_params
        if hp.learning_rate is None:
            raise ValueError("Adafactor: no learning rate; pass it as apply_gradient(grads, learning_rate=…).")
        averaged, factors = self._factorization(path, param.shape)
        old_param, grad = param.astype(jnp.float32), grad.astype(jnp.float32)
        decay = self._decay_rate_pow(step - hp.step_offset, exponent=hp.decay_rate)
        new_state, update = _precondition(grad, state, decay, factors, hp.epsilon1)
        if hp.clipping_threshold is not None:
            update = update / jnp.maximum(1.0, _rms(update, averaged) / hp.clipping_threshold)
        update = update * hp.learning_rate * _parameter_scale(hp, path, old_param, averaged)
        if hp.beta1 is not None:
            update = (hp.beta1 * state.m).astype(jnp.float32) + (1.0 - hp.beta1) * update
            new_state = new_state.replace(m=update.astype(self.dtype_momentum))
        new_param = ((1.0 - _weight_decay(hp, hp.learning_rate)) * old_param - update).astype(param.dtype)
        if hp.skip_nan_updates:
            new_param, new_state = jax.tree.map(
                lambda new, old: jnp.where(jnp.isnan(new), old, new), (new_param, new_state), (param, state)
            )
        return new_param, new_state

    def derive_logical_axes(self, optimizer_state: Optimizer, param_logical_axes) -> Optimizer:
        """Returns the optimizer's tree with axis names for arrays; rows and columns are replicated (None)."""
        axes, states = flatten_paths(param_logical_axes), flatten_paths(optimizer_state.state.param_states)
        state_axes = {
            path: state.replace(
                v_row=None,
                v_col=None,
                v=axes[path] if state.v.shape != (1,) else None,
                m=axes[path] if self.hyper_params.beta1 is not None else None,
            )
            for path, state in states.items()
        }
        return optimizer_state.with_axes(param_logical_axes, unflatten_like(optimizer_state.target, state_axes))

    @staticmethod
    def _decay_rate_pow(i, exponent: float = 0.8) -> jax.Array:
        """Returns how much of the second moment is kept at step `i`; subclasses may override this schedule."""
        return 1.0 - jnp.asarray(i + 1, jnp.float32) ** -exponent

    def _rule_for_axes(self, path: str, axes: Iterable[str]) -> tuple[FactorDim, ...]:
        axes, rules = tuple(axes), self.hyper_params.logical_factor_rules
        if unknown := [axis for axis in axes if axis not in rules]:
            raise ValueError(f"Adafactor: parameter {path!r} {axes}: no logical_factor_rules for {unknown}.")
        rule = tuple(factor_name_to_factordim(rules[axis]) for axis in axes)
        sides = {FactorDim.ROW, FactorDim.COLUMN}
        if sides <= set(rule):
            if FactorDim.NONE in rule:
                raise ValueError(f"Adafactor: parameter {path!r} {axes}: rule {rule} mixes ROW, COLUMN and NONE.")
            return rule
        return tuple(FactorDim.NONE if dim in sides else dim for dim in rule)

    def _factorization(self, path: str, shape: tuple[int, ...]) -> tuple[Axes, tuple[Axes, Axes] | None]:
        """Returns (dimensions averaged over, (row dimensions, column dimensions) or None if unfactored)."""
        hp = self.hyper_params
        rule = None if not hp.factored else hp.factor_map[path] if hp.factor_map else HEURISTIC_RULE
        averaged, factors = self._parse_rule(rule, shape, path)
        return averaged, self._factored_dims(shape) if factors is HEURISTIC_RULE else factors

    @staticmethod
    def _parse_rule(
        rule: FactorRule | None, shape: tuple[int, ...], path: str, fallback_to_heuristics: bool = True
    ) -> tuple[Axes, HeuristicRule | tuple[Axes, Axes] | None]:
        """As _factorization, for this rule; HEURISTIC_RULE where `_factored_dims` decides.

        It decides for one or two dimensions without BATCH, unless `fallback_to_heuristics` is False.
        """
        everything = tuple(range(len(shape)))
        if rule is None:
            return everything, None
        if rule is HEURISTIC_RULE:
            if len(shape) > 2:
                raise ValueError(
                    f"Adafactor: parameter {path!r} {shape} has more than 2 dimensions and no factor rule; "
                    "set logical_factor_rules = @adafactor.standard_logical_factor_rules()."
                )
            return everything, HEURISTIC_RULE
        if len(rule) != len(shape):
            raise ValueError(f"Adafactor: parameter {path!r} {shape}: factor rule {rule} has another rank.")
        rows, columns, batch = (
            tuple(i for i, dim in enumerate(rule) if dim is wanted)
            for wanted in (FactorDim.ROW, FactorDim.COLUMN, FactorDim.BATCH)
        )
        if fallback_to_heuristics and len(shape) <= 2 and not batch:
            return everything, HEURISTIC_RULE
        if bool(rows) != bool(columns):
            raise ValueError(f"Adafactor: parameter {path!r} {shape}: factor rule {rule} needs both sides.")
        averaged = tuple(i for i in everything if i not in batch)
        return averaged, (rows, columns) if rows else None

    def _factored_dims(self, shape: tuple[int, ...]) -> tuple[Axes, Axes] | None:
        """Returns the heuristic's (row,), (column,): the two biggest dimensions; None where they are too small."""
        if len(shape) < 2:
            return None
        *_, row, column = (int(i) for i in np.argsort(shape))
        return ((row,), (column,)) if shape[row] >= self.hyper_params.min_dim_size_to_factor else None


def _parameter_scale(hp: _AdafactorHyperParams, path: str, param: jax.Array, averaged: Axes) -> jax.Array | float:
    scaled = hp.multiply_by_parameter_scale
    if not (scaled[path] if isinstance(scaled, HParamMap) else scaled):
        return 1.0
    scale = jnp.maximum(_rms(param, averaged), hp.epsilon2)
    return scale if hp.max_parameter_scale is None else jnp.minimum(scale, hp.max_parameter_scale)


def _weight_decay(hp: _AdafactorHyperParams, learning_rate: jax.Array | float) -> jax.Array | float:
    if not hp.weight_decay_rate_lr_exponent:
        return hp.weight_decay_rate or 0.0
    return (hp.weight_decay_rate or 1.0) * learning_rate**hp.weight_decay_rate_lr_exponent


def _precondition(grad, state, decay, factors, epsilon) -> tuple[_AdafactorParamState, jax.Array]:
    """Moves the second moment towards the gradient's square; returns its state and grad / sqrt(v)."""

    def moved(old, new):
        return decay * old + (1.0 - decay) * new

    square = grad * grad + epsilon
    if factors is None:
        v = moved(state.v, square)
        return state.replace(v=v), grad * jax.lax.rsqrt(v)
    rows, columns = factors
    v_row = moved(state.v_row, jnp.mean(square, axis=columns))
    v_col = moved(state.v_col, jnp.mean(square, axis=rows))
    # With both expanded to the gradient's rank, v = v_row * v_col / mean(v_row).
    row = jnp.expand_dims(v_row, columns)
    row = row / jnp.mean(row, axis=rows, keepdims=True)
    update = grad * jax.lax.rsqrt(row) * jax.lax.rsqrt(jnp.expand_dims(v_col, rows))
    return state.replace(v_row=v_row, v_col=v_col), update


def _rms(x: jax.Array, axes: Axes) -> jax.Array:
    return jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True))


def _clip_by_global_norm(grads: Mapping[str, jax.Array], threshold: float) -> dict[str, jax.Array]:
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in grads.values()))
    scale = jnp.minimum(1.0, threshold / norm)
    return {path: g.astype(jnp.float32) * scale for path, g in grads.items()}
