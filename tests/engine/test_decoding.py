"""decoding.py against T5X's recorded decodes, exhaustive enumeration, sorting, and what the definitions promise."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import record_decoding as toy

from t5x import decoding

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

EOS = toy.EOS
GOLDEN = json.loads(toy.GOLDEN.read_text())
SKEWED = np.log([0.4, 0.03, 0.25, 0.15, 0.1, 0.07]).astype(np.float32)  # next-token logits; EOS is unlikely
ENDLESS = np.where(np.arange(6) < 2, np.float32(-1e10), SKEWED)  # neither 0 nor EOS
EMPTY = -1.0e7


@pytest.fixture(autouse=True, scope="module")
def strict():
    """No rank is promoted and no dtype silently, whatever the settings of the other tests are."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def bigram(table):
    """Returns the model whose logits [rows, vocab] are the current token's row of `table`; it needs no cache."""
    table = jnp.asarray(table)
    return lambda state: (table[state.cur_token[:, 0]], state.cache)


def constant(logits=SKEWED):
    return bigram(np.tile(logits, (len(logits), 1)))


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def zeros(batch, length):
    return jnp.zeros((batch, length), jnp.int32)


def read_toy(state):
    return toy.toy_step(state.cur_token, state.cache)


def summed_log_probs(cache, decodes, prompts):
    """Returns the toy's log probabilities [batch, num_decodes] of decodes [batch, num_decodes, length].

    They are summed from the first token after the prompt to the first EOS after it.
    """
    sums = np.zeros(decodes.shape[:2])
    starts = np.count_nonzero(prompts, axis=1)  # [batch]
    for n, rows in enumerate(np.moveaxis(decodes, 1, 0)):
        hidden, token = cache, np.zeros((len(rows), 1), np.int32)
        for position in range(rows.shape[1]):
            logits, hidden = toy.toy_step(jnp.asarray(token), hidden)
            token = rows[:, position : position + 1]
            log_prob = np.take_along_axis(log_softmax(logits), token, axis=1)[:, 0]
            pairs = zip(rows, starts, strict=True)
            counted = [position >= start and EOS not in row[start:position] for row, start in pairs]
            sums[:, n] += np.where(counted, log_prob, 0.0)
    return sums


# Against T5X


@pytest.mark.parametrize("name", toy.CASES)
def test_decodes_are_those_of_t5x(name):
    got, want = toy.run(name), GOLDEN[name]
    np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5, atol=1e-4)
    # T5X leaves prompts in the beams that hold nothing, if the cache was prefilled.
    holds = np.array(want["scores"]) > EMPTY
    np.testing.assert_array_equal(np.array(got["decodes"])[holds], np.array(want["decodes"])[holds])


# Beam search


def all_sequences(table, length, ends):
    """Yields (tokens, log probability) of all sequences up to `length` that end in EOS, or all of it that do not."""
    log_probs = log_softmax(table)
    others = [token for token in range(len(table)) if token != EOS]
    for size in range(1, length + 1) if ends else [length]:
        for start in itertools.product(others, repeat=size - 1 if ends else size):
            tokens = [*start, EOS] if ends else [*start]
            yield tokens, sum(log_probs[a, b] for a, b in itertools.pairwise([0, *tokens]))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_wide_beam_search_finds_what_enumeration_finds(alpha):
    table = np.random.RandomState(0).standard_normal((4, 4)).astype(np.float32)
    decodes, scores = decoding.beam_search(zeros(1, 3), {}, bigram(table), EOS, num_decodes=27, alpha=alpha)
    best = sorted((log_prob / ((5 + len(s)) / 6) ** alpha, s) for s, log_prob in all_sequences(table, 3, ends=True))
    assert len(best) == 13
    np.testing.assert_allclose(scores[0, -13:], [score for score, _ in best], rtol=1e-5)
    padded = [sequence + [0] * (3 - len(sequence)) for _, sequence in best]
    np.testing.assert_array_equal(decodes[0, -13:], padded)
    np.testing.assert_array_equal(scores[0, :-13], np.full(14, EMPTY))
    np.testing.assert_array_equal(decodes[0, :-13], np.zeros((14, 3)))


