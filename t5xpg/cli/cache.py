"""`t5xpg cache`: SeqIO's offline cache of tasks, without Beam. The work is in t5xpg.data.offline_cache."""

from __future__ import annotations

import argparse
import functools
import shlex

from t5xpg import recipes
from t5xpg.base import nearest

EXAMPLE = """examples:
  t5xpg cache my_task --module my_tasks --output_cache_dir cache
  t5xpg cache recipe.gin FILES=notes_{split}.jsonl tasks.jsonl_task.cacheable=True --output_cache_dir cache

Started again after an interruption, it goes on where it stopped.
"""


def register(verbs) -> None:
    """Adds the verb `cache` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "cache",
        help="tokenize tasks once, for many runs and exact resumes",
        description="Writes SeqIO's offline cache of tasks, as seqio_cache_tasks does, but without Beam: for T5X and\n"
        "SeqIO, which read it with use_cached=True.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", nargs="+", metavar="TASK | RECIPE.gin NAME=VALUE", help="tasks or mixtures; or a recipe's arguments")
    add("--output_cache_dir", required=True, metavar="DIR", help="folder for the cache, made if need be")
    add("--module", default="t5xpg.tasks", help="imported first, to register the tasks (t5xpg.tasks)")
    add("--splits", nargs="+", metavar="SPLIT", help="the splits to cache (all)")
    add("--num_shards", type=int, metavar="N", help="files of a split (as many as the source has, 64 at least)")
    add("--processes", type=int, metavar="P", help="how many write at once (one per CPU; one alone what is small)")
    add("--overwrite", action="store_true", help="rewrite what is already cached or begun")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    find = functools.partial(find_tasks, args.what, args.module)
    names = find()
    import tensorflow as tf

    from t5xpg.data import offline_cache

    tf.config.set_visible_devices([], "GPU")
    stats = offline_cache.cache_tasks(
        names, args.output_cache_dir, args.splits, args.num_shards, args.processes, args.overwrite, find
    )
    for task, splits in stats.items():
        for split, counts in splits.items():
            tokens = sum(n for name, n in counts.items() if name.endswith("_tokens") and "_max_" not in name)
            print(f"{task}, {split}: {counts['examples']:,} examples, {tokens:,} tokens")
    print(f"train with it:\n  {train_command(args.what, args.output_cache_dir)}")
    return 0


def find_tasks(what: list[str], module: str) -> list[str]:
    """Registers the tasks that the command line names and returns their names; called first in each process."""
    import importlib

    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    import seqio

    if any(word.partition("=")[0].endswith(".gin") for word in what):
        return [recipe_task(what)]
    importlib.import_module(module)
    known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if unknown := [name for name in what if name not in known]:
        hint = nearest.hint(unknown[0], known)
        raise ValueError(f"{module} registers no task {unknown[0]!r}. Pass --module, or a recipe (….gin){hint}")
    return what


def recipe_task(arguments: list[str]) -> str:
    """Returns the name of the task that `t5xpg train ARGUMENTS` would train on, and registers it."""
    cfg = recipes.read(arguments).dataset_config()
    if not isinstance(cfg.mixture_or_task_name, str):
        raise ValueError(f"{arguments[0]} names no task. Add MIXTURE_OR_TASK_NAME=…")
    return cfg.mixture_or_task_name


def train_command(what: list[str], cache_dir: str) -> str:
    """Returns the command that trains on the cache and, if stopped, goes on at the very next batch."""
    run = shlex.join(what) if what[0].endswith(".gin") else f"RECIPE.gin MIXTURE_OR_TASK_NAME={what[0]}"
    return (
        f"t5xpg train {run} MODEL_DIR=runs/cached USE_CACHED_TASKS=True \\\n"
        f"    --seqio_additional_cache_dirs={shlex.quote(cache_dir)} utils.SaveCheckpointConfig.save_dataset=True"
    )
