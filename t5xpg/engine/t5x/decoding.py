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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax, random

from t5x import binary_search
from t5x.embedded import beams
from t5x.embedded.beams import (
    Cache,
    add_beam_dim,
    cache_map,
    flat_batch_beam_expand,
    flatten_beam_dim,
    unflatten_beam_dim,
)
from t5x.embedded.contract import refuse_missing

refuse_missing(globals(), "decoding")

__all__ = [
    "MIN_TEMPERATURE",
    "NEG_INF",
    "NEG_INF_VALUE",
    "BeamState",
    "DecodingState",
    "LogitCallbackFn",
    "SamplingLoopState",
    "StateCallbackFn",
    "add_beam_dim",
    "beam_search",
    "brevity_penalty",
    "cache_map",
    "flat_batch_beam_expand",
    "flatten_beam_dim",
    "temperature_sample",
    "unflatten_beam_dim",
]

# The score of a beam that holds nothing.
NEG_INF_VALUE = -1.0e7
NEG_INF = np.array(NEG_INF_VALUE)
# At this temperature and below, the likeliest token is taken.
MIN_TEMPERATURE = np.array(1e-4)


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
    """The state of the sampling loop, which the callbacks see; `rows` is batch * num_decodes."""

    step: jax.Array  # int32 [], how many steps were made
    cur_index: jax.Array  # int32 [rows], the position of the current token
    sequences: jax.Array  # int32 [rows, length + 1], prompts and what was decoded so far
    cache: Cache  # its batch axis is `rows`
    cur_token: jax.Array  # int32 [rows, 1]
    ended: jax.Array  # bool [rows]
    rng: jax.Array  # the key of the steps to come
    log_prob: jax.Array  # float32 [rows], summed over the decoded tokens


StateCallbackFn = Callable[[SamplingLoopState], SamplingLoopState]
LogitCallbackFn = Callable[[jax.Array, SamplingLoopState], jax.Array]