def test_without_an_end_the_live_sequences_come_back():
    table = np.random.RandomState(1).standard_normal((4, 4)).astype(np.float32)
    table[:, EOS] = -np.inf
    decodes, scores = decoding.beam_search(zeros(1, 3), {}, bigram(table), EOS, num_decodes=27)
    expected = {tuple(sequence): score for sequence, score in all_sequences(table, 3, ends=False)}
    got = {tuple(decode): score for decode, score in zip(decodes[0].tolist(), scores[0].tolist(), strict=True)}
    assert got == pytest.approx(expected, rel=1e-5) and len(got) == 27
    assert (np.diff(scores[0]) >= 0).all()


@pytest.mark.parametrize("prompt", ["none", "ragged"])
def test_beam_scores_are_those_of_the_sequences(prompt):
    inputs = jnp.asarray(toy.PROMPTS[prompt], jnp.int32)
    cache = toy.make_cache(toy.BATCH, eos_bias=1.5)
    decodes, scores = decoding.beam_search(inputs, cache, read_toy, EOS, num_decodes=3, alpha=0.8)
    decodes, scores = np.asarray(decodes), np.asarray(scores)
    assert (np.diff(scores, axis=1) >= 0).all()
    assert (scores > EMPTY).all() and (decodes == EOS).any(-1).all()
    lengths = np.argmax(decodes == EOS, axis=-1) + 1
    log_probs = summed_log_probs(cache, decodes, toy.PROMPTS[prompt])
    np.testing.assert_allclose(scores, log_probs / ((5 + lengths) / 6) ** 0.8, rtol=1e-4)


@pytest.mark.parametrize(("prompt", "eos_bias"), [("ragged", -30.0), ("ragged", 2.0), ("with_eos", 0.0)])
def test_prefilled_beams_are_those_that_read_the_prompt(prompt, eos_bias):
    inputs = jnp.asarray(toy.PROMPTS[prompt], jnp.int32)
    cache = toy.make_cache(toy.BATCH, eos_bias=eos_bias)
    filled, lengths = toy.prefill(cache, inputs)
    read = decoding.beam_search(inputs, cache, read_toy, EOS)
    prefilled = decoding.beam_search(inputs, filled, read_toy, EOS, initial_index=lengths)
    np.testing.assert_array_equal(prefilled[0], read[0])
    np.testing.assert_allclose(prefilled[1], read[1], rtol=1e-5)


def test_beams_do_not_depend_on_the_rest_of_the_batch():
    inputs = jnp.asarray(toy.PROMPTS["ragged"], jnp.int32)
    cache, lengths = toy.prefill(toy.make_cache(toy.BATCH), inputs)
    decodes, scores = decoding.beam_search(inputs, cache, read_toy, EOS, initial_index=lengths)
    for row in range(toy.BATCH):
        one = slice(row, row + 1)
        alone = decoding.cache_map(lambda x, one=one: x[one], cache, apply_to_index=True)
        got = decoding.beam_search(inputs[one], alone, read_toy, EOS, initial_index=lengths[one])
        np.testing.assert_array_equal(got[0], decodes[one])
        np.testing.assert_allclose(got[1], scores[one], rtol=1e-5)


# Sampling


def test_scores_are_the_models_log_probabilities():
    inputs = jnp.asarray(toy.PROMPTS["with_eos"], jnp.int32)
    cache = toy.make_cache(toy.BATCH)
    decodes, scores = decoding.temperature_sample(
        inputs, cache, read_toy, EOS, num_decodes=4, temperature=0.7, topk=0, rescale_log_probs=False
    )
    decodes, scores = np.asarray(decodes), np.asarray(scores)
    assert (np.diff(scores, axis=1) >= 0).all()
    np.testing.assert_allclose(scores, summed_log_probs(cache, decodes, toy.PROMPTS["with_eos"]), rtol=1e-4)


def draw(count, logits=SKEWED, **kwargs):
    """Returns `count` tokens drawn from one distribution, and their scores."""
    decodes, scores = decoding.temperature_sample(
        zeros(1, 1), {}, constant(logits), EOS, jax.random.PRNGKey(1), num_decodes=count, **kwargs
    )
    return np.asarray(decodes)[0, :, 0], np.asarray(scores)[0]


