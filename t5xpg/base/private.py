"""The private names of T5X's models, TensorFlow and JAX that this package uses, as there are no public ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def compute_logits(model: Any, params: Any, batch: Mapping[str, Any]) -> Any:
    """Returns a T5X model's logits [batch, length, vocab] without dropout.

    T5X's models have public methods for predictions, scores and losses, but not for logits. Every subclass of
    models.BaseTransformerModel has this method, which T5X means subclasses to override.
    """
    return model._compute_logits(params, batch)


def with_decode_fn(model: Any, decode_fn: Any) -> Any:
    """Returns a copy of a T5X model that decodes with `decode_fn`, which T5X takes at construction alone."""
    changed = copy.copy(model)
    changed._decode_fn = decode_fn
    return changed


def loss_settings(model: Any) -> dict[str, Any]:
    """Returns a T5X model's loss settings, {"loss_normalizing_factor", "z_loss", "label_smoothing"}, for display."""
    return {name: getattr(model, f"_{name}", None) for name in ("loss_normalizing_factor", "z_loss", "label_smoothing")}


def metrics_function(model_class: type) -> Any:
    """Returns the method that computes a T5X model's training metrics, to show where its code is."""
    return model_class._compute_metrics  # type: ignore[attr-defined]


def end_iterator(iterator: Any) -> None:
    """Ends a tf.data iterator now; TensorFlow itself waits until nothing refers to it."""
    iterator._iterator_resource = None


def coordinator_address() -> str:
    """Returns "host:port" at which the processes of this run have reached the first, also where JAX detected it."""
    from jax._src.distributed import global_state

    return str(global_state.coordinator_address)


def keep_programs(cache: Any) -> bool:
    """Makes JAX's cache of compiled programs keep them by `cache`, with JAX's own get(key) and put(key, program).

    To be called before JAX has compiled anything. Returns whether this JAX can.
    """
    from jax._src import compilation_cache

    if not hasattr(compilation_cache, "get_file_cache"):
        return False
    compilation_cache.get_file_cache = lambda path: (cache, path)
    return True
