"""What a run has written into its MODEL_DIR, read without TensorFlow or JAX; at gs:// and s3:// too.

A run of the embedded engine has metrics.jsonl, predictions.jsonl and starts.jsonl. Of others, such as T5X's own, the
same is read from TensorBoard's event files and from what SeqIO writes into inference_eval.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from t5xpg import gin_text
from t5xpg.base import files, stores
from t5xpg.report import event_files
from t5xpg.report.event_files import Number

SHOWN = 5  # predictions of each step that are read where SeqIO has written all of them
SCORES = "-metrics.jsonl"
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # as metrics.jsonl has them, for JSON has no such numbers
KINDS = ("train", "training_eval/", "inference_eval/")  # what a collection's name begins with


@dataclasses.dataclass
class Series:
    """One number over the steps of a run: steps rise, `times` are seconds since 1970.

    Attributes:
      in_order: whether a run writes it as it goes, so that what comes after a lower step is written over. Scores may be
        of any checkpoint, one after the other.
    """

    in_order: bool = True
    steps: list[int] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)

    def add(self, step: int, value: float, time: float) -> None:
        """Adds the number written last. A run taken up again at an earlier step writes over what came after."""
        first = bisect.bisect_left(self.steps, step)
        end = len(self.steps) if self.in_order else bisect.bisect_right(self.steps, step)
        self.steps[first:end], self.values[first:end], self.times[first:end] = [step], [value], [time]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the model wrote for one example after `step` steps."""

    step: int
    task: str
    index: int
    inputs: str
    targets: str
    prediction: str


@dataclasses.dataclass
class Run:
    """A run.

    Attributes:
      folder: its MODEL_DIR.
      series: {(collection, T5X's tag): numbers}; collections are train, training_eval/<task>, inference_eval/<task>.
      predictions: in order of steps.
      bindings: {name in full: binding} of config.gin; empty where there is none.
      starts: what was recorded at each start: time, step, command, versions, machine.
      has_ended: whether it was recorded that no number will follow.
      parameters: how many the model has; None where model-info.txt does not say.
    """

    folder: str
    series: dict[tuple[str, str], Series] = dataclasses.field(default_factory=dict)
    predictions: list[Prediction] = dataclasses.field(default_factory=list)
    bindings: Mapping[str, gin_text.Binding] = dataclasses.field(default_factory=dict)
    starts: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    has_ended: bool = False
    parameters: int | None = None

    @property
    def last_step(self) -> int:
        return max((series.steps[-1] for series in self.series.values()), default=0)

    @property
    def total_steps(self) -> int | None:
        """The step that the run is to end at; None where its settings do not say."""
        steps, more = self.setting("TRAIN_STEPS"), self.setting("TRAIN_STEPS_RELATIVE")
        if steps is None and isinstance(more, int) and self.starts and isinstance(self.starts[0].get("step"), int):
            return self.starts[0]["step"] + more  # it first started at the initial checkpoint's step
        return steps if isinstance(steps, int) else None

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, as far as can be told: of T5X's own runs, whether the last step has numbers."""
        if self.starts:
            return self.has_ended
        return self.total_steps is not None and self.last_step >= self.total_steps

    @property
    def last_time(self) -> float:
        """Seconds since 1970 of the last number; 0 where there is none."""
        return max((series.times[-1] for series in self.series.values()), default=0.0)

    def tasks(self, kind: str) -> list[str]:
        """Returns the collections that begin with `kind`, one of KINDS."""
        return sorted({name for name, _ in self.series if name.startswith(kind)})

    def setting(self, name: str) -> Any:
        """Returns the value of a macro or, of a binding, of the only one whose full name ends so; None without one."""
        found = [b for key, b in self.bindings.items() if key == name or key.endswith(f".{name}")]
        if len(found) != 1 or found[0].is_required:
            return None
        value = found[0].value
        if value.startswith("%"):
            return self.setting(value[1:])
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError):  # a reference: @tasks.jsonl_task()
            return value


def read(folder: str) -> Run:
    """Reads a run; raises ValueError where the folder holds none, or a file of it cannot be read."""
    folder = stores.plain(folder)
    names = set(files.names_in(folder))
    run = Run(folder, series_of(numbers(folder, names)))
    if not run.series and "config.gin" not in names:
        nothing = "it is empty" if files.is_folder(folder) else "there is no such folder"
        found = f"there are only {', '.join(sorted(names)[:5])}" if names else nothing
        raise ValueError(f"{folder} holds no run: {found}. Give the MODEL_DIR of a run, or several.")
    run.predictions = sorted(predictions(folder, names), key=lambda each: (each.task, each.step, each.index))
    if "config.gin" in names:
        run.bindings = gin_text.read_config(os.path.join(folder, "config.gin"))
    if "starts.jsonl" in names:
        lines = list(rows(os.path.join(folder, "starts.jsonl")))
        run.starts = [line for line in lines if "ended" not in line]
        run.has_ended = bool(lines) and "ended" in lines[-1]
    if "model-info.txt" in names:
        text = files.read_text(os.path.join(folder, "model-info.txt"))
        counted = re.search(r"Total number of parameters: (\d+)", text)
        run.parameters = int(counted.group(1)) if counted else None
    return run


