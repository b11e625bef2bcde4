"""Which errors of reading a checkpoint speak of its files, and which of the machine that reads them."""

import errno
import os

import pytest

from t5x import checkpoints
from t5x.embedded import checkpoint_readers
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
