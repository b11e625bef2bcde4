"""`t5xpg inspect`: what a model will see of a task; `t5xpg tasks`: what is registered. See t5xpg.inspection."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5xpg import recipes
from t5xpg.cli.quiet import import_tensorflow, quiet_stderr

if TYPE_CHECKING:
    import numpy as np

    from t5xpg.inspection.measurements import Inspection
    from t5xpg.inspection.speed import Rate, Speed

EXAMPLE = """examples:
  t5xpg inspect wikitext_span_corruption --html page.html
  t5xpg inspect configs/byt5_tiny.gin FILES=corpus_{split}.jsonl --feeds 1000
"""
DEFAULT_MODULE = "t5xpg.tasks"


def register(verbs) -> None:
    """Adds the verbs `inspect` and `tasks` to what `ArgumentParser.add_subparsers` returned."""
    parser = verbs.add_parser(
        "inspect",
        help="show what a model will see of a task",
        description="Takes a few examples apart (text, mask, inputs, targets, decoder inputs) and measures a sample:\n"
        "lengths, padding, packing, noise, sentinels, and how many steps one epoch takes; with --speed also its speed.",
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
    add("--speed", action="store_true", help="measure how fast batches are made, on one core and on all (20 s)")
    add(
        "--feeds",
        type=above_zero,
        metavar="N",
        help="measure it, and say how many cores make N examples a second, packed ones where the recipe packs: what a "
        "trainer takes is its batch size times its steps a second",
    )
    add("--module", default=DEFAULT_MODULE, help=f"imported first, to register tasks ({DEFAULT_MODULE})")
    parser.set_defaults(run=run_inspect)
    parser = verbs.add_parser(
        "tasks", help="list the tasks that are registered", description="Lists tasks and mixtures."
    )
    parser.add_argument("--module", default=DEFAULT_MODULE, help=f"imported first ({DEFAULT_MODULE})")
    parser.set_defaults(run=run_tasks)


def import_tasks(module: str) -> None:
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
    wants_speed = args.speed or args.feeds is not None
    if wants_speed and recipe and recipe.program != "train":
        raise ValueError(f"--speed and --feeds measure what training reads; this recipe is of t5xpg {recipe.program}.")
    seen = measurements.inspect(task, **settings, rows=args.sample, examples=args.examples, seed=args.seed)
    terminal.show(seen)
    speed = []
    if wants_speed:
        speed = terminal.speed_facts(measure_speed(args, seen, recipe), args.feeds)
        terminal.show_facts("Speed", speed)
    answers, rates = read_code(recipe, task, settings.get("lengths"))
    terminal.show_code(answers, rates, seen.epoch)
    if args.html:
        page.write(seen, terminal.facts(seen) + speed, args.html, answers, () if rates is None else rates)
        print(f"\n{args.html}: open it in a browser")
    return 0


def is_task(what: list[str]) -> bool:
    return len(what) == 1 and not what[0].endswith(".gin")


def read_target(what: list[str]) -> tuple[str, dict, recipes.Recipe | None]:
    """Returns (task, settings of its recipe's data, the recipe); {} and None without a recipe."""
    if is_task(what):
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


def measure_speed(args: argparse.Namespace, seen: Inspection, recipe: recipes.Recipe | None) -> Speed:
    """Measures how fast the batches are made of what was inspected, each time in a process of its own."""
    from tqdm import tqdm

    from t5xpg.data import workers
    from t5xpg.inspection import measurements, speed

    lengths = {name: feature.room for name, feature in seen.sample.features.items()}
    text_bytes = speed.text_bytes_of_a_token(measurements.find(seen.task), lengths, seen.split, args.sample, args.seed)
    converter_cls, pack = speed.default_converter(lengths), True
    if recipe:
        settings = recipe.settings()
        converter_cls, pack = settings["model"].FEATURE_CONVERTER_CLS, settings["train_dataset_cfg"].pack
    fields = {"task_feature_lengths": lengths, "split": seen.split, "seed": args.seed}
    rates, job = {}, (args.what, args.module, fields, pickle.dumps(converter_cls))
    for cores in tqdm(speed.numbers_of_cores(), "measuring the speed", unit="process", leave=False):
        rates[cores] = workers.in_new_process(cores, measure, *job)
    return speed.Speed(rates, pack, text_bytes)


def measure(what: list[str], module: str, fields: Mapping[str, Any], pickled_converter_cls: bytes) -> Rate:
    """Measures the batches of a recipe or task in this process; `fields` of its DatasetConfig are given."""
    with quiet_stderr():
        import jax

        jax.config.update("jax_platforms", "cpu")  # the accelerator may be of a process that trains
        import_tasks(module)
        from t5xpg.inspection import speed

        if is_task(what):
            cfg = speed.default_config(what[0], fields)
        else:
            cfg = dataclasses.replace(recipes.read(what).dataset_config(), **fields)
        return speed.measure(cfg, pickle.loads(pickled_converter_cls))


def parse_lengths(text: str) -> dict[str, int]:
    """Returns {"inputs": 512, "targets": 114} for "inputs=512,targets=114"."""
    pairs = [pair.split("=") for pair in text.split(",")]
    if not all(len(pair) == 2 and pair[1].strip().isdigit() for pair in pairs):
        raise ValueError(f"--lengths {text!r} is not like inputs=512,targets=114.")
    return {name.strip(): int(length) for name, length in pairs}


def above_zero(text: str) -> float:
    """Returns the number that a user wrote; raises argparse.ArgumentTypeError where it is not one above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, like 1000")
    return number


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
