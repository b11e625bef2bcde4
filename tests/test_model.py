"""A trained model in Python: text to ids and back, with sentinels by name, and what a model of each kind can do."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
from conftest import TESTS
from flax.core import freeze, unfreeze

import t5xpg
from t5x import decoding, models
from t5xpg import model as model_lib
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
    with pytest.raises(ValueError, match="EncoderDecoderModel is not a masked language model. .*`t5xpg predict RUN"):
        model.fill_mask("The <mask>.")
    with pytest.raises(ValueError, match="micro is not a task of questions and answers"):
        model.answer("Who?", "Anna.")
    with pytest.raises(ValueError, match="2 inputs and 1 targets"):
        model.score(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="3 examples do not fit batch_size 2"):
        model.train_step(["a"] * 3, ["b"] * 3)


# ---- New ----


def test_a_new_model_is_what_a_run_starts_with(micro_run, corpus):
    new = t5xpg.Model.new("tests/micro.gin", f"FILES={corpus}", batch_size=2)
    started = t5xpg.Model.restore(str(micro_run[0]), 0, batch_size=2)
    jax.tree.map(np.testing.assert_array_equal, new.train_state.params, started.train_state.params)
    assert int(new.train_state.step) == 0 and new.lengths == {"inputs": 64, "targets": 13}


def test_a_new_model_learns(corpus):
    model = t5xpg.Model.new("tests/micro.gin", f"FILES={corpus}", "TRAIN_STEPS=8")
    losses = [model.train_step(["the shore"] * 8, ["water"] * 8)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0]


def test_a_new_model_needs_a_recipe_to_train_by(corpus):
    recipe = "configs/byt5_tiny_eval.gin"
    with pytest.raises(ValueError, match=r"is a recipe of t5xpg eval; give one of t5xpg train"):
        t5xpg.Model.new(recipe, f"FILES={corpus}")
    with pytest.raises(ValueError, match=r"FILES is not set; add FILES=VALUE"):
        t5xpg.Model.new("configs/byt5_tiny.gin")


# ---- What is not a list of texts or ids, and what does not fit ----


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("the shore", r"inputs is the text 'the shore'; pass a list of texts"),
        ([], "inputs is an empty list"),
        ([[]], r"inputs\[0\] is an empty list"),
        (["a", 5], r"inputs\[1\] is '5'; pass a text, or a list of token ids"),
        ([[1.5, 2]], r"inputs\[0\] is '\[1.5, 2\]'"),
        (["a", [5, 359, 400]], r"inputs\[1\] has the id 359; the vocabulary's are 0 to 258"),
        ([[-1]], r"inputs\[0\] has the id -1"),
    ],
)
def test_what_is_not_a_list_of_inputs_is_refused(inputs, message, model):
    for method in (model.predict, model.predict_ids):
        with pytest.raises(ValueError, match=message):
            method(inputs)
    for method in (model.score, model.next_ids, model.train_step):
        with pytest.raises(ValueError, match=message):
            method(inputs, ["a"])
        with pytest.raises(ValueError, match=message.replace("inputs", "targets")):
            method(["a"], inputs)


def test_what_is_cut_is_said(model):
    long = "the shore " * 40  # 401 tokens, of which the model takes 64; and 13 of a target
    cut = [*model.model.input_vocabulary.encode(long)[:63], 1]
    with pytest.warns(UserWarning, match=r"Of 2 inputs 1 are longer than the 64 tokens .* inputs\[1\], has 401"):
        ids = model.predict_ids(["a", long])
    np.testing.assert_array_equal(ids, model.predict_ids(["a", cut]))
    with pytest.warns(UserWarning, match=r"Of 1 targets 1 are longer than the 13 tokens .* targets\[0\], has 401"):
        score = model.score(["a"], [long])
    np.testing.assert_array_equal(score, model.score(["a"], [[*cut[:12], 1]]))
    with pytest.warns(UserWarning, match="has 14"):
        shorter = model.score(["a"], [[70] * 14])
    np.testing.assert_array_equal(shorter, model.score(["a"], [[70] * 13]))


def test_what_fits_is_not_warned_of(model, recwarn):
    model.predict_ids(["x" * 63])
    model.score(["a"], ["x" * 12])
    assert not [w for w in recwarn if w.category is UserWarning]


# ---- Ids above the vocabulary, which the network has embeddings for: 384 against 259 ----


@pytest.mark.parametrize(
    ("decode_fn", "arguments"),
    [
        (decoding.beam_search, {"num_decodes": 4}),
        (decoding.temperature_sample, {"num_decodes": 1}),
        (decoding.temperature_sample, {"num_decodes": 8, "topk": 0, "topp": 0.9}),
        (decoding.temperature_sample, {"num_decodes": 8, "topk": 366, "temperature": 2.0}),
    ],
)
def test_no_decoder_chooses_an_id_above_the_vocabulary(decode_fn, arguments):
    vocabulary = seqio.ByteVocabulary()
    unmasked = models.EncoderDecoderModel(None, vocabulary, vocabulary, None, decode_fn=decode_fn)
    table = np.random.default_rng(0).normal(0, 1, (384, 384)).astype(np.float32)  # of each id, what may follow it

    def decode(model, table) -> np.ndarray:
        def tokens_to_logits(state):
            return jnp.asarray(table)[state.cur_token[:, 0]], state.cache

        prompt = jnp.zeros((2, 9), jnp.int32)
        return np.asarray(
            model.decode_fn(inputs=prompt, cache={}, tokens_to_logits=tokens_to_logits, eos_id=1, **arguments)[0]
        )

    masked = model_lib.without_other_ids(unmasked)
    assert decode(unmasked, table).max() >= 259  # T5X's own
    assert decode(masked, table).max() < 259
    table[:, 259:] = -1e9  # as good as masked
    np.testing.assert_array_equal(decode(masked, table), decode(unmasked, table))


def test_a_models_methods_give_no_id_above_the_vocabulary(micro_run):
    model = t5xpg.Model.restore(str(micro_run[0]), batch_size=2)
    params = unfreeze(model.train_state.params)
    kernel = params["decoder"]["logits_dense"]["kernel"]  # of two ids, one is now likeliest, whatever a state's sign
    params["decoder"]["logits_dense"]["kernel"] = kernel.at[:, 370].set(50.0).at[:, 383].set(-50.0)
    model.train_state = model.train_state.replace_params(freeze(params))
    assert model.predict_ids(["the shore"]).max() < 259
    assert model.next_ids(["the shore"], ["a"]).max() < 259