def temperature_sample(
    inputs: jax.Array,
    cache: Cache,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    decode_rng: jax.Array | None = None,
    num_decodes: int = 1,
    temperature: float | jax.Array = 1.0,
    topk: int | jax.Array = 1,
    topp: float | jax.Array = 0.0,
    cache_offset: int = 0,
    initial_index: jax.Array | None = None,
    max_decode_steps: int | jax.Array | None = None,
    max_decode_steps_hard_limit: int | None = None,
    rescale_log_probs: bool = True,
    state_callback_fn: StateCallbackFn | None = None,
    logit_callback_fn: LogitCallbackFn | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Samples `num_decodes` sequences per example, each on its own; the module docstring has the rest.

    T5X draws the same noise for every row when temperatures are given per example; here rows are independent. T5X
    refuses more `max_decode_steps` than fit; here a sequence ends at the end of its row.

    `temperature`, `topk`, `topp` and `max_decode_steps` may be traced, so that one compiled function serves them all.

    Args:
      decode_rng: a JAX key; None is key 0.
      temperature: divides the logits; a number, or float32 [batch]. Up to 1e-4 the likeliest token is taken.
      topk: sample among this many likeliest tokens, and those as likely as the last of them; 0 is all, 1 is greedy.
      topp: sample among the fewest likeliest tokens that hold this share of the probability; 0 is all.
      initial_index: int32 [batch], the position of the last prompt token, the cache holding all before it.
      max_decode_steps: how many tokens to decode after the prompt at most.
      max_decode_steps_hard_limit: upper limit of a `max_decode_steps` that is given; not positive is no limit.
      rescale_log_probs: whether scores are of the distribution sampled from, after temperature, topk and topp (all
        0 when greedy), or of the model's own.
      state_callback_fn: called before each step and on the last state; returns the state to go on from. Tokens that it
        writes ahead of the current one are taken as they stand, and an EOS among them ends its sequence.
      logit_callback_fn: maps the float32 logits [rows, vocab] and the state to the logits to sample from.

    Raises:
      ValueError: if topk and topp both cut and neither is traced.
    """
    if not _is_traced(topk) and not _is_traced(topp) and topk and topp:
        raise ValueError(f"temperature_sample: got both topk = {topk} (1 unless set) and topp = {topp}; set one to 0.")
    batch, length = inputs.shape
    sequences, cur_index = beams.start(inputs, initial_index, length)
    limit = jnp.full(batch, length)
    if max_decode_steps is not None:
        hard_limit = max_decode_steps_hard_limit or 0
        steps = jnp.minimum(max_decode_steps, hard_limit if hard_limit > 0 else length)
        limit = jnp.minimum(limit, jnp.sum(sequences != 0, axis=1) + steps)
    if _is_traced(topk):
        temperature = jnp.where(topk == 1, 0.0, temperature)
    elif topk == 1:  # a plain number, which XLA folds: dividing by an array it cannot see into costs a sixth of a step
        temperature = 0.0
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (batch,))
    sequences, cur_index, limit, temperature = (
        flat_batch_beam_expand(x, num_decodes) for x in (sequences, cur_index, limit, temperature)
    )  # [rows, length + 1], then three of [rows]

    def score_next(state: SamplingLoopState) -> tuple[jax.Array, Cache]:
        here = DecodingState(state.cur_index, state.sequences[:, :-1], state.cur_token, state.cache)
        logits, cache = tokens_to_logits(here)
        logits, cache = logits.astype(jnp.float32), beams.frozen_like(state.cache, cache)
        return (logit_callback_fn(logits, state) if logit_callback_fn else logits), cache

    draw = partial(_draw, temperature=temperature[:, None], topk=topk, topp=topp, rescale=rescale_log_probs)
    state = SamplingLoopState(
        step=jnp.zeros((), jnp.int32),
        cur_index=cur_index,
        sequences=sequences,
        cache=beams.expand_cache(cache, num_decodes, cache_offset, initial_index),
        cur_token=beams.read(sequences, cur_index)[:, None],
        ended=jnp.zeros(batch * num_decodes, bool),
        rng=random.PRNGKey(0) if decode_rng is None else decode_rng,
        log_prob=jnp.zeros(batch * num_decodes, jnp.float32),
    )
    callback = state_callback_fn or (lambda state: state)
    step = partial(_sample_step, score_next=score_next, draw=draw, eos_id=eos_id, limit=limit, prompts=sequences)
    state = lax.while_loop(lambda state: ~jnp.all(state.ended), lambda state: step(callback(state)), state)
    state = callback(state)
    decodes = unflatten_beam_dim(state.sequences[:, 1:], batch, num_decodes)
    scores = unflatten_beam_dim(state.log_prob, batch, num_decodes)
    order = jnp.argsort(scores, axis=-1)
    return beams.pick(decodes, order), beams.pick(scores, order)


def _sample_step(state: SamplingLoopState, *, score_next, draw, eos_id, limit, prompts) -> SamplingLoopState:
    """Decodes one token per row, or takes the one that is already there; a row ends with EOS or at its `limit` [rows].

    An EOS of the `prompts` [rows, length + 1] does not end a row, but one that a callback wrote does.
    """
    rng_now, rng_later = random.split(state.rng)
    logits, cache = score_next(state)
    token, log_prob = draw(rng_now, logits)
    after = state.cur_index + 1
    given = beams.read(state.sequences, after)
    free = (given == 0) & ~state.ended
    token = jnp.where(state.ended, 0, jnp.where(free, token, given))
    at_eos = (token == eos_id) & (beams.read(prompts, after) == 0)
    return SamplingLoopState(
        step=state.step + 1,
        # A row at the very end waits there for the others.
        cur_index=jnp.minimum(after, state.sequences.shape[1] - 1),
        sequences=beams.write(state.sequences, after, token),
        cache=cache,
        cur_token=token[:, None],
        ended=state.ended | at_eos | (after >= limit),
        rng=rng_later,
        log_prob=state.log_prob + jnp.where(free, log_prob, 0.0),
    )


def _draw(rng, logits, *, temperature, topk, topp, rescale) -> tuple[jax.Array, jax.Array]:
    """Draws a token [rows] for each row of logits [rows, vocab]; returns it and its log probability [rows]."""
    cold = temperature <= MIN_TEMPERATURE  # [rows, 1]
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sample():
        scaled = logits / jnp.maximum(temperature, MIN_TEMPERATURE)
        for mask, size in ((binary_search.topk_mask, topk), (binary_search.topp_mask, topp)):
            if _is_traced(size):
                scaled = jnp.where(size > 0, mask(scaled, size, -jnp.inf), scaled)
            elif size:
                scaled = mask(scaled, size, -jnp.inf)
        token = jnp.where(cold[:, 0], best, random.categorical(rng, scaled).astype(jnp.int32))
        return token, jnp.where(cold[:, 0], 0.0, _log_prob(scaled, token))

    # Noise costs more than all the rest: greedy decoding does not draw it.
    token, log_prob = lax.cond(jnp.all(cold), lambda: (best, jnp.zeros(best.shape)), sample)
    return token, (log_prob if rescale else _log_prob(logits, token))


def _is_traced(x) -> bool:
    return isinstance(x, jax.core.Tracer)


def _log_prob(logits: jax.Array, token: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]


# Beam search


class BeamState(struct.PyTreeNode):
    """The state of the beam search loop; beams are in increasing order of their scores."""

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
    max_decode_step: int = -1,
    min_log_prob: float = NEG_INF_VALUE,
    decode_rng: jax.Array | None = None,
    cache_offset: int = 0,
    initial_index: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Searches for the `num_decodes` best sequences with as many beams; the module docstring has the rest.

    The score of a sequence is the sum of its tokens' log probabilities divided by `brevity_penalty`. An example in
    which nothing ended within the length returns its live sequences, with their plain log probabilities. Beams
    that hold nothing score -1e7.

    Deviations: T5X takes an EOS in a prompt for the end, and lets examples with longer prompts (`initial_index`) search
    past the length while the others need it, then cuts what it finds there; this function does neither. Here
    `min_log_prob` ends each example on its own; in T5X it ends all of them once none passes.

    Args:
      alpha: how strongly short sequences are penalized; 0 is not at all.
      max_decode_len: the length of the decodes, that of the inputs if None.
      max_decode_step: how many steps to search at most; not positive is no limit.
      min_log_prob: an example ends once no live sequence has a log probability above this.
      decode_rng: not used; every decoding function is given one.
      initial_index: int32 [batch], the position of the last prompt token, the cache holding all before it.
    """
    del decode_rng
    length = max_decode_len or inputs.shape[1]
    sequences, cur_index = beams.start(inputs, initial_index, length)
    sequences = jnp.repeat(sequences[:, None], num_decodes, axis=1)  # [batch, beams, length + 1]
    nothing = jnp.full(sequences.shape[:2], -jnp.inf)
    state = BeamState(
        cur_index=cur_index,
        live_seqs=sequences,
        live_logprobs=nothing.at[:, -1].set(0.0),  # one beam, or all would find the same
        finished_seqs=jnp.zeros_like(sequences),
        finished_scores=nothing,
        cache=beams.expand_cache(cache, num_decodes, cache_offset, initial_index),
    )

    def goes_on(state: BeamState) -> jax.Array:
        steps, likeliest = state.cur_index - cur_index, state.live_logprobs[:, -1]
        likely = (likeliest >= min_log_prob) | (steps == 0)
        in_time = (steps < max_decode_step) | (max_decode_step <= 0)
        return _can_improve(state, alpha, length) & likely & in_time

    def step(state: BeamState) -> BeamState:
        log_probs, cache = _score_next(state, tokens_to_logits)
        candidates = _grow(state, log_probs, eos_id)
        live_seqs, live_logprobs, parents = _keep_live(candidates)
        finished_seqs, finished_scores = _keep_finished(state, candidates, alpha)
        cache = cache_map(partial(beams.pick_rows, parents=parents, offset=cache_offset), cache)
        new = BeamState(state.cur_index + 1, live_seqs, live_logprobs, finished_seqs, finished_scores, cache)
        return _freeze(~goes_on(state), state, new)

    state = lax.while_loop(lambda state: jnp.any(goes_on(state)), step, state)
    found = state.finished_scores[:, -1:] > -jnp.inf  # [batch, 1]
    decodes = jnp.where(found[:, :, None], state.finished_seqs, state.live_seqs)[:, :, 1:]
    scores = jnp.where(found, state.finished_scores, state.live_logprobs)
    return decodes, jnp.maximum(scores, NEG_INF)


def brevity_penalty(alpha: float, length: jax.Array) -> jax.Array:
    """Returns ((5 + length) / 6) ** alpha, the length penalty of Wu et al. 2016 (arXiv:1609.08144), eq. 14."""
    return jnp.power((5.0 + length) / 6.0, alpha)


def _score_next(state: BeamState, tokens_to_logits: TokensToLogits) -> tuple[jax.Array, Cache]:
    """Returns the log probabilities [batch, beams, vocab] of every next token, and the new cache."""
    batch, size, _ = state.live_seqs.shape
    cur_index, sequences = flat_batch_beam_expand(state.cur_index, size), flatten_beam_dim(state.live_seqs)
    cur_token = beams.read(sequences, cur_index)[:, None]
    logits, cache = tokens_to_logits(DecodingState(cur_index, sequences[:, :-1], cur_token, state.cache))
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return unflatten_beam_dim(log_probs, batch, size), beams.frozen_like(state.cache, cache)


def _grow(state: BeamState, log_probs: jax.Array, eos_id: int) -> Candidates:
    """Extends the live sequences by one token.

    A live sequence can end in one way only, so of twice as many extensions enough are left that go on. Inside a
    prompt there is only one way to go on; one sequence takes it, with log probability 0.
    """
    batch, size, vocab = log_probs.shape
    totals = (state.live_logprobs[:, :, None] + log_probs).reshape(batch, size * vocab)
    logprobs, choice = beams.top_k(totals, 2 * size)
    parents, tokens = choice // vocab, choice % vocab

    after = state.cur_index + 1
    forced = beams.read(state.live_seqs[:, 0], after)[:, None]  # [batch, 1]
    free = forced == 0
    tokens = jnp.where(free, tokens, forced)
    logprobs = jnp.where(free, logprobs, jnp.full((1, 2 * size), -jnp.inf).at[:, 0].set(0.0))
    seqs = beams.write(beams.pick(state.live_seqs, parents), after[:, None], tokens)
    return Candidates(seqs, logprobs, parents, ended=free & (tokens == eos_id))


def _keep_live(candidates: Candidates) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the best candidates that go on: sequences, log probabilities and parents."""
    logprobs = jnp.where(candidates.ended, -jnp.inf, candidates.logprobs)
    kept = beams.best(logprobs, logprobs.shape[1] // 2)
    return beams.pick(candidates.seqs, kept), beams.pick(logprobs, kept), beams.pick(candidates.parents, kept)


def _keep_finished(state: BeamState, candidates: Candidates, alpha: float) -> tuple[jax.Array, jax.Array]:
    """Returns the best of what had ended and what ends now: sequences and scores."""
    lengths = (state.cur_index[:, None] + 1).astype(jnp.float32)
    scores = candidates.logprobs / brevity_penalty(alpha, lengths)
    # Below NEG_INF, only an EOS that was ruled out can have ended it.
    scores = jnp.where(candidates.ended & (scores > NEG_INF_VALUE), scores, -jnp.inf)
    scores = jnp.concatenate([state.finished_scores, scores], axis=1)  # [batch, 3 * beams]
    seqs = jnp.concatenate([state.finished_seqs, candidates.seqs], axis=1)
    kept = beams.best(scores, state.finished_scores.shape[1])
    return beams.pick(seqs, kept), beams.pick(scores, kept)


def _can_improve(state: BeamState, alpha: float, length: int) -> jax.Array:
    """Whether an example [batch] has room, and a live sequence that may come to beat the worst finished one."""
    # Log probabilities only fall, and what they are divided by is largest at the full length.
    bound = state.live_logprobs[:, -1] / brevity_penalty(alpha, jnp.float32(length))
    return (state.cur_index < length) & (state.finished_scores[:, 0] < bound)


def _freeze(done: jax.Array, old: BeamState, new: BeamState) -> BeamState:
    """Returns the old state of the examples that are `done` [batch], whose caches do not matter, and the new others."""
    choose = jax.vmap(lambda done, *states: jax.tree.map(partial(jnp.where, done), *states))
    return choose(done, old.replace(cache=None), new.replace(cache=None)).replace(cache=new.cache)
