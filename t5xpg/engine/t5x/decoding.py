"""Decoding: turns a model that scores one next token at a time into whole sequences, by sampling or by beam search.

Both algorithms take and return the same things, so a model can be given either as its `decode_fn`:

- `inputs`, int32 [batch, length]: what the decoder reads, so position 0 is the start token 0. Nonzero tokens after it
  are a prompt: they are copied into the decodes, and count neither for the scores nor as an end of sequence. What is
  decoded fills the zeros after them.
- `cache`: a tree of dicts of arrays, whose batch axis is `cache_offset` (1 where layers are scanned). It comes filled
  only if `initial_index` says how far.
- `tokens_to_logits(DecodingState)` returns logits [batch * num_decodes, vocab] for the next token, in any float type,
  and the new cache. The decodes of one example lie next to each other.

Returns decodes, int32 [batch, num_decodes, length], position 0 dropped and zeros after EOS; and scores, float32
[batch, num_decodes], in increasing order: the best decode is the last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax, random

Cache = Any  # nested dicts of arrays

# The score of a beam that holds nothing.
NEG_INF = -1.0e7
# At this temperature and below, the likeliest token is taken.
MIN_TEMPERATURE = 1e-4
# Leaves of the cache that all examples and decodes share.
SHARED_LEAVES = ("cached_bias", "position_embedder_index")


@struct.dataclass
class DecodingState:
    """What `tokens_to_logits` sees; `rows` is batch * num_decodes."""

    cur_index: jax.Array  # int32 [rows], the position of the current token
    sequences: jax.Array  # int32 [rows, length], prompts and what was decoded up to the current token
    cur_token: jax.Array  # int32 [rows, 1]
    cache: Cache  # its batch axis is `rows`


TokensToLogits = Callable[[DecodingState], tuple[jax.Array, Cache]]


# Sampling


@struct.dataclass
class SamplingLoopState:
    """What goes around the sampling loop, and what `logit_callback_fn` sees; `rows` is batch * num_decodes."""

    step: jax.Array  # int32 [], how many steps were made
    cur_index: jax.Array  # int32 [rows], the position of the current token
    sequences: jax.Array  # int32 [rows, length + 1], prompts and what was decoded so far
    cache: Cache  # its batch axis is `rows`
    ended: jax.Array  # bool [rows]
    rng: jax.Array  # the key of the steps to come
    log_prob: jax.Array  # float32 [rows], summed over the decoded tokens


LogitCallbackFn = Callable[[jax.Array, SamplingLoopState], jax.Array]


def temperature_sample(
    inputs: jax.Array,
    cache: Cache,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    decode_rng: jax.Array | None = None,
    num_decodes: int = 1,
    temperature: float | jax.Array = 1.0,
    topk: int = 1,
    topp: float = 0.0,
    cache_offset: int = 0,
    initial_index: jax.Array | None = None,
    max_decode_steps: int | None = None,
    rescale_log_probs: bool = True,
    logit_callback_fn: LogitCallbackFn | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Samples `num_decodes` sequences per example, each on its own; the module docstring has the rest.

    T5X draws the same noise for every row when temperatures are given per example; here rows are independent.

    Args:
      decode_rng: a JAX key; None is key 0.
      temperature: divides the logits; a number, or float32 [batch]. Up to 1e-4 the likeliest token is taken.
      topk: sample among so many likeliest tokens, and those as likely as the last of them; 0 is all, 1 is greedy.
      topp: sample among the fewest likeliest tokens that hold this share of the probability; 0 is all.
      initial_index: int32 [batch], the position of the last prompt token, the cache holding all before it.
      max_decode_steps: how many tokens to decode after the prompt at most.
      rescale_log_probs: whether scores are of the distribution sampled from, after temperature, topk and topp (all
        0 when greedy), or of the model's own.
      logit_callback_fn: maps the float32 logits [rows, vocab] and the state to the logits to sample from.

    Raises:
      ValueError: if topk and topp both cut.
    """
    if topk and topp:
        raise ValueError(f"temperature_sample: got both topk = {topk} (1 unless set) and topp = {topp}; set one to 0.")
    batch, length = inputs.shape
    sequences, cur_index = _start(inputs, initial_index, length)
    limit = jnp.full(batch, length)
    if max_decode_steps is not None:
        limit = jnp.minimum(limit, jnp.sum(sequences != 0, axis=1) + max_decode_steps)
    temperature = jnp.broadcast_to(jnp.asarray(0.0 if topk == 1 else temperature, jnp.float32), (batch,))
    sequences, cur_index, limit, temperature = (
        flat_batch_beam_expand(x, num_decodes) for x in (sequences, cur_index, limit, temperature)
    )  # [rows, length + 1], then three of [rows]

    def score_next(state: SamplingLoopState) -> tuple[jax.Array, Cache]:
        logits, cache = tokens_to_logits(_decoding_state(state.sequences, state.cur_index, state.cache))
        logits = logits.astype(jnp.float32)
        return (logit_callback_fn(logits, state) if logit_callback_fn else logits), cache

    draw = partial(_draw, temperature=temperature[:, None], topk=topk, topp=topp, rescale=rescale_log_probs)
    state = SamplingLoopState(
        step=jnp.zeros((), jnp.int32),
        cur_index=cur_index,
        sequences=sequences,
        cache=_expand_cache(cache, num_decodes, cache_offset, initial_index),
        ended=jnp.zeros(batch * num_decodes, bool),
        rng=random.PRNGKey(0) if decode_rng is None else decode_rng,
        log_prob=jnp.zeros(batch * num_decodes, jnp.float32),
    )
    step = partial(_sample_step, score_next=score_next, draw=draw, eos_id=eos_id, limit=limit)
    state = lax.while_loop(lambda state: ~jnp.all(state.ended), step, state)
    decodes = state.sequences[:, 1:].reshape(batch, num_decodes, length)
    scores = state.log_prob.reshape(batch, num_decodes)
    order = jnp.argsort(scores, axis=-1)
    return _pick(decodes, order), _pick(scores, order)


