"""What a training step needs on TPUs and GPUs that are not here, by their compilers: the embedded engine's and T5X's.

    [PYTHONPATH=path/to/t5x:…] python benchmarks/accelerators.py [--rows small base …] [--engines embedded fused t5x]
                                                                 [--libtpu DIR] [--cuda DIR]

Each row is a recipe of configs/, with bindings: both engines read the same gin. libtpu compiles for any slice on a CPU,
and JAX's CUDA plugin for GPUs: `pip install 't5xpg[tpu,cuda]'`, or the packages alone with `--target DIR`. Nothing is
run, so no number is a time. Prints a table in GitHub's markdown, per chip: the memory that a step needs, parameters and
optimizer included, and what of it is temporary; bytes that the step accesses, as libtpu counts them, on-chip memory
included, or for a GPU, whose compiler counts nothing, as t5xpg.inspection.compiled does; operations; and how often it
copies. XLA counts the body of a loop once, so the last columns, for scanned layers and microbatches, count every turn:
the bytes of main memory that the step accesses, the operations of its products (without those of Pallas kernels), the
bytes that a chip must send, and the tokens a second that these allow at best, with what binds. A row takes one to four
minutes an engine on two idle cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engines import CHILD, ENGINES, environment, print_table

CHECKOUT = str(Path(__file__).resolve().parents[1])


@dataclasses.dataclass(frozen=True)
class Row:
    """A recipe, what is bound on top of it, and the slice or GPUs that its step is compiled for.

    Attributes:
      recipe: a file of configs/.
      target: a name of t5xpg.inspection.accelerators, such as "v5e:2x2" or "h100:1".
      batch: global, of packed examples, in one piece; None for the recipe's own batch and microbatches.
      partitions: of each layer, where they are not the recipe's; parameters are then not divided any further.
    """

    recipe: str
    target: str
    batch: int | None = None
    partitions: int | None = None

    def bindings(self) -> list[str]:
        bound = []
        if self.batch:
            bound += [f"BATCH_SIZE={self.batch}", "trainer.Trainer.num_microbatches=None"]
        if self.partitions:
            rules = "partitioning.standard_logical_axis_rules.parameter_partitioning_dims=1"
            bound += [f"{PARTITIONS}={self.partitions}", rules]
        return bound

    def __str__(self) -> str:
        batch = f", batch {self.batch}" if self.batch else ""
        model = f", model {self.partitions}" if self.partitions else ""
        return f"{self.recipe}{batch}, {self.target}{model}"


ROWS = {
    "small": Row("t5_1_1_small.gin", "v5e:2x2", 128),
    "base": Row("t5_1_1_base.gin", "v5e:2x2", 128),
    "large": Row("t5_1_1_large.gin", "v5e:4x4", 128),
    "byt5_base": Row("byt5_base.gin", "v5e:4x4", 64),
    "xl": Row("t5_1_1_xl.gin", "v5e:8x8", 128, 8),
    "xxl": Row("t5_1_1_xxl.gin", "v5e:16x16", 256, 16),
    "base_h100": Row("t5_1_1_base.gin", "h100:1", 32),
    # Recipes as they are, on what they are for.
    "small_recipe": Row("t5_1_1_small.gin", "v5e:2x2"),
    "base_recipe": Row("t5_1_1_base.gin", "v5e:2x4"),
    "large_recipe": Row("t5_1_1_large.gin", "v5e:4x8"),
    "xl_recipe": Row("t5_1_1_xl.gin", "v5e:8x8"),
    "xxl_recipe": Row("t5_1_1_xxl.gin", "v5e:16x16"),
    "byt5_base_recipe": Row("byt5_base.gin", "v5e:4x8"),
    "mt5_base_recipe": Row("mt5_base.gin", "v5e:4x8"),
}
# No data is read: lengths and batch are the recipe's, and its network has the size of the vocabulary.
NO_DATA = (
    "FILES=none",
    "MODEL_DIR=none",
    "MIXTURE_OR_TASK_NAME=none",
    "VOCABULARY=@seqio.PassThroughVocabulary()",
    "seqio.PassThroughVocabulary.size=1000",
)
PARTITIONS = "partitioning.PjitPartitioner.num_partitions"
FUSED = "network.T5Config.fused_attention=True"
COLUMNS = (  # what a child finds, its heading, its digits
    ("needed", "memory, GiB", 1),
    ("temporary", "temporary, GB", 2),
    ("accessed", "accessed, GB", 1),
    ("operations", "TFLOP", 2),
    ("copies", "copies", 0),
    ("main memory", "main memory, all turns, GB", 1),
    ("products", "products, all turns, TFLOP", 2),
    ("sent", "sent, GB", 1),
    ("bound", "bound, tokens/s of all chips", 0),
)
FORMS = {name: ENGINES[name] for name in ("embedded", "fused", "t5x")}  # what `--engines` names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--engines", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--libtpu", help="the folder that libtpu was installed into, where it is not Python's own")
    parser.add_argument("--cuda", help="likewise of JAX's CUDA plugin and NVIDIA's packages")
    args = parser.parse_args()
    rows = []
    for name in args.rows:
        results = {engine: run_child(engine, name, args) for engine in args.engines}
        reference = results.get("t5x", {})
        rows += [[f"{ROWS[name]}: {FORMS[engine]}", *cells(found, reference)] for engine, found in results.items()]
    print_table(["bfloat16, per chip", *(heading for _, heading, _ in COLUMNS)], rows)


def cells(found: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Returns a row's numbers, with their ratios to those of `reference`, where that is another one."""
    if "missing" in found:
        return [found["missing"], *[""] * (len(COLUMNS) - 1)]
    written = []
    for name, _, digits in COLUMNS:
        ratio = f" ({found[name] / reference[name]:.2f}×)" if reference.get(name) and found != reference else ""
        written.append(f"{found[name]:,.{digits}f}{ratio}")
    return [*written[:-1], f"{written[-1]}, {found['binds']}"]


