"""starts.jsonl in MODEL_DIR: a line for each start of a run, with its command, machine and versions, and its end."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import psutil

from t5xpg.base import files

NAME = "starts.jsonl"
PACKAGES = ("t5xpg", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "seqio", "tensorflow", "numpy")


def add(model_dir: str, step: int) -> None:
    """Adds this start, from `step` on; from process 0."""
    if jax.process_index() == 0:
        _add_line(model_dir, describe(step))


def add_end(model_dir: str, step: int) -> None:
    """Adds that the run has ended, after the last evaluation of `step`; from process 0."""
    if jax.process_index() == 0:
        _add_line(model_dir, {"ended": time.time(), "step": step})


def _add_line(model_dir: str, line: dict) -> None:
    path = os.path.join(model_dir, NAME)
    before = files.read_text(path) if files.exists(path) else ""
    files.write_whole(path, f"{before}{json.dumps(line)}\n")


def describe(step: int) -> dict:
    """Returns {"time" in seconds since 1970, "step", "command", "machine": {…}, "versions": {…}}."""
    return {"time": time.time(), "step": step, "command": command(), "machine": machine(), "versions": versions()}


def command() -> str:
    """Returns the command line, as a shell takes it, without the folder that the program is in."""
    first, *rest = sys.orig_argv[1:] or sys.argv
    return shlex.join(["python", first, *rest] if first.startswith("-") else [os.path.basename(first), *rest])


def machine() -> dict[str, str]:
    """Returns what the run's first process computes on, in words; of several processes also how many there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kinds = Counter(device.device_kind for device in jax.devices())
    found = {
        "processor": f"{processor()}, {cores} core{'s' * (cores != 1)}",
        "main memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "devices": ", ".join(f"{count} × {kind}" for kind, count in kinds.items()),
        "system": f"{platform.system()} {platform.release()}",
    }
    return found | ({"processes": f"{jax.process_count()}"} if jax.process_count() > 1 else {})


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the processor's name; of one that has none, its kind."""
    lines = files.read_text(cpuinfo).splitlines() if files.is_file(cpuinfo) else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a result depends on most; those that are installed."""
    found = {package: version(package) for package in PACKAGES}
    return {"python": platform.python_version()} | {package: number for package, number in found.items() if number}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
