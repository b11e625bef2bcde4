"""What the benchmarks of training and of decoding share: the work, the three engines, and a process for each.

A benchmark starts itself once for every engine and piece of work, with CHILD in its arguments. That process does the
work, measures it and prints the result as its last line, in JSON; an engine that cannot be imported is missing, and so
is one that has too little memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = {
    "embedded": "t5xpg's embedded engine",
    "fused": "t5xpg's embedded engine, fused_attention",
    "t5x": "T5X",
    "torch": "Hugging Face on PyTorch",
    "compiled": "Hugging Face on PyTorch, torch.compile",
}
USUAL = ["embedded", "t5x", "torch"]
CHILD = "--child"
T5_1_1 = dict(head_dim=64, mlp_activations=("gelu", "linear"))
SIZES = {
    "tiny": T5_1_1 | dict(emb_dim=256, num_heads=4, mlp_dim=1024, num_encoder_layers=4, num_decoder_layers=4),
    "t5_1_1_small": T5_1_1 | dict(emb_dim=512, num_heads=6, mlp_dim=1024, num_encoder_layers=8, num_decoder_layers=8),
    "t5_1_1_base": T5_1_1 | dict(emb_dim=768, num_heads=12, mlp_dim=2048, num_encoder_layers=12, num_decoder_layers=12),
    "byt5_base": T5_1_1 | dict(emb_dim=1536, num_heads=12, mlp_dim=3968, num_encoder_layers=18, num_decoder_layers=6),
}


@dataclasses.dataclass(frozen=True)
class Work:
    """A model of `SIZES` and the shape of its batches."""

    model: str = "tiny"
    vocab: int = 32128
    batch: int = 16
    inputs: int = 256
    targets: int = 64
    dtype: str = "float32"
    dropout: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.model}, vocabulary {self.vocab:,}, batch {self.batch}, "
            f"{self.inputs}/{self.targets} tokens, {self.dtype}, dropout {self.dropout:g}"
        )

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns random inputs and targets, int32 [batch, length], without padding or end tokens."""
        rng = np.random.default_rng(0)
        lengths = (self.inputs, self.targets)
        inputs, targets = (rng.integers(3, self.vocab, (self.batch, length), np.int32) for length in lengths)
        return inputs, targets


def add_work_arguments(parser: argparse.ArgumentParser, vocabs: list[int], engines: list[str]) -> None:
    """Adds --engines, and an option for every field of `Work`; several vocabularies are several pieces of work."""
    parser.add_argument("--engines", nargs="+", choices=engines, default=USUAL)
    parser.add_argument("--vocab", nargs="+", type=int, default=vocabs)
    parser.add_argument("--model", choices=SIZES, default=Work.model)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default=Work.dtype)
    parser.add_argument("--dropout", type=float, default=Work.dropout)
    for name in ("batch", "inputs", "targets"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Work, name))


def works(args: argparse.Namespace) -> list[Work]:
    names = [field.name for field in dataclasses.fields(Work) if field.name != "vocab"]
    return [Work(vocab=vocab, **{name: getattr(args, name) for name in names}) for vocab in args.vocab]


# ---- A process for each engine ----


def run_child(engine: str, work: Work, **options: Any) -> dict[str, Any]:
    """Starts the running script again to do `work`; returns what it measured, or {"missing": why}."""
    task = dict(engine=engine, work=dataclasses.asdict(work), started=time.time(), **options)
    command = [sys.executable, sys.argv[0], CHILD, json.dumps(task)]
    print(f"{ENGINES[engine]}: {work}", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, env=environment(engine))
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{ENGINES[engine]}: failed on {work}; its output is above.")
    result = done.stdout.splitlines()[-1]
    print(f"    {result}", file=sys.stderr, flush=True)
    return json.loads(result)


def environment(engine: str) -> dict[str, str]:
    """Returns the variables that an engine's own command runs under."""
    variables = dict(os.environ)
    variables.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")  # of a GPU's memory; JAX's own is 0.75
    if engine in ("embedded", "fused"):
        checkout = str(Path(__file__).parents[1])
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [checkout, variables.get("PYTHONPATH")]))
        variables["T5XPG_ENGINE"] = "embedded"
        variables.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # as `t5xpg train` starts itself
    else:
        variables["T5XPG_ENGINE"] = "installed"
        variables["TF_CPP_MIN_LOG_LEVEL"] = "3"
    return variables


def child_main(measure: Callable[..., dict[str, Any]]) -> None:
    """Does what `run_child` asked this process for: calls measure(engine, work, started, …)."""
    task = json.loads(sys.argv[sys.argv.index(CHILD) + 1])
    work = Work(**task.pop("work"))
    try:
        if task["engine"] in ("embedded", "fused"):
            import t5xpg  # noqa: F401  (makes `import t5x` answer)
        result = measure(work=work, **task)
    except ImportError as error:
        result = {"missing": str(error)}
    except RuntimeError as error:  # XLA's RESOURCE_EXHAUSTED, or PyTorch's
        if "out of memory" not in str(error).lower():
            raise
        result = {"missing": str(error).splitlines()[0]}
    print(json.dumps(result))


# ---- Measuring ----


def timed(step: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Returns the median seconds that `step` takes by the clock and of the CPU, all threads together."""
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return {"seconds": statistics.median(wall), "cpu": statistics.median(cpu)}


def peak_gb(platform: str) -> float:
    """The most memory this process ever held, in GB of 10**9 bytes: of the GPU's own where platform is one."""
    if platform == "gpu":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e9
    if platform == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


# ---- Models ----


def t5x_model(work: Work, settings: dict[str, Any] | None = None, **arguments):
    """Returns T5X's model, of whichever engine answers `import t5x`; nothing ends its decodes early.

    Args:
      settings: more fields of its T5Config.
      arguments: of models.EncoderDecoderModel.
    """
    from t5x import adafactor, models
    from t5x.examples.t5 import network

    class Vocabulary:
        eos_id = -1

    settings = SIZES[work.model] | dict(dropout_rate=work.dropout) | (settings or {})
    config = network.T5Config(vocab_size=work.vocab, dtype=work.dtype, **settings)
    return models.EncoderDecoderModel(
        module=network.Transformer(config=config),
        input_vocabulary=Vocabulary(),
        output_vocabulary=Vocabulary(),
        optimizer_def=adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules()),
        **arguments,
    )


def t5x_batch(work: Work) -> dict[str, np.ndarray]:
    """Returns a batch as SeqIO would feed it: unpacked, targets shifted right by one."""
    inputs, targets = work.ids()
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones_like(targets),
    }


def torch_model(work: Work):
    """Returns (Hugging Face's T5 of the same size, the device it is on)."""
    import torch
    import transformers

    size = SIZES[work.model]
    config = transformers.T5Config(
        vocab_size=work.vocab,
        d_model=size["emb_dim"],
        d_kv=size["head_dim"],
        d_ff=size["mlp_dim"],
        num_heads=size["num_heads"],
        num_layers=size["num_encoder_layers"],
        num_decoder_layers=size["num_decoder_layers"],
        dropout_rate=work.dropout,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    config.tie_word_embeddings = False  # T5 1.1 has an output projection; recent versions overwrite the argument
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return transformers.T5ForConditionalGeneration(config).to(device), device


# ---- The report ----


def print_table(header: list[str], rows: list[list[str]]) -> None:
    print(f"\n| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


def print_missing(results: dict[str, dict[str, Any]]) -> None:
    for engine, result in results.items():
        if "missing" in result:
            print(f"\nLeft out: {ENGINES[engine]} ({result['missing']}).", flush=True)
