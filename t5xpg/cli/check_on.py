"""`t5xpg check RECIPE --on v5e-16`: the recipe's training step, compiled for TPUs or GPUs that are not here."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from t5xpg import recipes, t5x_finder
from t5xpg.base import files
from t5xpg.cli import compilers
from t5xpg.inspection import accelerators, compiled

PARTITIONS = "partitioning.PjitPartitioner.num_partitions"
SUBMESH = "partitioning.PjitPartitioner.model_parallel_submesh"
MICROBATCHES = "trainer.Trainer.num_microbatches"
SPREAD = "partitioning.standard_logical_axis_rules.parameter_partitioning_dims"
REMAT = "network.T5Config.remat_policy"
POLICIES = ("none", "minimal", "full")  # of REMAT; each keeps fewer activations than the one before
LESS_KEPT = 3  # how many times fewer, for an estimate
TAKEN, MOST = 0.75, 0.95  # of a GPU's memory: what JAX takes if nothing else is said, and what it may be told to
TRIED = 4  # neighbours that are compiled at most
TOKENS = ("encoder_input_tokens", "decoder_target_tokens")


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step as it is compiled for a slice or for GPUs.

    Attributes:
      parameters, optimizer: bytes of them on each chip.
      needed: bytes of a chip's memory; where there is no program, what the compiler says that it would need.
      fits: whether a chip has that memory, of a GPU's what JAX can take.
      text: the compiled program's, or None where there is none: a TPU's compiler makes none that does not fit.
      seconds: that the compiler took.
    """

    parameters: int
    optimizer: int
    needed: int
    fits: bool
    text: str | None
    seconds: float


def run(arguments: list[str], name: str, dump: str | None) -> int:
    """Prints what `check` says of the recipe's data, then of its step on what `name` says; returns the exit status.

    Args:
      arguments: those of the run.
      name: see accelerators.find.
      dump: a folder to write the compiled program's text into.
    """
    target = accelerators.find(name)
    compilers.use(target)
    if not t5x_finder.is_embedded():
        raise ValueError("--on compiles the embedded engine's step; set T5XPG_ENGINE=embedded for this command.")
    from t5xpg.cli import check
    from t5xpg.cli.quiet import import_tensorflow

    import_tensorflow()
    devices = compilers.devices(target)
    recipe = training_recipe(arguments)
    settings = recipe.settings()
    for line in check.describe_data(settings):
        show(*line)
    prepared = prepare(settings, devices)
    show(*check.describe_batch(settings, prepared.batch))
    show(*check.describe_model(settings, prepared.initializer))
    if dump:
        files.make_folder(dump)
    step = compile_step(prepared, target)
    for line in describe(step, prepared, target):
        show(*line)
    if dump and step.text:
        path = os.path.join(dump, f"train_step.{target.name.replace(':', '_')}.hlo.txt")
        files.write_whole(path, step.text)
        show("program", path)
    if not step.fits:
        suggest(arguments, step, prepared, target, devices)
        return 1
    if recipe.program == "train":
        show(*check.describe_ready(recipe, arguments))
    return 0


def show(name: str, text: str) -> None:
    print(f"{name:<11}{text}", flush=True)


# ---- The step ----


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A recipe's model on a target: what its training step is lowered with."""

    settings: dict[str, Any]
    batch: dict[str, Any]
    initializer: Any


def training_recipe(arguments: list[str]) -> recipes.Recipe:
    recipe = recipes.read(arguments)
    if recipe.program not in ("train", "precompile"):
        raise ValueError(f"--on compiles training steps, and this recipe is of t5xpg {recipe.program}.")
    return recipe


def prepare(settings: dict[str, Any], devices: list) -> Prepared:
    """Puts the recipe's partitioner on `devices`, and its model's shapes on the partitioner."""
    from t5x.embedded import initialization, platforms
    from t5xpg.cli import check

    partitioner = settings["partitioner"]
    with platforms.standing_in(devices):
        mesh = partitioner.mesh
    batch = check.read_batch(settings)
    initializer = check.make_initializer(settings, batch)
    initialization.check_divisible(initializer, mesh)
    return Prepared(settings, batch, initializer)


