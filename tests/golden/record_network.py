"""Writes network.json: what google-research/t5x's T5 network computes for every case here.

    PYTHONPATH=<a clone of t5x, and what it imports> JAX_PLATFORMS=cpu python tests/golden/record_network.py

`test_network.py` runs the same cases through the embedded engine and compares.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import unfreeze
from flax.traverse_util import flatten_dict

from t5x.examples.t5 import network

PATH = Path(__file__).with_name("network.json")
BATCH, INPUT_LENGTH, TARGET_LENGTH = 3, 40, 24
LOGITS_KEPT = 211  # every 211th: a prime, so that no position or id is always the same

# No two sizes are equal, so that swapped axes cannot go unnoticed.
BASE = dict(
    vocab_size=96, dtype="float32", emb_dim=20, num_heads=3, head_dim=7, mlp_dim=44,
    num_encoder_layers=2, num_decoder_layers=1, dropout_rate=0.2,
)  # fmt: skip
T5_1_0 = BASE | dict(mlp_activations=("relu",), logits_via_embedding=True)
T5_1_1 = BASE | dict(mlp_activations=("gelu", "linear"))
CASES = {
    "t5_1_0": T5_1_0,
    "t5_1_1": T5_1_1,
    "bfloat16": T5_1_1 | dict(dtype="bfloat16"),
}


def packed_batch() -> dict[str, np.ndarray]:
    """Two examples and padding in every row, int32 [BATCH, length], by the names of Transformer's arguments."""
    rng = np.random.default_rng(0)
    batch = {}
    for side, length in (("encoder", INPUT_LENGTH), ("decoder", TARGET_LENGTH)):
        lengths = rng.integers(length // 4, length // 2, (BATCH, 2))  # of the two examples
        position = np.arange(length)[None, :]
        first, end = lengths[:, :1], lengths.sum(axis=1, keepdims=True)
        segments = np.where(position < end, np.where(position < first, 1, 2), 0)
        batch[f"{side}_segment_ids"] = segments
        batch[f"{side}_positions"] = np.where(segments == 2, position - first, np.where(segments == 1, position, 0))
        batch[f"{side}_tokens"] = np.where(segments > 0, rng.integers(1, BASE["vocab_size"], segments.shape), 0)
    targets = batch.pop("decoder_tokens")
    shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    batch["encoder_input_tokens"] = batch.pop("encoder_tokens")
    batch["decoder_target_tokens"] = targets
    batch["decoder_input_tokens"] = np.where(batch["decoder_positions"] > 0, shifted, 0)
    return {name: array.astype(np.int32) for name, array in batch.items()}


def loss(params, module, batch, dropout_key) -> tuple[jax.Array, jax.Array]:
    """Returns (cross entropy summed over the real targets, logits)."""
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    logits = module.apply({"params": params}, **batch, enable_dropout=rngs is not None, rngs=rngs)
    targets = batch["decoder_target_tokens"]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return -jnp.sum(log_probs * (targets > 0).astype(jnp.float32)), logits


def fingerprint(x: Any) -> list[float]:
    """[sum, sum of sizes, sum with a weight that depends on the place] of any array, in float64."""
    x = np.asarray(x, np.float64).ravel()
    return [float(x.sum()), float(np.abs(x).sum()), float(x @ np.cos(np.arange(x.size)))]


@functools.cache
def initialize(name: str) -> tuple[network.Transformer, dict[str, Any]]:
    """Returns a case's module and its variables {"params", "params_axes"}."""
    module = network.Transformer(network.T5Config(**CASES[name]))
    init = jax.jit(lambda key: module.init(key, **packed_batch(), enable_dropout=False))
    return module, unfreeze(init(jax.random.PRNGKey(1)))


def run(name: str) -> dict[str, Any]:
    """Initial values, logits without and with dropout, and gradients with it, of one case as plain numbers."""
    module, variables = initialize(name)
    batch = {key: jnp.asarray(array) for key, array in packed_batch().items()}
    params = flatten_dict(variables["params"], sep="/")
    result = {
        "shapes": {path: list(x.shape) for path, x in params.items()},
        "axes": {path: list(x.names) for path, x in flatten_dict(variables["params_axes"], sep="/").items()},
        "params": {path: fingerprint(x) for path, x in params.items()},
    }
    assert all(x.dtype == jnp.float32 for x in params.values())
    total, logits = jax.jit(loss, static_argnums=1)(variables["params"], module, batch, None)
    result["deterministic"] = {"loss": float(total), "logits": sample(logits)}
    value_and_grad = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (total, logits), grads = value_and_grad(variables["params"], module, batch, jax.random.PRNGKey(2))
    result["dropout"] = {"loss": float(total), "logits": sample(logits)}
    result["grads"] = {path: fingerprint(x) for path, x in flatten_dict(grads, sep="/").items()}
    return result


def sample(logits: jax.Array) -> list[float]:
    return np.asarray(logits, np.float64).ravel()[::LOGITS_KEPT].tolist()


def to_json(x: Any) -> str:
    """JSON with the nine digits that identify a float32."""
    rounded = json.loads(json.dumps(x), parse_float=lambda digits: float(f"{float(digits):.9g}"))
    return json.dumps(rounded, separators=(",", ":"))


def main() -> None:
    rows = ",\n".join(f'"{name}": {to_json(run(name))}' for name in CASES)
    beside = PATH.with_suffix(".new")
    beside.write_text("{\n" + rows + "\n}\n")
    os.replace(beside, PATH)


if __name__ == "__main__":
    main()
