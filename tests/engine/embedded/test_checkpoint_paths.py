"""Several processes go on from, or read, the checkpoints that the first of them finds."""

import types
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from t5x import utils
from t5x.embedded.checkpoint_configs import CheckpointConfig
from t5x.embedded.checkpoint_paths import agreed_steps
from t5x.embedded.resuming import Restorer


@pytest.fixture(params=[[], [10], [10, 20, 30, 40]], ids=str)
def model_dir(request, tmp_path, monkeypatch) -> str:
    """A folder of a run in two processes, of which this is process 1: what it finds there; process 0 finds 10, 20, 30.

    `agreed_steps` is to be called once.
    """
    told: list[np.ndarray] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda own: told.append(own) or own)
    assert agreed_steps(make_checkpoints(tmp_path / "process 0", [10, 20, 30])) == [10, 20, 30]

    def broadcast(own: np.ndarray) -> np.ndarray:
        value = told.pop(0)
        assert (own.shape, own.dtype) == (value.shape, value.dtype)  # which JAX asks for
        return value

    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    return make_checkpoints(tmp_path / "process 1", request.param)


def make_checkpoints(folder: Path, steps: list[int]) -> str:
    for step in steps:
        (folder / f"checkpoint_{step}").mkdir(parents=True)
        (folder / f"checkpoint_{step}" / "commit_success.txt").touch()
    return str(folder)


@pytest.mark.parametrize(("mode", "steps"), [("specific", [30]), ("latest", [30]), ("all", [10, 20, 30])])
def test_a_configuration_names_the_checkpoints_that_process_0_finds(model_dir, mode, steps):
    cfg = utils.RestoreCheckpointConfig(model_dir, mode)
    assert cfg.found_checkpoint_paths() == [f"{model_dir}/checkpoint_{step}" for step in steps]


def test_a_run_goes_on_from_the_checkpoint_that_process_0_finds(model_dir):
    class Manager:
        def __init__(self, **_):
            pass

        def restore(self, path: str, **_):
            return types.SimpleNamespace(step=int(path.rpartition("_")[2]))

        def close(self):
            pass

    cfg = CheckpointConfig(utils.SaveCheckpointConfig(checkpoint_manager_cls=Manager))
    initializer = types.SimpleNamespace(global_train_state_shape=None)
    restorer = Restorer(initializer, None, cfg, model_dir, None, jax.random.PRNGKey(0))
    assert restorer.initialize()[1] == f"{model_dir}/checkpoint_30"
