"""What is said of runs in words and tables; the page and the terminal show the same."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import Sequence
from typing import NamedTuple

from t5xpg.report import curves
from t5xpg.report.reading import KINDS, Run

DAY = 86400  # seconds
PARTS = {"encoder": "inputs", "decoder": "targets"}  # what T5X calls the features of a batch
UNSHOWN = ("MODEL_DIR",)  # bindings that differ between any two runs
FLAX = {"Loss": ("2.36 (Flax example)", 2.36), "Accuracy": ("57.0 (Flax example)", 57.0)}
FLAX_WORDS = (
    "This recipe has the settings of Hugging Face's run_t5_mlm_flax.py. That example reports 2.36 nats per target "
    "token (perplexity 10.6) and 57.0% of target tokens right, for T5 base after 3 epochs of OSCAR's Norwegian part.",
    "Both are defined as loss and accuracy of the evaluation are here: over all target tokens, sentinels and EOS "
    "included, each guessed from the true ones before it. Sentinels and EOS are a quarter of them, and easy.",
    "They are comparable only where vocabulary and text are the same: another vocabulary cuts a text into other "
    "tokens, which changes nats per token for the same text.",
)


class Fact(NamedTuple):
    """A number with its name and what it is."""

    name: str
    value: str
    note: str = ""


def summary(run: Run) -> list[Fact]:
    """Returns the main numbers of one run."""
    total = run.total_steps
    found = [Fact("steps", f"{run.last_step:,}", f"of {total:,}" if total else "")]
    for panel in curves.panels([run]):
        evaluations = [line for line in panel.lines if not line.is_training]
        if panel.best and evaluations:
            line = evaluations[0]
            note = f"{panel.unit} of {line.part}" if panel.title in FLAX else panel.unit
            if panel.title == "Loss":
                note = f"{note}; {line.values[-1] / math.log(2):.3g} bits"
            found.append(Fact(panel.title.lower() if panel.title in FLAX else panel.title, last(line), note))
    if seconds := training_seconds(run):
        found.append(Fact("time", duration(seconds), "in training steps alone"))
        if tokens := target_tokens(run):
            found.append(Fact("target tokens", count(tokens), f"trained on; {count(tokens / seconds)} a second"))
    if run.parameters:
        found.append(Fact("parameters", count(run.parameters), f"{run.parameters:,}"))
    return found


def last(line: curves.Line) -> str:
    return number(line.values[-1])


def status(run: Run, now: float | None = None) -> str:
    """Says in words how far a run is."""
    total = f" of {run.total_steps:,}" if run.total_steps else ""
    if run.is_finished:
        return f"finished at step {run.last_step:,}"
    if not run.last_time:
        return f"at step {run.last_step:,}{total}"
    ago = max(0.0, (time.time() if now is None else now) - run.last_time)
    return f"at step {run.last_step:,}{total}; its last numbers are {duration(ago)} old"


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Returns (binding, its value in each run) for those that are not equal in all, macros first."""
    keys = {key for run in runs for key in run.bindings if key not in UNSHOWN}
    found = []
    for key in sorted(keys, key=lambda key: ("." in key, key)):
        values = [run.bindings[key].value if key in run.bindings else "not bound" for run in runs]
        if len(set(values)) > 1:
            found.append((next(run.bindings[key].name for run in runs if key in run.bindings), values))
    return found