def compile_step(prepared: Prepared, target: accelerators.Target) -> Step:
    """Compiles the step that `t5xpg train` would run."""
    import jax

    from t5xpg.base import memory
    from t5xpg.cli.quiet import quiet_stderr

    settings, initializer = prepared.settings, prepared.initializer
    partitioner, state = settings["partitioner"], initializer.global_train_state_shape
    parts = memory.state_parts(state, initializer.train_state_axes, partitioner.mesh)
    if settings.get("use_hardware_rng") or settings.get("random_seed") is None:
        jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # as the run will
    trainer = settings.get("trainer_cls", one_step)(
        model=settings["model"],
        train_state=state,
        partitioner=partitioner,
        train_state_axes=initializer.train_state_axes,
        eval_names=[],
        summary_dir=None,
        rng=jax.random.PRNGKey(0),
    )
    tick = time.monotonic()
    text = None
    with trainer, progress(target), quiet_stderr():
        try:
            executable = partitioner.compile(trainer._partitioned_train_step, state, prepared.batch)
        except jax.errors.JaxRuntimeError as error:
            needed = needed_by(str(error), parts["parameters"] + parts["optimizer"])
        else:
            text, sizes = executable.as_text(), executable.memory_analysis()
            needed = (
                sizes.argument_size_in_bytes + sizes.generated_code_size_in_bytes + memory.bytes_of_step(executable)
            )
    most = MOST if target.platform == "cuda" else 1
    fits = text is not None and needed <= most * target.chip.memory * 1024**3
    return Step(parts["parameters"], parts["optimizer"], needed, fits, text, time.monotonic() - tick)


def one_step(**arguments: Any):
    """Returns a trainer with the step that T5X's precompile program compiles."""
    import optax

    from t5x import trainer

    return trainer.Trainer(**arguments, learning_rate_fn=optax.constant_schedule(1e-3), num_microbatches=None)


def needed_by(message: str, state: int) -> int:
    """Returns the bytes that XLA says a program would need of a chip that is too small for it.

    Args:
      message: XLA's error.
      state: bytes of the program's arguments, which XLA counts in or, if they are not to blame, leaves out.

    Raises:
      ValueError: the error is another one.
    """
    everything = re.search(r"Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm", message)
    temporary = re.search(r"HLO temporaries \(([\d.]+)([KMGT])\) exceeds available HBM", message)
    if not (found := everything or temporary):
        raise ValueError(f"The step cannot be compiled: {message.splitlines()[0]}")
    size = int(float(found[1]) * 1024 ** ("KMGT".index(found[2]) + 1))
    return size if everything else size + state


@contextlib.contextmanager
def progress(target: accelerators.Target) -> Iterator[None]:
    """Says that the compiler is at work, and on a terminal, for how long."""
    line = f"{'compiling':<11}for {target.name} …"
    if not sys.stdout.isatty():
        print(f"{line} (it may take minutes)", flush=True)
        yield
        return
    tick, done = time.monotonic(), threading.Event()

    def count() -> None:
        while not done.wait(1):
            print(f"\r{line} {time.monotonic() - tick:.0f} s", end="", flush=True)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        print("\r\033[K", end="", flush=True)


# ---- What is said of it ----


def describe(step: Step, prepared: Prepared, target: accelerators.Target) -> Iterator[tuple[str, str]]:
    """Yields (name, text) of a compiled step: memory, work, communication, and the bound on its speed."""
    yield "compiled", f"for {target.name} in {step.seconds:.0f} s; what follows is of each chip of {target.chips}"
    yield "memory", describe_memory(step, target)
    if not step.fits or step.text is None:
        return
    from t5xpg.base import memory

    program = compiled.Program(step.text)
    operations, accessed, moved = program.operations(), program.accessed(), program.communication(target.chips)
    words = f"{digits(operations / 1e12)} TFLOP in products of matrices, {memory.in_words(accessed)} from and to memory"
    yield "work", f"{words}, each step"
    if program.unknown_loops:
        yield "note", f"{program.unknown_loops} loops of unknown length are counted as if they ran once"
    if kernels := program.kernels():
        names = ", ".join(sorted(kernels))
        yield "note", f"the operations of {kernels.total():,} runs of kernels ({names}) are not counted"
    sent = [f"{kind} {memory.in_words(x.size)} ({x.count:,} times)" for kind, x in moved.items()]
    yield "network", ", ".join(sent) or "nothing is sent"
    times = target.chip.seconds(operations, accessed, sum(x.sent for x in moved.values()))
    binds = max(times, key=lambda name: times[name])
    yield "time", ", ".join(f"{name} {digits(1000 * t)} ms" for name, t in times.items()) + f": {binds} binds"
    tokens = sum(math.prod(x.shape) for name, x in prepared.batch.items() if name in TOKENS)
    rate = float(f"{tokens / times[binds]:.3g}")
    chips = "1 chip" if target.chips == 1 else f"{target.chips} chips"
    yield "bound", f"{rate:,.0f} tokens/s of {chips}, at {tokens:,} a step; a bound, not a prediction"


