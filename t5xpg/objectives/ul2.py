"""UL2's mixture of denoisers as one objective."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.objectives.base import Example, Features, Lengths, Restored
from t5xpg.objectives.documents import DocumentObjective
from t5xpg.objectives.language_models import PrefixLM
from t5xpg.objectives.lengths import fitted_span_corruption_lengths
from t5xpg.objectives.span_corruption import SpanCorruption, fill_in


@dataclasses.dataclass(frozen=True)
class UL2(DocumentObjective):
    """UL2's mixture of denoisers (arXiv:2205.05131, section 3.1 and appendix): one task, one cache.

    Each example is R-denoising (short spans), X-denoising (long or many spans) or S-denoising
    (prefix LM), and its inputs begin with that mode's prefix. Documents are concatenated as for
    span corruption.

    Deviations from the paper's `ul2_objective`: the denoiser is drawn for each example instead of
    giving each a seventh of the documents, so that a small corpus or one pass over a validation
    split also has the rates; the prefix has room of its own instead of pushing tokens out of the
    inputs. The paper's Table 1 gives S a mean suffix of a quarter of the text; like its code, this
    class splits texts anywhere. The paper's (3, .5) needs 126 sentinels at inputs of length 512.

    Attributes:
      rates: shares of examples of the R-, X- and S-denoisers, relative to each other; within R and
        within X all have equal shares.
      prefixes: texts before the inputs of R, X and S; "" for none. No separator follows.
      regular: the R-denoisers, each (mean span length, noise density): the paper's (µ, r).
      extreme: the X-denoisers, likewise.
      select_random_chunk: see `DocumentObjective`.
    """

    rates: Sequence[float] = (0.4, 0.4, 0.2)
    prefixes: Sequence[str] = ("[NLU]", "[NLG]", "[S2S]")
    regular: Sequence[tuple[float, float]] = ((3, 0.15), (8, 0.15))
    extreme: Sequence[tuple[float, float]] = ((3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5))
    select_random_chunk: bool = False

    def __post_init__(self) -> None:
        if len(self.rates) != 3 or min(self.rates) < 0 or not 0 < sum(self.rates) < np.inf:
            raise ValueError(
                f"rates are three shares, of the R-, X- and S-denoisers; found {self.rates}. UL2 has (0.4, 0.4, 0.2)"
            )
        if len(self.prefixes) != 3:
            raise ValueError(
                f"prefixes are three texts, for the R-, X- and S-denoisers; found {self.prefixes}. "
                "UL2 has ('[NLU]', '[NLG]', '[S2S]')"
            )
        self._mixture()  # refuses settings that SpanCorruption refuses

    def _mixture(self) -> list[tuple[float, str, SpanCorruption | PrefixLM]]:
        """Returns (rate, prefix, objective) of each denoiser that has a rate."""
        parts: tuple[list[SpanCorruption | PrefixLM], ...] = (
            [SpanCorruption(density, mean_span) for mean_span, density in self.regular],
            [SpanCorruption(density, mean_span) for mean_span, density in self.extreme],
            [PrefixLM()],
        )
        return [
            (rate / len(part), prefix, objective)
            for rate, prefix, part in zip(self.rates, self.prefixes, parts, strict=True)
            for objective in part
            if rate
        ]

    def denoisers(self, inputs_length: int, vocabulary: seqio.Vocabulary) -> list[Denoiser]:
        """Returns the mixture, with how much text fills `inputs_length` and how long its targets are.

        Raises:
          ValueError: the prefixes leave no room for text.
        """
        made = []
        for rate, text, objective in self._mixture():
            prefix = vocabulary.encode(text)
            room = inputs_length - len(prefix)
            if room < 3:
                raise ValueError(
                    f"{self}: inputs of length {inputs_length} have no room for text after the "
                    f"{len(prefix)} tokens of {text!r}. Use inputs of length {len(prefix) + 3}"
                )
            tokens = targets = room - 1
            if isinstance(objective, SpanCorruption):
                density, mean_span = objective.noise_density, objective.mean_noise_span_length
                tokens, targets, *_ = fitted_span_corruption_lengths(room, density, mean_span)
            made.append(Denoiser(rate, prefix, objective, tokens, targets))
        return made

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths that would lose tokens, and more spans than there are sentinels.

        Raises:
          ValueError: what is wrong, with numbers that work.
        """
        inputs_length, targets_length = self._lengths(sequence_length)
        denoisers = self.denoisers(inputs_length, vocabulary)
        for denoiser in denoisers:
            if isinstance(denoiser.objective, SpanCorruption):
                room = inputs_length - len(denoiser.prefix)
                try:
                    denoiser.objective.check_spans(room, vocabulary)
                except ValueError as error:
                    place = f"UL2 (regular or extreme, {room} inputs after the prefix)"
                    raise ValueError(f"{place}: {error}") from None
        needed = max(denoiser.targets for denoiser in denoisers)
        self._check_targets(inputs_length, targets_length, needed)

    def convert(self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features) -> tf.data.Dataset:
        """After `check`, cuts the text into examples and corrupts each by its own denoiser."""
        vocabulary = self._checked(sequence_length, output_features)
        denoisers = self.denoisers(sequence_length["inputs"], vocabulary)
        draw = functools.partial(_draw, denoisers=denoisers)
        corrupt = functools.partial(_corrupt, denoisers=denoisers, output_features=output_features)
        examples = seqio.map_over_dataset(draw, num_seeds=1)(self.texts(dataset, output_features)).flat_map(_cut)
        return seqio.map_over_dataset(corrupt, num_seeds=1)(examples)

    def restore(self, example: Mapping[str, np.ndarray], vocabulary: seqio.Vocabulary) -> Restored | None:
        """Restores as the denoiser's own; S has no sentinels. The prefix is part of the text."""
        return fill_in(example, vocabulary) or PrefixLM().restore(example, vocabulary)


