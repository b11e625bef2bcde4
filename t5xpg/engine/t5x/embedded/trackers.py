"""Weights & Biases, where it is asked for: it gets the numbers that TensorBoard's files get."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import gin
import jax
import numpy as np

from t5x.embedded import console, run_changes
from t5x.embedded.metric_lines import NumberWriter
from t5xpg.base import files, stores

NAME = "wandb.json"  # in MODEL_DIR: which run of which project it is


class _State:
    run: Any = None  # wandb's, while there is one


@contextlib.contextmanager
def weights_and_biases(project: str | None, model_dir: str, is_new: bool) -> Iterator[None]:
    """Inside, `writers` write to a run of a project of Weights & Biases; from process 0.

    The run has MODEL_DIR's name and config.gin's bindings; a run that goes on from a checkpoint goes on there too.
    wandb's files are in MODEL_DIR/wandb, or where wandb puts them if WANDB_DIR is set or MODEL_DIR is a URL. With
    WANDB_MODE=offline nothing is sent.

    Args:
      project: its name; None writes nothing.
      model_dir: the run's.
      is_new: whether it begins anew, and so is another run.

    Raises:
      ValueError: there is no API key, or the run cannot be begun.
    """
    if project is None or jax.process_index() != 0:
        yield
        return
    _State.run = begin(project, model_dir, is_new)
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        run, _State.run = _State.run, None
        run.finish(exit_code=exit_code)


def begin(project: str, model_dir: str, is_new: bool) -> Any:
    """Returns wandb's run, begun or gone on with."""
    import wandb  # late: it takes a second

    if os.environ.get("WANDB_MODE", "online") in ("online", "shared") and not wandb.login(prompt=False):
        raise ValueError("Weights & Biases has no API key of yours; run `wandb login`, or set WANDB_MODE=offline.")
    is_elsewhere = stores.is_url(model_dir) or "WANDB_DIR" in os.environ
    try:
        run = wandb.init(
            project=project,
            id=run_id(project, model_dir, is_new),
            resume="allow",
            name=stores.name(model_dir),
            dir=None if is_elsewhere else model_dir,
            config=config(),
            settings=wandb.Settings(silent=True, console="off"),  # train.log has what is said
        )
    except wandb.errors.Error as error:
        raise ValueError(f"Weights & Biases: {str(error).splitlines()[0]}") from error
    run.define_metric("step")
    run.define_metric("*", step_metric="step")  # scores of decoded text come later than the next step's numbers
    console.say(f"Weights & Biases: {run.url or run.dir}")
    return run


def run_id(project: str, model_dir: str, is_new: bool) -> str:
    """Returns the id that wandb.json has for the project, or a new one, which it then has."""
    path = os.path.join(model_dir, NAME)
    if not is_new and files.exists(path):
        kept = json.loads(files.read_text(path))
        if kept["project"] == project:
            return kept["id"]
    made = uuid.uuid4().hex[:8]
    files.write_whole(path, json.dumps({"project": project, "id": made}))
    return made


def config() -> dict[str, Any]:
    """Returns {binding: value} with macros resolved, and the text of config.gin."""
    text = gin.config_str()
    bindings = run_changes.parse(text, "the recipe")
    values = {run_changes.written(key): run_changes.resolved(value, bindings) for key, value in bindings.items()}
    plain = {
        key: value if isinstance(value, bool | int | float | str) else repr(value) for key, value in values.items()
    }
    return {**plain, "config.gin": text}


class TrackedNumbers(NumberWriter):
    """Logs a collection's numbers as <name>/<tag> over "step"."""

    def __init__(self, run: Any, name: str):
        self._run, self._name = run, name

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        numbers = {f"{self._name}/{tag}": float(np.asarray(value)) for tag, value in scalars.items()}
        self._run.log({**numbers, "step": int(step)})


def writers(name: str) -> list[NumberWriter]:
    """Returns the trackers' metric writers of a collection, such as "training_eval/<task>"."""
    return [TrackedNumbers(_State.run, name)] if _State.run else []
