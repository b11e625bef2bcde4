"""`t5xpg inspect`: what a model will see of a task; `t5xpg tasks`: what is registered. See t5xpg.inspection."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from t5xpg import recipes

if TYPE_CHECKING:
    import numpy as np

EXAMPLE = """examples:
  t5xpg inspect wikitext_span_corruption --html page.html
  t5xpg inspect configs/byt5_tiny.gin FILES=corpus_{split}.jsonl
"""
DEFAULT_MODULE = "t5xpg.tasks"


def register(verbs) -> None:
    """Adds the verbs `inspect` and `tasks` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "inspect",
        help="show what a model will see of a task",
        description="Takes a few examples apart (text, mask, inputs, targets, decoder inputs) and measures a sample:\n"
        "lengths, padding, packing, noise, sentinels, speed, and how many steps one epoch takes.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", nargs="+", metavar="TASK | RECIPE.gin [NAME=VALUE]", help="a task, or what `t5xpg train` would get")
    add("--examples", type=int, default=3, metavar="N", help="how many to show (3)")
    add("--sample", type=int, default=1000, metavar="ROWS", help="rows of the corpus to measure (1000)")
    add("--split", help="of the task (the recipe's, or train)")
    add("--lengths", metavar="inputs=512,targets=114", help="feature lengths (the recipe's, or 512 and what it makes)")
    add("--html", metavar="FILE", help="also write a page to look at in a browser")
    add("--seed", type=int, default=0, help="of the sample and its masks (0)")
    add("--module", default=DEFAULT_MODULE, help=f"imported first, to register tasks ({DEFAULT_MODULE})")
    parser.set_defaults(run=run_inspect)
    parser = verbs.add_parser(
        "tasks", help="list the tasks that are registered", description="Lists tasks and mixtures."
    )
    parser.add_argument("--module", default=DEFAULT_MODULE, help=f"imported first ({DEFAULT_MODULE})")
    parser.set_defaults(run=run_tasks)


def import_tasks(module: str) -> None:
    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    importlib.import_module(DEFAULT_MODULE)
    importlib.import_module(module)


# ---- inspect ----


def run_inspect(args: argparse.Namespace) -> int:
    import_tasks(args.module)
    from t5xpg.inspection import measurements, page, terminal

    task, settings, recipe = read_target(args.what)
    if args.lengths:
        settings["lengths"] = parse_lengths(args.lengths)
    if args.split:
        settings["split"] = args.split
    seen = measurements.inspect(task, **settings, rows=args.sample, examples=args.examples, seed=args.seed)
    terminal.show(seen)
    answers, rates = read_code(recipe, task, settings.get("lengths"))
    terminal.show_code(answers, rates, seen.epoch)
    if args.html:
        page.write(seen, terminal.facts(seen), args.html, answers, () if rates is None else rates)
        print(f"\n{args.html}: open it in a browser")
    return 0


def read_target(what: list[str]) -> tuple[str, dict, recipes.Recipe | None]:
    """Returns (task, settings of its recipe's data, the recipe); {} and None without a recipe."""
    if len(what) == 1 and not what[0].endswith(".gin"):
        return what[0], {}, None
    recipe = recipes.read(what)
    cfg = recipe.dataset_config()
    settings = {"lengths": cfg.task_feature_lengths, "split": cfg.split, "shuffle": cfg.shuffle}
    return cfg.mixture_or_task_name, settings | {"batch_size": cfg.batch_size, "pack": cfg.pack}, recipe


def read_code(
    recipe: recipes.Recipe | None, task: str, lengths: dict[str, int] | None
) -> tuple[list, np.ndarray | None]:
    """Returns what inspection.code says about the task and a recipe's run, and the run's learning rates (or None)."""
    from t5xpg.inspection import code, measurements

    answers, rates = code.of_data(measurements.find(task), lengths), None
    if recipe is not None and recipe.program == "train":
        settings = recipe.settings()
        answers += code.of_training(settings)
        rates = code.learning_rates(settings)
    return answers, rates


def parse_lengths(text: str) -> dict[str, int]:
    """Returns {"inputs": 512, "targets": 114} for "inputs=512,targets=114"."""
    pairs = [pair.split("=") for pair in text.split(",")]
    if not all(len(pair) == 2 and pair[1].strip().isdigit() for pair in pairs):
        raise ValueError(f"--lengths {text!r} is not like inputs=512,targets=114.")
    return {name.strip(): int(length) for name, length in pairs}


# ---- tasks ----


def run_tasks(args: argparse.Namespace) -> int:
    import_tasks(args.module)
    import seqio

    from t5xpg.inspection import measurements

    found = [seqio.get_mixture_or_task(name) for name in (*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names())]
    found.sort(key=lambda provider: (not hasattr(provider, "jsonl_arguments"), provider.name))
    width = max(len(provider.name) for provider in found)
    for provider in found:
        about = measurements.describe(provider)
        columns = [about[key] for key in ("source", "objective", "vocabulary", "splits") if about[key]]
        print(f"{provider.name:{width}}  {'  |  '.join(columns)}")
    return 0
