"""Where a run starts: at its own latest checkpoint, another one, or nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from t5x import checkpoints
from t5x.embedded import console, data_position, initialization, json_lines
from t5x.embedded.checkpoint_configs import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from t5x.embedded.checkpoint_paths import agreed_steps, step_of
from t5x.embedded.initialization import TrainStateInitializer


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

    @functools.cached_property
    def _steps(self) -> list[int]:
        return agreed_steps(self.model_dir)

    def is_new(self) -> bool:
        """Whether the run starts from nothing."""
        cfg = self.checkpoint_cfg.restore
        return not self._steps and not (cfg and cfg.path)

    def compile_ahead(self, submit: Callable) -> None:
        """Begins to compile what makes a new run's state; see TrainStateInitializer."""
        makes = type(self.initializer).from_scratch  # a subclass of a user's may make it in another way
        if self.is_new() and makes is TrainStateInitializer.from_scratch:
            self.initializer.compile_ahead(self.init_rng, submit)

    def initialize(self) -> tuple[Any, str | None, int]:
        """Returns (train state, the checkpoint of this run that it goes on from or None, the run's first step).

        The state is the latest in model_dir, else that of the checkpoint asked for, else a new one; what metrics.jsonl
        holds of later steps, or of a run that left no checkpoint, is dropped.
        """
        cfg, model_dir = self.checkpoint_cfg.restore, self.model_dir
        if steps := self._steps:
            if cfg and cfg.path:
                console.say(f"Note: {model_dir} holds a run already; {cfg.path} is not read again.")
            state, path = self._latest(steps)
            json_lines.go_on_from(model_dir, int(state.step))
            console.say(f"Continuing from step {int(state.step):,} ({path})")
            return state, path, self.first_step()
        json_lines.go_on_from(model_dir, None)
        if path := self.initial_checkpoint():
            state = self._read(path, cfg)
            console.say(f"Starting from step {int(state.step):,} of {path}")
            return state, None, int(state.step)
        console.say("Starting from scratch")
        return self.initializer.from_scratch(self.init_rng), None, 0

    def initial_checkpoint(self) -> str | None:
        """Returns the checkpoint that a new run starts from, where one is asked for."""
        cfg = self.checkpoint_cfg.restore
        if not (cfg and cfg.path):
            return None
        paths = cfg.found_checkpoint_paths()
        if cfg.mode == "all" or len(paths) > 1:
            raise ValueError(f"Training starts from one checkpoint, and RestoreCheckpointConfig names {paths}.")
        return paths[0]

    def restores_data(self) -> bool:
        """Whether a new run starts at the initial checkpoint's place in the data."""
        cfg = self.checkpoint_cfg.restore
        return bool(cfg and cfg.path and cfg.restore_dataset)

    def first_step(self) -> int:
        """Returns the step that the run in model_dir began at.

        Where no file there tells, as in T5X's, it is the step that the initial checkpoint has in its name, or 0.
        """

        def of_its_name() -> int:
            initial = self.initial_checkpoint()
            return step_of(initial) if initial else 0

        return data_position.first_step(self.model_dir, of_its_name)

    def _latest(self, steps: list[int]) -> tuple[Any, str]:
        """Returns (state, path) of the newest checkpoint of `steps` that can be read; damaged ones are put aside."""
        cfg, damaged = self._resuming_cfg(), []
        for step in reversed(steps):
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


def is_finished(model_dir: str, step: int, total_steps: int) -> bool:
    """Whether a run at `step` has nothing left to train, which it says.

    Raises:
      ValueError: it is beyond its last step.
    """
    if step > total_steps:
        raise ValueError(
            f"{model_dir} is already at step {step:,}, beyond the {total_steps:,} that TRAIN_STEPS or "
            "TRAIN_STEPS_RELATIVE ask for; raise it, or take another MODEL_DIR."
        )
    if step == total_steps:
        console.say(f"Nothing to train: {model_dir} is finished, at step {step:,}.")
    return step == total_steps
