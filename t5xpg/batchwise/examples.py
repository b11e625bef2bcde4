"""Tokens to examples: what `t5xpg.objectives` do one example at a time, for many.

`STEPS` has the objectives that are known. For each, {feature: `Ragged`} of a block of rows, as tokenized, goes through
stages that end in {feature: int32 [examples, its length]}, EOS included, padded with 0.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import seqio

from t5xpg import objectives
from t5xpg.batchwise import noise
from t5xpg.batchwise.documents import Chunks, Joined, SeedStream, split, without_padding
from t5xpg.batchwise.ragged import Ragged
from t5xpg.batchwise.random_numbers import Seeds, categorical, floats, integers, split_seeds
from t5xpg.batchwise.stages import Block, Stage, joined
from t5xpg.objectives.documents import CHUNK
from t5xpg.objectives.lengths import mask_counts
from t5xpg.vocabularies import sentinels

Lengths = Mapping[str, int]
Features = dict[str, Ragged]
Convert = Callable[[Ragged, Seeds], Features]
_TOKENS = 65_536  # that are masked at a time: what a processor's cache holds
_THREADS = concurrent.futures.ThreadPoolExecutor(os.cpu_count())  # NumPy works outside Python's lock


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
    """Texts -> examples.

    Args:
      tokens: of an example's text.
      convert: makes the features of examples.
      seeds: of the examples.
      rows: makes rows of the features.
    """

    kept = ("_examples",)

    def __init__(self, tokens: int, convert: Convert, seeds: SeedStream, rows: Callable[[Features], Block]):
        self._tokens, self._convert, self._seeds, self._rows = tokens, convert, seeds, rows
        self._examples = 0

    def __call__(self, texts: Ragged) -> Block:
        rest = split(texts, self._tokens)
        parts: list[tuple[Ragged, Seeds]] = []
        while len(rest.sizes) or not parts:
            examples, rest = rest.cut(max(_TOKENS // self._tokens, 1))
            parts.append((examples, self._seeds.of(self._examples, len(examples.sizes))))
            self._examples += len(examples.sizes)
        return joined(*_THREADS.map(lambda part: self._rows(self._convert(*part)), parts))


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
        masked = mask(examples.sizes, seeds) if len(examples.sizes) else np.zeros(0, bool)
        return {
            "inputs": noise.with_sentinels(examples, masked, sentinel),
            "targets": noise.with_sentinels(examples, ~masked, sentinel),
        }

    return convert


def prefix_lm(examples: Ragged, seeds: Seeds) -> Features:
    is_prefix = noise.prefix_mask(examples.sizes, seeds)
    return {"inputs": examples.where(is_prefix), "targets": examples.where(~is_prefix)}


def full_lm(examples: Ragged, seeds: Seeds) -> Features:
    del seeds
    return {"targets": examples}


def masked_lm(objective: objectives.MaskedLM, vocabulary: seqio.Vocabulary) -> Convert:
    text_ids, mask = objective.text_ids(vocabulary), objective.mask_token(vocabulary)
    is_text = np.isin(np.arange(vocabulary.vocab_size), text_ids)
    replaced_share = np.float32(objective.mask_share + objective.random_share)

    def convert(examples: Ragged, seeds: Seeds) -> Features:
        if not len(examples.sizes):
            return dict.fromkeys(objective.features, examples)
        most = examples.sizes.max()
        exists = np.arange(most) < examples.sizes[:, None]
        for_chance, for_fate, for_id = split_seeds(seeds, 3)
        chance, fate = floats(for_chance, most)[exists], floats(for_fate, most)[exists]
        drawn = integers(for_id, most, 0, len(text_ids))[exists]
        tokens = examples.values
        selected = is_text[tokens] & (chance < np.float32(objective.noise_density))
        masked = selected & (fate < np.float32(objective.mask_share))
        replaced = selected & ~masked & (fate < replaced_share)
        inputs = np.where(replaced, text_ids[drawn], np.where(masked, np.int32(mask), tokens))
        told = {"inputs": inputs, "targets": tokens, "selected": 1 + selected.astype(np.int32)}
        return {name: Ragged(ids, examples.sizes) for name, ids in told.items()}

    return convert


class Mixed(Stage):
    """UL2's: texts -> examples, each by a denoiser of its own, and of the length that this one wants.

    Args:
      objective: UL2.
      vocabulary: of the text.
      lengths: of the features.
      seed: of the task's preprocessors.
    """

    kept = ("_texts", "_examples")

    def __init__(self, objective: objectives.UL2, vocabulary: seqio.Vocabulary, lengths: Lengths, seed: int):
        self._lengths, self._eos = lengths, vocabulary.eos_id
        self._draw_seeds, self._seeds = SeedStream(seed, 1), SeedStream(seed, 2)
        self._texts, self._examples = 0, 0
        denoisers = objective.denoisers(lengths["inputs"], vocabulary)
        self._tokens = np.array([denoiser.tokens for denoiser in denoisers])
        self._logits = np.log([denoiser.rate for denoiser in denoisers]).astype(np.float32)
        self._prefixes = [denoiser.prefix for denoiser in denoisers]
        self._converts = [
            span_corruption(denoiser.objective, vocabulary, denoiser.tokens)
            if isinstance(denoiser.objective, objectives.SpanCorruption)
            else prefix_lm
            for denoiser in denoisers
        ]

    def __call__(self, texts: Ragged) -> Block:
        drawn, cut = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        seeds = np.stack(self._draw_seeds.of(self._texts, len(texts.sizes)), 1)
        self._texts += len(texts.sizes)
        for seed, size in zip(seeds, texts.sizes.tolist(), strict=True):
            denoisers = categorical(seed[:, None], size // self._tokens.min() + 1, self._logits)[0]
            ends = np.cumsum(self._tokens[denoisers])
            used = np.count_nonzero(ends - self._tokens[denoisers] < size)
            drawn.append(denoisers[:used])
            cut.append(np.diff(np.minimum(ends[:used], size), prepend=0))
        return self._made(Ragged(texts.values, np.concatenate(cut)), np.concatenate(drawn))

    def _made(self, examples: Ragged, drawn: np.ndarray) -> Block:
        count = len(drawn)
        seeds = self._seeds.of(self._examples, count)
        self._examples += count
        made = {name: np.zeros([count, length], np.int32) for name, length in self._lengths.items()}
        for denoiser, (prefix, convert) in enumerate(zip(self._prefixes, self._converts, strict=True)):
            chosen = drawn == denoiser
            if not chosen.any():
                continue
            features = convert(examples.of(chosen), [part[chosen] for part in seeds])
            features["inputs"] = features["inputs"].framed(before=prefix)
            for name, ids in rows(features, self._lengths, self._eos).items():
                made[name][chosen] = ids
        return made


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

    def denoised(self, tokens: int, convert: Convert, asks: int, eos: bool = True) -> Denoised:
        """Returns the last stage, which is the `asks`-th preprocessor to ask for seeds."""
        finish = functools.partial(rows, lengths=self.lengths, eos=self.vocabulary.eos_id if eos else None)
        return Denoised(tokens, convert, SeedStream(self.seed, asks), finish)


def span_corruption_steps(wanted: Wanted) -> list[Callable]:
    tokens = wanted.objective.lengths(wanted.lengths["inputs"]).tokens
    convert = span_corruption(wanted.objective, wanted.vocabulary, tokens)
    return [*wanted.chunks(), Joined(), wanted.denoised(tokens, convert, 2)]


def iid_denoising_steps(wanted: Wanted) -> list[Callable]:
    convert = iid_denoising(wanted.objective, wanted.vocabulary)
    return [*wanted.chunks(), Joined(), wanted.denoised(wanted.lengths["inputs"] - 1, convert, 2)]


def ul2_steps(wanted: Wanted) -> list[Callable]:
    mixed = Mixed(wanted.objective, wanted.vocabulary, wanted.lengths, wanted.seed)
    return [*wanted.chunks(), Joined(), mixed]


def prefix_lm_steps(wanted: Wanted) -> list[Callable]:
    return [*wanted.chunks(), without_padding, wanted.denoised(wanted.lengths["inputs"] - 1, prefix_lm, 2)]


def full_lm_steps(wanted: Wanted) -> list[Callable]:
    with_eos = functools.partial(Ragged.framed, after=[wanted.vocabulary.eos_id])
    chunks: list[Callable] = [*wanted.chunks(), with_eos]
    if not wanted.objective.select_random_chunk:  # EOS ends a document, not each of its chunks
        chunks = [_targets, lambda documents: with_eos(documents.nonempty), Chunks(CHUNK + 1, None)]
    return [*chunks, Joined(), wanted.denoised(wanted.lengths["targets"], full_lm, 1, eos=False)]


def masked_lm_steps(wanted: Wanted) -> list[Callable]:
    bos, eos = wanted.vocabulary.bos_id, wanted.vocabulary.eos_id
    framed = functools.partial(Ragged.framed, before=[] if bos is None or bos < 0 else [bos], after=[eos])
    convert = masked_lm(wanted.objective, wanted.vocabulary)
    return [_targets, framed, Joined(), wanted.denoised(wanted.lengths["inputs"], convert, 1, eos=False)]


def supervised_steps(wanted: Wanted) -> list[Callable]:
    return [functools.partial(rows, lengths=wanted.lengths, eos=wanted.vocabulary.eos_id)]


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