def data(run: Run) -> list[Fact]:
    """Returns what the run's settings and numbers say about its data."""
    task = run.setting("jsonl_task.name") or run.setting("MIXTURE_OR_TASK_NAME")
    settings = (
        ("task", task if task else ", ".join(name.partition("/")[2] for name in run.tasks(KINDS[1]))),
        ("files", run.setting("FILES") or run.setting("jsonl_task.files")),
        ("objective", run.setting("jsonl_task.objective")),
        ("vocabulary", run.setting("VOCABULARY_FILE") or run.setting("TOKENIZER_FILE") or run.setting("VOCABULARY")),
        ("lengths", run.setting("TASK_FEATURE_LENGTHS")),
        ("batch size", run.setting("BATCH_SIZE")),
    )
    found = [Fact(name, words(value)) for name, value in settings if value not in (None, "")]
    for part, feature in PARTS.items():
        if series := run.series.get(("train", f"effective_batch_size/{part}")):
            found.append(Fact(f"examples of {feature}", f"{series.values[-1]:,.1f}", "in a batch, packed"))
        if series := run.series.get(("train", f"non_padding_fraction/{part}")):
            found.append(Fact(f"padding of {feature}", f"{1 - series.values[-1]:.1%}", "in the latest batches"))
    if run.bindings:
        looked_into = shlex.join(["t5xpg", "inspect", os.path.join(run.folder, "config.gin"), "--html", "data.html"])
        found.append(Fact("its examples", looked_into))
    return found


def machine(run: Run) -> list[Fact]:
    """Returns where, when and how the run was started last."""
    found = []
    if run.starts:
        start = run.starts[-1]
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(start.get("time", 0))))
        step = start.get("step") or 0
        found.append(Fact("started", at, f"at step {step:,}" if step else ""))
        if len(run.starts) > 1:
            found.append(Fact("starts", f"{len(run.starts)}"))
        for name in ("machine", "versions"):
            if isinstance(part := start.get(name), dict):
                found += [Fact(str(key), str(value)) for key, value in part.items()]
    if run.last_time:
        began = min(series.times[0] for series in run.series.values() if series.times[0])
        found.append(Fact("first to last number", duration(run.last_time - began)))
    for tag, name in (("compilation", "compiling"), ("init_or_restore", "until training began")):
        if series := run.series.get(("train", f"timing/{tag}_seconds")):
            found.append(Fact(name, duration(series.values[-1])))
    return found


def command(run: Run) -> str:
    return str(run.starts[-1].get("command", "")) if run.starts else ""


def is_flax_counterpart(run: Run) -> bool:
    """Whether a run pre-trains as configs/parts/t5_flax.gin does: only RoBERTa's recipes have that schedule too."""
    is_scored = any(name.startswith("inference_eval/") for name, _ in run.series)
    is_masked = "selected" in (run.setting("TASK_FEATURE_LENGTHS") or {})
    return run.setting("linear_decay_factor.total_steps") is not None and not is_scored and not is_masked


def with_flax(panels: Sequence[curves.Panel]) -> None:
    """Adds the Flax example's results to the panels of loss and accuracy."""
    for panel in panels:
        if panel.title in FLAX:
            name, value = FLAX[panel.title]
            panel.marks[name] = value


# ---- Sums ----


def training_seconds(run: Run) -> float:
    series = run.series.get(("train", "timing/seconds"))
    return sum(series.values) if series else 0.0


def target_tokens(run: Run) -> float:
    """Returns how many target tokens, padding aside, the run has trained on."""
    parts = ("timing/seconds", "timing/target_tokens_per_second", "non_padding_fraction/loss_weights")
    found = [run.series.get(("train", name)) for name in parts]
    if not all(found):
        return 0.0
    seconds, rates, shares = (dict(zip(s.steps, s.values, strict=True)) for s in found if s)
    return sum(seconds[step] * rates[step] * shares[step] for step in seconds if step in rates and step in shares)


# ---- Words ----


def words(value: object) -> str:
    """Returns a setting as one would write it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {words(item)}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) else re.sub(r"^@(.*)\(\)$", r"\1", str(value))


def number(value: float) -> str:
    """Returns a number with four digits that count: 1,234,567, 123.4, 0.001234."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def count(value: float) -> str:
    """Returns 1.05M for 1,050,624."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):.3g}{sign}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Returns 1 h 5 min for 3,912."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.5 else f"{seconds:.0f} s"
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:,.0f} days"
    parts, rest = [], round(seconds) if seconds < 3600 else round(seconds / 60) * 60
    for unit, size in (("h", 3600), ("min", 60)):
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    if rest and len(parts) < 2:
        parts.append(f"{rest} s")
    return " ".join(parts[:2])
