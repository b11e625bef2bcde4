"""Writes programs.json: what google-research/t5x's programs give for a small fine-tuning run, evaluated and inferred.

The run is in program_runs.py. Run this with a T5X checkout on the path, never under JAX's strict promotion modes:

    PYTHONPATH=path/to/t5x JAX_PLATFORMS=cpu python tests/golden/record_programs.py --commit cc342d4
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import program_runs
import record_training

TARGET = Path(__file__).with_name("programs.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True, help="the T5X commit on the path, for the record")
    arguments = parser.parse_args()
    record_training.refuse_embedded_engine()
    with tempfile.TemporaryDirectory() as folder:
        record = {"recorded_with": record_training.versions(arguments.commit), **program_runs.run(Path(folder))}
    beside = TARGET.with_suffix(".new")
    lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in record.items())
    beside.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    os.replace(beside, TARGET)


if __name__ == "__main__":
    main()
