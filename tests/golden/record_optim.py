"""Records into optim.json what google-research/t5x computes for losses, metrics, optimizers and learning rates.

    PYTHONPATH=<a clone of t5x, and what it imports> python tests/golden/record_optim.py

The tests run the same functions on the embedded engine's modules: whatever is compared, the inputs are these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization, traverse_util

PATH = Path(__file__).with_name("optim.json")

SHAPES = {
    "kernel": (6, 5),
    "square": (4, 4),
    "bias": (5,),
    "qkv": (4, 2, 3),
    "layers/kernel": (2, 4, 5),
    "layers/scale": (2, 4),
}
AXES = {
    "kernel": ("embed", "mlp"),
    "square": ("embed", "vocab"),
    "bias": ("mlp",),
    "qkv": ("embed", "heads", "kv"),
    "layers/kernel": ("layers", "embed", "mlp"),
    "layers/scale": ("layers", "embed"),
}
FLAT_PATHS = ("kernel", "square", "bias")  # what the heuristic rule takes
LEARNING_RATES = (0.1, 0.3, 0.02, 0.05, 0.1)
NAN_STEP = 2

# Options of Adafactor, by case. Values that need the module under test are functions of it.
ADAFACTOR = {
    "default": {},
    "heuristic": dict(min_dim_size_to_factor=4),
    "decay_and_offset": dict(min_dim_size_to_factor=4, decay_rate=0.95, step_offset=-7),
    "no_clipping": dict(min_dim_size_to_factor=4, clipping_threshold=None),
    "rules": dict(logical_factor_rules=lambda m: m.standard_logical_factor_rules()),
    "rule_names": dict(
        logical_factor_rules={"embed": "row", "mlp": "col", "vocab": "none", "heads": "BATCH", "kv": "unfactorized"}
        | {"layers": "batch"}
    ),
    "rules_factored_2d": dict(
        logical_factor_rules=lambda m: m.standard_logical_factor_rules(), min_dim_size_to_factor=4
    ),
    "momentum": dict(logical_factor_rules=lambda m: m.standard_logical_factor_rules(), beta1=0.9),
    "momentum_bfloat16": dict(min_dim_size_to_factor=4, beta1=0.9, dtype_momentum=jnp.bfloat16),
    "tight_clipping": dict(logical_factor_rules=lambda m: m.standard_logical_factor_rules(), clipping_threshold=0.5),
    "weight_decay": dict(weight_decay_rate=0.01),
    "weight_decay_of_lr": dict(weight_decay_rate_lr_exponent=2.0),
    "weight_decay_both": dict(weight_decay_rate=0.5, weight_decay_rate_lr_exponent=1.5),
    "global_norm": dict(min_dim_size_to_factor=4, global_norm_clip_threshold=0.5, epsilon1=1e-2),
    "global_norm_loose": dict(min_dim_size_to_factor=4, global_norm_clip_threshold=1e3, epsilon1=1e-2),
    "max_parameter_scale": dict(max_parameter_scale=0.02),
    "epsilons": dict(epsilon1=0.1, epsilon2=3.0),
    "absolute_steps": dict(multiply_by_parameter_scale=False),
    "some_absolute_steps": dict(multiply_by_parameter_scale=lambda m: m.HParamMap([("kernel", False), (".*", True)])),
    "unfactored": dict(factored=False),
    "skip_nan": dict(min_dim_size_to_factor=4, skip_nan_updates=True, beta1=0.5),
    "factor_map": dict(
        min_dim_size_to_factor=4,
        factor_map=lambda m: m.HParamMap(
            [
                ("qkv", (m.FactorDim.ROW, m.FactorDim.COLUMN, m.FactorDim.COLUMN)),
                ("layers/kernel", (m.FactorDim.BATCH, m.FactorDim.COLUMN, m.FactorDim.ROW)),
                ("layers/scale", (m.FactorDim.BATCH, m.FactorDim.NONE)),
                ("square", None),
                ("kernel", (m.FactorDim.NONE, m.FactorDim.NONE)),
                (".*", m.HEURISTIC_RULE),
            ]
        ),
    ),
}
NEEDS_RULES = ("rules", "rule_names", "rules_factored_2d", "momentum", "tight_clipping", "unfactored", "factor_map")

# Definitions by case, of the module `optimizers` (o) and `adafactor` (a) under test.
OPTIMIZERS = {
    "adamw": lambda o, a: o.adamw(learning_rate=0.1, weight_decay=0.01),
    "lion": lambda o, a: o.lion(learning_rate=0.1),
    "chain": lambda o, a: o.chain([optax.clip(0.5), optax.sgd(optax.linear_schedule(0.1, 0.0, 5), momentum=0.9)]),
    "frozen_bias": lambda o, a: o.OptaxWrapper(
        optax.multi_transform({True: optax.adam(0.1), False: optax.set_to_zero()}, trains_all_but_bias)
    ),
    "adafactor": lambda o, a: a.Adafactor(logical_factor_rules=a.standard_logical_factor_rules(), beta1=0.9),
    "multi": lambda o, a: o.MultiOptimizer(
        [
            (traverse_util.ModelParamTraversal(lambda path, _: "layers" in path), layers_adafactor(a)),
            (traverse_util.ModelParamTraversal(lambda path, _: path == "/bias"), a.Adafactor(beta1=0.9)),
        ]
    ),
}

LEARNING_RATE_STEPS = (0, 1, 2, 5, 9, 10, 11, 19, 20, 21, 50, 99, 100, 101, 150, 1000, 123456)
LEARNING_RATES_BY_CASE = {
    "default": {},
    "constant": dict(factors="constant", base_learning_rate=0.001),
    "t5_pretrain": dict(factors="constant * rsqrt_decay", base_learning_rate=1.0, warmup_steps=100),
    "warmup": dict(factors="constant*linear_warmup", warmup_steps=20),
    "normalized": dict(factors="constant * linear_warmup * rsqrt_normalized_decay", warmup_steps=20),
    "linear_decay": dict(factors="linear_decay", base_learning_rate=0.005, warmup_steps=20, decay_factor=1 / 80),
    "decay_every": dict(factors="constant * decay_every", decay_factor=0.7, steps_per_decay=10),
    "cosine": dict(factors="constant * cosine_decay", warmup_steps=10, steps_per_cycle=100),
    "offset": dict(factors="constant * linear_warmup * rsqrt_decay", warmup_steps=10, step_offset=10),
    "floor": dict(factors="constant * rsqrt_decay", warmup_steps=10, min_learning_rate=0.06),
}

LOSSES = {
    "plain": {},
    "z_loss": dict(z_loss=0.01),
    "smoothing": dict(label_smoothing=0.1),
    "all": dict(z_loss=1e-4, label_smoothing=0.2, loss_normalizing_factor=7.0),
    "unweighted": dict(weights=None, z_loss=1e-4),
    "huge_logits": dict(scale=40.0, z_loss=1e-4, label_smoothing=0.1),
    "one_class": dict(vocab=1, label_smoothing=0.1),
}
FACTORS = (None, 3.0, "NUM_REAL_TARGET_TOKENS", "num_total_target_tokens", "AVERAGE_PER_SEQUENCE")


def arrays(seed: int, shapes: dict[str, tuple[int, ...]], scale: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.RandomState(seed)
    return {name: (scale * random.randn(*shape)).astype(np.float32) for name, shape in shapes.items()}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    return traverse_util.unflatten_dict(flat, sep="/")


def run_adafactor(module, name: str) -> dict[str, Any]:
    """Returns parameters and states after five updates of case `name`."""
    options = {k: v(module) if callable(v) and k != "dtype_momentum" else v for k, v in ADAFACTOR[name].items()}
    paths = tuple(SHAPES) if name in NEEDS_RULES else FLAT_PATHS
    shapes = {path: SHAPES[path] for path in paths}
    definition = module.Adafactor(**options)
    definition.set_param_axes(axis_tree())
    optimizer = definition.create(nested(jax.tree.map(jnp.asarray, arrays(0, shapes, scale=0.1))))
    for step, learning_rate in enumerate(LEARNING_RATES):
        grads = arrays(step + 1, shapes)
        if name == "skip_nan" and step == NAN_STEP:
            grads["bias"][1] = grads["kernel"][2, 3] = np.nan
        grads = nested(jax.tree.map(jnp.asarray, grads))
        optimizer = optimizer.apply_gradient(grads, learning_rate=jnp.float32(learning_rate))
    return traverse_util.flatten_dict(optimizer.state_dict(), sep="/")


def trains_all_but_bias(params):
    return {key: key != "bias" for key in params}


def layers_adafactor(module):
    return module.Adafactor(logical_factor_rules=module.standard_logical_factor_rules(), clipping_threshold=0.5)


def axis_tree() -> dict[str, Any]:
    return nested({path: jax.sharding.PartitionSpec(*axes) for path, axes in AXES.items()})


def run_optimizer(optimizers, adafactor, name: str) -> dict[str, Any]:
    """Returns the arrays and the axis names of case `name` after three updates."""
    definition = OPTIMIZERS[name](optimizers, adafactor)
    if hasattr(definition, "set_param_axes"):
        definition.set_param_axes(axis_tree())
    optimizer = definition.create(nested(jax.tree.map(jnp.asarray, arrays(0, SHAPES, scale=0.1))))
    for step in range(3):
        grads = nested(jax.tree.map(jnp.asarray, arrays(step + 1, SHAPES)))
        optimizer = optimizer.apply_gradient(grads, learning_rate=jnp.float32(0.1))
    axes = definition.derive_logical_axes(optimizer, axis_tree())
    axes = {"target": axes.target, "state": serialization.to_state_dict(axes.state)}
    flat_axes = traverse_util.flatten_dict(axes, sep="/")
    return {
        "arrays": traverse_util.flatten_dict(optimizer.state_dict(), sep="/"),
        "axes": {path: " ".join(spec) if spec else None for path, spec in flat_axes.items()},
    }


def run_learning_rate(create, name: str) -> list[float]:
    schedule = create(**LEARNING_RATES_BY_CASE[name])
    return [float(schedule(jnp.int32(step))) for step in LEARNING_RATE_STEPS]


def loss_inputs(vocab: int = 7, scale: float = 3.0) -> dict[str, np.ndarray]:
    """Logits [3, 5, vocab], and targets, weights and packed segments [3, 5]; the last row is half padding."""
    random = np.random.RandomState(3)
    targets = random.randint(1, max(vocab, 2), size=(3, 5)) % vocab
    padding = np.array([[1] * 5, [1] * 5, [1, 1, 1, 0, 0]])
    segments = np.array([[1, 1, 2, 2, 2], [1, 2, 2, 3, 3], [1, 2, 2, 0, 0]])
    positions = np.array([[0, 1, 0, 1, 2], [0, 0, 1, 0, 1], [0, 0, 1, 0, 0]])
    return {
        "logits": (scale * random.randn(3, 5, vocab)).astype(np.float32),
        "decoder_target_tokens": (targets * padding).astype(np.int32),
        "decoder_loss_weights": (padding * np.array([[1, 0, 1, 1, 1]])).astype(np.float32),
        "decoder_segment_ids": segments.astype(np.int32),
        "decoder_positions": positions.astype(np.int32),
    }


def run_loss(module, name: str) -> dict[str, Any]:
    options = dict(LOSSES[name])
    inputs = loss_inputs(**{key: options.pop(key) for key in ("vocab", "scale") if key in options})
    inputs = {key: jnp.asarray(value) for key, value in inputs.items()}
    weights = options.pop("weights", inputs["decoder_loss_weights"])

    def loss(logits):
        out = module.compute_weighted_cross_entropy(logits, inputs["decoder_target_tokens"], weights, **options)
        return out[0], out

    gradient, out = jax.grad(loss, has_aux=True)(inputs["logits"])
    return {"loss": out[0], "z_loss": out[1], "weight_sum": out[2], "gradient": gradient}


def run_factor(module, factor: float | str | None, packed: bool, weighted: bool) -> dict[str, Any]:
    keys = ["decoder_target_tokens"]
    keys += ["decoder_loss_weights"] * weighted + ["decoder_segment_ids", "decoder_positions"] * packed
    batch = {key: jnp.asarray(value) for key, value in loss_inputs().items() if key in keys}
    factor, weights = module.get_loss_normalizing_factor_and_weights(factor, batch)
    return {"factor": factor, "weights": weights}


def factor_cases() -> dict[str, tuple]:
    return {
        f"{factor}{' packed' * packed}{' weighted' * weighted}": (factor, packed, weighted)
        for factor in FACTORS
        for packed in (False, True)
        for weighted in (False, True)
    }


def run_metrics(compute_base_metrics, metrics_module) -> dict[str, float]:
    """Returns the values of two batches' merged metrics, 3 steps and 2 seconds."""
    merged: dict[str, Any] = {}
    for half in (slice(0, 2), slice(1, 3)):
        batch = {key: jnp.asarray(value[half]) for key, value in loss_inputs().items()}
        metrics = compute_base_metrics(
            logits=batch["logits"],
            targets=batch["decoder_target_tokens"],
            mask=batch["decoder_loss_weights"],
            loss=jnp.float32(12.5),
            z_loss=jnp.float32(0.25),
            segment_ids={"decoder": batch["decoder_segment_ids"]},
        )
        merged = {name: merged[name].merge(metric) if merged else metric for name, metric in metrics.items()}
    merged = metrics_module.set_time_metrics_duration(jax.device_get(merged), 2.0)
    merged = metrics_module.set_step_metrics_num_steps(merged, 3)
    return {name: float(metric.compute()) for name, metric in merged.items()}


