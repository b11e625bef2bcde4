"""Objectives: what a model is asked to do with a text, as SeqIO preprocessors over rows of texts.

An *objective* is a frozen dataclass, in a file of its own. It names the columns it reads (`key_map`) and the
`features` it makes, refuses lengths and vocabularies that would lose tokens (`check`, plain Python, before any data
flows), gives the `steps` that follow tokenization, and knows the way back from an example to its text (`restore`).
`preprocessors` puts the list of a task together. A gin file sets an objective's attributes, whether it is asked for by
name or as @objectives.SpanCorruption():

    from __gin__ import dynamic_registration
    from t5xpg import objectives
    from t5xpg import tasks
    tasks.jsonl_task.objective = "span_corruption"
    objectives.SpanCorruption.mean_noise_span_length = 20

To add one, put a subclass of `base.Objective` in a file next to these, and its name in OBJECTIVES.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import gin
import seqio

from t5xpg.data.tf_functions import without_autograph
from t5xpg.objectives.base import Objective, Step
from t5xpg.objectives.iid_denoising import IidDenoising
from t5xpg.objectives.language_models import FullLM, PrefixLM
from t5xpg.objectives.masked_lm import MaskedLM
from t5xpg.objectives.span_corruption import SpanCorruption
from t5xpg.objectives.supervised import Supervised
from t5xpg.objectives.ul2 import UL2

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
    """Returns the objective of that name, with a gin file's settings; an objective is returned unchanged.

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
    """Returns the preprocessors of a task, from rows of strings to the objective's features.

    Args:
      objective: what follows tokenization.
      cacheable: keep a place after tokenization where SeqIO may read an offline cache. SeqIO then
        shifts the seeds of what follows, so the same seed draws different masks.
    """
    rekey = functools.partial(seqio.preprocessors.rekey, key_map=dict(objective.key_map))
    cache = [seqio.CacheDatasetPlaceholder()] if cacheable else []
    tokenize = [rekey, *objective.text_steps, seqio.preprocessors.tokenize]
    return [*map(without_autograph, tokenize), *cache, *map(without_autograph, objective.steps)]


def output_features(objective: Objective, vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    """Returns the features of a task with that objective: texts that end in EOS, and "selected"."""
    features = {name: seqio.Feature(vocabulary, add_eos=True) for name in objective.features}
    if "selected" in features:
        features["selected"] = seqio.Feature(seqio.PassThroughVocabulary(3), add_eos=False)
    return features
