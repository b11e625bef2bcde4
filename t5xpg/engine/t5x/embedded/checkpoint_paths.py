"""Which checkpoints a folder holds, and which of them are whole."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x.embedded import console
from t5xpg.base import files, stores

LEGACY_INDEX = "checkpoint"


def checkpoint_path(folder: str, step: int) -> str:
    return os.path.join(folder, f"checkpoint_{step}")


def all_steps(checkpoints_dir: str) -> list[int]:
    """Returns the steps of the finished checkpoints in a folder, in increasing order; [] without a folder."""
    named = (re.fullmatch(r"checkpoint_(\d+)", name) for name in files.names_in(checkpoints_dir))
    return sorted(int(match[1]) for match in named if match and is_finished(os.path.join(checkpoints_dir, match[0])))


def agreed_steps(checkpoints_dir: str) -> list[int]:
    """Returns, in every process, the `all_steps` that process 0 finds; all processes must call it.

    The others may find more or fewer: of a run that is saving, or where a network file system shows them an older list.
    """
    if jax.process_count() == 1:
        return all_steps(checkpoints_dir)
    steps = np.array(all_steps(checkpoints_dir) if jax.process_index() == 0 else [], np.int32)
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(steps))))
    return multihost_utils.broadcast_one_to_all(np.resize(steps, count)).tolist()


def latest_step(checkpoints_dir: str) -> int | None:
    return max(all_steps(checkpoints_dir), default=None)


def latest_in(path: str) -> str:
    """Returns the latest checkpoint of a folder of them, a MODEL_DIR; any other path as it is."""
    step = latest_step(path)
    return path if step is None else checkpoint_path(path, step)


def describe_steps(path: str) -> str:
    """Says which checkpoints there are: in a folder, or beside a checkpoint that is not there."""
    for folder in (path, stores.parent(path)):
        if steps := [str(step) for step in all_steps(folder)]:
            listed = steps if len(steps) <= 12 else [*steps[:3], "…", *steps[-3:]]
            return f"{folder} holds the checkpoints {', '.join(listed)}"
    return "no checkpoint is there"


def step_of(path: str) -> int:
    """Returns the step in a checkpoint's name."""
    name = os.path.basename(os.path.normpath(path))
    match = re.fullmatch(r"checkpoint_(\d+)", name)
    if match is None:
        raise ValueError(f"{path} is not named like a checkpoint; its name must be checkpoint_<step>.")
    return int(match[1])


def is_finished(path: str) -> bool:
    """Whether a checkpoint was written to its end: Orbax's marker, or the legacy format's index, is there."""
    return any(files.is_file(os.path.join(path, name)) for name in ("commit_success.txt", LEGACY_INDEX))


def clear_unfinished(store: str) -> None:
    """Removes a store's half-written checkpoints; all processes must call it.

    On a disk Orbax does it, by their temporary names. At a URL it would go by its own marker alone, and so remove
    legacy checkpoints too, and it would do so while it lists the folder, which may then be gone with its last object.
    """
    if jax.process_index() == 0:
        for name in files.names_in(store):
            if not re.fullmatch(r"checkpoint_\d+", name) or is_finished(path := os.path.join(store, name)):
                continue
            if is_unmarked(path):
                console.say(
                    f"{path} is kept, but does not count: it has no commit_success.txt. Is it whole? Write one."
                )
            else:
                files.remove(path)
    multihost_utils.sync_global_devices(f"cleared {store}")


def is_unmarked(path: str) -> bool:
    """Whether it is another program's, which wrote it to its end without a marker, as older Orbax did on a disk.

    Ours have checksums, which are there before the time of the end is written, and the marker comes after that.
    """
    metadata = os.path.join(path, "_CHECKPOINT_METADATA")
    if files.exists(os.path.join(path, "checksums")) or not files.is_file(metadata):
        return False
    with contextlib.suppress(ValueError, AttributeError):
        return json.loads(files.read_text(metadata)).get("commit_timestamp_nsecs") is not None
    return False


def put_aside(path: str) -> str:
    """Renames a damaged checkpoint so that it no longer counts as one, and its step can be saved again."""
    folder, name = os.path.split(path.rstrip("/"))
    aside = os.path.join(folder, f"damaged_{name}")
    if jax.process_index() == 0:
        names = itertools.chain([aside], (f"{aside}.{i}" for i in itertools.count(1)))
        aside = next(name for name in names if not files.exists(name))
        files.move(path, aside)
    multihost_utils.sync_global_devices(f"put aside {path}")
    return aside