def run_child(engine: str, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Compiles a row in a process of its own; returns what the compiler says, or {"missing": why}."""
    variables = environment("t5x" if engine == "t5x" else "embedded") | {"JAX_PLATFORMS": "cpu"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [CHECKOUT, variables.get("PYTHONPATH"), args.cuda]))
    if args.libtpu:
        variables["TPU_LIBRARY_PATH"] = os.path.join(args.libtpu, "libtpu", "libtpu.so")
    print(f"{FORMS[engine]}: {ROWS[name]} …", file=sys.stderr, flush=True)
    tick, words = time.time(), [sys.executable, sys.argv[0], CHILD, engine, name]
    done = subprocess.run(words, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{FORMS[engine]}: failed on {ROWS[name]}; its output is above.")
    result = done.stdout.splitlines()[-1]
    print(f"    {result}, {time.time() - tick:.0f} s", file=sys.stderr, flush=True)
    return json.loads(result)


# ---- In a process for each engine ----


def child_main(engine: str, name: str) -> None:
    from t5xpg.cli import check_on, compilers  # t5xpg lets T5X answer `import t5x` where the environment says so
    from t5xpg.inspection import accelerators

    row = ROWS[name]
    target = accelerators.find(row.target)
    try:
        compilers.use(target)
        import t5x  # noqa: F401
    except (ImportError, ValueError) as error:  # ValueError: the compiler is missing
        result = {"missing": str(error)}
    else:
        try:
            result = describe(*compile_step(row, target, engine == "fused"), target)
        except RuntimeError as error:  # XLA's, for a chip that is too small
            result = {"missing": f"does not fit: {check_on.needed_by(str(error), 0) / 2**30:,.1f} GiB"}
    print(json.dumps(result), flush=True)
    os._exit(0)  # libtpu's threads have no end


def describe(compiled, tokens: int, target) -> dict[str, Any]:
    """Returns the numbers of COLUMNS of a compiled program, per chip, and "binds"; it takes `tokens` a step."""
    from t5xpg.base.memory import bytes_of_step
    from t5xpg.inspection.compiled import Program

    memory, cost, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
    program = Program(text)
    accessed, operations = program.accessed(), program.operations()
    sent = sum(moved.sent for moved in program.communication(target.chips).values())
    seconds = target.chip.seconds(operations, accessed, sent)
    needed = memory.argument_size_in_bytes + memory.generated_code_size_in_bytes + bytes_of_step(compiled)
    return {
        "needed": needed / 2**30,
        "temporary": memory.temp_size_in_bytes / 1e9,
        "accessed": (accessed if cost is None else cost["bytes accessed"]) / 1e9,
        "operations": (operations if cost is None else cost["flops"]) / 1e12,
        "copies": len(re.findall(r"\scopy(?:-start)?\(", text)),
        "main memory": accessed / 1e9,
        "products": operations / 1e12,
        "sent": sent / 1e9,
        "bound": float(f"{tokens / max(seconds.values()):.3g}"),
        "binds": max(seconds, key=seconds.__getitem__),
    }


def compile_step(row: Row, target, fused: bool):
    """Returns (the compiled training step of the row's recipe, its tokens) of whichever engine answers `import t5x`."""
    import gin
    import jax
    import numpy as np
    import seqio
    from jax.sharding import Mesh

    from t5x import utils
    from t5xpg import recipes
    from t5xpg.cli import compilers

    gin.external_configurable(seqio.PassThroughVocabulary, module="seqio")
    devices = compilers.devices(target)
    path = Path(CHECKOUT, "configs", row.recipe)
    vocabulary = ["VOCABULARY_FILE=none"] if "VOCABULARY_FILE=" in path.read_text() else []
    options = [*NO_DATA, *vocabulary, *row.bindings(), *([FUSED] if fused else [])]
    settings = recipes.read([str(path), *options]).settings()
    model, partitioner, data = settings["model"], settings["partitioner"], settings["train_dataset_cfg"]
    # T5X makes its mesh of the devices that are here.
    mesh = Mesh(np.array(devices).reshape(-1, gin.query_parameter(PARTITIONS)), ("data", "model"))
    vars(partitioner)["mesh"] = mesh
    shapes = batch_shapes(data.batch_size, **data.task_feature_lengths)
    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes=shapes,
        input_types=dict.fromkeys(shapes, np.int32),
        partitioner=partitioner,
    )
    state = initializer.global_train_state_shape
    trainer = settings["trainer_cls"](
        model=model,
        train_state=state,
        partitioner=partitioner,
        train_state_axes=initializer.train_state_axes,
        eval_names=[],
        summary_dir=None,
        rng=jax.random.PRNGKey(0),
    )
    batch = {name: jax.ShapeDtypeStruct(shape, np.int32) for name, shape in shapes.items()}
    tokens = data.batch_size * sum(data.task_feature_lengths.values())
    return partitioner.compile(trainer._partitioned_train_step, state, batch), tokens


def batch_shapes(batch: int, inputs: int, targets: int) -> dict[str, tuple[int, int]]:
    """Returns {feature: shape} of a packed batch."""
    names = ("target_tokens", "input_tokens", "loss_weights", "segment_ids", "positions")
    return {f"encoder_{name}": (batch, inputs) for name in ("input_tokens", "segment_ids", "positions")} | {
        f"decoder_{name}": (batch, targets) for name in names
    }


if __name__ == "__main__":
    if CHILD in sys.argv:
        child_main(*sys.argv[sys.argv.index(CHILD) + 1 :])
    main()
