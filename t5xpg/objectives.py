"""Objectives: what a model is asked to do with a text, as SeqIO preprocessors over rows of texts.

An *objective* is a frozen dataclass. It names the columns it reads (`key_map`) and the `features`
it makes, refuses lengths and vocabularies that would lose tokens (`check`, plain Python, before any
data flows) and gives the `steps` that follow tokenization. `preprocessors` puts the list of a task
together. A gin file sets an objective's attributes, whether it is asked for by name or as
@objectives.SpanCorruption():

    from __gin__ import dynamic_registration
    from t5xpg import objectives
    from t5xpg import tasks
    tasks.jsonl_task.objective = "span_corruption"
    objectives.SpanCorruption.mean_noise_span_length = 20

T5's own are in `denoising`; here are UL2's mixture, BERT's masking and supervised pairs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import gin
import numpy as np
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

from t5xpg import vocabularies
from t5xpg.denoising import (
    CHUNK,
    Example,
    Features,
    FullLM,
    IidDenoising,
    Lengths,
    Objective,
    PrefixLM,
    SpanCorruption,
    Step,
)
from t5xpg.lengths import fitted_span_corruption_lengths


class _Denoiser(NamedTuple):
    """One part of UL2's mixture, for one inputs length and vocabulary."""

    rate: float  # examples, relative to the other denoisers'
    prefix: list[int]
    objective: SpanCorruption | PrefixLM
    tokens: int  # of text in a full example
    targets: int  # room that holds the targets


