"""A run's scores over its steps, as a table: what inference_eval/<task>-metrics.jsonl of a MODEL_DIR holds."""

from __future__ import annotations

import json
import os

from t5xpg.base import files

SUFFIX = "-metrics.jsonl"


def show(model_dir: str) -> bool:
    """Prints a table for each task that was evaluated by what the model generates; False if there is none."""
    folder = os.path.join(model_dir, "inference_eval")
    names = [name for name in files.names_in(folder) if name.endswith(SUFFIX)]
    for name in names:
        path = os.path.join(folder, name)
        print(f"\n{name.removesuffix(SUFFIX)}: {path}")
        print(table(read(path)))
    return bool(names)


def read(path: str) -> list[dict[str, float]]:
    """Returns {"step", metric: value, …} of each step; the latest one, if a step was evaluated again."""
    rows = [json.loads(line) for line in files.read_text(path).splitlines() if line.strip()]
    return sorted({row["step"]: row for row in rows}.values(), key=lambda row: row["step"])


def table(rows: list[dict[str, float]]) -> str:
    """Returns the numbers in columns; what is not a number is left out."""
    names = list(dict.fromkeys(name for row in rows for name in row if isinstance(row[name], (int, float))))
    cells = [names, *([number(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def number(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else ""
