"""Training that is killed by SIGKILL at random moments and started again, wherever its MODEL_DIR is."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
from command import start_t5xpg

# What a run prints as it goes on; a kill comes at a random moment after one of these, or after the start.
MOMENTS = ("", " parameters on ", "Compiled the training step", "Compiled the training step")


def train_through_kills(arguments: list, kills: int, rng: random.Random, log: Path, seconds: float = 3.0) -> str:
    """Trains to the end, but for `kills` kills; returns what all the runs printed.

    Args:
      arguments: of `t5xpg train`.
      kills: how many, if the run does not end before.
      rng: chooses the moments.
      log: a file that the output is added to.
      seconds: the longest time between one of MOMENTS and a kill.
    """
    for _ in range(kills):
        said, delay, before = rng.choice(MOMENTS), rng.uniform(0, seconds), printed(log)
        process = start_t5xpg("train", *arguments, stdout=log, stderr=log)
        while process.is_alive() and said not in printed(log)[len(before) :]:
            time.sleep(0.01)
        process.join(delay)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), printed(log)
    process = start_t5xpg("train", *arguments, stdout=log, stderr=log)
    process.join()
    assert process.exitcode == 0, printed(log)
    return printed(log)


def printed(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def parameters(model_dir: str) -> dict[str, np.ndarray]:
    """Returns {name: array} of the latest checkpoint, the optimizer's included."""
    from t5x import checkpoints

    return checkpoints.flatten(checkpoints.load_t5x_checkpoint(model_dir))