@pytest.mark.parametrize(
    ("kwargs", "kept"),
    [
        (dict(topk=0), [0, 1, 2, 3, 4, 5]),
        (dict(topk=3), [0, 2, 3]),
        (dict(topk=99), [0, 1, 2, 3, 4, 5]),
        (dict(topk=0, topp=0.3), [0]),
        (dict(topk=0, topp=0.64), [0, 2]),
        (dict(topk=0, topp=0.66), [0, 2, 3]),
        (dict(topk=0, topp=0.64, temperature=4.0), [0, 2, 3, 4]),
        (dict(topk=2, temperature=0.5), [0, 2]),
    ],
)
def test_samples_follow_the_distribution_that_is_kept(kwargs, kept):
    count = 20000
    tokens, scores = draw(count, **kwargs)
    probs = np.exp(SKEWED.astype(np.float64) / kwargs.get("temperature", 1.0)) * np.isin(np.arange(6), kept)
    probs /= probs.sum()
    seen = np.bincount(tokens, minlength=6) / count
    assert (np.abs(seen - probs) <= 5 * np.sqrt(probs * (1 - probs) / count)).all(), (seen, probs)
    np.testing.assert_allclose(scores, np.log(probs[tokens]), atol=1e-5)


def test_greedy_takes_the_first_of_the_likeliest():
    for kwargs in dict(topk=1), dict(topk=0, temperature=0.0), dict(topk=0, temperature=1e-4):
        tokens, scores = draw(5, np.array([0.0, 1.0, 3.0, 3.0, 2.0, 0.0], np.float32), **kwargs)
        np.testing.assert_array_equal(tokens, np.full(5, 2))
        np.testing.assert_array_equal(scores, np.zeros(5))


def test_nothing_follows_the_end():
    logits = np.log([0.2, 0.3, 0.25, 0.25]).astype(np.float32)
    decodes, _ = decoding.temperature_sample(zeros(2, 8), {}, constant(logits), EOS, num_decodes=200, topk=0)
    decodes = np.asarray(decodes)
    ended = np.cumsum(decodes == EOS, axis=-1) > 0
    assert (decodes[:, :, 1:][ended[:, :, :-1]] == 0).all()
    assert 0.01 < 1 - ended[:, :, -1].mean() < 0.12  # 0.7 ** 8 of them have not met it


def test_each_example_has_its_temperature_and_its_own_noise():
    logits = np.zeros(50, np.float32)
    logits[7] = 1.0
    temperature = jnp.array([0.0, 1.0, 1.0])
    decodes, _ = decoding.temperature_sample(
        zeros(3, 6), {}, constant(logits), EOS, num_decodes=2, temperature=temperature, topk=0
    )
    np.testing.assert_array_equal(decodes[0], np.full((2, 6), 7))
    drawn = {tuple(row) for row in np.asarray(decodes[1:]).reshape(4, 6)}
    assert len(drawn) == 4


def test_prompts_stay_and_their_eos_does_not_end():
    inputs = jnp.array([[0, 4, EOS, 5, 0, 0], [0, 0, 0, 0, 0, 0]], jnp.int32)
    decodes, _ = decoding.temperature_sample(inputs, {}, constant(), EOS)
    np.testing.assert_array_equal(decodes, [[[4, EOS, 5, 0, 0, 0]], [[0] * 6]])


def test_decode_steps_count_after_the_prompt():
    logits = np.array([0.0, 0.0, 0.0, 9.0], np.float32)
    inputs = jnp.array([[0, 2, 2, 0, 0, 0], [0, 2, 0, 0, 0, 0], [0, 2, 2, 2, 2, 2]], jnp.int32)
    decodes, _ = decoding.temperature_sample(inputs, {}, constant(logits), EOS, max_decode_steps=2)
    np.testing.assert_array_equal(decodes[:, 0], [[2, 2, 3, 3, 0, 0], [2, 3, 3, 0, 0, 0], [2, 2, 2, 2, 2, 3]])


def test_prefilled_samples_are_greedily_those_that_read_the_prompt():
    inputs = jnp.asarray(toy.PROMPTS["ragged"], jnp.int32)
    cache = toy.make_cache(toy.BATCH)
    filled, lengths = toy.prefill(cache, inputs)
    read = decoding.temperature_sample(inputs, cache, read_toy, EOS, rescale_log_probs=False)
    prefilled = decoding.temperature_sample(
        inputs, filled, read_toy, EOS, initial_index=lengths, rescale_log_probs=False
    )
    np.testing.assert_array_equal(prefilled[0], read[0])
    np.testing.assert_allclose(prefilled[1], read[1], rtol=1e-5)


