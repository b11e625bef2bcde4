"""The check that a task and a model speak the same vocabulary."""

import types

import pytest
import seqio

from t5x.embedded.datasets import DatasetConfig
from t5x.embedded.vocabulary_check import get_vocabulary, import_task_module, verify_matching_vocabs
from t5xpg import tasks


def config(name="wikitext_span_corruption", **changes):
    values = {"mixture_or_task_name": name, "task_feature_lengths": {}, "split": "train", "batch_size": 1}
    return DatasetConfig(**values, shuffle=False, seed=0, **changes)


def model(inputs, targets=None):
    return types.SimpleNamespace(input_vocabulary=inputs, output_vocabulary=targets or inputs)


def test_equal_vocabularies_pass():
    assert get_vocabulary(config()) == (tasks.vocabulary, tasks.vocabulary)
    verify_matching_vocabs(config(), model(seqio.ByteVocabulary(extra_ids=100)))


def test_the_error_names_types_sizes_extra_ids_and_the_binding():
    with pytest.raises(ValueError) as error:
        verify_matching_vocabs(config(), model(seqio.ByteVocabulary(extra_ids=0)))
    for part in (
        "'wikitext_span_corruption'",
        "the task has ByteVocabulary(size 359, extra_ids 100)",
        "the model ByteVocabulary(size 259, extra_ids 0)",
        "Bind VOCABULARY",
    ):
        assert part in str(error.value)


def test_a_model_too_small_for_its_vocabulary_is_refused():
    small = model(seqio.ByteVocabulary(extra_ids=100))
    small.module = types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=384))
    verify_matching_vocabs(config(), small)
    small.module.config.vocab_size = 358
    with pytest.raises(ValueError, match="358 embeddings.*size 359.*network.T5Config.vocab_size = 384"):
        verify_matching_vocabs(config(), small)


def test_different_sides_are_told_apart():
    one, other = seqio.ByteVocabulary(extra_ids=100), seqio.ByteVocabulary(extra_ids=1)
    with pytest.raises(ValueError, match="extra_ids 100.* for inputs and .*extra_ids 1.* for targets"):
        verify_matching_vocabs(config(), model(one, other))


def test_a_module_that_is_not_there_is_an_import_error():
    with pytest.raises(ModuleNotFoundError):
        import_task_module("no_such_module_of_tasks")
