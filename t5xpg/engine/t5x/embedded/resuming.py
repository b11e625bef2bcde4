"""Where a run starts: at its own latest checkpoint, another one, or nothing; and where in its data."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from typing import Any

import jax

from t5x import checkpoints
from t5x.embedded import console, datasets, initialization
from t5x.embedded.checkpoint_configs import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from t5x.embedded.initialization import TrainStateInitializer
from t5xpg.base.files import open_whole

FIRST_STEP_NAME = "first_step.txt"


@dataclasses.dataclass(frozen=True)
class Restorer:
    """Finds the state to start from.

    Raises:
      ValueError: the data is to go on from another run's place, and this run, interrupted, could not find that again.
    """

    initializer: TrainStateInitializer
    partitioner: Any
    checkpoint_cfg: CheckpointConfig
    model_dir: str
    train_iter: Any
    init_rng: jax.Array

    def __post_init__(self):
        save, restore = self.checkpoint_cfg.save, self.checkpoint_cfg.restore
        if restore and restore.restore_dataset and save and not save.save_dataset:
            raise ValueError(
                "RestoreCheckpointConfig.restore_dataset goes on from another run's place in the data, which this run "
                "would lose if interrupted; bind utils.SaveCheckpointConfig.save_dataset = True too."
            )

    def initialize(self, train_dataset_cfg: datasets.DatasetConfig, layout):
        """Returns the latest state in model_dir, else that of the checkpoint asked for, else a new one."""
        cfg, model_dir = self.checkpoint_cfg.restore, self.model_dir
        if checkpoints.all_steps(model_dir):
            if cfg and cfg.path:
                console.say(f"Note: {model_dir} holds a run already; {cfg.path} is not read again.")
            state, path = self._latest()
            console.say(f"Continuing from step {int(state.step):,} ({path})")
            done = int(state.step) - read_first_step(model_dir)
            reposition(self.train_iter, path, train_dataset_cfg, layout, done)
            return state
        if cfg and cfg.path:
            paths = cfg.checkpoint_paths()
            if cfg.mode == "all" or len(paths) > 1:
                raise ValueError(f"Training starts from one checkpoint, and RestoreCheckpointConfig names {paths}.")
            if not paths:
                raise ValueError(f"There is no finished checkpoint in {cfg.path} (RestoreCheckpointConfig.path).")
            state = self._read(paths[0], cfg)
            write_first_step(model_dir, int(state.step))
            console.say(f"Starting from step {int(state.step):,} of {paths[0]}")
            return state
        console.say("Starting from scratch")
        return self.initializer.from_scratch(self.init_rng)

    def _latest(self) -> tuple[Any, str]:
        """Returns (state, path) of the newest checkpoint that can be read; damaged ones are put aside."""
        cfg, damaged = self._resuming_cfg(), []
        for step in reversed(checkpoints.all_steps(self.model_dir)):
            path = checkpoints.checkpoint_path(self.model_dir, step)
            try:
                state = self._read(path, cfg)
            except checkpoints.DamagedCheckpointError as error:
                damaged.append((path, error))
                continue
            for path_aside, error in damaged:
                console.say(f"{error}; moved to {checkpoints.put_aside(path_aside)}.")
            return state, path
        raise ValueError(
            f"No checkpoint in {self.model_dir} can be read; take another MODEL_DIR to start over. {damaged[0][1]}"
        )

    def _resuming_cfg(self) -> RestoreCheckpointConfig:
        """Returns how to read a run's own checkpoints: as saved, with transformations that are told it resumes."""
        save, restore = self.checkpoint_cfg.save or SaveCheckpointConfig(), self.checkpoint_cfg.restore
        fns = [functools.partial(fn, is_resuming=True) for fn in (restore.state_transformation_fns if restore else ())]
        return RestoreCheckpointConfig(
            self.model_dir,
            dtype=save.dtype,
            checkpointer_cls=save.checkpointer_cls,
            state_transformation_fns=fns,
            checkpoint_manager_cls=save.checkpoint_manager_cls,
        )

    def _read(self, path: str, cfg: RestoreCheckpointConfig):
        state, manager = initialization.create_checkpoint_manager_and_restore(
            self.initializer, self.partitioner, cfg, path, self.init_rng, None, self.model_dir, self.train_iter
        )
        manager.close()
        return state


def write_first_step(model_dir: str, step: int) -> None:
    """Keeps the step of the checkpoint that a run starts from: its data starts there."""
    if jax.process_index() == 0:
        with open_whole(os.path.join(model_dir, FIRST_STEP_NAME)) as file:
            file.write(f"{step}\n")


def read_first_step(model_dir: str) -> int:
    """Returns the step that the run in `model_dir` started from; 0 for one from scratch."""
    path = os.path.join(model_dir, FIRST_STEP_NAME)
    if not os.path.exists(path):
        return 0
    with open(path, encoding="utf-8") as file:
        return int(file.read())


def reposition(train_iter, path: str, cfg: datasets.DatasetConfig, layout, done: int) -> None:
    """Moves the data to where a resumed run left it after `done` batches, where that can be known."""
    if checkpoints.restore_dataset(path, train_iter, layout):
        console.say("Restored the position in the training data")
    elif cfg.seed is not None and done:
        tick = time.time()
        train_iter.skip(done)
        console.say(f"Read past the first {done:,} batches in {time.time() - tick:.1f} s (save_dataset avoids this)")
    # Without a seed the data comes in a new order, and there is no position to go back to.
