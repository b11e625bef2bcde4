"""What a model will see of a task: examples taken apart, and numbers over a sample of its corpus.

    seen = measurements.inspect("wikitext_span_corruption", {"inputs": 512, "targets": 114})
    seen.examples[0].text          # the text's tokens, each marked as noise or not
    seen.sample.noise_density      # of a sample of whole rows
    seen.epoch.steps               # of the whole split

The sample is one epoch over the first rows of the shuffled split, through the task's own
preprocessors: so examples per row, and with them the length of an epoch, are measured, not guessed.
A *token* here is an id that is not padding. A *packed row* is what SeqIO's packing makes from
examples: one row of a batch.
"""

from __future__ import annotations

import dataclasses
import inspect as inspect_lib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import seqio
import tensorflow as tf
from tqdm import tqdm

from t5xpg import objectives, vocabularies
from t5xpg.base import nearest
from t5xpg.data.jsonl_task import JsonlTask
from t5xpg.inspection.readable import Token, tokens
from t5xpg.vocabularies import sentinels as sentinel_ids

DEFAULT_LENGTH = 512  # tokens; of every feature whose length nobody gave
DEFAULT_BATCH_SIZE = 128  # that of T5X's pretrain.gin
WINDOWS = 256  # of up to 1 MiB of a split, looked at for remarks


@dataclasses.dataclass(frozen=True)
class Example:
    """One example, before packing.

    Attributes:
      features: {"inputs", "targets", "decoder inputs": tokens}, those that the task has.
      text: what inputs and targets were made from, noise marked; None where they are two texts.
    """

    features: Mapping[str, list[Token]]
    text: list[Token] | None


@dataclasses.dataclass(frozen=True)
class FeatureLengths:
    """How one feature fills its room.

    Attributes:
      room: length that the model is given, in tokens.
      lengths: int64 [examples], tokens of each.
      packed: int64 [packed rows], tokens of each.
    """

    room: int
    lengths: np.ndarray
    packed: np.ndarray

    @property
    def efficiency(self) -> float:
        """Share of a batch that is tokens and not padding, without packing."""
        return float(self.lengths.mean() / self.room)

    @property
    def packed_efficiency(self) -> float:
        """The same with packing."""
        return float(self.packed.mean() / self.room)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Numbers of a sample: one epoch over `rows` rows of the corpus.

    Attributes:
      rows: of the corpus; None for a mixture, whose tasks repeat each at its rate.
      features: {feature: lengths}.
      text_tokens: of all examples whose text is known, EOS not counted.
      noise_tokens: those of them that the model predicts.
      span_tokens: noise tokens that sentinels stand for; UL2's S-denoiser has no sentinels.
      sentinels: int64 [examples], how many the inputs of each have.
      sentinels_available: how many the vocabulary has.
    """

    rows: int | None
    features: Mapping[str, FeatureLengths]
    text_tokens: int
    noise_tokens: int
    span_tokens: int
    sentinels: np.ndarray
    sentinels_available: int

    @property
    def examples(self) -> int:
        return len(self.sentinels)

    @property
    def packed_rows(self) -> int:
        return len(next(iter(self.features.values())).packed)

    @property
    def noise_density(self) -> float | None:
        """Share of the text's tokens that is noise; None where there is no mask."""
        return self.noise_tokens / self.text_tokens if self.text_tokens else None

    @property
    def mean_span(self) -> float | None:
        """Noise tokens per sentinel; None where the task has no sentinels."""
        return self.span_tokens / self.sentinels.sum() if self.sentinels.any() else None

    @property
    def tokens(self) -> int:
        """Tokens of inputs and targets together, or of whichever the task has."""
        read = [name for name in ("inputs", "targets") if name in self.features]
        return int(sum(self.features[name].lengths.sum() for name in read))


