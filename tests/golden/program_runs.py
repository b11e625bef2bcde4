"""A fine-tuning run small enough for a test, evaluated while it trains, and inferred from; on whichever engine answers.

It starts from its own initialization, on pairs that are made up here, so that nothing but the engine can differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]
STEPS = 40


def run(folder: Path) -> dict[str, Any]:
    """Returns {"metrics": [a dict an evaluation], "predict": [text], "score": [float], "predict_with_aux": [float]}."""
    from conftest import program_settings, write_pairs

    from t5x import infer, train

    files = write_pairs(folder)
    model_dir = folder / "run"
    common = ("tests/micro_model.gin", f"FILES = {files!r}", "NAME = 'golden_pairs'")
    lengths = "TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 16}"
    settings = program_settings(
        train.train,
        *("configs/byt5_tiny_finetune.gin", *common, lengths, f"MODEL_DIR = '{model_dir}'"),
        *("INITIAL_CHECKPOINT_PATH = []", f"TRAIN_STEPS_RELATIVE = {STEPS}", "EVAL_PERIOD = 20"),
        *("utils.SaveCheckpointConfig.period = 20", "utils.create_learning_rate_scheduler.base_learning_rate = 0.01"),
    )
    train.train(**settings)
    metrics = read_lines(model_dir / "inference_eval" / "golden_pairs-metrics.jsonl")
    result: dict[str, Any] = {"metrics": metrics}
    for mode, key in (("predict", "prediction"), ("score", "score"), ("predict_with_aux", "aux")):
        settings = program_settings(
            infer.infer,
            *("configs/byt5_tiny_infer.gin", *common, lengths, f"CHECKPOINT_PATH = '{model_dir}/checkpoint_{STEPS}'"),
            *(f"INFER_OUTPUT_DIR = '{folder}'", f"infer.mode = '{mode}'"),
        )
        infer.infer(**settings)
        rows = read_lines(folder / f"golden_pairs-{mode}.jsonl-00000-of-00001")
        result[mode] = [row[key]["scores"] if key == "aux" else row[key] for row in rows]
    return result


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
