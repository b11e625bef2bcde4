"""Runs that nobody trained: a recipe's config.gin and random parameters, whose outputs are long and varied."""

from __future__ import annotations

from pathlib import Path

import numpy as np

STEP = 7


def make_run(folder: Path, *arguments: str, scale: float = 0.3) -> str:
    """Writes the MODEL_DIR of `t5xpg train ARGUMENTS` as if it had been trained for STEP steps; returns its path.

    Args:
      folder: not there yet.
      arguments: a recipe and bindings.
      scale: standard deviation of the kernels; the larger, the more varied the outputs.
    """
    import gin
    import jax
    import jax.numpy as jnp
    from flax.traverse_util import flatten_dict, unflatten_dict

    from t5x import checkpoints
    from t5x.train_state import FlaxOptimTrainState
    from t5xpg import recipes

    settings = recipes.read([*arguments, f"MODEL_DIR={folder}"]).settings()
    folder.mkdir()
    (folder / "config.gin").write_text(gin.config_str(), encoding="utf-8")
    model = settings["model"]
    shapes = {"encoder_input_tokens": (1, 4), "decoder_input_tokens": (1, 4)}
    variables = jax.eval_shape(lambda: model.get_initial_variables(jax.random.PRNGKey(0), shapes))
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(0, 1 if "embedding" in name else scale, x.shape).astype(np.float32) + ("scale" in name)
        for name, x in flatten_dict(variables["params"], sep="/").items()
    }
    values = unflatten_dict({name: jnp.asarray(x) for name, x in params.items()}, sep="/")
    state = FlaxOptimTrainState.create(model.optimizer_def, {**variables, "params": values})
    state = state.replace_step(jnp.int32(STEP))
    manager = checkpoints.OrbaxCheckpointManagerInterface(str(folder), state, settings["partitioner"])
    manager.save(state)
    manager.close()
    return str(folder)
