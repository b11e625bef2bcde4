"""How predictions are searched for: what each flag means, against the model's own next tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import unfreeze
from made_runs import make_run

import t5xpg
from t5x import decoding
from t5xpg.base import private
from t5xpg.search import Search
from t5xpg.vocabularies import sentinels

INPUTS = ["the <extra_id_0> shore", "water", "On clear days"]
GREEDY = Search(temperature=0)
LENGTH, KNOWN = 8, 259  # tokens of a target; ids of the vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory, corpus):
    """A byte model with random parameters: its outputs are long and varied."""
    folder = tmp_path_factory.mktemp("search")
    lengths = f"TASK_FEATURE_LENGTHS={{'inputs': 64, 'targets': {LENGTH}}}"
    recipe = ("tests/micro.gin", f"FILES={corpus}", lengths, f"t5x.examples.t5.network.T5Config.vocab_size={KNOWN}")
    return t5xpg.Model.restore(make_run(folder / "run", *recipe), batch_size=4)


def by_next_ids(model, text: str) -> str:
    """The likeliest token after each token, by whole forward passes; no cache, no search."""
    ids: list[int] = []
    while len(ids) < LENGTH and 1 not in ids:
        ids.append(int(model.next_ids([text], [[*ids, 5]])[0, len(ids)]))
    return sentinels.decode(ids, model.model.output_vocabulary)


def test_temperature_0_takes_the_likeliest_tokens(model):
    expected = [[by_next_ids(model, text)] for text in INPUTS]
    assert len({text for (text,) in expected}) == len(INPUTS) and all(len(text) > 1 for (text,) in expected)
    assert model.decode(INPUTS, GREEDY) == expected
    assert model.decode(INPUTS, Search(top_p=1e-6), jax.random.PRNGKey(3)) == expected


def test_without_arguments_it_is_the_models_own_search(model):
    assert model.decode(INPUTS, Search()) == [[text] for text in model.predict(INPUTS)]


def test_max_length_bounds_predictions_either_way(model):
    cut = model.decode(INPUTS, Search(temperature=0, max_length=3))
    whole = model.decode(INPUTS, GREEDY)
    assert all(text.startswith(short) for (text,), (short,) in zip(whole, cut, strict=True))
    vocabulary = model.model.output_vocabulary
    assert all(len(sentinels.encode(text, vocabulary)) <= 4 for (text,) in cut)
    longer = model.decode(INPUTS, Search(temperature=0, max_length=3 * LENGTH))
    assert any(len(sentinels.encode(text, vocabulary)) > LENGTH + 1 for (text,) in longer)


def test_more_beams_find_likelier_texts(model):
    """By T5X's measure, the log likelihood over ((5 + length) / 6) ** 0.6."""
    vocabulary = model.model.output_vocabulary

    def measure(beams: int) -> float:
        texts = [text for (text,) in model.decode(INPUTS, Search(beams=beams))]
        lengths = np.array([len(sentinels.encode(text, vocabulary)) for text in texts])
        return float((model.score(INPUTS, texts) / ((5 + lengths) / 6) ** 0.6).sum())

    assert measure(8) >= measure(1)


def test_samples_follow_the_seed_and_the_temperature(model):
    search = Search(temperature=1.0, samples=3)
    first = model.decode(INPUTS, search, jax.random.PRNGKey(1))
    assert [len(texts) for texts in first] == [3, 3, 3]
    assert all(len(set(texts)) > 1 for texts in first)
    assert model.decode(INPUTS, search, jax.random.PRNGKey(1)) == first
    assert model.decode(INPUTS, search, jax.random.PRNGKey(2)) != first
    cold = model.decode(INPUTS, Search(temperature=1e-3, samples=2), jax.random.PRNGKey(1))
    assert cold == [texts * 2 for texts in model.decode(INPUTS, GREEDY)]


def test_no_id_above_the_vocabulary_is_chosen(model):
    """A network may have embeddings for more; here those above are the likeliest by far."""
    module = model.model.module
    wide = private.with_decode_fn(model.model, decoding.beam_search)  # model.model's own has no such ids
    wide.module = module.clone(config=module.config.replace(vocab_size=KNOWN + 25))
    params = jax.tree.map(np.array, unfreeze(model.train_state.params))
    kernel, table = params["decoder"]["logits_dense"], params["token_embedder"]
    kernel["kernel"] = np.concatenate([kernel["kernel"], 100 * kernel["kernel"][:, :25]], axis=1)
    table["embedding"] = np.concatenate([table["embedding"], table["embedding"][:25]])
    params = jax.tree.map(jnp.asarray, params)
    inputs = jnp.array([[50, 60, 1]])
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": jnp.zeros((1, 8), np.int32)}
    assert jax.jit(wide.predict_batch)(params, batch).max() >= KNOWN
    for search in (Search(), GREEDY, Search(temperature=2.0)):
        ids = jax.jit(partial(search, wide))(params, batch, jax.random.PRNGKey(0))
        assert ids[0].max() < KNOWN and np.count_nonzero(ids[0]) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beams": 0}, "beams is 0; pass 1 or more"),
        ({"max_length": 0}, "max_length is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"beams": 4, "temperature": 0.5}, "beams searches and temperature samples; pass one"),
        ({"beams": 4, "samples": 2}, "beams searches and samples"),
        ({"top_k": 5, "top_p": 0.5}, "top_k and top_p both say what to sample among"),
        ({"temperature": 0.0, "samples": 2}, "temperature 0 takes the likeliest token"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        Search(**arguments)
    assert "\n" not in str(error.value)
