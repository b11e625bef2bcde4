"""The T5X side: checkpoints with the model they belong to, and the gin file of an imported one."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5xpg import t5x_finder
from t5xpg.base import files, stores

# What makes a vocabulary of a file, whichever of the three a model has.
VOCABULARY_GIN = """
import seqio
from t5xpg import vocabularies
seqio.SentencePieceVocabulary.sentencepiece_model_file = {0}
vocabularies.sentencepiece.path = {0}
vocabularies.byte_level_bpe.path = {0}
"""
NEEDED = ("torch", "transformers", "safetensors", "huggingface_hub")


def check_ready(needed: Sequence[str] | None = None, extra: str = "hf") -> None:
    """Raises ImportError when a package of the extra is missing, or `import t5x` would not give the embedded engine."""
    missing = [name for name in needed or NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"This needs {', '.join(missing)}: pip install 't5xpg[{extra}]'")
    if not t5x_finder.is_embedded():
        raise ImportError("Checkpoints are converted by the embedded engine; set T5XPG_ENGINE=embedded.")


@dataclasses.dataclass
class Trained:
    """A checkpoint with the model it belongs to.

    Attributes:
      module: the flax module, a `t5x.examples.t5.network.Transformer` or a `roberta.Roberta`.
      vocabulary: of inputs and targets.
      params: {"encoder/…": float32 array}, as stored.
      step: the checkpoint's.
      model_dir: the folder that holds the checkpoint.
    """

    module: Any
    vocabulary: Any
    params: dict[str, np.ndarray]
    step: int
    model_dir: str


def read_trained(
    source: str, gin_file: str | None = None, tokenizer: str | None = None, trust: bool = False
) -> Trained:
    """Reads a checkpoint and the model that its run's config.gin, or `gin_file`, describes; see `export_model`."""
    from t5x import checkpoints
    from t5x.examples.t5 import network
    from t5xpg import roberta

    path = checkpoints.find_checkpoint(source.rstrip("/"))
    model_dir = os.path.dirname(stores.absolute(path))
    model = read_model(os.path.join(model_dir, "config.gin"), gin_file, tokenizer, trust)
    if not isinstance(model.module, network.Transformer | roberta.Roberta):
        raise ValueError(
            f"{source}: its model is a {type(model.module).__module__}.{type(model.module).__name__}; only T5's "
            "encoder-decoder and roberta.Roberta can be exported."
        )
    if model.input_vocabulary != model.output_vocabulary:
        raise ValueError(f"{source}: inputs and targets have different vocabularies; a Hugging Face folder has one.")
    params, step = read_params(path)
    return Trained(model.module, model.output_vocabulary, params, step, model_dir)


def read_model(config_gin: str, gin_file: str | None, tokenizer: str | None = None, trust: bool = False):
    """Returns the model that `train` is bound to in a run's config.gin, or MODEL of a model's gin file.

    With a `tokenizer`, its vocabulary is read from that file and from no other place.
    """
    from t5xpg import recipes

    more = "" if tokenizer is None else VOCABULARY_GIN.format(repr(tokenizer))
    if gin_file is None:
        if not files.is_file(config_gin):
            raise ValueError(
                f"{config_gin} is missing, so the model is not known; pass --gin with the model's gin file, such as "
                "t5x/examples/t5/t5_1_1/small.gin."
            )
        return recipes.read_run(os.path.dirname(config_gin), trust, more).settings()["model"]
    recipe = recipes.read_text(
        "from __gin__ import dynamic_registration\nimport __main__ as train_script\n"
        f"include {gin_file!r}\nDROPOUT_RATE = 0.0\ntrain_script.train.model = %MODEL\n{more}"
    )
    return recipe.settings()["model"]


def read_params(path: str) -> tuple[dict[str, np.ndarray], int]:
    """Returns ({"encoder/…": float32 array}, step) of a checkpoint."""
    import jax

    from t5x import checkpoints

    reader = checkpoints.open_checkpoint(path)
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    wanted = {name: (sharding, np.dtype(np.float32)) for name in reader.arrays if name.startswith("target/")}
    values = reader.read(wanted | {"state/step": (sharding, None)})
    step = int(values.pop("state/step"))
    return {name.removeprefix("target/"): np.asarray(value) for name, value in values.items()}, step


def write_checkpoint(folder: str, params: Mapping[str, np.ndarray], sizes: Mapping[str, Any], step: int):
    """Writes `folder`/checkpoint_<step> with T5X's Adafactor in its initial state; returns the flax module.

    Args:
      params: {"encoder/…": array} in `t5.network`'s layout.
      sizes: values of network.T5Config, which the arrays have.
    """
    import jax
    import jax.numpy as jnp

    from t5x import adafactor, checkpoints, models, partitioning
    from t5x.examples.t5 import network
    from t5x.train_state import FlaxOptimTrainState

    module = network.Transformer(network.T5Config(**sizes))
    optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = models.EncoderDecoderModel(module, None, None, optimizer)
    shapes = {"encoder_input_tokens": (1, 1), "decoder_input_tokens": (1, 1)}
    variables = jax.eval_shape(lambda: model.get_initial_variables(jax.random.PRNGKey(0), shapes))
    values = checkpoints.unflatten({name: jnp.asarray(x, jnp.float32) for name, x in params.items()})
    state = FlaxOptimTrainState.create(optimizer, {**variables, "params": values}).replace_step(jnp.int32(step))
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    manager = checkpoints.OrbaxCheckpointManagerInterface(folder, state, partitioner, save_dtype="float32")
    manager.save(state)
    manager.close()
    return module


def model_gin(source: str, family: str, sizes: Mapping[str, Any], vocabulary: str) -> str:
    """Returns the model's gin file, to be read before a run's.

    Args:
      source: where it comes from.
      family: "t5_1_0", "t5_1_1", "mt5" or "byt5", whose base.gin brings model and optimizer.
      sizes: values of network.T5Config.
      vocabulary: the lines that bind it.
    """
    bindings = "\n".join(f"  {name} = {value!r}" for name, value in sizes.items())
    return f"""# The model imported from {source}.
from __gin__ import dynamic_registration

import seqio
from t5x.examples.t5 import network

include 't5x/examples/t5/{family}/base.gin'

{vocabulary}
network.T5Config:
{bindings}
"""


def checkpoint_path(folder: str, step: int) -> str:
    """Returns the path of that step's checkpoint in `folder`."""
    from t5x import checkpoints

    return checkpoints.checkpoint_path(folder, step)
