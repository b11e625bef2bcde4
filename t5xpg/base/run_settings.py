"""The numbers that a training run is told, checked before anything is built: steps, periods and dropout."""

from __future__ import annotations

import importlib.util
import numbers
from collections.abc import Mapping
from typing import Any


def check_training(settings: Mapping[str, Any]) -> None:
    """Checks the arguments of T5X's `train`, by their names, as gin bound them or a caller passed them.

    Raises:
      ValueError: says which number cannot be meant, and the binding to change.
    """
    check_steps(settings.get("total_steps"), settings.get("relative_steps"))
    save_cfg = getattr(settings.get("checkpoint_cfg"), "save", None)
    periods = {
        "SaveCheckpointConfig.period": getattr(save_cfg, "period", None),
        "train.eval_period": settings.get("eval_period"),
        "train.gc_period": settings.get("gc_period"),
    }
    for name, period in periods.items():
        check_whole(name, period, least=0, optional=True)
    check_whole("train.num_predictions", settings.get("num_predictions", 0), least=0)
    check_whole("train.stats_period", settings.get("stats_period"), least=0, optional=True)
    if settings.get("train_eval_dataset_cfg"):
        check_whole("train.eval_steps (EVAL_STEPS)", settings.get("eval_steps"))
    elif not settings.get("infer_eval_dataset_cfg"):
        periods["train.eval_period"] = 0  # nothing is evaluated
    check_multiples(periods)
    check_dropout(settings["model"])
    check_wandb(settings.get("wandb"))


def check_wandb(project: Any) -> None:
    """Raises ValueError unless `project` is None, or is a name and there is the package to send to it."""
    if project is None:
        return
    if not isinstance(project, str) or not project:
        raise ValueError(f"train.wandb (--wandb) is {project!r}; set it to the name of a Weights & Biases project.")
    if importlib.util.find_spec("wandb") is None:
        raise ValueError(f"--wandb={project} needs the package wandb: pip install 't5xpg[wandb]'")


def check_whole(name: str, value: Any, least: int = 1, optional: bool = False) -> None:
    """Raises ValueError unless `value` is a whole number of at least `least` (0 or 1), or None where `optional`."""
    if value is None and optional:
        return
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        allowed = f"a whole number{' above 0' if least else ', 0 or more'}{', or None' if optional else ''}"
        raise ValueError(f"{name} is {value!r}; set it to {allowed}.")


def check_steps(total_steps: Any, relative_steps: Any) -> None:
    """Raises ValueError unless one of the two is given: T5X trains by the second, whatever the first says."""
    if relative_steps is None:
        check_whole("TRAIN_STEPS", total_steps, least=0)
    elif total_steps is None:
        check_whole("TRAIN_STEPS_RELATIVE", relative_steps)
    else:
        raise ValueError(
            f"TRAIN_STEPS is {total_steps!r} and TRAIN_STEPS_RELATIVE, which counts from the initial checkpoint, is "
            f"{relative_steps!r}; set one of them to None."
        )


def check_multiples(periods: Mapping[str, int | None]) -> None:
    """Raises ValueError unless the smallest of the periods that are not 0 or None divides the others, as T5X asks."""
    given = {name: period for name, period in periods.items() if period}
    if any(period % min(given.values()) for period in given.values()):
        listed = ", ".join(f"{name} {period}" for name, period in given.items())
        raise ValueError(f"{listed}: the smallest of these must divide the others.")


def check_dropout(model: Any) -> None:
    """Raises ValueError unless the dropout rate of the model's network, where it has one, is a share below 1."""
    rate = getattr(getattr(getattr(model, "module", None), "config", None), "dropout_rate", 0.0)
    if not isinstance(rate, numbers.Real) or isinstance(rate, bool) or not 0 <= float(rate) < 1:
        raise ValueError(f"The dropout rate is {rate!r}; set DROPOUT_RATE to a number from 0 to below 1, such as 0.1.")