def record() -> dict[str, Any]:
    from t5x import adafactor, losses, metrics, models, optimizers, utils

    return {
        "factor_rules": {axis: dim.name for axis, dim in adafactor.standard_logical_factor_rules().items()},
        "adafactor": {name: run_adafactor(adafactor, name) for name in ADAFACTOR},
        "optimizers": {name: run_optimizer(optimizers, adafactor, name) for name in OPTIMIZERS},
        "learning_rates": {
            name: run_learning_rate(utils.create_learning_rate_scheduler, name) for name in LEARNING_RATES_BY_CASE
        },
        "losses": {name: run_loss(losses, name) for name in LOSSES},
        "factors": {name: run_factor(losses, *case) for name, case in factor_cases().items()},
        "metrics": run_metrics(models.compute_base_metrics, metrics),
    }


def to_json(x: Any) -> Any:
    """Converts arrays to nested lists of numbers with the nine digits that identify a float32."""
    if isinstance(x, dict):
        return {key: to_json(value) for key, value in x.items()}
    if x is None or isinstance(x, str):
        return x
    values = np.asarray(x).astype(np.float64)
    return np.vectorize(lambda v: float(f"{v:.9g}"), otypes=[float])(values).tolist()


def main() -> None:
    groups = []
    for group, cases in to_json(record()).items():  # one case a line, so that a change shows which case changed
        lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
        groups.append(f"{json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n}")
    PATH.write_text("{\n" + ",\n".join(groups) + "\n}\n")


if __name__ == "__main__":
    main()
