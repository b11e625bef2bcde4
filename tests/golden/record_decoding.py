"""Decoding cases on a toy model, and what google-research/t5x makes of them.

`python record_decoding.py`, with T5X on PYTHONPATH, writes decoding.json; test_decoding.py runs the same cases on the
embedded engine. The toy is a recurrent network with a cache like a transformer's: its logits depend on every token
read, so a cache that goes to the wrong beam shows.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t5x import decoding

GOLDEN = Path(__file__).with_name("decoding.json")
BATCH, LENGTH, VOCAB, HIDDEN, LAYERS, EOS = 3, 8, 12, 6, 2, 1

PROMPTS = {
    "none": [[0] * 8] * 3,
    "ragged": [[0, 5, 6, 7, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0, 0, 0], [0] * 8],
    "with_eos": [[0, 5, 1, 7, 0, 0, 0, 0], [0, 3, 4, 1, 0, 0, 0, 0], [0, 9, 0, 0, 0, 0, 0, 0]],
    "even": [[0, 5, 6, 0, 0, 0, 0, 0], [0, 3, 2, 0, 0, 0, 0, 0], [0, 9, 9, 0, 0, 0, 0, 0]],
}

SAMPLING = {
    "default": {},
    "default_model_scores": dict(rescale_log_probs=False, num_decodes=2),
    "all": dict(topk=0),
    "all_decodes_3": dict(topk=0, num_decodes=3, key=1),
    "cool": dict(topk=0, temperature=0.6, num_decodes=2, key=2),
    "cold_model_scores": dict(topk=4, temperature=1e-5, rescale_log_probs=False),
    "topk_4": dict(topk=4, num_decodes=3, key=4),
    "topk_above_vocab": dict(topk=40, key=5),
    "topk_3_hot": dict(topk=3, temperature=2.5, num_decodes=2, rescale_log_probs=False, key=6),
    "topp_half": dict(topk=0, topp=0.5, num_decodes=2, key=7),
    "topp_cool": dict(topk=0, topp=0.9, temperature=0.8, num_decodes=2, key=8),
    "topp_one": dict(topk=0, topp=1.0, key=9),
    "temperatures_first": dict(topk=0, temperature=[0.9, 0.0, 0.0], key=10),
    "ragged": dict(prompt="ragged", topk=0, num_decodes=2, key=11),
    "prompt_with_eos": dict(prompt="with_eos", topk=5, num_decodes=2, key=12),
    "prefilled": dict(prompt="ragged", prefill=True, topk=0, num_decodes=2, key=13),
    "prefilled_steps_2": dict(prompt="ragged", prefill=True, topk=0, max_decode_steps=2, num_decodes=2, key=15),
    "steps_3": dict(prompt="ragged", topk=0, max_decode_steps=3, num_decodes=2, key=16),
    "scanned": dict(prompt="ragged", prefill=True, cache_offset=1, topk=0, num_decodes=3, key=17),
}

BEAMS = {
    "default": {},
    "one": dict(num_decodes=1),
    "six_no_penalty": dict(num_decodes=6, alpha=0.0),
    "strong_penalty": dict(alpha=2.0),
    "hasty": dict(eos_bias=2.5),
    "short": dict(max_decode_len=4),
    "long": dict(max_decode_len=13, eos_bias=-1.0),
    "ragged": dict(prompt="ragged"),
    "ragged_penalty": dict(prompt="ragged", alpha=1.5, num_decodes=3, eos_bias=-1.0),
    "prefilled": dict(prompt="even", prefill=True, eos_bias=-1.0),
    "prefilled_hasty": dict(prompt="ragged", prefill=True, eos_bias=3.0, num_decodes=2),
    "scanned": dict(prompt="even", prefill=True, cache_offset=1, num_decodes=3),
    "scanned_ragged": dict(prompt="ragged", cache_offset=1),
}

CASES = {f"sample/{name}": dict(fn="temperature_sample", **case) for name, case in SAMPLING.items()} | {
    f"beam/{name}": dict(fn="beam_search", **case) for name, case in BEAMS.items()
}


def run(name: str) -> dict:
    """Returns the decodes and scores of a case as nested lists, scores with the nine digits of a float32."""
    case = dict(CASES[name])
    fn = getattr(decoding, case.pop("fn"))
    inputs = jnp.asarray(PROMPTS[case.pop("prompt", "none")], jnp.int32)
    cache_offset = case.setdefault("cache_offset", 0)
    cache = make_cache(BATCH, cache_offset, case.pop("eos_bias", 0.0))
    if case.pop("prefill", False):
        cache, case["initial_index"] = prefill(cache, inputs, cache_offset)
    if "temperature" in case:
        case["temperature"] = jnp.asarray(case["temperature"], jnp.float32)
    case["decode_rng"] = jax.random.PRNGKey(case.pop("key", 0))

    def tokens_to_logits(state):
        return toy_step(state.cur_token, state.cache, cache_offset)

    @jax.jit
    def decode(inputs, cache):
        return fn(inputs=inputs, cache=cache, tokens_to_logits=tokens_to_logits, eos_id=EOS, **case)

    decodes, scores = decode(inputs, cache)
    return {
        "decodes": np.asarray(decodes).tolist(),
        "scores": [[float(f"{x:.9g}") for x in row] for row in np.asarray(scores)],
    }


def make_cache(batch: int, cache_offset: int = 0, eos_bias: float = 0.0) -> dict:
    """Returns the cache to start from: what the layers remember, how far they are, and a bias that all rows share.

    Its hidden is [batch, layers, hidden], different for each row as if it came from an encoder, and its index [];
    with `cache_offset` 1, as if layers were scanned, [layers, batch, hidden] and [layers].
    """
    hidden = jnp.asarray(np.random.RandomState(8).standard_normal((batch, LAYERS, HIDDEN)), jnp.float32)
    bias = jnp.zeros((1, VOCAB)).at[0, EOS].set(eos_bias)
    index = jnp.zeros((LAYERS,) * cache_offset, jnp.int32)
    return {"decoder": {"hidden": jnp.moveaxis(hidden, 0, cache_offset), "cache_index": index, "cached_bias": bias}}


def toy_step(cur_token: jax.Array, cache: dict, cache_offset: int = 0) -> tuple[jax.Array, dict]:
    """Reads tokens [rows, 1]; returns logits [rows, vocab] and the cache that has read them."""
    rng = np.random.RandomState(3)  # its streams are frozen across NumPy versions
    embedding, positions, recurrent, out = (
        jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)
        for scale, shape in [
            (1.0, (VOCAB, HIDDEN)),
            (0.5, (32, HIDDEN)),
            (0.6, (LAYERS, HIDDEN, HIDDEN)),
            (0.9, (HIDDEN, VOCAB)),
        ]
    )
    state = cache["decoder"]
    hidden = jnp.moveaxis(state["hidden"], cache_offset, 0)  # [rows, layers, hidden]
    index = state["cache_index"][0] if cache_offset else state["cache_index"]
    if index.ndim == 2:
        index = index.ravel()  # T5X's beam search makes it [batch, beams]
    position = jnp.broadcast_to(index, cur_token.shape[:1])  # from [] or [rows]
    x = embedding[cur_token[:, 0]] + positions[position]
    layers = []
    for layer in range(LAYERS):
        x = jnp.tanh(x + hidden[:, layer] @ recurrent[layer])
        layers.append(x)
    new = {
        "hidden": jnp.moveaxis(jnp.stack(layers, axis=1), 0, cache_offset),
        "cache_index": state["cache_index"] + 1,
        "cached_bias": state["cached_bias"],
    }
    return x @ out + state["cached_bias"], {"decoder": new}


def prefill(cache: dict, inputs: jax.Array, cache_offset: int = 0) -> tuple[dict, jax.Array]:
    """Returns the cache that has read each prompt but its last token, and the positions [batch] of those."""
    lengths = jnp.sum(inputs != 0, axis=1)
    for position in range(int(lengths.max())):
        _, read = toy_step(inputs[:, position : position + 1], cache, cache_offset)
        old, new = cache["decoder"]["hidden"], read["decoder"]["hidden"]
        more = (position < lengths)[:, None, None] if cache_offset == 0 else (position < lengths)[None, :, None]
        state = {**read["decoder"], "hidden": jnp.where(more, new, old)}
        cache = {"decoder": state}
    index = jnp.broadcast_to(lengths, (LAYERS,) * cache_offset + lengths.shape)
    return {"decoder": {**cache["decoder"], "cache_index": index}}, lengths


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(run(name))}" for name in CASES]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
