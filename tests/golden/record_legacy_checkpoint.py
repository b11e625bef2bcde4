"""Records a checkpoint of a micro T5 in the legacy layout (msgpack and zarr), as google-research/t5x writes it.

    PYTHONPATH=<a clone of t5x, and what it imports> python tests/golden/record_legacy_checkpoint.py

legacy_checkpoint.zip holds checkpoint_3/ and expected.npz, the arrays of the train state by name.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from t5x import adafactor, models, partitioning, utils
from t5x.examples.t5 import network

PATH = Path(__file__).with_name("legacy_checkpoint.zip")
SHAPES = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 4), "decoder_target_tokens": (2, 4)}


class Vocabulary:
    eos_id = 1


def initializer() -> utils.TrainStateInitializer:
    """Returns the initializer of a micro T5, with factored and whole second moments."""
    config = network.T5Config(
        vocab_size=32,
        emb_dim=16,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        head_dim=8,
        mlp_dim=16,
        dropout_rate=0.0,
    )
    definition = adafactor.Adafactor(min_dim_size_to_factor=16)
    model = models.EncoderDecoderModel(network.Transformer(config), Vocabulary(), Vocabulary(), definition)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    types = dict.fromkeys(SHAPES, jnp.int32)
    return utils.TrainStateInitializer(definition, model.get_initial_variables, SHAPES, partitioner, types)


def main() -> None:
    from t5x import checkpoints

    make = initializer()
    state = make.from_scratch(jax.random.PRNGKey(0))
    for _ in range(3):  # the optimizer's state is no longer zero
        state = state.apply_gradient(jax.tree.map(lambda p: p * 0.1, state.params), 0.1)
    arrays = traverse_util.flatten_dict(state.state_dict(), sep="/")
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.Checkpointer(state, make._partitioner, folder).save(state)
        np.savez_compressed(f"{folder}/expected.npz", **{k: np.asarray(v) for k, v in arrays.items() if v is not None})
        with zipfile.ZipFile(PATH, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).rglob("*")):
                archive.write(path, path.relative_to(folder))


if __name__ == "__main__":
    main()
