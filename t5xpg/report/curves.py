"""Which of a run's numbers are drawn, in which units. A panel is one picture: the same number of several runs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from t5xpg.report.reading import Run, Series

GIB = 2**30
MAIN = 2  # metrics of a task, the first ones, that tell how well it is learnt; others tell of parts
Points = tuple[list[int], list[float]]  # steps, which rise, and the values there; some may be no numbers


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
      run: which of the runs it is of.
      part: what it was measured on: "training", or the name of a task that was evaluated.
      steps, values: its points.
    """

    run: int
    part: str
    steps: Sequence[int]
    values: Sequence[float]

    @property
    def is_training(self) -> bool:
        return self.part == "training"


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves over one another.

    Attributes:
      title: what they show.
      unit: of the values.
      lines: one or more.
      best: min or max, by whichever is better, of what tells how well a run learns; None otherwise.
      marks: {what is said of it: a value to compare with}.
      second_unit: (unit, how many of it one `unit` is) for another axis.
      from_zero: whether the axis begins at 0.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    best: Callable | None = None
    marks: dict[str, float] = dataclasses.field(default_factory=dict)
    second_unit: tuple[str, float] | None = None
    from_zero: bool = False


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Returns what can be drawn of the runs, the loss first, the tasks' own metrics after all that T5X logs."""
    bits = ("bits per target token", 1 / math.log(2))
    found = [
        Panel("Loss", "nats per target token", lines(runs, nats), min, second_unit=bits),
        Panel("Accuracy", "% of target tokens", lines(runs, tag("accuracy", 100)), max),
        *task_panels(runs),
        Panel("Learning rate", "", lines(runs, learning_rate), from_zero=True),
        Panel("Speed", "target tokens a second", lines(runs, tag("timing/target_tokens_per_second")), from_zero=True),
        Panel("Time of a step", "milliseconds", lines(runs, step_time), from_zero=True),
        Panel("Memory", "GiB, of this process", lines(runs, tag("memory/process_bytes", 1 / GIB)), from_zero=True),
        Panel("Memory", "GiB, of a device", lines(runs, tag("memory/device_peak_bytes", 1 / GIB)), from_zero=True),
    ]
    return [panel for panel in found if panel.lines]


def lines(runs: Sequence[Run], points: Callable[[Run, str], Points]) -> list[Line]:
    """Returns the curves that `points(run, collection)` gives of training and of each evaluated task."""
    found = []
    for number, run in enumerate(runs):
        parts = {"train": "training"} | {name: name.partition("/")[2] for name in run.tasks("training_eval/")}
        for collection, part in parts.items():
            steps, values = points(run, collection)
            if any(map(math.isfinite, values)):
                found.append(Line(number, part, steps, values))
    return found


def task_panels(runs: Sequence[Run]) -> Iterator[Panel]:
    """Yields a panel for each metric of each task whose outputs were scored; what only counts examples is left out."""
    names = dict.fromkeys(key for run in runs for key in run.series if key[0].startswith("inference_eval/"))
    seen: Counter[str] = Counter()
    for collection, metric in names:
        if metric.endswith("total") or metric.startswith("timing/"):
            continue
        seen[collection] += 1
        task = collection.partition("/")[2]
        drawn = [
            Line(number, task, found.steps, found.values)
            for number, run in enumerate(runs)
            if (found := run.series.get((collection, metric))) and any(map(math.isfinite, found.values))
        ]
        is_main = seen[collection] <= MAIN
        yield Panel(metric, f"{task}, of what it generates", drawn, max if is_main else None)


# ---- One number of one collection ----


def tag(name: str, factor: float = 1.0) -> Callable[[Run, str], Points]:
    """Returns the points of a T5X tag, times `factor`."""

    def points(run: Run, collection: str) -> Points:
        found = run.series.get((collection, name), Series())
        return found.steps, [value * factor for value in found.values]

    return points


def nats(run: Run, collection: str) -> Points:
    """Returns the cross entropy per target token that is not padding, without z-loss.

    T5X logs no such number. Without a loss_normalizing_factor it is the ratio of two that it logs, both per target
    position, padding included; with 'NUM_REAL_TARGET_TOKENS' it is cross_ent_loss.
    """
    if (collection, "nats_per_token") in run.series:
        return tag("nats_per_token")(run, collection)
    factor = run.setting("loss_normalizing_factor")
    if factor == "NUM_REAL_TARGET_TOKENS":
        return tag("cross_ent_loss")(run, collection)
    if factor is not None:
        return [], []
    total = run.series.get((collection, "cross_ent_loss_per_all_target_tokens"), Series())
    real = run.series.get((collection, "non_padding_fraction/loss_weights"), Series())
    shares = {step: share for step, share in zip(real.steps, real.values, strict=True) if share > 0}
    points = [(s, value / shares[s]) for s, value in zip(total.steps, total.values, strict=True) if s in shares]
    return [step for step, _ in points], [value for _, value in points]


def learning_rate(run: Run, collection: str) -> Points:
    if collection != "train":
        return [], []
    name = "learning_rate/current" if (collection, "learning_rate/current") in run.series else "learning_rate"
    return tag(name)(run, collection)


def step_time(run: Run, collection: str) -> Points:
    """Returns milliseconds, of training."""
    if collection != "train":
        return [], []
    steps, rates = tag("timing/steps_per_second")(run, collection)
    return steps, [1000 / rate if rate > 0 else math.nan for rate in rates]