@dataclasses.dataclass(frozen=True)
class UL2(Objective):
    """UL2's mixture of denoisers (arXiv:2205.05131, section 3.1 and appendix): one task, one cache.

    Each example is R-denoising (short spans), X-denoising (long or many spans) or S-denoising
    (prefix LM), and its inputs begin with that mode's prefix. Documents are concatenated as for
    span corruption; of one beyond 65,536 tokens each epoch sees one 65,536-token piece.

    Deviations from the paper's `ul2_objective`: the denoiser is drawn for each example instead of
    giving each a seventh of the documents, so that a small corpus or one pass over a validation
    split also has the rates; the prefix has room of its own instead of pushing tokens out of the
    inputs. The paper's Table 1 gives S a mean suffix of a quarter of the text; like its code, this
    parts texts anywhere. The paper's (3, .5) needs 126 sentinels at inputs of length 512.

    Attributes:
      rates: shares of examples of the R-, X- and S-denoisers, relative to each other; within R and
        within X all share alike.
      prefixes: texts before the inputs of R, X and S; "" for none. No separator follows.
      regular: the R-denoisers, each (mean span length, noise density): the paper's (µ, r).
      extreme: the X-denoisers, likewise.
    """

    rates: Sequence[float] = (0.4, 0.4, 0.2)
    prefixes: Sequence[str] = ("[NLU]", "[NLG]", "[S2S]")
    regular: Sequence[tuple[float, float]] = ((3, 0.15), (8, 0.15))
    extreme: Sequence[tuple[float, float]] = ((3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5))

    def __post_init__(self) -> None:
        if len(self.rates) != 3 or min(self.rates) < 0 or not 0 < sum(self.rates) < np.inf:
            raise ValueError(
                "rates are three shares, of the R-, X- and S-denoisers; "
                f"found {self.rates}. UL2 has (0.4, 0.4, 0.2)"
            )
        if len(self.prefixes) != 3:
            raise ValueError(
                f"prefixes are three texts, for the R-, X- and S-denoisers; found {self.prefixes}. "
                "UL2 has ('[NLU]', '[NLG]', '[S2S]')"
            )
        self._mixture()  # refuses settings that SpanCorruption refuses

    def _mixture(self) -> list[tuple[float, str, SpanCorruption | PrefixLM]]:
        """(rate, prefix, objective) of each denoiser that has a rate."""
        parts = (
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

    def denoisers(self, inputs_length: int, vocabulary: seqio.Vocabulary) -> list[_Denoiser]:
        """The mixture, with how much text fills `inputs_length` and how long its targets are.

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
            made.append(_Denoiser(rate, prefix, objective, tokens, targets))
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

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """After `check`, cuts the text into examples and corrupts each by its own denoiser."""
        vocabulary = self._checked(sequence_length, output_features)
        denoisers = self.denoisers(sequence_length["inputs"], vocabulary)
        texts = t5_preprocessors.select_random_chunk(dataset, output_features, CHUNK)
        texts = t5_preprocessors.reduce_concat_tokens(texts)
        draw = functools.partial(_draw, denoisers=denoisers)
        corrupt = functools.partial(_corrupt, denoisers=denoisers, output_features=output_features)
        examples = seqio.map_over_dataset(draw, num_seeds=1)(texts).flat_map(_cut)
        return seqio.map_over_dataset(corrupt, num_seeds=1)(examples)


def _draw(text: Example, seed: tf.Tensor, denoisers: Sequence[_Denoiser]) -> Example:
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


def _corrupt(
    example: Example, seed: tf.Tensor, denoisers: Sequence[_Denoiser], output_features: Features
) -> Example:
    """What `_cut` gives -> {"inputs", "targets"}: int32 without EOS, the prefix in the inputs."""

    def by(denoiser: _Denoiser) -> Example:
        targets = {"targets": example["targets"]}
        made = denoiser.objective.convert_example(targets, seed, output_features)
        prefix = tf.constant(denoiser.prefix, tf.int32)
        return {**made, "inputs": tf.concat([prefix, made["inputs"]], 0)}

    branches = [functools.partial(by, denoiser) for denoiser in denoisers]
    return tf.switch_case(example["denoiser"], branches)


@dataclasses.dataclass(frozen=True)
class MaskedLM(Objective):
    """BERT's masking (arXiv:1810.04805, section 3.1), for encoder-only models, anew in every epoch.

    Each token is selected with chance `noise_density`, never a special one; the model predicts the
    original of those selected. Of them, `mask_share` become the mask, `random_share` a random token
    of text, the others stay. Documents begin with BOS, where the vocabulary has one, and end in
    EOS; they are concatenated 128 at a time and cut to the inputs length. Deviation from BERT:
    random tokens are never special ones (0 would be padding).

    Features, of equal length: "inputs" as the model reads them, "targets" the original tokens,
    "selected" 2 where the model predicts and 1 elsewhere (SeqIO's packing would drop zeros).

    Attributes:
      noise_density: chance of a token to be selected.
      mask_share: of the selected tokens, those that become the mask.
      random_share: of the selected tokens, those that become a random one.
      mask_id: the mask; None is the vocabulary's own, or its last id where that is a sentinel.
    """

    noise_density: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    mask_id: int | None = None

    key_map: ClassVar[Mapping[str, str | None]] = {"targets": "text"}
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets", "selected")

    def __post_init__(self) -> None:
        if not 0 < self.noise_density <= 1:
            raise ValueError(
                f"noise_density is a share between 0 and 1; found {self.noise_density}. "
                "BERT has 0.15"
            )
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                "mask_share and random_share are shares of one whole; "
                f"found {self.mask_share} and {self.random_share}. BERT has 0.8 and 0.1"
            )

    @property
    def steps(self) -> list[Step]:
        """BOS and EOS are around documents, not examples."""
        return [_prepend_bos, seqio.preprocessors.append_eos, self.convert]

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths that differ, and a vocabulary without a mask.

        Raises:
          ValueError: what is wrong and what to pass.
        """
        lengths = self._lengths(sequence_length)
        if len(set(lengths)) > 1 or lengths[0] < 1:
            aligned = dict.fromkeys(self.features, max(*lengths, 1))
            raise ValueError(
                f"{self}: {', '.join(self.features)} stand side by side and need one length; found "
                f"{dict(sequence_length)}. Set the feature lengths to {aligned}"
            )
        self.mask_token(vocabulary)

    def mask_token(self, vocabulary: seqio.Vocabulary) -> int:
        """The id of the mask.

        Raises:
          ValueError: the vocabulary has none.
        """
        last = vocabulary.vocab_size - 1
        found = getattr(vocabulary, "mask_id", None) if self.mask_id is None else self.mask_id
        if found is None and vocabularies.sentinels(vocabulary):
            found = last
        if found is None or not 0 < found <= last:
            raise ValueError(
                f"{self}: {vocabularies.describe(vocabulary)} has no id for the mask. Use "
                "extra_ids=100 in the task and the model, or set mask_id to one of its ids"
            )
        return found

    def text_ids(self, vocabulary: seqio.Vocabulary) -> np.ndarray:
        """The ids that stand for text, int32: none of pad, EOS, BOS, unk, mask and sentinels."""
        stand_for_text = np.ones(vocabulary.vocab_size, bool)
        stand_for_text[vocabulary.vocab_size - vocabularies.sentinels(vocabulary) :] = False
        named = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.bos_id, vocabulary.unk_id)
        special = [i for i in named if i is not None and i >= 0]
        stand_for_text[[*special, self.mask_token(vocabulary)]] = False
        return np.flatnonzero(stand_for_text).astype(np.int32)

    def convert(
        self, dataset: tf.data.Dataset, sequence_length: Lengths, output_features: Features
    ) -> tf.data.Dataset:
        """After `check`, {"inputs", "targets", "selected"}: int32 [<= inputs length] each."""
        vocabulary = self._checked(sequence_length, output_features)
        texts = t5_preprocessors.reduce_concat_tokens(dataset)
        examples = t5_preprocessors.split_tokens(
            texts, max_tokens_per_segment=sequence_length["inputs"]
        )
        mask = functools.partial(self.convert_example, vocabulary=vocabulary)
        return seqio.map_over_dataset(mask, num_seeds=1)(examples)

    def convert_example(
        self, example: Example, seed: tf.Tensor, vocabulary: seqio.Vocabulary
    ) -> Example:
        """Masks {"targets": int32 [tokens]}; seed is int32 [2]."""
        text_ids = self.text_ids(vocabulary)
        is_text = np.isin(np.arange(vocabulary.vocab_size), text_ids)
        tokens = example["targets"]  # [tokens], as all that follows
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        chance = tf.random.stateless_uniform(tf.shape(tokens), seeds[0])
        fate = tf.random.stateless_uniform(tf.shape(tokens), seeds[1])
        drawn = tf.random.stateless_uniform(
            tf.shape(tokens), seeds[2], 0, len(text_ids), dtype=tf.int32
        )
        selected = tf.gather(is_text, tokens) & (chance < self.noise_density)
        masked = selected & (fate < self.mask_share)
        replaced = selected & ~masked & (fate < self.mask_share + self.random_share)
        inputs = tf.where(masked, self.mask_token(vocabulary), tokens)
        inputs = tf.where(replaced, tf.gather(text_ids, drawn), inputs)
        return {"inputs": inputs, "targets": tokens, "selected": 1 + tf.cast(selected, tf.int32)}


def _prepend_bos(dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
    """{"targets": int32 [tokens]} -> one more, where the vocabulary has a BOS."""
    bos = output_features["targets"].vocabulary.bos_id
    if bos is None or bos < 0:
        return dataset
    return dataset.map(lambda row: {**row, "targets": tf.concat([[bos], row["targets"]], 0)})


@dataclasses.dataclass(frozen=True)
class Supervised(Objective):
    """Pairs of texts: rows {"inputs", "targets"}, each cut to its feature's length, then EOS.

    Attributes:
      prefix: a text put before each inputs, such as "summarize: ".
    """

    prefix: str = ""

    key_map: ClassVar[Mapping[str, str | None]] = {"inputs": "inputs", "targets": "targets"}

    @property
    def text_steps(self) -> list[Step]:
        """Puts the prefix before the inputs."""
        return [functools.partial(_prepend, prefix=self.prefix)] if self.prefix else []

    @property
    def steps(self) -> list[Step]:
        """No step asks for lengths: T5X's infer_eval reads pairs without."""
        return [seqio.preprocessors.append_eos_after_trim]

    def check(self, sequence_length: Lengths | None, vocabulary: seqio.Vocabulary) -> None:
        """Refuses lengths that hold nothing but EOS.

        Raises:
          ValueError: what is wrong and what to pass.
        """
        del vocabulary  # any will do: no sentinels
        if min(self._lengths(sequence_length)) < 2:
            raise ValueError(
                f"{self}: feature lengths {dict(sequence_length)} hold no text beside EOS. "
                "Use 2 or more"
            )


@seqio.map_over_dataset
def _prepend(row: Example, prefix: str) -> Example:
    return {**row, "inputs": tf.strings.join([prefix, row["inputs"]])}


OBJECTIVES = {
    "span_corruption": SpanCorruption,
    "iid_denoising": IidDenoising,
    "prefix_lm": PrefixLM,
    "full_lm": FullLM,
    "ul2": UL2,
    "mlm": MaskedLM,
    "supervised": Supervised,
}


def get(objective: str | Objective) -> Objective:
    """The objective of that name, with what a gin file sets; an objective is returned as it is.

    Raises:
      ValueError: there is none of that name.
    """
    if not isinstance(objective, str):
        return objective
    if objective not in OBJECTIVES:
        raise ValueError(f"no objective {objective!r}. Use one of {sorted(OBJECTIVES)}")
    make: Callable[[], Objective] = OBJECTIVES[objective]
    with contextlib.suppress(ValueError):  # no gin file names it
        make = gin.get_configurable(make)
    return make()


def preprocessors(objective: Objective, cacheable: bool = False) -> list[Step]:
    """The preprocessors of a task, from rows of strings to the objective's features.

    Args:
      objective: what follows tokenization.
      cacheable: keep a place after tokenization where SeqIO may read an offline cache. SeqIO then
        shifts the seeds of what follows, so the same seed draws other masks.
    """
    rekey = functools.partial(seqio.preprocessors.rekey, key_map=dict(objective.key_map))
    cache = [seqio.CacheDatasetPlaceholder()] if cacheable else []
    tokenize = [rekey, *objective.text_steps, seqio.preprocessors.tokenize]
    return [*tokenize, *cache, *objective.steps]


def output_features(objective: Objective, vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    """The features of a task with that objective: texts that end in EOS, and "selected"."""
    features = {name: seqio.Feature(vocabulary, add_eos=True) for name in objective.features}
    if "selected" in features:
        features["selected"] = seqio.Feature(seqio.PassThroughVocabulary(3), add_eos=False)
    return features
