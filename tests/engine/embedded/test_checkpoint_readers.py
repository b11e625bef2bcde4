"""Which errors of reading a checkpoint speak of its files, and which of the machine that reads them.

Of several processes, all find the damage that one of them does.
"""

import errno
import os
import types

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from t5x import checkpoints
from t5x.embedded import checkpoint_readers, initialization
from t5xpg.base import stores

OF_THE_MACHINE = [errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM]
GONE = [errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN]


@pytest.mark.parametrize("number", [*OF_THE_MACHINE, *GONE])
@pytest.mark.parametrize("kind", ["Python's", "TensorStore's", "wrapped"])
def test_what_a_machine_cannot_do_is_no_damage(number, kind):
    error = OSError(number, os.strerror(number))
    if kind == "TensorStore's":
        error = ValueError(f"Failed to open: \"x\": {os.strerror(number)} […] [os_error_code='{number}']")
    raised = ValueError("Error while reading") if kind == "wrapped" else error
    with pytest.raises(type(raised)) as caught, checkpoint_readers.naming_damage("run/checkpoint_1"):
        raise raised from (error if kind == "wrapped" else None)
    assert caught.value is raised


@pytest.mark.parametrize("error", [OSError(errno.EINVAL, "x"), FileNotFoundError(errno.ENOENT, "x"), ValueError("x")])
def test_what_a_file_has_wrong_is_damage(error):
    with (
        pytest.raises(checkpoints.DamagedCheckpointError, match="^run/checkpoint_1 cannot be read: "),
        checkpoint_readers.naming_damage("run/checkpoint_1"),
    ):
        raise error


def test_a_store_that_does_not_answer_is_named():
    error = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    with (
        pytest.raises(stores.StoreError, match="^gs://b/run/checkpoint_1: the store failed"),
        checkpoint_readers.naming_damage("gs://b/run/checkpoint_1"),
    ):
        raise error


@pytest.fixture
def other(monkeypatch) -> list[np.ndarray]:
    """Makes this one of two processes; its result is to hold what the other tells, else that is what this one tells."""
    told: list[np.ndarray] = []

    def gather(own: np.ndarray) -> np.ndarray:
        if not told:
            told.append(own)
        return np.stack([own, told[0]])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    return told


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_read_different_checkpoints_are_refused(damaged):
    for path in ("/one/run/checkpoint_20", "/two/run/checkpoint_20/"):  # where it is may differ between machines
        with checkpoint_readers.raised_by_all(path):
            pass
    refusal = "^The processes of this run read different checkpoints, this one /one/run/checkpoint_10; "
    with pytest.raises(ValueError, match=refusal), checkpoint_readers.raised_by_all("/one/run/checkpoint_10"):
        if damaged:
            raise checkpoints.DamagedCheckpointError("/one/run/checkpoint_10 cannot be read")


def test_looking_for_an_optimizer_finds_the_damage_that_another_process_does(other, tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint_20")
    monkeypatch.setattr(checkpoints, "open_checkpoint", lambda path: types.SimpleNamespace(arrays={"target/w": 0}))
    assert initialization.lacks_optimizer(path)
    other.clear()

    def damaged(path):
        raise checkpoints.DamagedCheckpointError(f"{path} cannot be read")

    with monkeypatch.context() as in_the_other, pytest.raises(checkpoints.DamagedCheckpointError):
        in_the_other.setattr(checkpoints, "open_checkpoint", damaged)
        initialization.lacks_optimizer(path)
    with pytest.raises(checkpoints.DamagedCheckpointError, match=f"^{path} cannot be read by process 1$"):
        initialization.lacks_optimizer(path)
