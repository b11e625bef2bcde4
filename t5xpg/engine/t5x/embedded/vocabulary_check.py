"""Checks that a task and a model have the same vocabulary, before any step is spent."""

from __future__ import annotations

import importlib

import seqio
from absl import logging


def import_task_module(module: str | None) -> None:
    """Imports the module that registers a task, if one is named."""
    if module:
        import_module(module)


def import_module(module: str) -> None:
    """Imports a module that registers tasks or mixtures.

    Raises:
      RuntimeError: it defines gin configurables, and comes too late for that.
    """
    logging.info("Importing %s", module)
    try:
        importlib.import_module(module)
    except RuntimeError as error:
        if "config was locked" not in str(error):
            raise
        raise RuntimeError(
            f"{module} defines gin configurables and must load before gin's flags are parsed; "
            f"write `import {module}` in the gin file."
        ) from error


def get_vocabulary(cfg) -> tuple[seqio.Vocabulary, seqio.Vocabulary]:
    """Returns the (inputs, targets) vocabularies of a DatasetConfig's task or mixture.

    A task without both features has one vocabulary for both, which all its features must share
    (pass-through ones aside).
    """
    import_task_module(cfg.module)
    provider = cfg.mixture_or_task_name
    if isinstance(provider, str):
        provider = seqio.get_mixture_or_task(provider)
    features = provider.output_features
    if "inputs" in features and "targets" in features:
        return features["inputs"].vocabulary, features["targets"].vocabulary
    everything = [feature.vocabulary for feature in features.values()]
    real = [v for v in everything if not isinstance(v, seqio.PassThroughVocabulary)]
    vocabularies = real or everything
    if not vocabularies or any(v != vocabularies[0] for v in vocabularies):
        raise ValueError(
            f"{provider.name}: features {sorted(features)} do not agree on one vocabulary: "
            f"{[describe(v) for v in vocabularies]}."
        )
    return vocabularies[0], vocabularies[0]


def verify_matching_vocabs(cfg, model) -> None:
    """Raises ValueError unless the task's vocabularies are the model's, which must have room for all their ids.

    The message names the binding to change.
    """
    task = get_vocabulary(cfg)
    wanted = (model.input_vocabulary, model.output_vocabulary)
    config = getattr(getattr(model, "module", None), "config", None)
    rows, needed = getattr(config, "vocab_size", None), max(v.vocab_size for v in wanted)
    if task == wanted and rows and rows < needed:
        raise ValueError(
            f"The model has {rows} embeddings, too few for {describe_pair(wanted)}; bind network.T5Config.vocab_size "
            f"= {-needed // 128 * -128}, the next multiple of 128."
        )
    if task == wanted:
        return
    raise ValueError(
        f"The vocabularies of task {cfg.mixture_or_task_name!r} and of the model differ: the task has "
        f"{describe_pair(task)}, the model {describe_pair(wanted)}. Bind VOCABULARY in the model's gin to the "
        "task's, or register the task with the model's."
    )


def describe_pair(pair: tuple) -> str:
    inputs, targets = (describe(v) for v in pair)
    return inputs if inputs == targets else f"{inputs} for inputs and {targets} for targets"


def describe(vocabulary: seqio.Vocabulary) -> str:
    """Returns e.g. `ByteVocabulary(size 359, extra_ids 100)`, with the file where there is one."""
    parts = [f"size {vocabulary.vocab_size}", f"extra_ids {vocabulary.extra_ids}"]
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    return f"{type(vocabulary).__name__}({', '.join(parts + ([file] if file else []))})"
