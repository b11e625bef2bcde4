"""Tokens to examples: what `t5xpg.objectives` do one example at a time, for many.

`STEPS` has the objectives that are known. For each, {feature: `Ragged`} of a block of rows, as tokenized, goes through
stages whose last one says how to make {feature: int32 [examples, its length]}, EOS included, padded with 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import seqio

from t5xpg import objectives
from t5xpg.batchwise import noise
from t5xpg.batchwise.documents import Chunks, Joined, SeedStream, nonempty, split, without_padding
from t5xpg.batchwise.ragged import Ragged
from t5xpg.batchwise.random_numbers import Seeds, categorical, floats, split_seeds, stateless_words
from t5xpg.batchwise.stages import Block, Stage
from t5xpg.objectives.documents import CHUNK
from t5xpg.objectives.lengths import mask_counts
from t5xpg.objectives.ul2 import Denoiser
from t5xpg.vocabularies import sentinels

Lengths = Mapping[str, int]
Features = dict[str, Ragged]
Convert = Callable[[Ragged, Seeds], Features]
# Examples, which of a block's they are, and what makes their features.
Part = tuple[Ragged, slice | np.ndarray, Convert]
_TOKENS = 2**20  # of a part, at least 1 example: enough for an operation to be longer than the wait for Python's lock


def rows(features: Features, lengths: Lengths, eos: int | None = None) -> Block:
    """Returns sequences as rows of their feature's length; what is too long loses its end, not its EOS."""
    made = {}
    for name, sequences in features.items():
        kept = sequences.trimmed(lengths[name] - (eos is not None))
        made[name] = kept.padded(lengths[name])
        if eos is not None:
            made[name][np.arange(len(kept.sizes)), kept.sizes] = eos
    return made


class Denoised(Stage):
    """Parts -> a function that makes a block of all their examples; their seeds are drawn before.

    Args:
      lengths: of the features.
      eos: the id behind each example, or None.
      seeds: of the examples.
    """

    def __init__(self, lengths: Lengths, eos: int | None, seeds: SeedStream):
        self._lengths, self._eos, self._seeds = lengths, eos, seeds
        self.parts = [seeds]

    def __call__(self, parts: list[Part]) -> Callable[[], Block]:
        count = sum(len(examples.sizes) for examples, _, _ in parts)
        return functools.partial(self._block, parts, count, self._seeds(count))

    def _block(self, parts: list[Part], count: int, seeds: Seeds) -> Block:
        block = {name: np.empty([count, length], np.int32) for name, length in self._lengths.items()}
        for examples, which, convert in parts:
            features = convert(examples, [x[which] for x in seeds])
            for name, made in rows(features, self._lengths, self._eos).items():
                block[name][which] = made
        return block


def in_parts(tokens: int, convert: Convert) -> Callable[[Ragged], list[Part]]:
    """Returns what cuts texts into examples of `tokens` tokens."""

    def cut(texts: Ragged) -> list[Part]:
        pieces = in_pieces(split(texts, tokens), tokens)
        return [(some, slice(start, start + len(some.sizes)), convert) for start, some in pieces]

    return cut


