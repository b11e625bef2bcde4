"""Helpers of the objectives' tests: a task over a few texts, and texts put together again."""

from __future__ import annotations

import functools
import random

import seqio
import tensorflow as tf

from t5xpg import objectives

BYTES = seqio.ByteVocabulary(extra_ids=100)
BYT5 = seqio.ByteVocabulary()


def room(inputs, targets):
    return {"inputs": inputs, "targets": targets}


def run(objective, texts, lengths, vocabulary=BYTES, seed=42, **kwargs):
    """The examples of an unregistered task over `texts`, as {feature: list of ids}."""
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": texts}),
        splits=["train"],
    )
    task = seqio.Task(
        "a_task",
        source=source,
        preprocessors=objectives.preprocessors(objective),
        output_features=objectives.output_features(objective, vocabulary),
    )
    ds = task.get_dataset(lengths, "train", shuffle=False, seed=seed, **kwargs)
    return [{k: e[k].tolist() for k in objective.features} for e in ds.as_numpy_iterator()]


def run_t5(objective, texts, lengths, seed):
    """As `run`, with t5's preprocessors alone."""
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": texts}),
        splits=["train"],
    )
    key_map = {"inputs": None, "targets": "text"}
    task = seqio.Task(
        "t5s",
        source=source,
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map=key_map),
            seqio.preprocessors.tokenize,
            objective,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={name: seqio.Feature(BYTES) for name in lengths},
    )
    ds = task.get_dataset(lengths, "train", shuffle=False, seed=seed).as_numpy_iterator()
    return [{name: example[name].tolist() for name in lengths} for example in ds]


def random_texts(seed, count=16):
    """UTF-8 of one to four bytes a character, Japanese included, of 1 to 600 characters."""
    rng = random.Random(seed)
    ranges = [(0x20, 0x7E), (0xA1, 0x24F), (0x3041, 0x3096), (0x4E00, 0x9FFF), (0x1F300, 0x1F5FF)]
    return ["".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 600))) for _ in range(count)]


def fill_in(example, vocabulary, sentinels):
    """The text of an example: each sentinel of the inputs replaced by its tokens in the targets."""
    inputs, targets = example["inputs"], example["targets"]
    assert inputs[-1] == targets[-1] == 1, "both features end in EOS"
    last = vocabulary.vocab_size - 1
    spans, current = {}, None
    for token in targets[:-1]:
        if token > last - sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    assert list(spans) == list(range(last, last - len(spans), -1))
    if len(inputs) == 2 and len(spans) == 1 and not spans[last]:
        return inputs[:-1]  # one token of text: nothing could be masked
    used = [token for token in inputs if token > last - sentinels]
    assert used == list(spans), "each sentinel stands once in the inputs, in order"
    assert all(spans.values()), "no masked span is empty"
    return [t for token in inputs[:-1] for t in spans.get(token, [token])]
