"""`t5xpg train | eval | infer`: T5X's programs, with recipes and `NAME=VALUE` instead of quoted gin flags."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator

from t5xpg import name_value, recipes, t5x_finder
from t5xpg.base import clusters

VERBS = {
    "train": (
        "train or fine-tune a model by a gin recipe",
        "Trains a model by a gin recipe, with google-research/t5x if it is installed and with the embedded engine\n"
        "otherwise. The same command again goes on from the last checkpoint. The embedded engine says what differs\n"
        "from the run's last start, and refuses other data, lengths, batch size, vocabulary or network unless\n"
        "--allow_changes is given. With --wandb=PROJECT it gives the numbers to Weights & Biases (t5xpg[wandb]).",
        """examples:
  t5xpg train configs/wikitext_byt5_tiny.gin MODEL_DIR=runs/a TRAIN_STEPS=200
  t5xpg train --gin_file=configs/wikitext_byt5_tiny.gin --gin.MODEL_DIR=\\"runs/a\\"    (T5X's own way)
""",
    ),
    "eval": (
        "evaluate checkpoints by what the model generates",
        "Evaluates one checkpoint, the latest or all of a run on the metrics of a task; results go to\n"
        "EVAL_OUTPUT_DIR/inference_eval.",
        """examples:
  t5xpg eval configs/byt5_tiny_eval.gin FILES=pairs_{split}.jsonl CHECKPOINT_PATH=runs/b/checkpoint_1500 \\
      EVAL_OUTPUT_DIR=runs/b/eval
  … CHECKPOINT_PATH=runs/b utils.RestoreCheckpointConfig.mode=all    (every checkpoint of a run)
""",
    ),
    "infer": (
        "predict or score a task's examples into JSONL files",
        "Runs a trained model over a task's examples and writes a JSON line for each. The same command again goes on\n"
        "after the last finished chunk.",
        """examples:
  t5xpg infer configs/byt5_tiny_infer.gin FILES=pairs_{split}.jsonl CHECKPOINT_PATH=runs/b/checkpoint_1500 \\
      INFER_OUTPUT_DIR=runs/b/predictions
  … infer.mode=score    … --shard_id=0 infer.num_shards=4    (one of four runs that share the work)
""",
    ),
}


ON_T5X = """
recipes run on T5X too: python -m t5x.{verb} --gin_file=RECIPE.gin --gin.NAME=VALUE, with text in quotes, and
--gin_search_paths=FOLDER where FOLDER/configs is what ships. NAME=VALUE and RECIPE.gin alone are this command's own.
{own}"""
OWN = """The embedded engine's own are --allow_changes, --wandb, --multiprocess, a MODEL_DIR where a checkpoint is asked
for, and of what recipes can bind,
"""


def register(verbs) -> None:
    for verb, (summary, description, examples) in VERBS.items():
        register_program(verbs, verb, summary, description, examples)


def register_program(verbs, verb: str, summary: str, description: str, examples: str) -> None:
    parser = verbs.add_parser(
        verb,
        help=summary,
        description=description,
        epilog=examples + ON_T5X.format(verb=verb, own=own_bindings() if verb == "train" else ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prefix_chars="\0",  # so that T5X's own --flags pass through, in their order
        add_help=False,
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RECIPE.gin | NAME=VALUE | --flag=value",
        help="recipes, in order; gin bindings, whose text needs no quotes; any flag of T5X's program; and "
        "--multiprocess in each of several processes, which find each other under SLURM, on TPUs, in GKE and under MPI",
    )
    parser.set_defaults(run=lambda args: run_or_help(parser, f"t5x.{verb}", args.arguments))


def own_bindings() -> str:
    return OWN + "".join(f"  {name:<33}  {words}\n" for name, words in name_value.OWN_BINDINGS.items())


def run_or_help(parser: argparse.ArgumentParser, module: str, arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        parser.print_help()
        return 0 if arguments else 2
    status = run_program(module, arguments)
    if module == "t5x.train" and not status:
        show_end()
    return status


def show_end() -> None:
    """Prints the scores in the MODEL_DIR of the run that just ended and what shows the rest, from process 0."""
    import gin
    import jax

    from t5xpg.cli import scores

    if jax.process_index() == 0 and recipes.is_given("MODEL_DIR"):
        model_dir = str(gin.query_parameter("%MODEL_DIR"))
        scores.show(model_dir)
        command = shlex.join(["t5xpg", "report", model_dir, "--html", "report.html"])
        print(f"Its curves and predictions: {command}", file=sys.stderr)


def flags_of_t5x(flags: list[str]) -> list[str]:
    """Returns the flags that the installed T5X has, and does what --multiprocess means in its place.

    T5X's train joins other processes by --multiprocess_gpu alone, its eval and infer not at all; but all go on in a
    process that has joined them.
    """
    for name in {flag.partition("=")[0] for flag in flags} & (name_value.OWN_FLAGS - {"--multiprocess"}):
        print(f"{name} is left out: the installed T5X has no such flag.", file=sys.stderr)
    if {"--multiprocess", "--multiprocess=true"} & set(flags):
        flags, where = name_value.without_distributed_flags(flags)
        clusters.join(**where)
        flags = [flag for flag in flags if flag not in name_value.OTHER_FLAGS]
    return [flag for flag in flags if flag.partition("=")[0] not in name_value.OWN_FLAGS]


@contextlib.contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """Inside, a Ctrl-C ends the process, until the embedded engine listens to it.

    There is nothing to tidy up yet; and a KeyboardInterrupt is lost on libraries that are being imported, and on JAX
    while it waits for other processes.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler and t5x_finder.is_embedded():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, previous)


def run_program(module: str, arguments: list[str]) -> int:
    """Runs one of T5X's programs as `python -m` would; returns its exit status."""
    import runpy

    from t5xpg.cli import starting

    flags = name_value.program_flags(arguments, recipes.recipes_root())
    if not t5x_finder.is_embedded():
        flags = flags_of_t5x(flags)
    try:
        with ctrl_c_ends_at_once():
            starting.load()
            bindings = name_value.given_bindings(flags)
            name_value.check_macros_when_parsed(bindings)
            sys.argv = [module, *flags]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except ValueError as error:
        if "%gin.REQUIRED" in str(error):  # gin looks for what is missing before the macros are checked
            name_value.check_macros(bindings)
        raise
    return 0
