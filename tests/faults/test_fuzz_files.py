"""A few hundred damaged files of every kind, by the program that does thousands; its docstring says what must hold."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_damaged_files_of_every_kind_give_rows_or_one_line():
    command = [sys.executable, ROOT / "benchmarks" / "fuzz_files.py", "--cases", "400", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-500:]}"
    assert "400 cases of seed 1, 0 failures" in done.stdout