class Denoiser(NamedTuple):
    """One part of UL2's mixture, for one inputs length and vocabulary."""

    rate: float  # examples, relative to the other denoisers'
    prefix: list[int]
    objective: SpanCorruption | PrefixLM
    tokens: int  # of text in a full example
    targets: int  # room that holds the targets


def _draw(text: Example, seed: tf.Tensor, denoisers: Sequence[Denoiser]) -> Example:
    """Draws denoisers until the text is used up, each taking as many tokens as it wants.

    Args:
      text: {"targets": int32 [tokens]}.
      seed: int32 [2].
      denoisers: those to draw from.

    Returns:
      {"targets", and "denoiser", "start", "end": int32 [examples]}; the last may end beyond.
    """
    tokens = np.array([denoiser.tokens for denoiser in denoisers], np.int32)
    log_rates = np.log([denoiser.rate for denoiser in denoisers]).astype(np.float32)
    size = tf.size(text["targets"])
    enough = size // min(tokens) + 1
    drawn = tf.random.stateless_categorical(log_rates[None], enough, seed, tf.int32)[0]
    ends = tf.cumsum(tf.gather(tokens, drawn))  # [enough]
    starts = ends - tf.gather(tokens, drawn)
    used = tf.math.count_nonzero(starts < size)
    return {**text, "denoiser": drawn[:used], "start": starts[:used], "end": ends[:used]}


def _cut(text: Example) -> tf.data.Dataset:
    """What `_draw` gives -> {"targets": int32 [tokens of an example], "denoiser": int32 []}."""

    def example(cut: Example) -> Example:
        tokens = text["targets"][cut["start"] : cut["end"]]
        return {"targets": tokens, "denoiser": cut["denoiser"]}

    cuts = {key: text[key] for key in ("denoiser", "start", "end")}
    return tf.data.Dataset.from_tensor_slices(cuts).map(example)


def _corrupt(example: Example, seed: tf.Tensor, denoisers: Sequence[Denoiser], output_features: Features) -> Example:
    """What `_cut` gives -> {"inputs", "targets"}: int32 without EOS, the prefix in the inputs."""

    def by(denoiser: Denoiser) -> Example:
        targets = {"targets": example["targets"]}
        made = denoiser.objective.convert_example(targets, seed, output_features)
        prefix = tf.constant(denoiser.prefix, tf.int32)
        return {**made, "inputs": tf.concat([prefix, made["inputs"]], 0)}

    branches = [functools.partial(by, denoiser) for denoiser in denoisers]
    return tf.switch_case(example["denoiser"], branches)