def describe_memory(step: Step, target: accelerators.Target) -> str:
    parts = {"parameters": step.parameters, "optimizer": step.optimizer}
    parts["gradients, activations and program"] = step.needed - step.parameters - step.optimizer
    listed = ", ".join(f"{name} {memory_in_words(size)}" for name, size in parts.items())
    verdict = "fits" if step.fits else "does not fit"
    if step.fits and target.platform == "cuda" and step.needed > TAKEN * target.chip.memory * 1024**3:
        verdict = f"fits with XLA_PYTHON_CLIENT_MEM_FRACTION={MOST}, as JAX takes {TAKEN:.0%} unless told"
    return f"{memory_in_words(step.needed)} of a chip's {target.chip.memory} GiB ({listed}): {verdict}"


def memory_in_words(size: float) -> str:
    """In units of 1,024, as the memory of a chip is."""
    power = max(int(math.log(size, 1024)), 0) if size >= 1 else 0
    return f"{digits(size / 1024**power)} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def digits(x: float) -> str:
    """Three of them, and all of those before the point."""
    return f"{x:,.0f}" if x >= 999.5 else f"{x:.3g}"


# ---- What fits ----


def suggest(arguments: list[str], step: Step, prepared: Prepared, target: accelerators.Target, devices: list) -> None:
    """Compiles neighbours of a recipe that does not fit, those that communicate least first, up to one that does."""
    tried = list(itertools.islice(neighbours(step, prepared, target), TRIED))
    for bindings in tried:
        try:
            settings = training_recipe([*arguments, *bindings]).settings()
            found = compile_step(prepare(settings, devices), target)
        except ValueError as error:
            show("tried", f"{' '.join(bindings)}: {error}")
            continue
        show("tried", f"{' '.join(bindings)}: {describe_memory(found, target)}")
        if found.fits:
            show("fits", f"with {' '.join(bindings)}")
            return
    show("fits", "nothing that was tried; take more chips, a smaller BATCH_SIZE, or a model of scalable_t5")


def neighbours(step: Step, prepared: Prepared, target: accelerators.Target) -> Iterator[list[str]]:
    """Yields bindings with which the step may fit, by an estimate: state and activations divided as they say."""
    import gin

    settings = prepared.settings
    mesh, rows = settings["partitioner"].mesh, next(iter(prepared.batch.values())).shape[0]
    remat = getattr(settings["model"].module.config, "remat_policy", None)  # T5X has it in scalable_t5 only
    policies = POLICIES[POLICIES.index(remat) :] if remat in POLICIES else (remat,)
    before = mesh.shape["model"], query(gin, SPREAD) or 1, remat, query(gin, MICROBATCHES) or 1
    state = 2 * step.parameters + step.optimizer  # with gradients, which are divided as parameters are
    powers = [2**i for i in range(9)]
    for model, spread, policy, parts in itertools.product(powers, (1, 2), policies, powers):
        data = target.chips // model if target.chips % model == 0 else 0
        if model < before[0] or spread < before[1] or parts < before[3] or not data or rows % (data * parts):
            continue
        fewer, less = model / before[0], LESS_KEPT ** policies.index(policy)
        kept = state / fewer / (data if spread > before[1] else 1)
        if kept + max(step.needed - state, 0) / (fewer * less * parts / before[3]) > target.chip.memory * 1024**3:
            continue
        values = {PARTITIONS: model, SPREAD: spread, REMAT: policy, MICROBATCHES: parts}
        changed = [f"{name}={x!r}" for (name, x), old in zip(values.items(), before, strict=True) if x != old]
        if model != before[0] and query(gin, SUBMESH):
            changed.append(f"{SUBMESH}=None")
        if changed:
            yield changed


def query(gin, name: str) -> Any:
    """Returns what gin binds a parameter to, a macro's value where it is one; None where nothing binds it."""
    try:
        value = gin.query_parameter(name)
    except ValueError:  # gin's word for a parameter that nothing binds
        return None
    return value.scoped_configurable_fn() if isinstance(value, gin.config.ConfigurableReference) else value
