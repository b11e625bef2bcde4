"""A trained model in Python: text to ids and back, with sentinels by name, and what a model of each kind can do."""

import subprocess
import sys

import numpy as np
import pytest
import seqio
from conftest import TESTS

import t5xpg
from t5xpg.model import pad
from t5xpg.vocabularies.sentinels import decode, encode


@pytest.mark.parametrize(("extra_ids", "first"), [(100, 358), (0, 258)])
def test_sentinels_of_bytes_by_name(extra_ids, first):
    vocabulary = seqio.ByteVocabulary(extra_ids=extra_ids)
    text = "Call me <extra_id_0>, størst<extra_id_1>"
    ids = encode(text, vocabulary)
    head, middle = vocabulary.encode("Call me "), vocabulary.encode(", størst")
    assert ids == [*head, first, *middle, first - 1, 1]
    assert decode([*ids, 0, 0], vocabulary) == text


def test_plain_text_is_the_vocabularys_own():
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    assert encode("größer", vocabulary) == [*vocabulary.encode("größer"), 1]
    assert encode("", vocabulary) == [1]
    assert encode([5, 6], vocabulary) == [5, 6]


def test_decoding_stops_at_eos():
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    assert decode([*vocabulary.encode("yes"), 1, *vocabulary.encode("no")], vocabulary) == "yes"


def test_rows_are_cut_and_padded():
    np.testing.assert_array_equal(pad([[1, 2, 3], [], [4]], (3, 2)), [[1, 2], [0, 0], [4, 0]])


# ---- Restored ----


def test_the_package_loads_it_only_when_asked():
    code = (
        "import sys, t5xpg\nprint('jax' in sys.modules, 'Model' in vars(t5xpg))\n"
        "print(t5xpg.Model.__name__, hasattr(t5xpg, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS.parent, check=True)
    assert done.stdout.split() == ["False", "False", "Model", "False"]


@pytest.fixture(scope="module")
def model(micro_run):
    return t5xpg.Model.restore(str(micro_run[0]), batch_size=2)


def test_texts_and_their_ids_are_the_same_inputs(model):
    vocabulary = model.model.input_vocabulary
    texts, ids = ["the <extra_id_0> shore", "a"], [encode("the <extra_id_0> shore", vocabulary), [100, 1]]
    np.testing.assert_array_equal(model.predict_ids(texts), model.predict_ids(ids))
    assert model.predict(texts) == [decode(row, vocabulary) for row in model.predict_ids(texts)]


def test_scores_are_those_of_the_likeliest_where_these_are_asked(model):
    inputs = ["the shore", "water", "and more"]
    likeliest = model.next_ids(inputs, ["a"] * 3)[:, 0]
    other = np.where(likeliest == 50, 51, 50)
    ours, theirs = (model.score(inputs, [[int(i)] for i in column]) for column in (likeliest, other))
    assert ours.shape == (3,) and (theirs < ours).all() and (ours < 0).all()


def test_steps_are_restored_by_number(micro_run, model):
    assert int(model.train_state.step) == 20
    assert int(t5xpg.Model.restore(str(micro_run[0]), 10, batch_size=2).train_state.step) == 10
    with pytest.raises(ValueError, match=r"has no checkpoint 11; it has \[0, 10, 20\]"):
        t5xpg.Model.restore(str(micro_run[0]), 11)


@pytest.mark.parametrize("folder", [".", "nowhere"])
def test_a_folder_without_checkpoints_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match=r"has no checkpoint; give the MODEL_DIR"):
        t5xpg.Model.restore(str(tmp_path / folder))


def test_what_a_model_cannot_do_is_said(model):
    with pytest.raises(ValueError, match="EncoderDecoderModel is not a masked language model"):
        model.fill_mask("The <mask>.")
    with pytest.raises(ValueError, match="micro is not a task of questions and answers"):
        model.answer("Who?", "Anna.")
    with pytest.raises(ValueError, match="2 inputs and 1 targets"):
        model.score(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="3 examples do not fit batch_size 2"):
        model.train_step(["a"] * 3, ["b"] * 3)