class Epoch(NamedTuple):
    """One pass over the split, estimated from a sample."""

    corpus_rows: int
    examples: int
    packed_rows: int
    steps: int  # at `batch_size`, of packed rows or of examples
    batch_size: int
    pack: bool


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect` found; `epoch` is None where the split's rows cannot be counted, and remarks may be none."""

    task: str
    split: str
    description: Mapping[str, str]
    examples: list[Example]
    sample: Sample
    epoch: Epoch | None
    remarks: Sequence[str] = ()


def inspect(
    task: str,
    lengths: Mapping[str, int] | None = None,
    split: str = "train",
    *,
    rows: int = 1000,
    examples: int = 3,
    batch_size: int = DEFAULT_BATCH_SIZE,
    pack: bool = True,
    shuffle: bool = True,
    seed: int = 0,
) -> Inspection:
    """Takes a sample of a task and says what a model would see of it. Reads no offline cache.

    Args:
      task: a registered task or mixture.
      lengths: {feature: length in tokens}; None is `default_lengths`.
      split: of the task.
      rows: how many rows of the corpus to sample; for a mixture, examples.
      examples: how many to take apart.
      batch_size: packed rows (or examples, without pack) of one training step.
      pack: whether training packs; decides how many steps an epoch has.
      shuffle: whether training shuffles, for remarks about that; the sample is shuffled in any case.
      seed: of shuffling and masking.

    Raises:
      ValueError: no such task or split, lengths that cannot work, or no example to show.
    """
    if min(rows, examples) < 1:
        raise ValueError(f"a sample of {rows} rows, {examples} shown: both must be 1 or more.")
    provider = find(task)
    if split not in provider.splits:
        hint = nearest.hint(split, provider.splits) or "."
        raise ValueError(f"{task} has no split {split!r}; it has {sorted(provider.splits)}{hint}")
    lengths = dict(lengths or default_lengths(provider))
    found = read(provider, lengths, split, rows, seed)
    if not found:
        raise ValueError(f"{task}: {rows} rows of split {split!r} make no example. Take more rows.")
    sample, epoch = measure(provider, found, lengths), None
    if isinstance(provider, seqio.Task) and (corpus_rows := provider.num_input_examples(split)):
        sample = dataclasses.replace(sample, rows=min(rows, corpus_rows))
        epoch = estimate_epoch(sample, corpus_rows, batch_size, pack)
    shown = [take_apart(example, provider) for example in found[:examples]]
    return Inspection(task, split, describe(provider), shown, sample, epoch, remarks(provider, split, shuffle))


def remarks(provider: seqio.Task | seqio.Mixture, split: str, shuffle: bool) -> list[str]:
    """Returns what a user should know about the JSONL files of a task or mixture; see `JsonlTask.remarks`."""
    ours = [task for task in seqio.get_subtasks(provider) if isinstance(task, JsonlTask) and split in task.splits]
    return [remark for task in ours for remark in task.remarks(split, shuffle, WINDOWS)]


def find(name: str) -> seqio.Task | seqio.Mixture:
    """Returns the task or mixture of that name; ValueError where there is none."""
    known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if name not in known:
        hint = nearest.hint(name, known) or "."
        raise ValueError(f"no task or mixture {name!r}. `t5xpg tasks` lists them; --module imports yours{hint}")
    return seqio.get_mixture_or_task(name)


def default_lengths(provider: seqio.Task | seqio.Mixture) -> dict[str, int]:
    """Returns 512 for each feature; span corruption's targets as long as its inputs make them."""
    lengths = dict.fromkeys(provider.output_features, DEFAULT_LENGTH)
    objective = objective_of(provider)
    if isinstance(objective, objectives.SpanCorruption | objectives.IidDenoising):
        lengths["targets"] = objective.lengths(DEFAULT_LENGTH).targets
    return lengths


def objective_of(provider: seqio.Task | seqio.Mixture) -> objectives.Objective | None:
    """Returns the objective among a task's preprocessors, if one of them is an objective's own method."""
    steps = map(inspect_lib.unwrap, getattr(provider, "preprocessors", ()))
    owners = [getattr(step, "__self__", None) for step in steps]
    return next((owner for owner in owners if isinstance(owner, objectives.Objective)), None)


def _describe_rate(mixture: seqio.Mixture, task: seqio.Task) -> str:
    try:
        return f" × {mixture.get_rate(task):g}"
    except Exception:  # whatever a rate that is counted in data raises where the data are not at hand
        return ""


def describe(provider: seqio.Task | seqio.Mixture) -> dict[str, str]:
    """Returns what a task is made of, in words: its source, objective, vocabulary and splits."""
    vocabulary = vocabularies.describe(provider.output_features["targets"].vocabulary)
    if isinstance(provider, seqio.Mixture):
        mixed = ", ".join(f"{task.name}{_describe_rate(provider, task)}" for task in provider.tasks)
        return {"source": mixed, "objective": "mixture", "vocabulary": vocabulary, "splits": ""}
    steps = " → ".join(seqio.utils.function_name(step) for step in provider.preprocessors)
    objective = getattr(provider, "jsonl_arguments", {}).get("objective", steps)
    splits = "" if isinstance(provider.source, seqio.TfdsDataSource) else ", ".join(provider.splits)
    return {
        "source": _describe_source(provider.source),
        "objective": objective,
        "vocabulary": vocabulary,
        "splits": splits,  # TFDS would ask the network for them
    }


def _describe_source(source: seqio.DataSource) -> str:
    """Returns the files of one of this package's sources; for any other, its type."""
    if not isinstance(getattr(source, "files", None), Mapping):
        return type(source).__name__
    by_split = [[f] if isinstance(f, str | os.PathLike) else f for f in source.files.values()]
    return ", ".join(dict.fromkeys(os.fspath(file) for files in by_split for file in files))


# ---- Reading ----


def read(
    provider: seqio.Task | seqio.Mixture,
    lengths: Mapping[str, int],
    split: str,
    rows: int,
    seed: int,
) -> list[dict[str, np.ndarray]]:
    """Reads one epoch over `rows` shuffled rows of a task, or `rows` examples of a mixture.

    Returns:
      [{feature: int32 [<= its length]}] of the features in `lengths`, in an order made by `seed`.
    """
    if isinstance(provider, seqio.Task):
        dataset = _with_rows(provider, rows).get_dataset(
            lengths, split, shuffle=True, seed=seed, try_in_mem_cache=False
        )
    else:
        dataset = provider.get_dataset(lengths, split, shuffle=True, seed=seed).take(rows)
    if missing := set(lengths) - set(dataset.element_spec):
        found = sorted(provider.output_features)
        raise ValueError(f"{provider.name} has no feature {sorted(missing)}; it has {found}.")
    dataset = dataset.map(lambda example: {name: example[name] for name in lengths})
    return list(tqdm(dataset.as_numpy_iterator(), "reading examples", unit="ex", delay=2, leave=False))


def text_bytes(task: seqio.Task, split: str, rows: int, seed: int) -> int:
    """Returns the bytes of all text in the rows of which `read` makes examples, in UTF-8."""
    found = _FirstRows(task.source, rows).get_dataset(split, shuffle=True, seed=seed).as_numpy_iterator()
    values = (value for row in found for column in tf.nest.flatten(row) for value in np.asarray(column, object).flat)
    return sum(len(value) for value in values if isinstance(value, bytes))


def _with_rows(task: seqio.Task, rows: int) -> seqio.Task:
    """Returns an unregistered task like `task` whose splits end after `rows` rows."""
    return seqio.Task(
        task.name,
        source=_FirstRows(task.source, rows),
        output_features=task.output_features,
        preprocessors=task.preprocessors,
    )


class _FirstRows(seqio.DataSource):
    """The first `rows` rows that another source gives, which come shuffled if it shuffles."""

    def __init__(self, source: seqio.DataSource, rows: int):
        self._source, self._rows = source, rows
        super().__init__(source.splits)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return False

    def list_shards(self, split: str) -> list[str]:
        return [split]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
    ) -> tf.data.Dataset:
        rows = self._source.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)
        return rows.take(self._rows)


# ---- Measuring ----


def measure(
    provider: seqio.Task | seqio.Mixture,
    examples: Sequence[Mapping[str, np.ndarray]],
    lengths: Mapping[str, int],
) -> Sample:
    """Returns the numbers of a sample of examples; `rows` is None."""
    vocabulary = provider.output_features["targets"].vocabulary
    first = sentinel_ids.first(vocabulary)
    inputs = [example.get("inputs", np.zeros(0, np.int32)) for example in examples]
    texts = [restore(example, provider) or ((), ()) for example in examples]
    noise_tokens = np.array([np.count_nonzero(noise) for _, noise in texts])
    sentinels = np.array([np.count_nonzero(ids >= first) for ids in inputs])
    packed = pack_lengths(examples, lengths)
    features = {}
    for name, room in lengths.items():
        counts = np.array([np.count_nonzero(example[name]) for example in examples])
        features[name] = FeatureLengths(room, counts, packed[name])
    return Sample(
        rows=None,
        features=features,
        text_tokens=sum(len(ids) for ids, _ in texts),
        noise_tokens=int(noise_tokens.sum()),
        span_tokens=int(noise_tokens[sentinels > 0].sum()),
        sentinels=sentinels,
        sentinels_available=sentinel_ids.count(vocabulary),
    )


def pack_lengths(examples: Sequence[Mapping[str, np.ndarray]], lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Packs by SeqIO's own operation; returns {feature: int64 [packed rows], tokens of each}."""
    spec = {name: tf.TensorSpec([None], tf.int32) for name in lengths}
    dataset = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=spec)
    rows = seqio.utils.trim_and_pack_dataset(dataset, lengths).as_numpy_iterator()
    counts = [
        [np.count_nonzero(row[f"{name}_segment_ids"]) for name in lengths]
        for row in tqdm(rows, "packing", unit="row", delay=2, leave=False)
    ]
    return dict(zip(lengths, np.array(counts).T, strict=True))


def estimate_epoch(sample: Sample, corpus_rows: int, batch_size: int, pack: bool) -> Epoch:
    """Scales a sample of known rows to the split: the last packed row and batch of an epoch count as whole."""
    scale = corpus_rows / (sample.rows or corpus_rows)
    examples, packed_rows = round(sample.examples * scale), round(sample.packed_rows * scale)
    steps = -(-(packed_rows if pack else examples) // batch_size)
    return Epoch(corpus_rows, examples, packed_rows, steps, batch_size, pack)


def histogram(lengths: np.ndarray, room: int, bins: int) -> list[tuple[int, int, int]]:
    """Returns [(shortest, longest, how many)] in at most `bins` bins, as even as can be, from 1 to room.

    The first bin counts empty examples, too.
    """
    edges = np.arange(bins + 1) * room // bins if room > bins else np.arange(room + 1)
    counts = np.histogram(np.maximum(lengths, 1), edges + 0.5)[0]
    return [
        (int(low) + 1, int(high), int(count)) for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


# ---- Examples ----


def restore(
    example: Mapping[str, np.ndarray], provider: seqio.Task | seqio.Mixture
) -> tuple[list[int], list[bool]] | None:
    """Returns the text that an example was made from: (ids, which of them are noise), without BOS and EOS.

    In UL2's examples the prefix is part of the text. None where inputs and targets are two texts,
    or targets are all there is.
    """
    objective = objective_of(provider)
    if objective is None:  # a mixture, or a task of another package: its examples tell
        objective = objectives.MaskedLM() if "selected" in example else objectives.SpanCorruption()
    if not {"inputs", "targets"} <= set(example):
        return None
    return objective.restore(example, provider.output_features["targets"].vocabulary)


def take_apart(example: Mapping[str, np.ndarray], provider: seqio.Task | seqio.Mixture) -> Example:
    """Makes an example readable, token by token."""
    vocabulary = provider.output_features["targets"].vocabulary
    features = {
        name: tokens(example[name], provider.output_features[name].vocabulary)
        for name in ("inputs", "targets")
        if name in example
    }
    if "selected" in example:  # an encoder alone: nothing is shifted
        features["inputs"] = _mark(features["inputs"], (example["selected"] == 2).tolist())
    else:
        shifted = np.concatenate([[0], example["targets"][:-1]])  # the decoder starts with id 0
        features["decoder inputs"] = tokens(shifted, vocabulary)
    restored = restore(example, provider)
    text = restored and _mark(tokens(restored[0], vocabulary), restored[1])
    return Example(features, text)


def _mark(marked: list[Token], noise: Sequence[bool]) -> list[Token]:
    kinds = ["noise" if n else t.kind for t, n in zip(marked, noise, strict=True)]
    return [t._replace(kind=kind) for t, kind in zip(marked, kinds, strict=True)]