def in_pieces(examples: Ragged, tokens: int) -> Iterator[tuple[int, Ragged]]:
    """Yields (number of its first example, examples) of pieces of examples that have at most `tokens` tokens each."""
    start = 0
    while len(examples.sizes):
        some, examples = examples.cut(max(_TOKENS // tokens, 1))
        yield start, some
        start += len(some.sizes)


class Drawn(Stage):
    """UL2's: cuts texts into examples, each by a denoiser of its own and of the length that this one wants.

    Args:
      objective: UL2.
      vocabulary: of the text.
      length: of the inputs.
      seeds: of the texts.
    """

    def __init__(self, objective: objectives.UL2, vocabulary: seqio.Vocabulary, length: int, seeds: SeedStream):
        denoisers = objective.denoisers(length, vocabulary)
        self.parts, self._seeds = [seeds], seeds
        self._tokens = np.array([denoiser.tokens for denoiser in denoisers])
        self._logits = np.log([denoiser.rate for denoiser in denoisers]).astype(np.float32)
        self._converts = [_of_denoiser(denoiser, vocabulary) for denoiser in denoisers]

    def __call__(self, texts: Ragged) -> list[Part]:
        sizes = texts.sizes[:, None]
        most = int(texts.sizes.max(initial=0) // self._tokens.min() + 1)
        drawn = categorical(self._seeds(len(sizes)), most, self._logits)
        ends = np.cumsum(self._tokens[drawn], axis=1)
        begins = ends - self._tokens[drawn]
        used = begins < sizes
        denoisers, examples = drawn[used], Ragged(texts.values, (np.minimum(ends, sizes) - begins)[used])
        parts: list[Part] = []
        for number, (tokens, convert) in enumerate(zip(self._tokens.tolist(), self._converts, strict=True)):
            own, which = examples.of(denoisers == number), np.flatnonzero(denoisers == number)
            for start, some in in_pieces(own, tokens):
                parts.append((some, which[start : start + len(some.sizes)], convert))
        return parts


def _of_denoiser(denoiser: Denoiser, vocabulary: seqio.Vocabulary) -> Convert:
    made: Convert = prefix_lm
    if isinstance(denoiser.objective, objectives.SpanCorruption):
        made = span_corruption(denoiser.objective, vocabulary, denoiser.tokens)

    def convert(examples: Ragged, seeds: Seeds) -> Features:
        features = made(examples, seeds)
        return {**features, "inputs": features["inputs"].framed(before=denoiser.prefix)}

    return convert


# ---- What is made of examples ----


def span_corruption(objective: objectives.SpanCorruption, vocabulary: seqio.Vocabulary, tokens: int) -> Convert:
    density, mean_span = objective.noise_density, objective.mean_noise_span_length
    counts = np.array([mask_counts(size, density, mean_span) for size in range(tokens + 1)])
    return _with_mask(lambda sizes, seeds: noise.span_mask(sizes, counts, seeds), vocabulary)


def iid_denoising(objective: objectives.IidDenoising, vocabulary: seqio.Vocabulary) -> Convert:
    return _with_mask(lambda sizes, seeds: noise.iid_mask(sizes, objective.noise_density, seeds), vocabulary)


def _with_mask(mask: Callable[[np.ndarray, Seeds], np.ndarray], vocabulary: seqio.Vocabulary) -> Convert:
    sentinel = sentinels.to_id(0, vocabulary)

    def convert(examples: Ragged, seeds: Seeds) -> Features:
        masked = mask(examples.sizes, seeds)
        return {
            "inputs": noise.with_sentinels(examples, masked, sentinel),
            "targets": noise.with_sentinels(examples, ~masked, sentinel),
        }

    return convert


def prefix_lm(examples: Ragged, seeds: Seeds) -> Features:
    inputs, targets = examples.first(noise.prefix_sizes(examples.sizes, seeds))
    return {"inputs": inputs, "targets": targets}


def full_lm(examples: Ragged, _: Seeds) -> Features:
    return {"targets": examples}


def masked_lm(objective: objectives.MaskedLM, vocabulary: seqio.Vocabulary) -> Convert:
    text_ids, mask = objective.text_ids(vocabulary), objective.mask_token(vocabulary)
    is_text = np.isin(np.arange(vocabulary.vocab_size), text_ids)
    masked_share = np.float32(objective.mask_share)
    replaced_share = np.float32(objective.mask_share + objective.random_share)

    def convert(examples: Ragged, seeds: Seeds) -> Features:
        most = examples.sizes.max()
        exists = np.arange(most) < examples.sizes[:, None]
        for_chance, for_fate, for_id = split_seeds(seeds, 3)
        tokens = examples.values
        selected = is_text[tokens] & (floats(for_chance, most)[exists] < np.float32(objective.noise_density))
        place = np.flatnonzero(selected)
        fate, drawn = floats(for_fate, most)[exists][place], stateless_words(for_id, most)[exists][place]
        replaced = text_ids[drawn % len(text_ids)]
        inputs = tokens.copy()
        inputs[place] = np.where(fate < masked_share, mask, np.where(fate < replaced_share, replaced, tokens[place]))
        told = {"inputs": inputs, "targets": tokens, "selected": 1 + selected.astype(np.int32)}
        return {name: Ragged(ids, examples.sizes) for name, ids in told.items()}

    return convert


# ---- All the way from tokens ----


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What examples are wanted; `seed` is that of the task's preprocessors."""

    objective: Any
    vocabulary: seqio.Vocabulary
    lengths: Lengths
    seed: int

    def chunks(self) -> list[Callable]:
        seeds = SeedStream(self.seed, 0) if self.objective.select_random_chunk else None
        return [_targets, Chunks(CHUNK, seeds)]

    def denoised(self, asks: int, eos: bool = True) -> Denoised:
        """Returns the last stage, which is the `asks`-th preprocessor to ask for seeds."""
        return Denoised(self.lengths, self.vocabulary.eos_id if eos else None, SeedStream(self.seed, asks))


def span_corruption_steps(wanted: Wanted) -> list[Callable]:
    tokens = wanted.objective.lengths(wanted.lengths["inputs"]).tokens
    convert = span_corruption(wanted.objective, wanted.vocabulary, tokens)
    return [*wanted.chunks(), Joined(), in_parts(tokens, convert), wanted.denoised(2)]


def iid_denoising_steps(wanted: Wanted) -> list[Callable]:
    convert = iid_denoising(wanted.objective, wanted.vocabulary)
    return [*wanted.chunks(), Joined(), in_parts(wanted.lengths["inputs"] - 1, convert), wanted.denoised(2)]


def ul2_steps(wanted: Wanted) -> list[Callable]:
    drawn = Drawn(wanted.objective, wanted.vocabulary, wanted.lengths["inputs"], SeedStream(wanted.seed, 1))
    return [*wanted.chunks(), Joined(), drawn, wanted.denoised(2)]


def prefix_lm_steps(wanted: Wanted) -> list[Callable]:
    cut = in_parts(wanted.lengths["inputs"] - 1, prefix_lm)
    return [*wanted.chunks(), without_padding, cut, wanted.denoised(2)]


def full_lm_steps(wanted: Wanted) -> list[Callable]:
    with_eos = functools.partial(Ragged.framed, after=[wanted.vocabulary.eos_id])
    chunks: list[Callable] = [*wanted.chunks(), with_eos]
    if not wanted.objective.select_random_chunk:  # EOS ends a document, not each of its chunks
        chunks = [_targets, nonempty, with_eos, Chunks(CHUNK + 1, None)]
    return [*chunks, Joined(), in_parts(wanted.lengths["targets"], full_lm), wanted.denoised(1, eos=False)]


def masked_lm_steps(wanted: Wanted) -> list[Callable]:
    bos, eos = wanted.vocabulary.bos_id, wanted.vocabulary.eos_id
    framed = functools.partial(Ragged.framed, before=[] if bos is None or bos < 0 else [bos], after=[eos])
    cut = in_parts(wanted.lengths["inputs"], masked_lm(wanted.objective, wanted.vocabulary))
    return [_targets, framed, Joined(), cut, wanted.denoised(1, eos=False)]


def supervised_steps(wanted: Wanted) -> list[Callable]:
    return [lambda features: functools.partial(rows, features, wanted.lengths, wanted.vocabulary.eos_id)]


def _targets(features: Features) -> Ragged:
    return features["targets"]


STEPS: dict[type, Callable[[Wanted], list[Callable]]] = {
    objectives.SpanCorruption: span_corruption_steps,
    objectives.IidDenoising: iid_denoising_steps,
    objectives.UL2: ul2_steps,
    objectives.PrefixLM: prefix_lm_steps,
    objectives.FullLM: full_lm_steps,
    objectives.MaskedLM: masked_lm_steps,
    objectives.Supervised: supervised_steps,
}
