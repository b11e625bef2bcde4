"""Norms of weights, gradients and updates, per parameter, as training metrics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.core import unfreeze

from t5x import metrics as metrics_lib


class WeightMetricsComputer:
    """Computes T5X's weight metrics: `<metric>/<parameter path>`, and one global gradient norm."""

    def compute_metrics(self, gradients, old_train_state, new_train_state) -> dict:
        """Returns metrics of one update from its gradients and the states before and after it."""
        update = jax.tree.map(jnp.subtract, new_train_state.params, old_train_state.params)
        relative = jax.tree.map(jnp.divide, update, old_train_state.params)
        squares = [jnp.vdot(g, g) for g in jax.tree.leaves(gradients)]
        return {
            **per_parameter("weight_rms", rms, new_train_state.params),
            **per_parameter("weight_gradient_rms", rms, gradients),
            "weight_gradient_norm": per_step(jnp.sqrt(jnp.sum(jnp.array(squares)))),
            **per_parameter("weight_update_rms", rms, update),
            **per_parameter("weight_update_divided_by_weight_rms", rms, relative),
            **per_parameter("weight_max", lambda x: jnp.max(jnp.abs(x)), new_train_state.params),
        }


def per_parameter(name: str, fn, tree) -> dict:
    flat = traverse_util.flatten_dict(unfreeze(tree), sep="/")
    return {f"{name}/{path}": per_step(fn(value)) for path, value in flat.items()}


def per_step(value):
    return metrics_lib.AveragePerStep.from_model_output(value)


def rms(x):
    return jnp.sqrt(jnp.mean(jnp.square(x)))
