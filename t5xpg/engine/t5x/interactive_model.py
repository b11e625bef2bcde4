"""A trained model in a few lines of Python:

    import t5xpg
    from t5x.interactive_model import InteractiveModel

    model = InteractiveModel.restore("runs/a")           # the latest checkpoint of a MODEL_DIR
    model.predict(["The quick <extra_id_0> fox"])        # -> ["<extra_id_0>…<extra_id_1>"]
    model.score(["inputs"], ["targets"])                 # -> [log likelihood]
    model.train_step(["inputs"], ["targets"])            # one optimizer step; -> metrics
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import jax
import numpy as np

from t5x import checkpoints
from t5x.embedded.checkpoint_configs import RestoreCheckpointConfig
from t5x.embedded.initialization import TrainStateInitializer

Tokens = Sequence[int]


class InteractiveModel:
    """A model with restored parameters that takes and gives text.

    Args:
      settings: arguments of `train`: "model", "partitioner", "trainer_cls" and "train_dataset_cfg", whose
        task_feature_lengths bound inputs and targets (longer ones are cut).
      checkpoint_path: what to restore.
      batch_size: examples computed at a time.
      dtype: parameters are restored in it; None as they are stored.
    """

    def __init__(
        self, settings: Mapping[str, Any], checkpoint_path: str, batch_size: int = 8, dtype: str | None = None
    ):
        self.settings = settings
        self.model = model = settings["model"]
        self._partitioner = partitioner = settings["partitioner"]
        self._lengths, self._batch_size = settings["train_dataset_cfg"].task_feature_lengths, batch_size
        batch, _ = self._batches([[]], [[]])[0]
        self._initializer = TrainStateInitializer(
            model.optimizer_def,
            model.get_initial_variables,
            {name: x.shape for name, x in batch.items()},
            partitioner,
            {name: x.dtype for name, x in batch.items()},
        )
        cfg = RestoreCheckpointConfig(checkpoint_path, "specific", dtype=dtype)
        self.train_state = self._initializer.from_checkpoint([cfg], init_rng=jax.random.PRNGKey(0))
        self._predict = jax.jit(model.predict_batch)
        self._score = jax.jit(model.score_batch)
        self._next = jax.jit(lambda params, batch: model._compute_logits(params, batch).argmax(-1))
        self._trainer = None

    @classmethod
    def restore(cls, model_dir: str, step: int | None = None, batch_size: int = 8) -> InteractiveModel:
        """Restores a run's model as its config.gin describes it, at `step` or the latest checkpoint."""
        steps = checkpoints.all_steps(model_dir)
        if not steps or (step is not None and step not in steps):
            raise ValueError(f"{model_dir} has no checkpoint{'' if step is None else f' {step}'}; it has {steps}.")
        path = checkpoints.checkpoint_path(model_dir, steps[-1] if step is None else step)
        return cls(read_config(model_dir), path, batch_size)

    def predict(self, inputs: Sequence[str | Tokens], rng: jax.Array | None = None) -> list[str]:
        """Returns the decoded prediction for each input, a text or its token ids."""
        ids = self.predict_ids(inputs, rng)
        return [decode(row, self.model.output_vocabulary) for row in ids]

    def predict_ids(self, inputs: Sequence[str | Tokens], rng: jax.Array | None = None) -> np.ndarray:
        """Returns the predicted ids [number of inputs, targets length]."""
        batches = self._batches(self._encode_inputs(inputs), [[]] * len(inputs))
        decodes = [np.asarray(self._predict(self.train_state.params, b, rng))[:n] for b, n in batches]
        return np.concatenate(decodes)

    def score(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> np.ndarray:
        """Returns the log likelihood (nats) of each target given its input."""
        batches = self._batches(self._encode_inputs(inputs), self._encode_targets(targets))
        return np.concatenate([np.asarray(self._score(self.train_state.params, b))[:n] for b, n in batches])

    def next_ids(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> np.ndarray:
        """Returns the likeliest id at each position [number of inputs, targets length], given the targets before it."""
        batches = self._batches(self._encode_inputs(inputs), self._encode_targets(targets))
        return np.concatenate([np.asarray(self._next(self.train_state.params, b))[:n] for b, n in batches])

    def train_step(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> dict[str, float]:
        """Takes one optimizer step on these examples, `batch_size` at most; returns its metrics."""
        if len(inputs) > self._batch_size:
            raise ValueError(f"{len(inputs)} examples do not fit batch_size {self._batch_size}; pass fewer.")
        batch, _ = self._batches(self._encode_inputs(inputs), self._encode_targets(targets))[0]
        if self._trainer is None:
            self._trainer = self.settings["trainer_cls"](
                model=self.model,
                train_state=self.train_state,
                partitioner=self._partitioner,
                eval_names=(),
                summary_dir=None,
                train_state_axes=self._initializer.train_state_axes,
                rng=jax.random.PRNGKey(0),
            )
        metrics = self._trainer.train(iter([self._partitioner.shard_batch(batch)]), 1).result()
        self.train_state = self._trainer.train_state
        return {name: float(np.asarray(value.value)) for name, value in metrics.items()}

    def _encode_inputs(self, texts) -> list[list[int]]:
        return [encode(text, self.model.input_vocabulary) for text in texts]

    def _encode_targets(self, texts) -> list[list[int]]:
        return [encode(text, self.model.output_vocabulary) for text in texts]

    def _batches(self, inputs: list[Tokens], targets: list[Tokens]) -> list[tuple[dict[str, np.ndarray], int]]:
        """Pads examples to batches of batch_size; returns them with the number of real examples in each."""
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets; pass as many of one as of the other.")
        size = self._batch_size
        return [
            (self._batch(inputs[i : i + size], targets[i : i + size]), len(inputs[i : i + size]))
            for i in range(0, len(inputs), size)
        ]

    def _batch(self, inputs: list[Tokens], targets: list[Tokens]) -> dict[str, np.ndarray]:
        encoder = pad(inputs, (self._batch_size, self._lengths["inputs"]))
        decoder = pad(targets, (self._batch_size, self._lengths["targets"]))
        shifted = np.pad(decoder[:, :-1], ((0, 0), (1, 0)))  # the decoder starts with id 0
        return {
            "encoder_input_tokens": encoder,
            "decoder_target_tokens": decoder,
            "decoder_input_tokens": shifted,
            "decoder_loss_weights": (decoder != 0).astype(np.int32),
        }


def encode(text: str | Tokens, vocabulary) -> list[int]:
    """Returns ids that end with EOS; ids are taken as they are.

    `<extra_id_N>` is sentinel N. A SentencePiece vocabulary reads the name itself; for bytes it is done here.
    """
    if not isinstance(text, str):
        return list(text)
    if not is_bytes(vocabulary):
        return [*vocabulary.encode(text), vocabulary.eos_id]
    parts = re.split(r"<extra_id_(\d+)>", text)  # text, number, text, …
    ids = vocabulary.encode(parts[0])
    for number, part in zip(parts[1::2], parts[2::2], strict=True):
        ids = [*ids, vocabulary.vocab_size - 1 - int(number), *vocabulary.encode(part)]
    return [*ids, vocabulary.eos_id]


def decode(ids: Tokens, vocabulary) -> str:
    """Returns the text of `ids` up to EOS, with sentinels by name."""
    ids = [int(i) for i in ids]
    ids = ids[: ids.index(vocabulary.eos_id)] if vocabulary.eos_id in ids else ids
    if not is_bytes(vocabulary):
        return vocabulary.decode(ids)
    # Without extra ids, ByT5's sentinels are the 11 bytes that never occur in UTF-8.
    first_sentinel = vocabulary.vocab_size - (vocabulary.extra_ids or 11)
    text, run = "", []
    for token in [*ids, None]:
        if token is None or token >= first_sentinel:
            text += vocabulary.decode(run)
            run = []
        if token is None:
            return text
        if token >= first_sentinel:
            text += f"<extra_id_{vocabulary.vocab_size - 1 - token}>"
        else:
            run.append(token)


def is_bytes(vocabulary) -> bool:
    return type(vocabulary).__name__ == "ByteVocabulary"


def pad(rows: Sequence[Tokens], shape: tuple[int, int]) -> np.ndarray:
    """Returns the rows cut and zero-padded to an int32 array of this shape."""
    padded = np.zeros(shape, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row[: shape[1]]
    return padded


def read_config(model_dir: str) -> dict:
    """Returns the arguments of `train` as MODEL_DIR/config.gin binds them (which parses it into gin)."""
    with open(os.path.join(model_dir, "config.gin"), encoding="utf-8") as file:
        return train_settings(file.read())


def train_settings(text: str) -> dict:
    """Returns the arguments of `train` as gin `text` binds them (which parses it into gin)."""
    with gin.unlock_config():
        gin.clear_config()
        # The run's own __main__ was the train program; here it is a module.
        gin.parse_config(text.replace("import __main__ as train_script", "from t5x import train as train_script"))
    from t5x import train

    return gin.get_bindings(train.train)
