"""A trained model as a TensorFlow SavedModel: text in, text out, without JAX; the counterpart of T5X's export program.

Deviations from T5X's: both signatures, predict and score, are in one folder; score takes inputs and targets rather
than one text with a separator; sentinels are read and written by name; what was written is run before it gets its name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf

from t5xpg.base import files
from t5xpg.model import Model
from t5xpg.search import Search
from t5xpg.vocabularies import in_graph, sentinels

PLATFORMS = ("cpu", "cuda", "tpu")
TOLERANCE = 1e-4  # of scores, relative
TEXTS = ("", "Call me <extra_id_0>.", "Größe, 🙂\n", "one two three")


def export_model(model: Model, out: str, search: Search = Search()) -> None:
    """Writes `out`, a folder for tf.saved_model.load and TensorFlow Serving, with a README.md that says how.

    Args:
      model: an encoder-decoder with a vocabulary of bytes or SentencePiece, run by either engine.
      out: a folder that does not exist yet.
      search: what the signature "predict" does.

    Raises:
      FileExistsError: `out` exists.
      ValueError: a vocabulary of another kind, or what TensorFlow computes is not what the model does.
    """
    with files.make_folder_whole(out, last="saved_model.pb") as part:
        module = Served(model, search)
        with readable_top_k():
            signatures = module.signatures()
        tf.saved_model.save(module, str(part), signatures=signatures)
        compare(str(part), model, search)
        files.write_whole(part / "README.md", readme(Path(out).name, module, model, search))


class Served(tf.Module):
    """The model's functions and all that they need, for tf.saved_model.save."""

    def __init__(self, model: Model, search: Search):
        super().__init__()
        self._reader, self._writer = map(in_graph.of, (model.model.input_vocabulary, model.model.output_vocabulary))
        self.needs = sorted({*self._reader.needs, *self._writer.needs})
        self._lengths, self._search = dict(model.lengths), search
        leaves, structure = jax.tree.flatten(model.train_state.params)
        self._weights = [tf.Variable(np.asarray(leaf), trainable=False) for leaf in leaves]

        def predict(leaves: Sequence[jax.Array], inputs: jax.Array, seed: jax.Array) -> jax.Array:
            prompt = jnp.zeros((inputs.shape[0], self._lengths["targets"]), np.int32)
            batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": prompt}
            return search(model.model, jax.tree.unflatten(structure, leaves), batch, first_key(seed))

        def score(leaves: Sequence[jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
            return model.model.score_batch(jax.tree.unflatten(structure, leaves), batch)

        self._predict = any_batch(predict, [None, "(b, _)", None])
        self._score = any_batch(score, [None, "(b, _)"])

    def signatures(self) -> dict[str, Any]:
        """Returns {name: concrete function}, for TensorFlow Serving."""
        texts = tf.TensorSpec([None], tf.string, name="inputs")
        arguments = [texts, tf.TensorSpec([], tf.int32, name="seed")][: 1 + self._search.is_random]
        predict = tf.function(self.predict, autograph=False).get_concrete_function(*arguments)
        score = tf.function(self.score, autograph=False)
        targets = tf.TensorSpec([None], tf.string, name="targets")
        return {
            "serving_default": predict,
            "predict": predict,
            "score": score.get_concrete_function(texts, targets),
        }

    def predict(self, inputs: tf.Tensor, seed: tf.Tensor | int = 0) -> dict[str, tf.Tensor]:
        """Returns {"prediction": string [batch], or [batch, samples] of several samples} for texts, string [batch]."""
        tokens = self._padded(self._reader, inputs, "inputs")
        ids = self._predict(self._weights, tokens, tf.cast(seed, tf.int32))  # [batch, samples, length]
        shape = tf.shape(ids)
        texts = self._writer.decode(tf.reshape(ids, [-1, shape[2]]))
        return {"prediction": tf.reshape(texts, shape[:2] if self._search.samples > 1 else shape[:1])}

    def score(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns {"score": log likelihoods, float32 [batch]} of texts given texts, string [batch] each."""
        read = self._padded(self._reader, inputs, "inputs")
        written = self._padded(self._writer, targets, "targets")
        batch = {
            "encoder_input_tokens": read,
            "decoder_target_tokens": written,
            "decoder_input_tokens": tf.pad(written[:, :-1], [[0, 0], [1, 0]]),  # the decoder starts with id 0
            "decoder_loss_weights": tf.cast(written != 0, tf.int32),
        }
        return {"score": self._score(self._weights, batch)}

    def _padded(self, vocabulary: in_graph.GraphText, texts: tf.Tensor, name: str) -> tf.Tensor:
        """Returns int32 [batch, length], zero-padded; what is longer is cut, its EOS kept, and said on stderr."""
        rows, room = vocabulary.encode(texts), self._lengths[name]
        lengths = rows.row_lengths()
        longest = tf.reduce_max(lengths)
        message = f"t5xpg: {name} longer than {room} tokens are cut; the longest has"
        tf.cond(longest > room, lambda: tf.print(message, longest), tf.no_op)
        tokens = rows.to_tensor(shape=[None, room])
        last = tf.where(lengths > room, vocabulary.eos_id, tokens[:, -1])
        return tf.concat([tokens[:, :-1], last[:, None]], axis=1)


def any_batch(function, shapes: list[str | None]):
    """Returns a JAX function as a TensorFlow one for any batch size "b", on any of PLATFORMS."""
    return jax2tf.convert(
        function, polymorphic_shapes=shapes, with_gradient=False, native_serialization_platforms=PLATFORMS
    )


@contextlib.contextmanager
def readable_top_k() -> Iterator[None]:
    """Puts `top_k` in place of jax.lax.top_k, which JAX 0.10 writes in a way that TensorFlow 2.21 cannot read."""
    original = jax.lax.top_k
    jax.lax.top_k = top_k  # type: ignore[assignment]
    try:
        yield
    finally:
        jax.lax.top_k = original


def top_k(operand: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Returns jax.lax.top_k's values and indices, [..., k], of the last axis; of equals the first comes first."""
    places = jax.lax.broadcasted_iota(np.int32, operand.shape, operand.ndim - 1)
    taken, found = jnp.zeros(operand.shape, bool), []
    for _ in range(k):
        best = jnp.max(jnp.where(taken, -jnp.inf, operand), axis=-1, keepdims=True)
        index = jnp.argmax((operand == best) & ~taken, axis=-1, keepdims=True).astype(np.int32)
        taken |= places == index
        found.append((best, index))
    values, indices = (jnp.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
    return values, indices


def first_key(seed):
    """Returns the key of the first batch that `t5xpg predict --seed` predicts."""
    return jax.random.fold_in(jax.random.PRNGKey(seed), 0)


def compare(folder: str, model: Model, search: Search) -> None:
    """Raises ValueError where the folder, loaded and run by TensorFlow, gives other texts or scores than the model."""
    fits = (
        (model.model.input_vocabulary, model.lengths["inputs"]),
        (model.model.output_vocabulary, model.lengths["targets"]),
    )
    texts = [
        text for text in TEXTS if all(len(sentinels.encode(text, vocabulary)) <= room for vocabulary, room in fits)
    ]
    loaded = tf.saved_model.load(folder).signatures
    seed = {"seed": tf.constant(0)} if search.is_random else {}
    theirs = loaded["predict"](inputs=tf.constant(texts), **seed)["prediction"].numpy().reshape(len(texts), -1)
    for text, ours, other in zip(texts, model.decode(texts, search, first_key(0)), theirs, strict=True):
        found = [x.decode() for x in other]
        if ours != found and not as_likely(model, text, ours, found):
            raise ValueError(f"For {text!r} TensorFlow gives {found}, the model {ours}. Nothing was written.")
    their_scores = loaded["score"](inputs=tf.constant(texts), targets=tf.constant(texts))["score"].numpy()
    scores = model.score(texts, texts)
    if not np.allclose(their_scores, scores, rtol=TOLERANCE, atol=TOLERANCE):
        raise ValueError(f"TensorFlow gives the scores {their_scores}, the model {scores}. Nothing was written.")


def as_likely(model: Model, text: str, *found: list[str]) -> bool:
    """Whether the model scores both lists of predictions the same, so that rounding decides between them."""
    ours, theirs = (model.score([text] * len(texts), texts) for texts in found)
    return np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


README = """# {name}

A model trained with t5xpg, T5X's way, for {step:,} steps, as a TensorFlow SavedModel.

```python
import tensorflow as tf
{imports}
model = tf.saved_model.load("{name}").signatures  # this folder
print(model["predict"](inputs=tf.constant(["Call me <extra_id_0>."]){seed})["prediction"])
print(model["score"](inputs=tf.constant(["an input"]), targets=tf.constant(["a target"]))["score"])
```

Batches may have any size. Inputs are cut to {inputs} tokens, targets to {targets}, which is said on stderr. Predictions
come from {search}. It runs on {platforms}.

Before this folder got its name, TensorFlow loaded it and gave the model's own predictions and scores for some texts.
"""


def readme(name: str, module: Served, model: Model, search: Search) -> str:
    fields = [(field, getattr(search, field.name)) for field in dataclasses.fields(search)]
    given = [f"{field.name} {value}" for field, value in fields if value != field.default]
    how = ", ".join(given) or "the decode function of the run's recipe"
    return README.format(
        name=name,
        step=int(model.train_state.step),
        imports="".join(f"import {needed}  # its operations are in the graph\n" for needed in module.needs),
        seed=", seed=tf.constant(0)" if search.is_random else "",
        search=how,
        platforms=", ".join(PLATFORMS),
        **model.lengths,
    )
