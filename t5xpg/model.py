"""A trained model in Python, on either engine, from a run of either:

    import t5xpg

    model = t5xpg.Model.restore("runs/books")             # the latest checkpoint of a MODEL_DIR
    model.predict(["The quick <extra_id_0> fox"])         # ["<extra_id_0>…<extra_id_1>"]
    model.score(["inputs"], ["targets"])                  # log likelihoods, in nats
    model.train_step(["inputs"], ["targets"])             # one optimizer step; its metrics

An untrained one starts from a recipe, in the words of the command line:

    model = t5xpg.Model.new("configs/byt5_tiny.gin", "FILES=books_{split}.jsonl")

A masked language model (`mlm.EncoderOnlyModel`) fills masks, and a model that was fine-tuned on a `qa.squad_task`
answers questions:

    model.fill_mask("The season was the <mask> .")        # [[("best", 0.2), …]]
    model.answer("Who wrote it?", "Anna wrote it in 1911.")
"""

from __future__ import annotations

import operator
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seqio
from jax.sharding import NamedSharding

from t5x import checkpoints, models, utils
from t5xpg import mlm, qa, recipes
from t5xpg.base import files, private, stores
from t5xpg.inspection import measurements
from t5xpg.objectives import MaskedLM
from t5xpg.search import Search, known_ids_only
from t5xpg.vocabularies import sentinels

Tokens = Sequence[int]


