"""Writes predictions.json: what google-research/t5x decodes, and how it scores, with the networks of cases.py.

    PYTHONPATH=<a clone of t5x, and what it imports> JAX_PLATFORMS=cpu python tests/golden/record_predictions.py

`test_models.py` runs the same cases through the embedded engine and compares. Parameters are those a run starts with,
which training.json records as well.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

if __name__ == "__main__":
    import cases
else:
    from golden import cases

from t5x import decoding

PATH = Path(__file__).with_name("predictions.json")
LOGITS_KEPT = 4999  # every 4999th: a prime, so that no position or id is always the same
DECODE_FNS = {"sample": decoding.temperature_sample, "beam": decoding.beam_search}


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of predict_batch_with_aux, of a key of `cases.NETWORKS` and a key of `DECODE_FNS`."""

    network: str
    decode_fn: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    decoder_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    even_inputs: bool = False  # all inputs of one length: T5X's beam search searches past the end where they differ


CASES = {
    "t5_1_1/beam": Case("t5_1_1", "beam", dict(num_decodes=3, return_all_decodes=True)),
    "scanned/beam": Case("scanned", "beam", dict(num_decodes=3, return_all_decodes=True)),
    "scanned/sample": Case("scanned", "sample", dict(num_decodes=2), dict(topk=5)),
    "decoder_only/greedy": Case("decoder_only", "sample"),
    "decoder_only/sample": Case(
        "decoder_only", "sample", dict(num_decodes=2, return_all_decodes=True), dict(topk=0, temperature=0.7)
    ),
    "prefix_lm/sample": Case("prefix_lm", "sample", dict(num_decodes=2), dict(topk=5, max_decode_steps=9)),
    "prefix_lm/beam": Case(
        "prefix_lm", "beam", dict(num_decodes=3, return_all_decodes=True), dict(alpha=0.8), even_inputs=True
    ),
}
NETWORKS = ("scanned", "decoder_only", "prefix_lm")


@functools.cache
def setup(network: str, decode_fn: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Returns a network's model, first parameters, and a batch of four examples."""
    case = cases.Case(network, steps=0, loss=dict(decode_fn=DECODE_FNS[decode_fn]))
    batch = {name: array[:4] for name, array in cases.make_batch(case, 3).items()}
    return cases.make_model(case), cases.initialize(network)[1].params, batch


def predict(name: str) -> dict[str, Any]:
    """Returns ids and scores of a case of `CASES` as nested lists."""
    case = CASES[name]
    model, params, batch = setup(case.network, case.decode_fn)
    if case.even_inputs:
        prefix = np.zeros_like(batch["decoder_causal_attention"])
        prefix[:, :4] = 1
        batch = batch | {"decoder_causal_attention": prefix}

    @jax.jit
    def run(params, batch):
        decoder_params = dict(case.decoder_params, decode_rng=jax.random.PRNGKey(5))
        return model.predict_batch_with_aux(params, batch, decoder_params=decoder_params, **case.arguments)

    ids, aux = run(params, batch)
    return {"ids": np.asarray(ids).tolist(), "scores": _digits(aux["scores"])}


@functools.cache
def compute_logits(network: str) -> Any:
    """Returns the compiled function (params, batch) -> logits."""
    return jax.jit(setup(network, "sample")[0]._compute_logits)


def score(network: str) -> dict[str, Any]:
    """Returns the scores of a batch, and some of the logits they come from."""
    model, params, batch = setup(network, "sample")
    logits = compute_logits(network)(params, batch)
    return {
        "scores": _digits(jax.jit(model.score_batch)(params, batch)),
        "logits": _digits(np.asarray(logits).ravel()[::LOGITS_KEPT]),
    }


def _digits(x: Any) -> Any:
    """Nested lists with the nine digits that identify a float32."""
    return np.vectorize(lambda value: float(f"{value:.9g}"))(np.asarray(x, np.float64)).tolist()


def main() -> None:
    record = {name: predict(name) for name in CASES} | {f"{name}/score": score(name) for name in NETWORKS}
    beside = PATH.with_suffix(".new")
    rows = (f'"{name}": {json.dumps(numbers, separators=(",", ":"))}' for name, numbers in record.items())
    beside.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    os.replace(beside, PATH)


if __name__ == "__main__":
    main()
