"""The files that a run leaves in its MODEL_DIR for `t5xpg report`, made up: no model has seen any of this."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

CONFIG = """from __gin__ import dynamic_registration
import seqio
from t5x import models
from t5x import utils
from t5xpg import tasks

# Macros:
BATCH_SIZE = {batch_size}
FILES = 'books_{{split}}.jsonl'
LOSS_NORMALIZING_FACTOR = None
MIXTURE_OR_TASK_NAME = @tasks.jsonl_task()
MODEL_DIR = {folder!r}
TASK_FEATURE_LENGTHS = {{'inputs': 256, 'targets': 48}}
TRAIN_STEPS = {steps}
VOCABULARY = @seqio.ByteVocabulary()

models.EncoderDecoderModel.loss_normalizing_factor = %LOSS_NORMALIZING_FACTOR
tasks.jsonl_task.name = 'books'
tasks.jsonl_task.objective = 'span_corruption'
utils.create_learning_rate_scheduler.base_learning_rate = {rate}
"""
START = {
    "time": 1.7e9,
    "step": 0,
    "command": "t5xpg train configs/byt5_tiny.gin FILES=books_{split}.jsonl MODEL_DIR=runs/books",
    "machine": {"processor": "AMD EPYC, 2 cores", "memory": "24 GiB", "devices": "1 cpu"},
    "versions": {"t5xpg": "1.0", "python": "3.11.2", "jax": "0.10.2", "flax": "0.12.9"},
}
INPUTS = "The lighthouse keeper wrote down the <extra_id_0> every morning, and every <extra_id_1> he read it."
TARGETS = "<extra_id_0>weather<extra_id_1>evening<extra_id_2>"
# What would break a page that does not escape it, a terminal that obeys it, and a line that turns with it.
HOSTILE = (
    "</script><script>document.title='taken'</script><img src=http://x.example/a.png> \" ' & \x00\x1b[31m \u202eשלום"
)
HOSTILE_TEXTS = (
    (f"Before <extra_id_0> after {HOSTILE}", f"<extra_id_0>{HOSTILE}", (HOSTILE, f"<extra_id_0>{HOSTILE}")),
    (f"What is {HOSTILE}?", "the answer", ("nothing", "the answer")),
)
GUESSES = ("", "<extra_id_0>the<extra_id_1>the", "<extra_id_0>water<extra_id_1>evening", TARGETS)


def write_run(
    folder: Path,
    steps: int = 400,
    rate: float = 0.01,
    batch_size: int = 16,
    done: int | None = None,
    texts: Sequence[tuple[str, str, Sequence[str]]] = ((INPUTS, TARGETS, GUESSES),),
) -> Path:
    """Writes a run that is to end at `steps` and has come to `done`; returns its folder.

    Args:
      folder: not there yet.
      steps, rate, batch_size: what its config.gin says.
      done: the last step with numbers; None is `steps`.
      texts: (inputs, targets, predictions at the evaluations) of each example.
    """
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text(CONFIG.format(folder=str(folder), steps=steps, rate=rate, batch_size=batch_size))
    (folder / "model-info.txt").write_text("Total number of parameters: 1050624\n", encoding="utf-8")
    ended = [{"ended": START["time"] + 3600, "step": steps}] if done in (None, steps) else []
    (folder / "starts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [START, *ended]), encoding="utf-8")
    done = steps if done is None else done
    every, evaluated = max(1, steps // 40), max(1, steps // 4)
    lines = []
    for step in range(every, done + 1, every):
        lines.append(metrics_line("train", step, training_metrics(step, steps, rate)))
        if step % evaluated == 0:
            lines.append(
                metrics_line(
                    "training_eval/books",
                    step,
                    {"nats_per_token": loss(step, rate) + 0.08, "accuracy": right(step, rate) - 0.02},
                )
            )
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    rows = []
    for number in range(1, done // evaluated + 1):
        for index, (inputs, targets, guesses) in enumerate(texts):
            row = {"time": 1.7e9 + number, "step": number * evaluated, "task": "books", "index": index}
            row |= {"inputs": inputs, "targets": targets, "prediction": guesses[min(number, len(guesses)) - 1]}
            rows.append(json.dumps(row) + "\n")
    (folder / "predictions.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def metrics_line(name: str, step: int, metrics: dict[str, float]) -> str:
    return json.dumps({"time": 1.7e9 + step, "step": step, "name": name, "metrics": metrics}) + "\n"


def loss(step: int, rate: float) -> float:
    return 2.1 + 3.4 * math.exp(-step * rate / 0.9) + 0.04 * math.sin(step)


def right(step: int, rate: float) -> float:
    return 0.42 - 0.35 * math.exp(-step * rate / 0.9) + 0.004 * math.sin(step)


def training_metrics(step: int, steps: int, rate: float) -> dict[str, float]:
    return {
        "nats_per_token": loss(step, rate),
        "accuracy": right(step, rate),
        "learning_rate/current": rate * min(1, 4 * step / steps),
        "timing/seconds": 2.5,
        "timing/steps_per_second": 4 + math.sin(step) / 10,
        "timing/target_tokens_per_second": 3000 + 80 * math.sin(step),
        "non_padding_fraction/loss_weights": 0.98,
        "non_padding_fraction/encoder": 0.97,
        "memory/process_bytes": 1.9e9,
    }
