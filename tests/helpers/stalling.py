"""What can befall a run, for gin: data that stop, endless native code, slow saves, failing restores, a flipped bit."""

import threading
import time
from pathlib import Path
from unittest import mock

import jax
import tensorflow as tf

from t5x import checkpoints, trainer, utils
from t5x.embedded import checksums


def get_dataset(cfg, shard_id: int, num_shards: int, converter_cls, batches: int = 3, fails_in: int | None = None):
    """Returns the usual batches, and none after the first few: the next is awaited for ever, or fails in a shard."""
    ds = utils.get_dataset(cfg, shard_id, num_shards, converter_cls)

    def never():
        if shard_id == fails_in:
            raise ValueError(f"the data of shard {shard_id} are gone")
        time.sleep(10**6)
        yield

    return ds.take(batches).concatenate(tf.data.Dataset.from_generator(never, output_signature=ds.element_spec))


def get_evaluation(cfg, shard_id: int, num_shards: int, eval_steps: int, converter_cls, batches: int = 1) -> dict:
    """Returns a dataset to evaluate on that gets stuck likewise."""
    return {"micro": get_dataset(cfg, shard_id, num_shards, converter_cls, batches)}


class CompilingTrainer(trainer.Trainer):
    """Spends the main thread's time in native code, as a compiler does, where no Python handler of a signal runs."""

    def compile_train(self, batch) -> None:
        endless = iter(tf.data.Dataset.range(1).repeat().filter(lambda x: x < 0))
        threading.Timer(0.5, print, ["in native code"], {"flush": True}).start()
        next(endless)


def save_slowly(state_dict, names, folder: str = ""):
    """A transformation of what is saved that takes 3 s, but for step 0; makes a file `saving` as it begins."""
    if int(state_dict["state"]["step"]):
        Path(folder, "saving").touch()
        time.sleep(3)
    return state_dict, names


def fail_in_one(state_dict, target_state_dict, *, is_resuming: bool = False):
    """A transformation of what is restored that fails in process 1 alone."""
    if jax.process_index() == 1:
        raise ValueError("process 1 cannot go on")
    return state_dict


class FlippedInOne(checkpoints.OrbaxCheckpointManagerInterface):
    """Finds a wrong value in the checkpoint of step 20, in process 1 alone."""

    def restore(self, step=None, path=None, **options):
        def check(expected, arrays):
            checksums.of_arrays(arrays)  # in which all processes take part
            raise ValueError("1 array is not what was saved")

        if jax.process_index() == 1 and path.endswith("_20"):
            with mock.patch.object(checksums, "check", check):
                return super().restore(step, path, **options)
        return super().restore(step, path, **options)
