"""From the command to the end of its first training step: `t5xpg train`, and T5X's own `python -m t5x.train`.

    [PYTHONPATH=path/to/t5x:…] python benchmarks/start.py configs/wikitext_byt5_tiny.gin [NAME=VALUE …] [--runs 3]

By turns, each run in a process and a MODEL_DIR of its own; the table shows the medians of clock and CPU seconds. Each
engine runs as on a new machine, where nothing is kept of what it compiles, and with what an earlier run of its own has
left in JAX's cache. The embedded engine's cache is the one that `t5xpg train` keeps; T5X has none by default, and gets
one by JAX_COMPILATION_CACHE_DIR. The ratios are to T5X without.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from engines import CHILD, ENGINES, environment, print_missing, print_table


def first_step(engine: str, recipe: str, bindings: list[str], kept: str | None) -> dict[str, Any]:
    """Starts a training run that ends itself after one step; returns its seconds, or {"missing": why}.

    What JAX compiles is kept in the folder `kept`, and found there; with None, it is not.
    """
    variables = environment(engine)
    if kept is None:
        variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    else:
        variables["XDG_CACHE_HOME" if engine == "embedded" else "JAX_COMPILATION_CACHE_DIR"] = kept
    with tempfile.TemporaryDirectory() as model_dir:
        arguments = [recipe, f"MODEL_DIR={model_dir}", *bindings]
        command = [sys.executable, sys.argv[0], CHILD, engine, str(time.time()), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=variables)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"missing": (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]}
    print(f"{ENGINES[engine]}{', compiled before' * bool(kept)}: {lines[-1]}", file=sys.stderr, flush=True)
    return json.loads(lines[-1])


def child(engine: str, started: float, arguments: list[str]) -> None:
    """Is the command, up to its first step."""
    if engine == "t5x":
        from t5xpg import name_value, recipes

        flags = name_value.program_flags(arguments, recipes.recipes_root())
        end_after_first_step(started)
        sys.argv = ["train", *flags]
        runpy.run_module("t5x.train", run_name="__main__", alter_sys=True)
        return
    from t5xpg.cli import starting
    from t5xpg.cli.main import main

    load = starting.load

    def load_and_end_after_first_step() -> None:
        load()
        end_after_first_step(started)

    starting.load = load_and_end_after_first_step
    sys.exit(main(["train", *arguments]))


def end_after_first_step(started: float) -> None:
    """Makes the trainer print how long its first step took since `started`, and end there."""
    import jax

    from t5x import trainer

    train = trainer.Trainer.train

    def train_once(self, batch_iter, _num_steps, *args, **kwargs):
        train(self, batch_iter, 1, *args, **kwargs)
        jax.block_until_ready(self.train_state.params)
        print(json.dumps({"seconds": time.time() - started, "cpu": time.process_time()}), flush=True)
        os._exit(0)

    trainer.Trainer.train = train_once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("bindings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    runs: dict[tuple[str, bool], list] = {
        (engine, kept): [] for kept in (False, True) for engine in ("embedded", "t5x")
    }
    with tempfile.TemporaryDirectory() as folder:
        caches = {engine: os.path.join(folder, engine) for engine in ("embedded", "t5x")}
        for engine, cache in caches.items():
            first_step(engine, args.recipe, args.bindings, cache)
        for _ in range(args.runs):
            for (engine, kept), results in runs.items():
                results.append(first_step(engine, args.recipe, args.bindings, caches[engine] if kept else None))
    print_missing({engine: results[0] for (engine, kept), results in runs.items() if not kept})
    measured = {
        run: [statistics.median(x[key] for x in results) for key in ("seconds", "cpu")]
        for run, results in runs.items()
        if not any("missing" in x for x in results)
    }
    base = measured.get(("t5x", False))
    rows = [
        [ENGINES[engine] + ", compiled before" * kept, *map(cell, medians, base or medians)]
        for (engine, kept), medians in measured.items()
    ]
    print_table([args.recipe, "first step after, s", "CPU, s"], rows)


def cell(seconds: float, base: float) -> str:
    return f"{seconds:.1f}" + ("" if seconds == base else f" ({seconds / base:.2f}×)")


if __name__ == "__main__":
    child(sys.argv[2], float(sys.argv[3]), sys.argv[4:]) if CHILD in sys.argv else main()
