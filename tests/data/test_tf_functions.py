"""Python functions inside tf.data."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import TESTS

from t5xpg.data import tf_functions

READS_AHEAD = """
import time
import tensorflow as tf
from t5xpg.data import tf_functions

def slowly(x):
    time.sleep(0.05)
    return x

iterators = [
    iter(tf.data.Dataset.range(10**9).map(lambda x: tf_functions.numpy_function(slowly, [x], tf.int64)).prefetch(1000))
    for _ in range(4)
]
for iterator in iterators:
    next(iterator)
print("the last line")
"""


def test_a_script_ends_beside_datasets_that_read_ahead():
    """Without `end_iterators` it hangs."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, "-c", READS_AHEAD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "the last line\n", done.stderr
    assert "Traceback" not in done.stderr


def squares() -> tf.data.Dataset:
    return tf.data.Dataset.range(10).map(lambda x: tf_functions.numpy_function(np.square, [x], tf.int64))


def test_an_iterator_can_be_saved(tmp_path):
    iterator = iter(squares())
    assert [next(iterator).numpy() for _ in range(4)] == [0, 1, 4, 9]
    saved = tf.train.Checkpoint(ds=iterator).write(str(tmp_path / "place"))
    resumed = iter(squares())
    tf.train.Checkpoint(ds=resumed).read(saved).assert_consumed()
    assert next(resumed).numpy() == 16


def test_what_the_function_raises_reaches_the_reader():
    def broken(x):
        raise ValueError("line 3 is broken")

    dataset = tf.data.Dataset.range(1).map(lambda x: tf_functions.numpy_function(broken, [x], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="line 3 is broken"):
        next(iter(dataset))