def _sample_step(state: SamplingLoopState, *, score_next, draw, eos_id, limit) -> SamplingLoopState:
    """Decodes one token per row, or copies it from the prompt; a row ends with EOS or at its `limit` [rows]."""
    rng_now, rng_later = random.split(state.rng)
    logits, cache = score_next(state)
    token, log_prob = draw(rng_now, logits)
    after = state.cur_index + 1
    prompt = _read(state.sequences, after)
    free = (prompt == 0) & ~state.ended
    token = jnp.where(state.ended, 0, jnp.where(free, token, prompt))
    return SamplingLoopState(
        step=state.step + 1,
        # A row at the very end waits there for the others.
        cur_index=jnp.minimum(after, state.sequences.shape[1] - 1),
        sequences=_write(state.sequences, after, token),
        cache=cache,
        ended=state.ended | (free & (token == eos_id)) | (after >= limit),
        rng=rng_later,
        log_prob=state.log_prob + jnp.where(free, log_prob, 0.0),
    )


def _draw(rng, logits, *, temperature, topk, topp, rescale) -> tuple[jax.Array, jax.Array]:
    """Draws a token [rows] for each row of logits [rows, vocab]; returns it and its log probability [rows]."""
    cold = temperature <= MIN_TEMPERATURE  # [rows, 1]
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sample():
        scaled = logits / jnp.maximum(temperature, MIN_TEMPERATURE)
        if topk:
            scaled = jnp.where(_fewest_largest(scaled, lambda kept: kept.sum(-1) >= topk), scaled, -jnp.inf)
        if topp:
            probs = jax.nn.softmax(scaled)
            kept = _fewest_largest(probs, lambda kept: jnp.where(kept, probs, 0.0).sum(-1) >= topp)
            scaled = jnp.where(kept, scaled, -jnp.inf)
        token = jnp.where(cold[:, 0], best, random.categorical(rng, scaled).astype(jnp.int32))
        return token, jnp.where(cold[:, 0], 0.0, _log_prob(scaled, token))

    # Noise costs more than all the rest: greedy decoding does not draw it.
    token, log_prob = lax.cond(jnp.all(cold), lambda: (best, jnp.zeros(best.shape)), sample)
    return token, (log_prob if rescale else _log_prob(logits, token))