class Model:
    """A model with restored parameters that takes and gives text.

    Inputs and targets are lists of texts, or of token ids. What is longer than the lengths of the task is cut, its EOS
    kept, with a warning that says so; an empty list, ids outside the vocabulary and whatever is not a list of texts or
    ids are a ValueError. Unlike T5X's models it predicts no id above the vocabulary, which the network may have
    embeddings for.

    Args:
      settings: arguments of T5X's `train`: "model", "partitioner", "trainer_cls" and "train_dataset_cfg", whose
        task_feature_lengths bound inputs and targets.
      checkpoint_path: what to restore; of a folder of checkpoints the latest; None for random parameters.
      batch_size: examples computed at a time.
      dtype: parameters are restored in it; None as they are stored.

    Attributes:
      model: T5X's model.
      train_state: parameters, optimizer state and step.
      batch_seconds: how long each batch of `answers` took.
    """

    def __init__(
        self, settings: Mapping[str, Any], checkpoint_path: str | None, batch_size: int = 8, dtype: str | None = None
    ):
        self.settings, self.model = settings, without_other_ids(settings["model"])
        self.batch_seconds: list[float] = []
        self._searches: dict[Search, Any] = {}  # compiled by JAX when first called
        self._partitioner, self._batch_size = settings["partitioner"], batch_size
        self._lengths = settings["train_dataset_cfg"].task_feature_lengths
        batch = self._batch([], [])
        self._initializer = utils.TrainStateInitializer(
            optimizer_def=self.model.optimizer_def,
            init_fn=self.model.get_initial_variables,
            input_shapes={name: x.shape for name, x in batch.items()},
            input_types={name: x.dtype for name, x in batch.items()},
            partitioner=self._partitioner,
        )
        if checkpoint_path is None:
            keys = jax.random.split(jax.random.PRNGKey(settings.get("random_seed") or 0))  # T5X keeps one for dropout
            self.train_state = self._initializer.from_scratch(keys[0])
            return
        path = stores.absolute(checkpoint_path)  # T5X takes no relative path
        if steps := checkpoints.all_steps(path):  # a MODEL_DIR
            path = os.path.join(path, f"checkpoint_{steps[-1]}")
        self.train_state, _ = utils.create_checkpoint_manager_and_restore(
            train_state_initializer=self._initializer,
            partitioner=self._partitioner,
            restore_checkpoint_cfg=utils.RestoreCheckpointConfig(path, mode="specific", dtype=dtype),
            restore_path=path,
            fallback_init_rng=None,
            use_orbax=True,
        )

    @classmethod
    def restore(cls, model_dir: str, step: int | None = None, batch_size: int = 8, trust: bool = False) -> Model:
        """Restores a run's model as its config.gin describes it, at `step` or the latest checkpoint.

        Args:
          model_dir: the run's.
          step: the checkpoint's; None for the latest.
          batch_size: examples computed at a time.
          trust: whether config.gin, which is code, may name any Python function; see `trust.NAMES`.

        Raises:
          ValueError: the folder holds no such checkpoint, or not the config.gin of a training run, or it names what
            is not trusted.
        """
        steps = checkpoints.all_steps(model_dir) if files.is_folder(model_dir) else []
        if not steps:
            raise ValueError(f"{model_dir} has no checkpoint; give the MODEL_DIR of a training run.")
        if step is not None and step not in steps:
            raise ValueError(f"{model_dir} has no checkpoint {step}; it has {steps}.")
        path = os.path.join(model_dir, f"checkpoint_{steps[-1] if step is None else step}")
        return cls(recipes.read_run(model_dir, trust).settings(), path, batch_size)

    @classmethod
    def new(cls, *arguments: str, batch_size: int | None = None) -> Model:
        """Returns an untrained model, its parameters those that a run of the recipe starts with by its RANDOM_SEED.

        Args:
          *arguments: what `t5xpg train` would get: recipes, and NAME=VALUE. MODEL_DIR need not be given.
          batch_size: examples computed at a time; None for the recipe's.

        Raises:
          ValueError: it is not a recipe to train by, or values are missing.
        """
        recipe = recipes.read(arguments)
        if recipe.program != "train":
            raise ValueError(f"{' '.join(arguments)} is a recipe of t5xpg {recipe.program}; give one of t5xpg train.")
        settings = recipe.settings()
        return cls(settings, None, batch_size or settings["train_dataset_cfg"].batch_size)

    @cached_property
    def task(self) -> seqio.Task | seqio.Mixture:
        """The task or mixture that it was trained on."""
        return seqio.get_mixture_or_task(self.settings["train_dataset_cfg"].mixture_or_task_name)

    @property
    def lengths(self) -> Mapping[str, int]:
        """How many tokens it takes, {"inputs": …, "targets": …}."""
        return self._lengths

    # ---- Encoder-decoders ----

    def predict(self, inputs: Sequence[str | Tokens], rng: jax.Array | None = None) -> list[str]:
        """Returns the decoded prediction for each input, a text or its token ids."""
        return [sentinels.decode(row, self.model.output_vocabulary) for row in self.predict_ids(inputs, rng)]

    def predict_ids(self, inputs: Sequence[str | Tokens], rng: jax.Array | None = None) -> np.ndarray:
        """Returns the predicted ids, int32 [number of inputs, targets length]."""
        return self._run(self._predict, inputs, rng=rng)

    def decode(self, inputs: Sequence[str | Tokens], search: Search, rng: jax.Array | None = None) -> list[list[str]]:
        """Returns for each input the texts that `search` finds, as many as its `samples`, the best first."""
        if search not in self._searches:
            self._searches[search] = self._partitioned(
                lambda params, batch, rng: search(self.model, params, batch, rng)
            )
        found = self._run(self._searches[search], inputs, rng=rng)
        return [[sentinels.decode(row, self.model.output_vocabulary) for row in rows] for rows in found]

    def score(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> np.ndarray:
        """Returns the log likelihood (nats) of each target given its input, float32 [number of inputs]."""
        return self._run(self._score, inputs, targets)

    def token_scores(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> list[np.ndarray]:
        """Returns the log likelihood (nats) of each token of each target, EOS included, float32 [its tokens].

        Their sum is the target's `score`.
        """
        scores = self._run(self._token_score, inputs, targets)
        lengths = [len(sentinels.encode(text, self.model.output_vocabulary)) for text in targets]
        return [row[:length] for row, length in zip(scores, lengths, strict=True)]

    def next_ids(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> np.ndarray:
        """Returns the likeliest id at each position [number of inputs, targets length], given the targets before it."""
        return self._run(self._next, inputs, targets)

    def train_step(self, inputs: Sequence[str | Tokens], targets: Sequence[str | Tokens]) -> dict[str, float]:
        """Takes one optimizer step on these examples, `batch_size` at most; returns its metrics."""
        encoded = self._encoded(inputs, targets)
        if len(inputs) > self._batch_size:
            raise ValueError(f"{len(inputs)} examples do not fit batch_size {self._batch_size}; pass fewer.")
        batch = self._batch(*encoded)
        sharding = NamedSharding(self._partitioner.mesh, self._partitioner.data_partition_spec)
        arrays = {name: jax.make_array_from_callback(x.shape, sharding, x.__getitem__) for name, x in batch.items()}
        metrics = self._trainer.train(iter([arrays]), 1).result()
        self.train_state = self._trainer.train_state
        return {name: float(np.asarray(value.value)) for name, value in metrics.items()}

    @cached_property
    def _trainer(self):
        return self.settings["trainer_cls"](
            model=self.model,
            train_state=self.train_state,
            partitioner=self._partitioner,
            eval_names=(),
            summary_dir=None,
            train_state_axes=self._initializer.train_state_axes,
            rng=jax.random.PRNGKey(0),
        )

    @cached_property
    def _predict(self):
        return self._partitioned(lambda params, batch, rng: self.model.predict_batch(params, batch, rng=rng))

    @cached_property
    def _score(self):
        return self._partitioned(lambda params, batch, _: self.model.score_batch(params, batch))

    @cached_property
    def _token_score(self):
        def step(params, batch, _):
            chances = jax.nn.log_softmax(private.compute_logits(self.model, params, batch).astype(jnp.float32))
            return jnp.take_along_axis(chances, batch["decoder_target_tokens"][..., None], axis=-1)[..., 0]

        return self._partitioned(step)

    @cached_property
    def _next(self):
        known = self.model.output_vocabulary.vocab_size
        return self._partitioned(
            lambda params, batch, _: private.compute_logits(self.model, params, batch)[..., :known].argmax(-1)
        )

    def _partitioned(self, step):
        """Jits (params, batch, rng) -> array; batches and results are whole on every device."""
        params_axes = self._initializer.train_state_axes.params
        return self._partitioner.partition(step, in_axis_resources=(params_axes, None, None), out_axis_resources=None)

    def _run(self, step, inputs, targets=None, rng: jax.Array | None = None) -> np.ndarray:
        """Returns the outputs of `step` [number of inputs, …], computed batch by batch."""
        outputs, size = [], self._batch_size
        inputs, targets = self._encoded(inputs, targets)
        for start in range(0, len(inputs), size):
            part = inputs[start : start + size]
            batch = self._batch(part, targets[start : start + size])
            outputs.append(np.asarray(step(self.train_state.params, batch, rng))[: len(part)])
        return np.concatenate(outputs)

    def _encoded(self, inputs, targets=None) -> tuple[list[list[int]], list[list[int]]]:
        """Returns the ids of both, which fit the lengths; of targets that are not given, none.

        Raises:
          ValueError: they are not pairs for an encoder-decoder.
        """
        if not isinstance(self.model, models.EncoderDecoderModel):
            hint = "; `t5xpg fill-mask` fills in its masks" if isinstance(self.model, mlm.EncoderOnlyModel) else ""
            raise ValueError(
                f"This {type(self.model).__name__} does not map inputs to targets as an encoder-decoder does{hint}."
            )
        read = encode_all("inputs", inputs, self.model.input_vocabulary, self._lengths["inputs"])
        if targets is None:
            return read, [[]] * len(read)
        written = encode_all("targets", targets, self.model.output_vocabulary, self._lengths["targets"])
        if len(read) != len(written):
            raise ValueError(f"{len(read)} inputs and {len(written)} targets; pass as many of one as of the other.")
        return read, written

    def _batch(self, inputs: Sequence[Tokens], targets: Sequence[Tokens]) -> dict[str, np.ndarray]:
        """Pads examples to a batch, {name: int32 [batch, length]}."""
        encoder = pad(inputs, (self._batch_size, self._lengths["inputs"]))
        decoder = pad(targets, (self._batch_size, self._lengths["targets"]))
        shifted = np.pad(decoder[:, :-1], ((0, 0), (1, 0)))  # the decoder starts with id 0
        return {
            "encoder_input_tokens": encoder,
            "decoder_target_tokens": decoder,
            "decoder_input_tokens": shifted,
            "decoder_loss_weights": (decoder != 0).astype(np.int32),
        }

    # ---- Masked language models ----

    def fill_mask(self, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
        """Returns for each "<mask>" in the text its likeliest tokens, [(token, probability), …].

        Raises:
          ValueError: it is not a masked language model, the text has no mask, or its task has not one mask.
        """
        if not isinstance(self.model, mlm.EncoderOnlyModel):
            raise ValueError(
                f"This {type(self.model).__name__} is not a masked language model. "
                'One that learned span corruption fills in by `t5xpg predict RUN "Call me <extra_id_0>."`'
            )
        if not isinstance(text, str):
            raise ValueError(f"text is a {type(text).__name__}; pass one text at a time.")
        vocabulary = self.model.output_vocabulary
        objectives = map(measurements.objective_of, seqio.get_subtasks(self.task))
        masks = {one.mask_token(vocabulary) for one in objectives if isinstance(one, MaskedLM)}
        if len(masks) != 1:
            raise ValueError(
                f"{self.task.name} masks with {sorted(masks) or 'no id that is known'}, and <mask> needs one; call "
                "t5xpg.mlm.fill_mask with a mask_id."
            )
        guesses = mlm.fill_mask(self.model, self.train_state.params, text, masks.pop(), top)
        return [[(vocabulary.decode([token]), chance) for token, chance in best] for best in guesses]

    # ---- Questions and answers ----

    def answer(self, question: str, context: str) -> str:
        """Returns the answer that the context gives, "" where the model finds none."""
        return self.answers([(question, context)])[0]

    def answers(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Returns the answer to each (question, context); warns where one `is_cut`, so not read to its end.

        `batch_seconds` gets how long each batch took, decoding included and compiling left out.

        Raises:
          ValueError: there are no pairs, or the model was trained on another kind of task.
        """
        from tqdm import tqdm

        if isinstance(pairs, str) or not pairs or not all(len(pair) == 2 for pair in pairs):
            raise ValueError("pairs is a list of at least one (question, context).")
        source, vocabulary, found = self._questions, self.task.output_features["targets"].vocabulary, []
        read = [self._read(*pair) for pair in pairs]  # [(ids, whether they were cut), …]
        if cut := sum(was_cut for _, was_cut in read):
            warnings.warn(
                f"Of {len(pairs):,} questions {cut:,} are longer than the {self._lengths['inputs']} tokens that the "
                "model reads; the ends of their contexts are not read.",
                stacklevel=2,
            )
        starts = range(0, len(pairs), self._batch_size)
        for start in tqdm(starts, "answering", unit="batch", delay=2, leave=False, disable=None):
            part, tick = slice(start, start + self._batch_size), time.perf_counter()
            texts = map(vocabulary.decode, self.predict_ids([ids for ids, _ in read[part]]).tolist())
            self.batch_seconds.append(time.perf_counter() - tick)
            found += [source.answer(text, context) for text, (_, context) in zip(texts, pairs[part], strict=True)]
        return found

    def is_cut(self, question: str, context: str) -> bool:
        """Whether the context goes on beyond what the model reads."""
        return self._read(question, context)[1]

    @cached_property
    def _questions(self) -> qa.SquadSource:
        source = getattr(self.task, "source", None)
        if not isinstance(source, qa.SquadSource):
            raise ValueError(
                f"{self.task.name} is not a task of questions and answers. Fine-tune on a qa.squad_task first."
            )
        self.predict_ids([""])  # compiles, so that no answer waits for it
        return source

    def _read(self, question: str, context: str) -> tuple[list[int], bool]:
        """Returns (ids that end in EOS, whether they were cut)."""
        vocabulary, room = self.task.output_features["inputs"].vocabulary, self._lengths["inputs"]
        ids = vocabulary.encode(self._questions.inputs(question, context))
        return [*ids[: room - 1], vocabulary.eos_id], len(ids) >= room


def pad(rows: Sequence[Tokens], shape: tuple[int, int]) -> np.ndarray:
    """Returns the rows cut and zero-padded to an int32 array of this shape."""
    padded = np.zeros(shape, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row[: shape[1]]
    return padded


def encode_all(name: str, examples: Sequence[str | Tokens], vocabulary: seqio.Vocabulary, room: int) -> list[list[int]]:
    """Returns the ids of each example, at most `room`; warns of what is cut.

    Args:
      name: what the examples are called in messages.
      examples: texts, or token ids.
      vocabulary: theirs.
      room: how many tokens of an example the model takes; an EOS at its end stays.

    Raises:
      ValueError: they are not a list of at least one text or list of ids of the vocabulary.
    """
    if isinstance(examples, str | bytes):
        raise ValueError(f"{name} is the text {examples[:40]!r}; pass a list of texts.")
    if not len(examples):
        raise ValueError(f"{name} is an empty list; pass at least one example.")
    rows = [encode_one(f"{name}[{i}]", example, vocabulary) for i, example in enumerate(examples)]
    longest = max(range(len(rows)), key=lambda i: len(rows[i]))
    if len(rows[longest]) > room:
        warnings.warn(
            f"Of {len(rows):,} {name} {sum(len(row) > room for row in rows):,} are longer than the {room:,} tokens "
            f"that the model takes and are cut; the longest, {name}[{longest}], has {len(rows[longest]):,}.",
            stacklevel=2,
        )
    eos = [vocabulary.eos_id]
    return [row if len(row) <= room else row[: room - 1] + eos if row[-1:] == eos else row[:room] for row in rows]


def encode_one(where: str, example: str | Tokens, vocabulary: seqio.Vocabulary) -> list[int]:
    """Returns the ids of a text, which end in EOS, or the ids given; raises ValueError as `encode_all`."""
    try:
        ids = [operator.index(i) for i in sentinels.encode(example, vocabulary)]
    except TypeError:
        raise ValueError(f"{where} is {str(example)[:40]!r}; pass a text, or a list of token ids.") from None
    if not ids:
        raise ValueError(f"{where} is an empty list; pass a text, or at least EOS, [{vocabulary.eos_id}].")
    if other := [i for i in ids if not 0 <= i < vocabulary.vocab_size]:
        raise ValueError(f"{where} has the id {other[0]}; the vocabulary's are 0 to {vocabulary.vocab_size - 1}.")
    return ids


def without_other_ids(model: models.BaseTransformerModel) -> models.BaseTransformerModel:
    """Returns a model whose decode function chooses no id above the output vocabulary; its losses are the same."""
    if model.decode_fn is None:
        return model
    return private.with_decode_fn(model, known_ids_only(model.decode_fn, model.output_vocabulary.vocab_size))
