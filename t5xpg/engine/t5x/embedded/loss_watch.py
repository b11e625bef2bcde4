"""Stops a run whose loss is no longer finite before that is saved."""

from __future__ import annotations

import math
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np


class LossWatch:
    """Stops a run whose loss and parameters are no longer finite, before that is saved.

    A loss that is not finite while the parameters are (Adafactor's skip_nan_updates) is allowed.
    """

    def __init__(self):
        self._summary: Future | None = None

    def look(self, summary: Future, train_state, step: int) -> None:
        """Checks the round before this one, whose metrics are known by now, so that nothing waits."""
        self.check(train_state, step)
        self._summary = summary

    def check(self, train_state, step: int) -> None:
        """Checks the last round. `step` is where training is.

        Raises:
          FloatingPointError: the loss of the round and the parameters are not finite.
        """
        if self._summary is None:
            return
        loss = self._summary.result().get("loss")
        self._summary = None
        loss = 0.0 if loss is None else float(np.asarray(loss.value))
        if math.isfinite(loss) or all_finite(train_state.params):
            return
        raise FloatingPointError(
            f"The loss is {loss} by step {step:,}, and parameters are not finite either; the last checkpoint is good: "
            "the same command with a lower learning rate goes on from there."
        )


def all_finite(params) -> bool:
    """Whether every value of the parameters is finite."""
    finite = jax.jit(lambda tree: jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all())
    return bool(finite(params))
