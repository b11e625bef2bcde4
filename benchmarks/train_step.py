"""One training step of a T5 1.1: the embedded engine, T5X and Hugging Face on PyTorch, on the same work in one run.

    [PYTHONPATH=path/to/t5x:…] python benchmarks/train_step.py [--model tiny] [--vocab 32128 384] [--batch 16] …

T5X and PyTorch are left out where they cannot be imported. The engines take turns, as often as --rounds says, and the
tables show the medians of the rounds: a shared machine's speed drifts within minutes. All train with Adafactor, on one
batch of random ids that is in memory; each in a process of its own, the embedded engine's as `t5xpg train` starts it:
with huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1). The tables are GitHub's markdown:

- step: the median of six steps by the clock, after two that do not count;
- CPU: of the same steps, user and system time of all threads, which can be compared on a busy machine too;
- first step: from the start of Python to the end of the first step, and the CPU time of that;
- memory: the peak of the process (ru_maxrss), on a GPU that of its own memory, as JAX or PyTorch counts it;
- model TFLOP/s: of the matrix products alone, two operations for a multiplication with its addition, a backward pass
  as two forward ones.

On a GPU: --model t5_1_1_base --vocab 32128 --dtype bfloat16 --batch 128 --inputs 512 --targets 114, and
--engines embedded fused t5x torch compiled for fused_attention and torch.compile too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from engines import (
    CHILD,
    ENGINES,
    SIZES,
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

STEPS = 6
LEARNING_RATE = 0.01


# ---- In a process for each engine ----


def measure(engine: str, work: Work, started: float) -> dict[str, Any]:
    """Takes the steps; returns step and CPU seconds, those to the first step, the peak memory and the platform."""
    if engine in ("torch", "compiled"):
        step, platform = torch_step(work, engine == "compiled")
    else:
        step, platform = t5x_step(work, {"fused_attention": True} if engine == "fused" else {})
    step()
    first = {"first": time.time() - started, "first_cpu": time.process_time()}
    step()
    return first | timed(step, STEPS) | {"memory": peak_gb(platform), "platform": platform}


def t5x_step(work: Work, settings: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """Returns (a function that trains for one step, "cpu" or "gpu"), the way T5X's train program goes."""
    import jax

    from t5x import partitioning, trainer

    try:  # the embedded engine's own modules, which need no TensorFlow; T5X has both in utils
        from t5x.embedded.initialization import TrainStateInitializer
        from t5x.embedded.learning_rates import create_learning_rate_scheduler
    except ModuleNotFoundError:
        from t5x.utils import TrainStateInitializer, create_learning_rate_scheduler

    model, batch = t5x_model(work, settings), t5x_batch(work)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    initializer = TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: x.shape for name, x in batch.items()},
        input_types={name: x.dtype for name, x in batch.items()},
        partitioner=partitioner,
    )
    engine = trainer.Trainer(
        model=model,
        train_state=initializer.from_scratch(jax.random.PRNGKey(0)),
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(1),
        learning_rate_fn=create_learning_rate_scheduler("constant", base_learning_rate=LEARNING_RATE),
        num_microbatches=None,
    )
    batch = jax.device_put(batch, jax.sharding.NamedSharding(partitioner.mesh, partitioner.data_partition_spec))
    engine.compile_train(batch)

    def step():
        engine.train(iter([batch]), 1).result()
        jax.block_until_ready(engine.train_state.params)

    return step, jax.default_backend()


def torch_step(work: Work, compiled: bool) -> tuple[Callable[[], Any], str]:
    """Returns (a function that trains for one step, "cpu" or "cuda"); bfloat16 is torch's autocast."""
    import torch
    from transformers.optimization import Adafactor

    model, device = torch_model(work)
    model.train()
    torch.set_float32_matmul_precision("high")  # as JAX: a GPU's float32 products may be TF32's
    if compiled:
        model = torch.compile(model)
    if device == "cuda":  # the same algorithm in fewer kernels: 51 ms a step of T5 1.1 base, and not 79, on an H100
        optimizer = torch.optim.Adafactor(model.parameters(), lr=LEARNING_RATE, foreach=True)
    else:
        optimizer = Adafactor(model.parameters(), lr=LEARNING_RATE, relative_step=False, scale_parameter=True)
    inputs, targets = (torch.from_numpy(x).long().to(device) for x in work.ids())

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=work.dtype == "bfloat16"):
            loss = model(input_ids=inputs, labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    return step, device


# ---- The report ----


def model_flop(work: Work) -> float:
    """Floating-point operations of one step's matrix products."""
    size = SIZES[work.model]
    emb, heads, mlp = size["emb_dim"], size["num_heads"] * size["head_dim"], size["mlp_dim"]
    inputs, targets = work.inputs, work.targets
    feed_forward = (len(size["mlp_activations"]) + 1) * emb * mlp
    # Per token the products with kernels; per pair of tokens query · key and weight · value.
    encoder = inputs * (4 * emb * heads + feed_forward) + 2 * heads * inputs**2
    decoder = targets * (6 * emb * heads + feed_forward) + 2 * heads * targets**2
    cross = inputs * 2 * emb * heads + 2 * heads * targets * inputs
    logits = targets * emb * work.vocab
    layers = size["num_encoder_layers"] * encoder + size["num_decoder_layers"] * (decoder + cross)
    return 2 * 3 * work.batch * (layers + logits)


def report(engines: list[str], work: Work, rounds: int) -> None:
    """Measures and prints one table, in which the ratios are to the first engine."""
    measured_rounds = [{engine: run_child(engine, work) for engine in engines} for _ in range(rounds)]
    results = {engine: medians([results[engine] for results in measured_rounds]) for engine in engines}
    measured = {engine: result for engine, result in results.items() if "missing" not in result}
    print(f"\n{work}; {model_flop(work) / 1e9:,.0f} GFLOP a step")
    if measured:
        platform = next(iter(measured.values()))["platform"]
        header = [f"on {platform}", "step, s", "CPU, s", "first step, s", "its CPU, s", "memory, GB", "model TFLOP/s"]
        base = next(iter(measured.values()))
        print_table(header, [table_row(ENGINES[engine], work, x, base) for engine, x in measured.items()])
    print_missing(results)


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns of each number the median; of what is no number, the first."""
    first = results[0]
    numbers = {key: statistics.median(x[key] for x in results) for key in first if isinstance(first[key], float)}
    return first | numbers


def table_row(name: str, work: Work, result: dict[str, Any], base: dict[str, Any]) -> list[str]:
    def cell(key: str, digits: int) -> str:
        ratio = "" if result is base else f" ({result[key] / base[key]:.2f}×)"
        return f"{result[key]:.{digits}f}{ratio}"

    cells = [cell("seconds", 3), cell("cpu", 2), cell("first", 1), cell("first_cpu", 1), cell("memory", 2)]
    return [name, *cells, f"{model_flop(work) / result['seconds'] / 1e12:.3g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_arguments(parser, vocabs=[32128, 384], engines=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    for work in works(args):
        report(args.engines, work, args.rounds)


if __name__ == "__main__":
    child_main(measure) if CHILD in sys.argv else main()
