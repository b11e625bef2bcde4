"""`t5xpg check RECIPE`: everything that can be known about a run before it starts, in seconds, on either engine."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shlex

from t5xpg import recipes
from t5xpg.base import files, stores


def register(verbs) -> None:
    parser = verbs.add_parser(
        "check",
        help="check a recipe in seconds, before a run is spent on it",
        description="Parses a recipe for train, eval or infer, resolves every name, reads the first rows of its data, "
        "compares vocabularies, divides batch and parameters over the devices, runs one step by shapes only, and "
        "estimates the memory. It takes the arguments of the run itself; folders and checkpoints may be left out. "
        "With --on CHIPS (v5e-16, v5e:4x4, v4-32, v5p-16, v6e-8, h100:8, h200, a100-80:4, l4) the training step is "
        "compiled for TPUs or GPUs that need not be there: memory, operations, communication, what bounds its time; "
        "--dump FOLDER keeps the program's text.",
        epilog="example: t5xpg check configs/byt5_tiny.gin FILES=corpus_{split}.jsonl BATCH_SIZE=64 --on v5e-4",
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("arguments", nargs="*", metavar="RECIPE.gin | NAME=VALUE | --flag=value | --on CHIPS")
    parser.set_defaults(run=lambda args: run(parser, args.arguments))


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        parser.print_help()
        return 0 if arguments else 2
    own, arguments = own_options(arguments)
    if own.on is not None:
        from t5xpg.cli import check_on

        return check_on.run(arguments, own.on, own.dump)
    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    recipe = recipes.read(arguments)
    if recipe.program == "precompile":
        raise ValueError("This recipe compiles a step; say for what, as --on v5e-16 does.")
    for name, text in describe(recipe.settings()):
        print(f"{name:<11}{text}", flush=True)
    name, text = describe_ready(recipe, arguments)
    print(f"{name:<11}{text}")
    return 0


def describe_ready(recipe: recipes.Recipe, arguments: list[str]) -> tuple[str, str]:
    """Returns the command of the run, with the folders that are yet to be named."""
    to_give = [f"{name}=…" for name in recipe.not_given()]
    return "ready", f"{shlex.join(['t5xpg', recipe.program, *arguments])} {' '.join(to_give)}".rstrip()


def own_options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns what is meant for `check` itself, and the arguments of the run."""
    parser = argparse.ArgumentParser("t5xpg check", add_help=False, allow_abbrev=False)
    parser.add_argument("--on")
    parser.add_argument("--dump")
    own, arguments = parser.parse_known_args(arguments)
    if own.dump and own.on is None:
        parser.error("--dump keeps what --on compiles; give --on too")
    return own, arguments


def describe(settings: dict):
    """Yields (what was checked, the result), and raises ValueError at the first thing that cannot work."""
    import jax

    from t5xpg.base import memory

    yield from describe_data(settings)
    model, partitioner = settings["model"], settings["partitioner"]
    batch = read_batch(settings)
    yield describe_batch(settings, batch)
    initializer = make_initializer(settings, batch)
    yield describe_model(settings, initializer)
    training, state = "train_dataset_cfg" in settings, initializer.global_train_state_shape
    step = jax.grad(lambda p, b, r: model.loss_fn(p, b, r)[0]) if training else model.predict_batch
    jax.eval_shape(step, state.params, batch, jax.random.PRNGKey(0))
    yield "step", f"{'loss and gradients' if training else 'prediction'} by shapes"
    parts = memory.state_parts(state, initializer.train_state_axes, partitioner.mesh, training)
    yield "memory", memory.check_state(parts, partitioner.mesh)


def describe_data(settings: dict):
    """Yields what of the run's settings, checkpoints and data was checked; raises ValueError as `describe`."""
    import seqio

    from t5x import utils
    from t5xpg.base import run_settings
    from t5xpg.inspection import measurements

    if "trainer_cls" in settings:
        run_settings.check_training(settings)
    if restored := checkpoints_named(settings):
        yield "restores", ", ".join(restored)
    model = settings["model"]
    configs = {name: cfg for name, cfg in settings.items() if name.endswith("dataset_cfg") and cfg is not None}
    for name, cfg in configs.items():
        utils.verify_matching_vocabs(cfg, model)
        task = getattr(cfg.mixture_or_task_name, "name", cfg.mixture_or_task_name)
        lengths = ", ".join(f"{k} {v}" for k, v in (cfg.task_feature_lengths or {}).items())
        what = name.removesuffix("dataset_cfg").strip("_") or "data"
        read_an_example(cfg, model)
        yield what, f"{task}, split {cfg.split}, {lengths or 'lengths of the longest examples'}; vocabulary fits"
        if not cfg.use_cached:
            provider = seqio.get_mixture_or_task(cfg.mixture_or_task_name)
            yield from (("note", remark) for remark in measurements.remarks(provider, cfg.split, cfg.shuffle))