def test_logit_callback_sees_the_state_and_decides():
    def even_steps_say_3(logits, state):
        assert logits.dtype == jnp.float32
        wanted = jnp.where(state.step % 2 == 0, 3, 2)
        return jnp.where(jnp.arange(6)[None] == wanted, 0.0, jnp.full_like(logits, -jnp.inf))

    decodes, scores = decoding.temperature_sample(
        zeros(2, 4), {}, constant(), EOS, topk=0, logit_callback_fn=even_steps_say_3
    )
    np.testing.assert_array_equal(decodes, np.tile([3, 2, 3, 2], (2, 1, 1)))
    np.testing.assert_array_equal(scores, np.zeros((2, 1)))


def test_two_cuts_are_refused():
    with pytest.raises(ValueError, match="topk = 1 .* topp = 0.9"):
        decoding.temperature_sample(zeros(1, 2), {}, constant(), EOS, topp=0.9)


# Both


@pytest.mark.parametrize("fn", [decoding.beam_search, decoding.temperature_sample])
def test_bfloat16_logits_and_typed_keys(fn):
    table = jnp.asarray(np.random.RandomState(2).standard_normal((9, 9)), jnp.bfloat16)
    kwargs = {} if fn is decoding.beam_search else dict(topk=4)

    @jax.jit
    def decode(table, key):
        return fn(zeros(2, 6), {}, bigram(table), EOS, decode_rng=key, num_decodes=3, **kwargs)

    decodes, scores = decode(table, jax.random.key(5))
    assert decodes.shape == (2, 3, 6) and decodes.dtype == jnp.int32 and scores.dtype == jnp.float32
    wide_decodes, wide_scores = decode(table.astype(jnp.float32), jax.random.PRNGKey(5))
    np.testing.assert_array_equal(decodes, wide_decodes)
    np.testing.assert_array_equal(scores, wide_scores)


def test_an_end_that_is_ruled_out_ends_nothing():
    decodes, scores = decoding.beam_search(zeros(1, 3), {}, constant(ENDLESS), EOS, num_decodes=2)
    assert not (decodes == EOS).any()
    np.testing.assert_allclose(scores[0, -1], 3 * log_softmax(ENDLESS).max(), rtol=1e-5)


def test_beam_search_makes_no_more_steps_than_it_may():
    for start, prompt in (([0, 0], [[0, 0, 0, 0], [0, 0, 0, 0]]), ([1, 2], [[0, 4, 0, 0], [0, 3, 2, 0]])):
        decodes, _ = decoding.beam_search(
            jnp.array(prompt), {}, constant(ENDLESS), EOS, 2, initial_index=jnp.array(start), max_decode_step=2
        )
        np.testing.assert_array_equal((decodes != 0).sum(-1), np.add(start, 2)[:, None].repeat(2, 1))


def test_each_example_ends_once_nothing_live_is_likely_enough():
    table = np.tile(ENDLESS, (6, 1))
    table[2:4] = np.where(np.arange(6) == 3, 0.0, -20.0)  # 3 follows 2 and 3, and so is likely for ever
    table[2:4, EOS] = -1e10
    inputs, start = jnp.array([[0, 4, 0, 0, 0], [0, 2, 0, 0, 0]]), jnp.array([1, 1])
    decodes, _ = decoding.beam_search(inputs, {}, bigram(table), EOS, 2, initial_index=start, min_log_prob=-0.5)
    np.testing.assert_array_equal(decodes[:, -1], [[4, 2, 0, 0, 0], [2, 3, 3, 3, 3]])


@pytest.mark.parametrize("cut", [dict(topk=3, topp=0.0), dict(topk=0, topp=0.5), dict(topk=1, topp=0.0), dict(topk=0)])
def test_traced_arguments_cut_as_static_ones_do(cut):
    static = dict(dict(topk=0, topp=0.0, temperature=0.7, max_decode_steps=4), **cut)

    def sample(arguments):
        key = jax.random.PRNGKey(3)
        return decoding.temperature_sample(zeros(4, 6), {}, constant(), EOS, key, num_decodes=2, **arguments)

    (decodes, scores), (traced_decodes, traced_scores) = sample(static), jax.jit(sample)(static)
    np.testing.assert_array_equal(traced_decodes, decodes)
    np.testing.assert_allclose(traced_scores, scores, rtol=1e-5, atol=1e-6)
    assert not np.asarray(decodes)[:, :, 4:].any()


