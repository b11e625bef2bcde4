"""Documents beyond 65,536 tokens: nothing is left out, and what is shorter is t5's to the bit."""

from __future__ import annotations

import itertools
import json

import gin
import numpy as np
import pytest
import seqio
from objective_runs import BYTES, random_texts, room, run, run_t5
from t5.data import preprocessors as t5_preprocessors

from t5xpg import objectives, tasks
from t5xpg.objectives import UL2, FullLM, IidDenoising, PrefixLM, SpanCorruption

LIMIT = 65_536
LONG = "".join(map(chr, np.random.default_rng(0).integers(97, 123, 2 * LIMIT + 9000)))
DOCUMENTS = ["short", LONG, "", LONG[:LIMIT], "and short again"]
UNMARKED_UL2 = {"prefixes": ("", "", ""), "regular": ((3, 0.15),), "extreme": ((16, 0.15),)}
CASES = {
    "span_corruption": (SpanCorruption, {}, room(512, 114)),
    "iid_denoising": (IidDenoising, {}, room(512, 224)),
    "prefix_lm": (PrefixLM, {}, room(512, 511)),
    "full_lm": (FullLM, {}, {"targets": 512}),
    "ul2": (UL2, UNMARKED_UL2, room(512, 511)),
}
T5S = {
    SpanCorruption: t5_preprocessors.span_corruption,
    IidDenoising: t5_preprocessors.iid_denoising,
    PrefixLM: t5_preprocessors.prefix_lm,
}
case = pytest.mark.parametrize("kind, settings, lengths", CASES.values(), ids=CASES)


def restored(objective, examples):
    """The tokens that examples were made from, in their order; EOS only where it is one of them."""
    if isinstance(objective, FullLM):
        return [token for example in examples for token in example["targets"]]
    arrays = [{name: np.array(ids) for name, ids in example.items()} for example in examples]
    return list(itertools.chain.from_iterable(objective.restore(example, BYTES)[0] for example in arrays))


@case
def test_every_token_of_a_long_document_is_trained_on_in_each_epoch(kind, settings, lengths):
    objective = kind(**settings)
    end = [1] if kind is FullLM else []  # of a document, not of its chunks
    expected = [token for text in DOCUMENTS if text for token in [*BYTES.encode(text), *end]]
    assert restored(objective, run(objective, DOCUMENTS, lengths)) == expected


def test_a_task_gives_all_of_a_long_document_in_each_epoch(tmp_path):
    """By the task that both engines read, shuffled, its tokens counted: there are no others in the file."""
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": LONG}) + "\n")
    name = tasks.jsonl_task("long_document", {"train": f"{tmp_path}/long.jsonl"}, vocabulary=BYTES)
    task = seqio.TaskRegistry.get(name)
    ds = task.get_dataset(room(512, 114), "train", shuffle=True, seed=3, num_epochs=2)
    arrays = [example[feature] for example in ds.as_numpy_iterator() for feature in ("inputs", "targets")]
    ids = np.concatenate(arrays)
    counts = np.bincount(ids[(ids >= 3) & (ids < 259)] - 3, minlength=256)
    np.testing.assert_array_equal(counts, 2 * np.bincount(list(LONG.encode()), minlength=256))


@case
def test_t5s_way_is_one_random_chunk(kind, settings, lengths):
    objective = kind(**settings, select_random_chunk=True)
    made = run(objective, [LONG], lengths, seed=7)
    text = restored(objective, made)
    chunks = [BYTES.encode(LONG[start : start + LIMIT]) for start in range(0, len(LONG), LIMIT)]
    assert (text[:-1] if kind is FullLM else text) in chunks
    if kind in T5S:
        assert made == run_t5(T5S[kind], [LONG], lengths, seed=7)


@case
def test_documents_up_to_the_limit_are_t5s_to_the_bit(kind, settings, lengths):
    texts = [*random_texts(3), "", LONG[:LIMIT], "the end"]
    made = run(kind(**settings), texts, lengths, seed=7)
    assert made == run(kind(**settings, select_random_chunk=True), texts, lengths, seed=7)
    if kind in T5S:
        assert made == run_t5(T5S[kind], texts, lengths, seed=7)


def test_gin_asks_for_t5s_way():
    gin.parse_config("""
        from __gin__ import dynamic_registration
        from t5xpg import objectives
        objectives.SpanCorruption.select_random_chunk = True
    """)
    assert objectives.get("span_corruption") == SpanCorruption(0.15, 3, select_random_chunk=True)
    assert objectives.get("ul2") == UL2()