def read_batch(settings: dict) -> dict:
    """Returns {feature: jax.ShapeDtypeStruct} of a global batch; raises ValueError if the mesh cannot divide it."""
    cfg = settings.get("train_dataset_cfg") or settings["dataset_cfg"]
    settings["partitioner"].get_data_layout(cfg.batch_size)
    return read_spec(cfg, settings["model"])


def describe_batch(settings: dict, batch: dict) -> tuple[str, str]:
    mesh = settings["partitioner"].mesh
    sizes = " × ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
    rows = next(iter(batch.values())).shape[0]
    return "batch", f"{rows} on a mesh of {sizes} ({mesh.devices.flat[0].platform})"


def make_initializer(settings: dict, batch: dict):
    """Returns the TrainStateInitializer of the run's model, for batches like this one."""
    from t5x import utils

    model = settings["model"]
    return utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def if "train_dataset_cfg" in settings else None,
        init_fn=model.get_initial_variables,
        input_shapes={name: x.shape for name, x in batch.items()},
        input_types={name: x.dtype for name, x in batch.items()},
        partitioner=settings["partitioner"],
    )


def describe_model(settings: dict, initializer) -> tuple[str, str]:
    import jax

    count = sum(math.prod(x.shape) for x in jax.tree.leaves(initializer.global_train_state_shape.params))
    return "model", f"{type(settings['model']).__name__}, {count:,} parameters"


def checkpoints_named(settings: dict) -> list[str]:
    """Returns the checkpoints, or folders of them, that the run reads; raises ValueError where one is not there."""
    run_cfg = settings.get("checkpoint_cfg")
    cfg = settings.get("restore_checkpoint_cfg") or (run_cfg and run_cfg.restore)
    paths = [cfg.path] if cfg and isinstance(cfg.path, str) else list(cfg.path) if cfg else []
    paths = [path for path in paths if path != recipes.UNGIVEN]
    return [checkpoint_at(path) for path in paths]


def checkpoint_at(path: str) -> str:
    """Returns the path of a checkpoint, or the latest one in a folder of them; raises ValueError for neither."""
    from t5x import checkpoints

    parent = stores.parent(path)
    if steps := checkpoints.all_steps(path):
        return os.path.join(path, f"checkpoint_{steps[-1]}")
    if files.is_folder(os.path.join(path, "state")) or files.is_file(os.path.join(path, "checkpoint")):
        return path
    there = ", ".join(str(step) for step in checkpoints.all_steps(parent)) or "none"
    raise ValueError(f"There is no checkpoint {path}; name a checkpoint_<step> folder. Those in {parent}: {there}.")


def read_an_example(cfg, model) -> None:
    """Raises ValueError if no row of the data makes an example: a run would wait for one forever."""
    from t5x import utils

    one = dataclasses.replace(with_lengths(cfg), batch_size=1, shuffle=False)
    ds = utils.get_dataset(one, 0, 1, model.FEATURE_CONVERTER_CLS, num_epochs=1)
    if next(iter(ds), None) is None:
        name = getattr(cfg.mixture_or_task_name, "name", cfg.mixture_or_task_name)
        raise ValueError(f"Task {name}, split {cfg.split}: no row makes an example; are the texts empty?")


def read_spec(cfg, model) -> dict:
    """Returns {feature: jax.ShapeDtypeStruct} of a global batch, as the data pipeline makes it."""
    import jax

    from t5x import utils

    cfg = with_lengths(cfg)
    ds = utils.get_dataset(cfg, 0, 1, model.FEATURE_CONVERTER_CLS, num_epochs=1)
    return {
        name: jax.ShapeDtypeStruct((cfg.batch_size, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
        for name, spec in ds.element_spec.items()
    }


def with_lengths(cfg):
    """Returns `cfg`, with stand-in lengths if it has none; a run would take those of the longest examples."""
    lengths = cfg.task_feature_lengths or {"inputs": 512, "targets": 512}
    return dataclasses.replace(cfg, task_feature_lengths=lengths)
