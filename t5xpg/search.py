"""How predictions are searched for: as the recipe has it, by beams, or by samples; `Model.decode` takes one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5x import decoding
from t5xpg.base import private


@dataclasses.dataclass(frozen=True)
class Search:
    """A search; with no argument, the model's own decode function with its own settings.

    Any of temperature, top_k and top_p, or more than one sample, samples; temperature 0 takes the likeliest token.

    Args:
      beams: of a beam search with T5X's length penalty.
      temperature: divides the logits; 1 where only other arguments sample.
      top_k: sample among this many likeliest tokens.
      top_p: sample among the fewest likeliest tokens that hold this share of the probability.
      samples: how many predictions to return for each input.
      max_length: of a prediction, in tokens with EOS; the length of the run's targets if None.

    Raises:
      ValueError: a number that means nothing, or arguments that exclude each other.
    """

    beams: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    samples: int = 1
    max_length: int | None = None

    def __post_init__(self):
        for name in ("beams", "top_k", "samples", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; pass 1 or more.")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; pass 0 for the likeliest tokens, or more.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; pass a share of the probability, above 0 and at most 1.")
        given = [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
        given += ["samples"] * (self.samples > 1)
        if self.beams is not None and given:
            raise ValueError(f"beams searches and {given[0]} samples; pass one of the two.")
        if self.top_k is not None and self.top_p is not None:
            raise ValueError("top_k and top_p both say what to sample among; pass one of the two.")
        if self.temperature == 0 and len(given) > 1:
            raise ValueError(f"temperature 0 takes the likeliest token, so that {given[1]} means nothing; pass one.")

    @property
    def is_random(self) -> bool:
        """Whether it samples; False for the model's own decode function, whatever that does."""
        return self.temperature != 0 and (
            self.samples > 1 or any(x is not None for x in (self.temperature, self.top_k, self.top_p))
        )

    def __call__(self, model: Any, params: Any, batch: Mapping[str, jax.Array], rng: jax.Array | None) -> jax.Array:
        """Returns ids, int32 [batch, samples, length], the best first; can be traced.

        Args:
          model: a T5X EncoderDecoderModel, of either engine.
          params: its parameters.
          batch: has encoder_input_tokens [batch, inputs] and decoder_input_tokens [batch, targets].
          rng: to sample with.
        """
        decode_fn, arguments = self._decode_fn(model)
        model = private.with_decode_fn(model, known_ids_only(decode_fn, model.output_vocabulary.vocab_size))
        prompt = batch["decoder_input_tokens"]
        prompt = jnp.zeros((prompt.shape[0], self.max_length or prompt.shape[1]), jnp.int32)
        ids, _ = model.predict_batch_with_aux(
            params, {**batch, "decoder_input_tokens": prompt}, rng=rng, return_all_decodes=True, **arguments
        )  # in increasing order of their scores
        return ids[:, ::-1][:, : self.samples]

    def _decode_fn(self, model: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Returns a decode function and the arguments of predict_batch_with_aux that go with it."""
        if self.beams is not None:
            return decoding.beam_search, {"num_decodes": self.beams}
        if self.temperature == 0:
            return decoding.temperature_sample, {"num_decodes": 1, "decoder_params": {"topk": 1}}
        if self.is_random:
            temperature = 1.0 if self.temperature is None else self.temperature
            wanted = {"temperature": temperature, "topk": self.top_k or 0, "topp": self.top_p or 0.0}
            return decoding.temperature_sample, {"num_decodes": self.samples, "decoder_params": wanted}
        return model.decode_fn, {}


def known_ids_only(decode_fn: Callable[..., Any], known: int) -> Callable[..., Any]:
    """Returns a decode function that chooses no id from `known` on, of which the network may have more."""

    @functools.wraps(decode_fn)
    def decode(*args, tokens_to_logits, **kwargs):
        def masked(state):
            logits, cache = tokens_to_logits(state)  # [rows, embeddings]
            return jnp.where(jnp.arange(logits.shape[-1])[None] < known, logits, -1e10), cache

        return decode_fn(*args, tokens_to_logits=masked, **kwargs)

    return decode
