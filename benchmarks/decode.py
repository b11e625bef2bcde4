"""Decoding with a T5 1.1: the embedded engine, T5X and Hugging Face's `generate` on PyTorch, the same work in one run.

    [PYTHONPATH=path/to/t5x:…] python benchmarks/decode.py [--model tiny] [--vocab 32128 384] [--batch 16] …

T5X and PyTorch are left out where they cannot be imported. The models have random parameters and no end token, so
every sequence becomes as long as `--targets` allows and all engines generate the same number of tokens: batch ×
targets, those of the best beam alone. Each way of each engine has a process of its own. The tables, in GitHub's
markdown, show tokens a second (the median of some batches), milliseconds of CPU time a token (user and system time of
all threads, comparable on a busy machine too), the first batch from the start of Python on, and the peak memory of
the process, on a GPU of the GPU's own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from engines import (
    CHILD,
    ENGINES,
    USUAL,
    Work,
    add_work_arguments,
    child_main,
    peak_gb,
    print_missing,
    print_table,
    run_child,
    t5x_batch,
    t5x_model,
    timed,
    torch_model,
    works,
)

WAYS = {"greedy": "greedy", "beam": "beam search, 4 beams", "sample": "sampling from the 40 likeliest"}
BEAMS, TOP_K = 4, 40


# ---- In a process for each engine ----


def measure(engine: str, work: Work, started: float, way: str, repeats: int) -> dict[str, Any]:
    """Decodes batches; returns seconds and CPU seconds of one, those to the first one's end, and the peak memory."""
    decode, platform = (torch_decode if engine == "torch" else t5x_decode)(work, way)
    decode()
    first = time.time() - started
    return {"first": first} | timed(decode, repeats) | {"memory": peak_gb(platform), "platform": platform}


def t5x_decode(work: Work, way: str) -> tuple[Callable[[], Any], str]:
    """Returns (a function that decodes one batch, compiled, as T5X's infer program does; "cpu" or "gpu")."""
    import jax

    from t5x import decoding

    model = t5x_model(work, decode_fn=decoding.beam_search if way == "beam" else decoding.temperature_sample)
    settings = {"greedy": {"temperature": 0.0}, "sample": {"temperature": 1.0, "topk": TOP_K}, "beam": {}}
    batch = t5x_batch(work)
    shapes, types = ({name: getattr(x, key) for name, x in batch.items()} for key in ("shape", "dtype"))
    params = jax.jit(lambda rng: model.get_initial_variables(rng, shapes, types)["params"])(jax.random.PRNGKey(0))

    @jax.jit
    def predict(params, batch, rng):
        num_decodes = BEAMS if way == "beam" else 1
        return model.predict_batch_with_aux(params, batch, rng, settings[way], num_decodes=num_decodes)[0]

    def decode():
        ids = jax.device_get(predict(params, batch, jax.random.PRNGKey(1)))
        check_full(ids, work)

    return decode, jax.default_backend()


def torch_decode(work: Work, way: str) -> tuple[Callable[[], Any], str]:
    """Returns (a function that decodes one batch with `generate`, "cpu" or "cuda")."""
    import torch

    model, device = torch_model(work)
    model.to(getattr(torch, work.dtype)).eval()
    settings = {
        "greedy": {"do_sample": False},
        "sample": {"do_sample": True, "top_k": TOP_K},
        "beam": {"do_sample": False, "num_beams": BEAMS},
    }
    inputs = torch.from_numpy(work.ids()[0]).long().to(device)

    def decode():
        with torch.inference_mode():
            ids = model.generate(inputs, max_new_tokens=work.targets, **settings[way])
        check_full(ids[:, 1:].cpu(), work)  # without the start token

    return decode, device


def check_full(ids, work: Work) -> None:
    if tuple(ids.shape) != (work.batch, work.targets):
        raise RuntimeError(f"decoded {tuple(ids.shape)} ids instead of {(work.batch, work.targets)}")


# ---- The report ----


def report(engines: list[str], work: Work, ways: list[str], repeats: int) -> None:
    """Measures and prints one table; ratios are to the first engine that is there."""
    rows, missing = [], {}
    for way in ways:
        results = {engine: run_child(engine, work, way=way, repeats=repeats) for engine in engines}
        measured = {engine: result for engine, result in results.items() if "missing" not in result}
        missing |= results
        base = next(iter(measured.values()), {})
        rows += [[WAYS[way], ENGINES[engine], *cells(work, result, base)] for engine, result in measured.items()]
    print(f"\n{work}")
    print_table(["decoding", "engine", "tokens/s", "CPU ms/token", "first batch, s", "memory, GB"], rows)
    print_missing(missing)


def cells(work: Work, result: dict[str, Any], base: dict[str, Any]) -> list[str]:
    tokens = work.batch * work.targets
    speed, cpu = base["seconds"] / result["seconds"], result["cpu"] / base["cpu"]
    ratios = ("", "") if result is base else (f" ({speed:.2f}×)", f" ({cpu:.2f}×)")
    return [
        f"{tokens / result['seconds']:,.0f}{ratios[0]}",
        f"{result['cpu'] / tokens * 1e3:.3f}{ratios[1]}",
        f"{result['first']:.1f}",
        f"{result['memory']:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_arguments(parser, vocabs=[32128], engines=USUAL)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--repeats", type=int, default=3, help="batches that are timed, after one that is not")
    args = parser.parse_args()
    for work in works(args):
        report(args.engines, work, args.ways, args.repeats)


if __name__ == "__main__":
    child_main(measure) if CHILD in sys.argv else main()