def test_sampling_and_searching_work_without_jit():
    key = jax.random.PRNGKey(0)
    for decode, arguments in (
        (decoding.temperature_sample, dict(decode_rng=key, topk=0, topp=0.5)),
        (decoding.temperature_sample, dict(decode_rng=key, topk=3)),
        (decoding.beam_search, {}),
    ):
        compiled = decode(zeros(2, 4), {}, constant(), EOS, num_decodes=2, **arguments)
        with jax.disable_jit():
            stepwise = decode(zeros(2, 4), {}, constant(), EOS, num_decodes=2, **arguments)
        np.testing.assert_array_equal(stepwise[0], compiled[0])
        np.testing.assert_allclose(stepwise[1], compiled[1], rtol=1e-5)


def test_the_hard_limit_cuts_the_steps():
    def steps(**arguments):
        decodes, _ = decoding.temperature_sample(zeros(1, 6), {}, constant(ENDLESS), EOS, **arguments)
        return np.count_nonzero(decodes)

    assert steps(max_decode_steps=5, max_decode_steps_hard_limit=3) == 3
    assert steps(max_decode_steps=2, max_decode_steps_hard_limit=3) == 2
    assert steps(max_decode_steps=5, max_decode_steps_hard_limit=0) == 5
    assert steps(max_decode_steps_hard_limit=3) == 6


def test_a_state_callback_writes_ahead_and_its_eos_ends_the_sequence():
    def end_after_two(state):
        """Writes an EOS behind every 2."""
        assert state.cur_token.shape == (state.sequences.shape[0], 1)
        here = jnp.arange(state.sequences.shape[1])[None] == state.cur_index[:, None] + 1
        write = here & (state.cur_token == 2) & ~state.ended[:, None]
        return state.replace(sequences=jnp.where(write, EOS, state.sequences))

    prompts = jnp.array([[0, 4, EOS, 5, 0, 0], [0, 0, 0, 0, 0, 0]])
    decodes, _ = decoding.temperature_sample(
        prompts, {}, constant(ENDLESS), EOS, num_decodes=1, state_callback_fn=end_after_two
    )
    np.testing.assert_array_equal(decodes[:, 0], [[4, EOS, 5, 2, EOS, 0], [2, EOS, 0, 0, 0, 0]])


def test_the_state_callback_sees_the_last_state_too():
    def mark(state):
        return state.replace(log_prob=state.log_prob + 1.0)

    _, scores = decoding.temperature_sample(zeros(1, 3), {}, constant(), EOS, state_callback_fn=mark)
    assert scores.tolist() == [[4.0]]  # three steps, and the end


def test_a_frozen_cache_stays_frozen():
    from flax.core import FrozenDict

    def step(state):
        assert isinstance(state.cache, FrozenDict)
        return constant()(state)[0], {"key": state.cache["key"] + 1}

    for decode in (decoding.temperature_sample, decoding.beam_search):
        decodes, _ = decode(zeros(2, 3), FrozenDict(key=zeros(2, 1)), step, EOS, num_decodes=2)
        assert decodes.shape == (2, 2, 3)


def test_beam_axes_are_joined_and_split():
    x = jnp.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(decoding.add_beam_dim(x, 2), np.stack([x, x], axis=1))
    np.testing.assert_array_equal(decoding.add_beam_dim(x, 2, offset=1), np.stack([x, x], axis=2))
    np.testing.assert_array_equal(decoding.flatten_beam_dim(x), np.reshape(x, (6, 4)))
    np.testing.assert_array_equal(decoding.flatten_beam_dim(x, offset=1), np.reshape(x, (2, 12)))
    np.testing.assert_array_equal(decoding.unflatten_beam_dim(decoding.flatten_beam_dim(x), 2, 3), x)
    np.testing.assert_array_equal(decoding.unflatten_beam_dim(x, 2, 2, offset=2), np.reshape(x, (2, 3, 2, 2)))


def test_cache_leaves_are_expanded_in_place_and_shared_ones_kept():
    np.testing.assert_array_equal(decoding.flat_batch_beam_expand(jnp.array([4, 5]), 3), [4, 4, 4, 5, 5, 5])
    cache = {"a": {"key": zeros(2, 3), "cache_index": zeros(2, 1), "cached_bias": zeros(1, 4)}}

    def expand(x):
        return decoding.flat_batch_beam_expand(x, 2)

    shapes = jax.tree.map(jnp.shape, decoding.cache_map(expand, cache))
    assert shapes == {"a": {"key": (4, 3), "cache_index": (2, 1), "cached_bias": (1, 4)}}
    shapes = jax.tree.map(jnp.shape, decoding.cache_map(expand, cache, apply_to_index=True))
    assert shapes == {"a": {"key": (4, 3), "cache_index": (4, 1), "cached_bias": (1, 4)}}
