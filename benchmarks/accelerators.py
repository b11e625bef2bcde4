"""What a training step needs on TPUs and GPUs that are not here, by their compilers: the embedded engine's and T5X's.

    [PYTHONPATH=path/to/t5x:…] python benchmarks/accelerators.py [--rows small base …] [--engines embedded fused t5x]
                                                                 [--libtpu DIR] [--cuda DIR]

libtpu compiles for any slice on a CPU, and JAX's CUDA plugin for GPUs: `pip install 't5xpg[tpu,cuda]'`, or the packages
alone with `--target DIR`. Nothing is run, so no number is a time. Prints a table in GitHub's markdown, per chip:
temporary memory, which comes to that of the parameters and the optimizer; bytes that the step accesses, as libtpu
counts them, on-chip memory included, or for a GPU, whose compiler counts nothing, as t5xpg.inspection.compiled does;
operations; and how often it copies. XLA counts the body of a loop once, so the last three columns, for scanned layers,
count every turn: the bytes of main memory that the step accesses, the operations of its products (without those of
Pallas kernels), and the bytes that a chip must send. A row takes one to four minutes an engine on two idle cores.
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

T5_1_1 = dict(vocab_size=32128, head_dim=64)
SMALL = T5_1_1 | dict(emb_dim=512, num_heads=6, num_encoder_layers=8, num_decoder_layers=8, mlp_dim=1024)
BASE = T5_1_1 | dict(emb_dim=768, num_heads=12, num_encoder_layers=12, num_decoder_layers=12, mlp_dim=2048)
LARGE = T5_1_1 | dict(emb_dim=1024, num_heads=16, num_encoder_layers=24, num_decoder_layers=24, mlp_dim=2816)
XL = LARGE | dict(emb_dim=2048, num_heads=32, mlp_dim=5120)
XXL = LARGE | dict(emb_dim=4096, num_heads=64, mlp_dim=10240)
BYT5_BASE = BASE | dict(vocab_size=384, emb_dim=1536, num_encoder_layers=18, num_decoder_layers=6, mlp_dim=3968)


@dataclasses.dataclass(frozen=True)
class Row:
    """A model, its batch, and the slice that the step is compiled for.

    Attributes:
      topology: a name of t5xpg.inspection.accelerators, such as "v5e:2x2" or "h100:1".
      batch: global, of packed examples.
      model_parallel: the partitions of the mesh's axis "model"; the others are "data".
      scan: whether the layers are scanned and rematerialised ("minimal").
    """

    name: str
    size: dict[str, Any]
    topology: str
    batch: int
    inputs: int = 512
    targets: int = 114
    model_parallel: int = 1
    scan: bool = False

    def __str__(self) -> str:
        scanned = ", scanned" if self.scan else ""
        parallel = f", model {self.model_parallel}" if self.model_parallel > 1 else ""
        return f"{self.name}{scanned}, {self.inputs}/{self.targets}, batch {self.batch}, {self.topology}{parallel}"


ROWS = {
    "small": Row("T5 1.1 small", SMALL, "v5e:2x2", 128),
    "base": Row("T5 1.1 base", BASE, "v5e:2x2", 128),
    "large": Row("T5 1.1 large", LARGE, "v5e:4x4", 128),
    "byt5_base": Row("ByT5 base", BYT5_BASE, "v5e:4x4", 64, 1024, 189),
    "xl": Row("T5 1.1 XL", XL, "v5e:8x8", 128, model_parallel=8, scan=True),
    "xxl": Row("T5 1.1 XXL", XXL, "v5e:16x16", 256, model_parallel=16, scan=True),
    "base_h100": Row("T5 1.1 base", BASE, "h100:1", 32),
}
COLUMNS = (  # what a child finds, its heading, its digits
    ("temporary", "temporary, GB", 2),
    ("accessed", "accessed, GB", 1),
    ("operations", "TFLOP", 2),
    ("copies", "copies", 0),
    ("main memory", "main memory, all turns, GB", 1),
    ("products", "products, all turns, TFLOP", 2),
    ("sent", "sent, GB", 1),
)
FORMS = {  # what `--engines` names
    "embedded": ENGINES["embedded"],
    "fused": f"{ENGINES['embedded']}, fused_attention",
    "t5x": ENGINES["t5x"],
}


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
    return written


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
    try:
        result = describe(compile_step(ROWS[name], engine == "fused"), ROWS[name])
    except (ImportError, ValueError) as error:  # ValueError: a compiler is missing
        result = {"missing": str(error)}
    print(json.dumps(result), flush=True)
    os._exit(0)  # libtpu's threads have no end


def describe(compiled, row: Row) -> dict[str, Any]:
    """Returns the numbers of COLUMNS of a compiled program, per chip."""
    from t5xpg.inspection import accelerators
    from t5xpg.inspection.compiled import Program

    memory, cost, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
    program, chips = Program(text), accelerators.find(row.topology).chips
    accessed, operations = program.accessed(), program.operations()
    return {
        "temporary": memory.temp_size_in_bytes / 1e9,
        "accessed": (accessed if cost is None else cost["bytes accessed"]) / 1e9,
        "operations": (operations if cost is None else cost["flops"]) / 1e12,
        "copies": len(re.findall(r"\scopy(?:-start)?\(", text)),
        "main memory": accessed / 1e9,
        "products": operations / 1e12,
        "sent": sum(moved.sent for moved in program.communication(chips).values()) / 1e9,
    }


def compile_step(row: Row, fused: bool):
    """Returns the compiled training step of whichever engine answers `import t5x`: Adafactor, no dropout, packed."""
    from t5xpg.cli import compilers  # t5xpg lets T5X answer `import t5x` where the environment says so
    from t5xpg.inspection import accelerators

    target = accelerators.find(row.topology)
    compilers.use(target)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax.linen import partitioning as flax_partitioning
    from jax.sharding import Mesh

    from t5x import partitioning, trainer, utils

    mesh = Mesh(np.array(compilers.devices(target)).reshape(-1, row.model_parallel), ("data", "model"))
    rules = partitioning.standard_logical_axis_rules()
    on_slice = type("OnSlice", (partitioning.PjitPartitioner,), {"mesh": mesh})
    partitioner = on_slice(num_partitions=1, logical_axis_rules=rules)
    model, shapes = make_model(row, fused), batch_shapes(row)
    types = dict.fromkeys(shapes, jnp.int32)
    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes=shapes,
        partitioner=partitioner,
        input_types=types,
    )
    state = initializer.global_train_state_shape
    step = trainer.Trainer(
        model,
        train_state=state,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
        learning_rate_fn=utils.create_learning_rate_scheduler(),
        num_microbatches=None,
    )._partitioned_train_step
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
    with mesh, flax_partitioning.axis_rules(partitioner.logical_axis_rules):
        return getattr(step, "_pjitted_fn", step).lower(state, batch).compile()


def make_model(row: Row, fused: bool):
    import seqio

    from t5x import adafactor, models
    from t5x.examples.scalable_t5 import network as scanned
    from t5x.examples.t5 import network

    chosen, options = (scanned, {"remat_policy": "minimal"}) if row.scan else (network, {})
    if fused:
        options["fused_attention"] = True
    config = chosen.T5Config(
        **row.size, **options, mlp_activations=("gelu", "linear"), dropout_rate=0.0, dtype="bfloat16"
    )
    vocabulary = seqio.PassThroughVocabulary(row.size["vocab_size"])
    factoring = adafactor.standard_logical_factor_rules()
    return models.EncoderDecoderModel(
        module=chosen.Transformer(config),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        optimizer_def=adafactor.Adafactor(decay_rate=0.8, step_offset=0, logical_factor_rules=factoring),
        z_loss=1e-4,
    )


def batch_shapes(row: Row) -> dict[str, tuple[int, int]]:
    """Returns {feature: shape} of a packed batch."""
    inputs, targets = (row.batch, row.inputs), (row.batch, row.targets)
    names = ("decoder_target_tokens", "decoder_input_tokens", "decoder_loss_weights")
    return {
        "encoder_input_tokens": inputs,
        **dict.fromkeys(names, targets),
        **{f"encoder_{kind}": inputs for kind in ("segment_ids", "positions")},
        **{f"decoder_{kind}": targets for kind in ("segment_ids", "positions")},
    }


if __name__ == "__main__":
    if CHILD in sys.argv:
        child_main(*sys.argv[sys.argv.index(CHILD) + 1 :])
    main()