def short_names(folders: Sequence[str]) -> list[str]:
    """Returns the runs' names: the last part of each path, or as many as tell them apart."""
    parts = [folder.rstrip("/").split("/") for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{names[i]} ({i + 1})" for i in range(len(folders))]


def rows(path: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines, `limit` at most; a last line that is being written is left out."""
    with files.open_binary(path) as file:
        for number, line in enumerate(itertools.islice(file, limit), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                if not line.endswith(b"\n"):
                    return
                raise ValueError(f"{path}:{number} is not JSON; mend or remove that line.") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number} is not a JSON object; mend or remove that line.")
            yield row


# ---- Numbers ----


def series_of(found: Iterable[tuple[str, Number]]) -> dict[tuple[str, str], Series]:
    series: dict[tuple[str, str], Series] = {}
    for collection, number in found:
        # Event files and metrics.jsonl name a task's score as SeqIO's TensorBoard logger does, its own files do not.
        is_score = collection.startswith("inference_eval/")
        tag = number.tag.removeprefix("eval/") if is_score else number.tag
        series.setdefault((collection, tag), Series(not is_score)).add(number.step, number.value, number.time)
    return series


def numbers(folder: str, names: set[str]) -> Iterator[tuple[str, Number]]:
    """Yields (collection, number) of all that a run has measured, each collection's in the order of writing."""
    found = set()
    if "metrics.jsonl" in names:
        for collection, number in recorded(os.path.join(folder, "metrics.jsonl")):
            found.add(collection)
            yield collection, number
    else:
        for collection in event_collections(folder, names):
            found.add(collection)
            for number in event_files.numbers_in(os.path.join(folder, collection)):
                yield collection, number
    place = os.path.join(folder, "inference_eval")
    for name in files.names_in(place) if "inference_eval" in names else ():
        collection = f"inference_eval/{name.removesuffix(SCORES)}"
        if name.endswith(SCORES) and collection not in found:
            for number in scores(os.path.join(place, name)):
                yield collection, number


def recorded(path: str) -> Iterator[tuple[str, Number]]:
    """Yields what a metrics.jsonl holds."""
    for number, row in enumerate(rows(path), 1):
        try:
            collection, step, time = str(row["name"]), int(row["step"]), float(row["time"])
            values = [(str(tag), value) for tag, value in row["metrics"].items()]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(f"{path}:{number} has no name, step, time and metrics; found {sorted(row)}.") from None
        for tag, value in values:
            if value in NOT_FINITE or is_number(value):
                yield collection, Number(time, step, tag, float(value))


def event_collections(folder: str, names: set[str]) -> list[str]:
    """Returns the collections that a run has event files of, in T5X's folders."""
    found = ["train"] if "train" in names else []
    for kind in ("training_eval", "inference_eval"):
        place = os.path.join(folder, kind)
        for name in files.names_in(place) if kind in names else ():
            is_scored = kind == "inference_eval" and files.is_file(os.path.join(place, name + SCORES))
            if not is_scored and files.is_folder(os.path.join(place, name)):
                found.append(f"{kind}/{name}")
    return found


def scores(path: str) -> Iterator[Number]:
    """Yields what SeqIO has written of one task's metrics; no time is known."""
    for row in rows(path):
        step = row.pop("step", None)
        for tag, value in row.items():
            if isinstance(step, int) and is_number(value):
                yield Number(0.0, step, tag, float(value))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---- Predictions ----


def predictions(folder: str, names: set[str]) -> Iterator[Prediction]:
    """Yields the run's predictions; of a step that was evaluated again, the later ones."""
    found: dict[tuple[str, int, int], Prediction] = {}
    source = of_seqio(folder) if "inference_eval" in names else iter(())
    if "predictions.jsonl" in names:
        source = itertools.chain(source, of_predictions_file(os.path.join(folder, "predictions.jsonl")))
    for each in source:
        found[each.task, each.step, each.index] = each
    yield from found.values()


def of_predictions_file(path: str) -> Iterator[Prediction]:
    kinds = {"step": int, "task": str, "index": int, "inputs": str, "targets": str, "prediction": str}
    for number, row in enumerate(rows(path), 1):
        if not all(isinstance(row.get(name), kind) for name, kind in kinds.items()):
            raise ValueError(f"{path}:{number} does not have all of {', '.join(kinds)}; found {sorted(row)}.")
        yield Prediction(**{name: row[name] for name in kinds})


def of_seqio(folder: str) -> Iterator[Prediction]:
    """Yields the first predictions in inference_eval/<task>-<step>.jsonl."""
    place = os.path.join(folder, "inference_eval")
    for name in files.names_in(place):
        task, dash, step = name.removesuffix(".jsonl").rpartition("-")
        if not (name.endswith(".jsonl") and dash and step.isdigit()):
            continue
        for index, row in enumerate(rows(os.path.join(place, name), SHOWN)):
            if "prediction" in row:
                texts = input_of(row), row.get("target", ""), row["prediction"]
                yield Prediction(int(step), task, index, *map(text_of, texts))


def input_of(row: Mapping[str, Any]) -> Any:
    """Returns what the model read, of a row that SeqIO has written."""
    given = row.get("input", "")
    if isinstance(given, Mapping):
        return given.get("inputs_pretokenized", given.get("inputs", ""))
    return given


def text_of(value: Any) -> str:
    """Returns a text as it is, and what else a metric was given as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