def _log_prob(logits: jax.Array, token: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]


def _fewest_largest(x: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Returns the mask [rows, vocab] of the fewest largest values of float32 x for which `enough(mask)` [rows] holds.

    Equal values are kept or dropped together; if nothing is enough, all are kept. The cut is found bit by bit in 32
    passes over x, many times faster than sorting a vocabulary.
    """
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    # Unsigned integers in the order of the floats: the magnitudes of negative numbers count backwards.
    keys = jnp.where(bits >= sign, ~bits, bits | sign)

    def settle_bit(i, cut):
        higher = cut | (sign >> i.astype(jnp.uint32))
        return jnp.where(enough(keys >= higher[:, None]), higher, cut)

    cut = lax.fori_loop(0, 32, settle_bit, jnp.zeros(x.shape[0], jnp.uint32))
    return keys >= cut[:, None]


# Beam search


@struct.dataclass
class BeamState:
    """What goes around the beam search loop; beams are in increasing order of their scores."""

    cur_index: jax.Array  # int32 [batch], the position of the current tokens
    live_seqs: jax.Array  # int32 [batch, beams, length + 1], prompts and what was decoded so far
    live_logprobs: jax.Array  # float32 [batch, beams], -inf where a beam holds nothing
    finished_seqs: jax.Array  # int32 [batch, beams, length + 1]
    finished_scores: jax.Array  # float32 [batch, beams], -inf where a beam holds nothing
    cache: Cache  # of the live sequences; its batch axis is batch * beams


class Candidates(NamedTuple):
    """The 2 * beams best extensions of the live sequences, the best one first."""

    seqs: jax.Array  # int32 [batch, 2 * beams, length + 1]
    logprobs: jax.Array  # float32 [batch, 2 * beams]
    parents: jax.Array  # int32 [batch, 2 * beams], the beam that each extends
    ended: jax.Array  # bool [batch, 2 * beams]


def beam_search(
    inputs: jax.Array,
    cache: Cache,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    num_decodes: int = 4,
    alpha: float = 0.6,
    max_decode_len: int | None = None,
    decode_rng: jax.Array | None = None,
    cache_offset: int = 0,
    initial_index: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Searches for the `num_decodes` best sequences with as many beams; the module docstring has the rest.

    The score of a sequence is the sum of its tokens' log probabilities divided by `brevity_penalty`. An example of
    which nothing ended within the length returns its live sequences, with their plain log probabilities. Beams
    that hold nothing score -1e7.

    T5X takes an EOS that it reads in a prompt for the end, and lets examples with longer prompts (`initial_index`)
    search past the length, as long as the others need, to cut what it finds there; neither is so here.

    Args:
      alpha: how strongly short sequences are penalized; 0 is not at all.
      max_decode_len: the length of the decodes, that of the inputs if None.
      decode_rng: not used; every decoding function is given one.
      initial_index: int32 [batch], the position of the last prompt token, the cache holding all before it.
    """
    del decode_rng
    length = max_decode_len or inputs.shape[1]
    sequences, cur_index = _start(inputs, initial_index, length)
    sequences = jnp.repeat(sequences[:, None], num_decodes, axis=1)  # [batch, beams, length + 1]
    nothing = jnp.full(sequences.shape[:2], -jnp.inf)
    state = BeamState(
        cur_index=cur_index,
        live_seqs=sequences,
        live_logprobs=nothing.at[:, -1].set(0.0),  # one beam, or all would find the same
        finished_seqs=jnp.zeros_like(sequences),
        finished_scores=nothing,
        cache=_expand_cache(cache, num_decodes, cache_offset, initial_index),
    )

    def step(state: BeamState) -> BeamState:
        log_probs, cache = _score_next(state, tokens_to_logits)
        candidates = _grow(state, log_probs, eos_id)
        live_seqs, live_logprobs, parents = _keep_live(candidates)
        finished_seqs, finished_scores = _keep_finished(state, candidates, alpha)
        cache = cache_map(partial(_pick_rows, parents=parents, offset=cache_offset), cache)
        new = BeamState(state.cur_index + 1, live_seqs, live_logprobs, finished_seqs, finished_scores, cache)
        return _freeze(~_can_improve(state, alpha, length), state, new)

    state = lax.while_loop(lambda state: jnp.any(_can_improve(state, alpha, length)), step, state)
    found = state.finished_scores[:, -1:] > -jnp.inf  # [batch, 1]
    decodes = jnp.where(found[:, :, None], state.finished_seqs, state.live_seqs)[:, :, 1:]
    scores = jnp.where(found, state.finished_scores, state.live_logprobs)
    return decodes, jnp.maximum(scores, NEG_INF)


def brevity_penalty(alpha: float, length: jax.Array) -> jax.Array:
    """Returns ((5 + length) / 6) ** alpha, the length penalty of Wu et al. 2016 (arXiv:1609.08144), eq. 14."""
    return jnp.power((5.0 + length) / 6.0, alpha)


def _score_next(state: BeamState, tokens_to_logits: TokensToLogits) -> tuple[jax.Array, Cache]:
    """Returns the log probabilities [batch, beams, vocab] of every next token, and the new cache."""
    batch, beams, width = state.live_seqs.shape
    cur_index = flat_batch_beam_expand(state.cur_index, beams)
    here = _decoding_state(state.live_seqs.reshape(batch * beams, width), cur_index, state.cache)
    logits, cache = tokens_to_logits(here)
    return jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(batch, beams, -1), cache


def _grow(state: BeamState, log_probs: jax.Array, eos_id: int) -> Candidates:
    """Extends the live sequences by one token.

    A live sequence can end in one way only, so among twice as many extensions enough are left that go on. Inside a
    prompt there is one way to go on, and one sequence goes it, with nothing counted.
    """
    batch, beams, vocab = log_probs.shape
    totals = (state.live_logprobs[:, :, None] + log_probs).reshape(batch, beams * vocab)
    logprobs, choice = lax.top_k(totals, 2 * beams)
    parents, tokens = choice // vocab, choice % vocab

    after = state.cur_index + 1
    forced = _read(state.live_seqs[:, 0], after)[:, None]  # [batch, 1]
    free = forced == 0
    tokens = jnp.where(free, tokens, forced)
    logprobs = jnp.where(free, logprobs, jnp.full((1, 2 * beams), -jnp.inf).at[:, 0].set(0.0))
    seqs = _write(_pick(state.live_seqs, parents), after[:, None], tokens)
    return Candidates(seqs, logprobs, parents, ended=free & (tokens == eos_id))


def _keep_live(candidates: Candidates) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the best candidates that go on: sequences, log probabilities and parents."""
    logprobs = jnp.where(candidates.ended, -jnp.inf, candidates.logprobs)
    kept = _best(logprobs, logprobs.shape[1] // 2)
    return _pick(candidates.seqs, kept), _pick(logprobs, kept), _pick(candidates.parents, kept)


def _keep_finished(state: BeamState, candidates: Candidates, alpha: float) -> tuple[jax.Array, jax.Array]:
    """Returns the best of what had ended and what ends now: sequences and scores."""
    lengths = (state.cur_index[:, None] + 1).astype(jnp.float32)
    scores = candidates.logprobs / brevity_penalty(alpha, lengths)
    scores = jnp.where(candidates.ended, scores, -jnp.inf)
    scores = jnp.concatenate([state.finished_scores, scores], axis=1)  # [batch, 3 * beams]
    seqs = jnp.concatenate([state.finished_seqs, candidates.seqs], axis=1)
    kept = _best(scores, state.finished_scores.shape[1])
    return _pick(seqs, kept), _pick(scores, kept)


def _can_improve(state: BeamState, alpha: float, length: int) -> jax.Array:
    """Whether an example [batch] has room, and a live sequence that may come to beat the worst finished one."""
    # Log probabilities only fall, and what they are divided by is largest at the full length.
    bound = state.live_logprobs[:, -1] / brevity_penalty(alpha, jnp.float32(length))
    return (state.cur_index < length) & (state.finished_scores[:, 0] < bound)


def _freeze(done: jax.Array, old: BeamState, new: BeamState) -> BeamState:
    """Returns the old state of the examples that are `done` [batch], whose caches do not matter, and the new others."""
    choose = jax.vmap(lambda done, *states: jax.tree.map(partial(jnp.where, done), *states))
    return choose(done, old.replace(cache=None), new.replace(cache=None)).replace(cache=new.cache)


def _best(scores: jax.Array, count: int) -> jax.Array:
    """Returns the indices [batch, count] of the largest scores in increasing order."""
    return lax.top_k(scores, count)[1][:, ::-1]


# Sequences and caches


def _decoding_state(sequences: jax.Array, cur_index: jax.Array, cache: Cache) -> DecodingState:
    return DecodingState(cur_index, sequences[:, :-1], _read(sequences, cur_index)[:, None], cache)


def flat_batch_beam_expand(x: jax.Array, beam_size: int, offset: int = 0) -> jax.Array:
    """Repeats every example of the batch axis `offset` in place: [a, b] becomes [a, a, b, b] with `beam_size` 2."""
    return jnp.repeat(x, beam_size, axis=offset)


def cache_map(fn: Callable[[jax.Array], jax.Array], cache: Cache, apply_to_index: bool = False) -> Cache:
    """Maps the cache's leaves that have a batch axis.

    `cache_index` has one where examples start at positions of their own: `apply_to_index` says so.
    """
    shared = SHARED_LEAVES if apply_to_index else (*SHARED_LEAVES, "cache_index")
    return jax.tree_util.tree_map_with_path(lambda path, x: x if path[-1].key in shared else fn(x), cache)


def _expand_cache(cache: Cache, num_decodes: int, offset: int, initial_index: jax.Array | None) -> Cache:
    expand = partial(flat_batch_beam_expand, beam_size=num_decodes, offset=offset)
    return cache_map(expand, cache, apply_to_index=initial_index is not None)


def _pick_rows(x: jax.Array, parents: jax.Array, offset: int) -> jax.Array:
    """Gives every row [batch * beams] of the axis `offset` what its parent had: `parents` is [batch, beams]."""
    beams = x.reshape(*x.shape[:offset], *parents.shape, *x.shape[offset + 1 :])
    return _pick(beams, parents, offset).reshape(x.shape)


def _pick(x: jax.Array, indices: jax.Array, offset: int = 0) -> jax.Array:
    """Returns x[b, indices[b, i]]: x [batch, n, …] and int32 [batch, m] give [batch, m, …], from axis `offset` on.

    Batched over the examples, so that a batch split over devices stays where it is.
    """
    take = partial(jnp.take, axis=offset, mode="clip")
    return jax.vmap(take, in_axes=(offset, 0), out_axes=offset)(x, indices)


def _start(inputs: jax.Array, initial_index: jax.Array | None, length: int) -> tuple[jax.Array, jax.Array]:
    """Returns the sequences [batch, length + 1] that hold the prompts, and the positions [batch] to start from."""
    room = jnp.zeros((inputs.shape[0], length + 1), jnp.int32)
    width = min(inputs.shape[1], length + 1)
    sequences = room.at[:, :width].set(inputs[:, :width].astype(jnp.int32))
    if initial_index is not None:
        return sequences, initial_index.astype(jnp.int32)
    return sequences.at[:, 0].set(0), jnp.zeros(inputs.shape[0], jnp.int32)


def _read(sequences: jax.Array, position: jax.Array) -> jax.Array:
    """Returns the tokens […] at `position` […] of the sequences […, width]; past the end, 0."""
    return jnp.where(_slot(sequences, position), sequences, 0).sum(-1)


def _write(sequences: jax.Array, position: jax.Array, token: jax.Array) -> jax.Array:
    """Returns the sequences […, width] with `token` […] at `position` […]; past the end, nothing is written."""
    return jnp.where(_slot(sequences, position), token[..., None], sequences)


def _slot(sequences: jax.Array, position: jax.Array) -> jax.Array:
    return lax.broadcasted_iota(jnp.int32, sequences.shape, sequences.ndim - 1) == position[..., None]
