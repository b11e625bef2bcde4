"""Norms of weights, gradients and updates, per parameter, as training metrics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.core import unfreeze

from t5x import metrics as metrics_lib


class WeightMetricsComputer:
    """Computes T5X's weight metrics: `<metric>/<parameter path>`, and one global gradient norm.

    Subclasses override `compute_metrics`, and make their own metrics as it does.
    """

    def compute_metrics(self, gradients, old_train_state, new_train_state) -> dict:
        """Returns metrics of one update from its gradients and the states before and after it."""
        update = jax.tree.map(jnp.subtract, new_train_state.params, old_train_state.params)
        relative = jax.tree.map(jnp.divide, update, old_train_state.params)
        squares = [jnp.vdot(g, g) for g in jax.tree.leaves(gradients)]
        norm = jnp.sqrt(jnp.sum(jnp.array(squares)))
        return {
            **self._make_rms_metrics("weight_rms", new_train_state.params),
            **self._make_rms_metrics("weight_gradient_rms", gradients),
            "weight_gradient_norm": metrics_lib.AveragePerStep.from_model_output(norm),
            **self._make_rms_metrics("weight_update_rms", update),
            **self._make_rms_metrics("weight_update_divided_by_weight_rms", relative),
            **self._make_max_metrics("weight_max", new_train_state.params),
        }

    @staticmethod
    def _make_rms_metrics(name: str, tree) -> dict:
        """Returns {name/path: root mean square of the parameter}."""
        return per_parameter(name, lambda x: jnp.sqrt(jnp.mean(jnp.square(x))), tree)

    @staticmethod
    def _make_max_metrics(name: str, tree) -> dict:
        """Returns {name/path: largest absolute value of the parameter}."""
        return per_parameter(name, lambda x: jnp.max(jnp.abs(x)), tree)


def per_parameter(name: str, fn, tree) -> dict:
    flat = traverse_util.flatten_dict(unfreeze(tree), sep="/")
    return {f"{name}/{path}": metrics_lib.AveragePerStep.from_model_output(fn(value)) for path, value in flat.items()}
