"""Turns examples typed by hand into data, and data into such examples, for T5X's InteractiveModel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

Example = str | bytes | Mapping[str, Any]  # {"input": …, "target": …}, or an input alone
Preprocessors = Sequence[Callable[..., tf.data.Dataset]]


def get_dataset_from_natural_text_examples(
    examples: Sequence[Example],
    preprocessors: Preprocessors,
    task_feature_lengths: Mapping[str, int] | None,
    features: Mapping[str, seqio.Feature],
) -> tf.data.Dataset:
    """Returns the examples as {"inputs", "targets"}, preprocessed and cut to `task_feature_lengths`.

    Args:
      examples: inputs, or {"input", "target"}. Both are texts, or both lists of ids, which may differ in length (not so
        on T5X).
      preprocessors: (dataset, and sequence_length and output_features if they name them) -> dataset.
      task_feature_lengths: {feature: maximum length}; None cuts nothing.
      features: those that the result must have.

    Raises:
      ValueError: a feature is missing in the result, or has another dtype or rank than `features` say.
    """
    pairs = [x if isinstance(x, Mapping) else {"input": x, "target": ""} for x in examples]
    columns = {"inputs": [pair["input"] for pair in pairs], "targets": [pair["target"] for pair in pairs]}
    ds = tf.data.Dataset.zip({name: dataset_of(values) for name, values in columns.items()})
    offered = {"sequence_length": task_feature_lengths, "output_features": features}
    for preprocessor in preprocessors:
        accepted = inspect.signature(preprocessor).parameters
        ds = preprocessor(ds, **{name: value for name, value in offered.items() if name in accepted})
    check_features(ds.element_spec, features)
    return seqio.utils.trim_dataset(ds, task_feature_lengths, features).prefetch(tf.data.AUTOTUNE)


def dataset_of(values: list) -> tf.data.Dataset:
    """Returns texts, or lists of ids of any length, one by one."""
    if isinstance(values[0], str | bytes):
        return tf.data.Dataset.from_tensor_slices(values)
    return tf.data.Dataset.from_generator(lambda: iter(values), output_signature=tf.TensorSpec([None], tf.int32))


def check_features(found: Mapping[str, tf.TensorSpec], features: Mapping[str, seqio.Feature]) -> None:
    """Raises ValueError where a dataset is not what `features` say."""
    for name, feature in features.items():
        if name not in found:
            if feature.required:
                raise ValueError(f"After preprocessing there is no feature {name!r}; there are {sorted(found)}.")
            continue
        spec = found[name]
        if (spec.dtype, spec.shape.rank) != (feature.dtype, feature.rank):
            raise ValueError(
                f"After preprocessing {name!r} is {spec.dtype.name} of rank {spec.shape.rank}; it has to be "
                f"{feature.dtype.name} of rank {feature.rank}. Is a preprocessor missing, such as tokenize?"
            )


def get_batches_from_seqio(
    task_or_mixture_name: str,
    split: str,
    batch_size: int,
    num_batches: int,
    get_pretokenized_examples: bool = True,
    sequence_length: Mapping[str, int] | None = None,
    **get_dataset_kwargs,
) -> list[list[dict[str, Any]]]:
    """Returns the first batches of a task or mixture as examples, {"input", "target"} each.

    Args:
      task_or_mixture_name: a registered one.
      split: "train", "validation", …
      batch_size, num_batches: examples of a batch, and batches.
      get_pretokenized_examples: whether to take the texts (bytes) rather than the ids (lists).
      sequence_length: {feature: maximum length}, as the task's preprocessors take it.
      **get_dataset_kwargs: of the task's get_dataset: seed, shuffle, …

    Raises:
      ValueError: the split has fewer examples.
    """
    provider, wanted = seqio.get_mixture_or_task(task_or_mixture_name), batch_size * num_batches
    ds = provider.get_dataset(sequence_length=sequence_length, split=split, **get_dataset_kwargs)
    suffix = "_pretokenized" if get_pretokenized_examples else ""

    def value(row: Mapping[str, Any], name: str):
        found = row[name + suffix]
        return found if get_pretokenized_examples else found.tolist()

    rows = ds.take(wanted).as_numpy_iterator()
    examples = [{"input": value(row, "inputs"), "target": value(row, "targets")} for row in rows]
    if len(examples) < wanted:
        raise ValueError(
            f"{task_or_mixture_name}, split {split}, has {len(examples)} examples; {num_batches} batches of "
            f"{batch_size} need {wanted}."
        )
    return [examples[start : start + batch_size] for start in range(0, wanted, batch_size)]


def get_seqio_task_from_examples(
    task_name: str,
    interactive_model,
    examples: Sequence[Example],
    preprocessors: Preprocessors,
    metric_fns: Sequence[Callable] | None = None,
    add_to_registry: bool = True,
) -> seqio.Task:
    """Returns a task of the examples, the same in its splits "train" and "validation", with the model's features.

    `interactive_model` has the features; `add_to_registry` lets gin files and programs name the task. Without it, T5X
    looks for a registered one.
    """

    def dataset_fn(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del split, shuffle_files, seed
        return get_dataset_from_natural_text_examples(examples, (), interactive_model._task_feature_lengths, {})

    task = functools.partial(seqio.TaskRegistry.add if add_to_registry else seqio.Task, task_name)
    return task(
        source=seqio.FunctionDataSource(dataset_fn, splits=["train", "validation"]),
        preprocessors=preprocessors,
        output_features=interactive_model._features,
        metric_fns=metric_fns,
    )


def repeated(batches: Sequence | None, length: int) -> list:
    """Returns `length` batches: the given ones in turn; a single batch every time; None for each if none is given."""
    if not batches:
        return [None] * length
    batches = as_batches(batches)
    return [batches[i % len(batches)] for i in range(length)]


def as_batches(batches: Sequence | None) -> list:
    """Returns a list of batches; a single batch becomes a list of one."""
    if batches and isinstance(batches[0], str | bytes | Mapping):
        return [batches]
    return list(batches or ())
