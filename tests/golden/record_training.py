"""Writes training.json: what google-research/t5x computes for every case in cases.py.

Run it with a T5X checkout on the path, never under JAX's strict promotion modes, which T5X does not survive:

    PYTHONPATH=path/to/t5x JAX_PLATFORMS=cpu python tests/golden/record_training.py --commit cc342d4
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import cases
from tqdm import tqdm

import t5x

TARGET = Path(__file__).with_name("training.json")
PACKAGES = ("jax", "jaxlib", "flax", "clu", "numpy", "seqio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True, help="the T5X commit on the path, for the record")
    parser.add_argument("--only", nargs="+", default=list(cases.CASES), choices=cases.CASES, metavar="CASE")
    arguments = parser.parse_args()
    refuse_embedded_engine()

    record = json.loads(TARGET.read_text()) if TARGET.exists() else {"cases": {}}
    record["recorded_with"] = versions(arguments.commit)
    record["batches"] = cases.batch_fingerprints()
    for name in tqdm(arguments.only, desc="recording"):
        record["cases"][name] = cases.run(name)
    write(record, TARGET)


def refuse_embedded_engine() -> None:
    """Raises unless the `t5x` that answered is a T5X of its own."""
    folder = Path(next(iter(t5x.__path__)))
    if "t5xpg" in folder.parts:
        raise SystemExit(f"`import t5x` answered from {folder}; put google-research/t5x on PYTHONPATH.")


def versions(commit: str) -> dict[str, str]:
    """Returns what the numbers depend on: the T5X commit, the machine and the packages that compute."""
    packages = {package: metadata.version(package) for package in PACKAGES}
    return {"t5x": commit, "machine": platform.machine(), "python": platform.python_version(), **packages}


def write(record: dict[str, Any], path: Path) -> None:
    """Writes the record as JSON with one line for every case, whole or not at all."""
    lines = [f'"{key}": {json.dumps(record[key])},\n' for key in ("recorded_with", "batches")]
    numbers = record["cases"]
    rows = ",\n".join(
        f'"{name}": {json.dumps(numbers[name], sort_keys=True, separators=(",", ":"))}' for name in sorted(numbers)
    )
    beside = path.with_suffix(".new")
    beside.write_text("{\n" + "".join(lines) + '"cases": {\n' + rows + "\n}}\n")
    os.replace(beside, path)


if __name__ == "__main__":
    main()
