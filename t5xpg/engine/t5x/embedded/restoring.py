"""A run's checkpoints: the manager that saves them, and the state that one of them holds."""

from __future__ import annotations

import jax

from t5x import checkpoints
from t5x.embedded.initialization import TrainStateInitializer


def create_checkpoint_manager_and_restore(
    train_state_initializer: TrainStateInitializer,
    partitioner,
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig | None,
    restore_path: str | None,
    fallback_init_rng: jax.Array | None,
    save_checkpoint_cfg: checkpoints.SaveCheckpointConfig | None = None,
    model_dir: str | None = None,
    ds_iter=None,
    use_orbax: bool = True,
):
    """Restores a train state, and makes the manager that is to save its successors.

    Args:
      train_state_initializer: knows the state's shapes and where its arrays go.
      partitioner: a partitioning.PjitPartitioner.
      restore_checkpoint_cfg: how to restore; its path is not looked at.
      restore_path: the checkpoint, of either layout, or None for none.
      fallback_init_rng: for parameters that the checkpoint lacks, where the configuration allows to initialize them.
      save_checkpoint_cfg: how to save, or None to save nothing.
      model_dir: where checkpoints are saved.
      ds_iter: the training data's iterator, whose position is stored with save_checkpoint_cfg.save_dataset.
      use_orbax: accepted for callers of T5X; Orbax's layout is what is written here, and both are read.

    Returns:
      (the restored state, or None without a path; the checkpoints.CheckpointManager, or None where nothing is saved:
      T5X has one there too, which cannot save.)
    """
    del use_orbax
    state = manager = None
    if restore_path:
        state = train_state_initializer.from_checkpoint(restore_path, restore_checkpoint_cfg, fallback_init_rng)
    if save_checkpoint_cfg is not None:
        layout = partitioner.get_data_layout()
        manager = checkpoints.CheckpointManager(model_dir, save_checkpoint_cfg, ds_iter, layout)
    return state, manager
