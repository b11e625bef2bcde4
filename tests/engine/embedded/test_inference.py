"""get_infer_fn: the dataset's order and length, padding, keys, auxiliary values; against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax.core import freeze
from jax.sharding import PartitionSpec

from t5x import partitioning, utils
from t5x.train_state import InferenceState

STATE = InferenceState(step=jnp.int32(7), params=freeze({"w": jnp.float32([2.0])}))
AXES = InferenceState(step=None, params=freeze({"w": PartitionSpec()}))


def score(params, batch):
    return batch["x"].sum(-1).astype(jnp.float32) * params["w"]


def predict_with_aux(params, batch, rng=None):
    noise = jax.random.uniform(rng, batch["x"].shape[:1])
    return batch["x"][:, ::-1], {"scores": batch["x"].sum(-1), "noise": noise}


def dataset(rows: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices({"x": np.arange(rows * 3, dtype=np.int32).reshape(rows, 3)}).enumerate()


def infer_fn(step, batch_size=4, **options):
    return utils.get_infer_fn(step, batch_size, AXES, partitioning.PjitPartitioner(num_partitions=1), **options)


@pytest.mark.parametrize("rows", [1, 4, 5, 11])
def test_every_example_comes_back_once_in_order(rows):
    assert infer_fn(score)(dataset(rows), STATE) == [(i, 2.0 * (9 * i + 3)) for i in range(rows)]


def test_order_is_the_index_of_the_dataset():
    shuffled = dataset(10).shuffle(10, seed=1).cache()
    assert infer_fn(score)(shuffled, STATE) == infer_fn(score)(dataset(10), STATE)


def test_auxiliary_values_belong_to_their_examples():
    shuffled = dataset(10).shuffle(10, seed=1).cache()
    pairs, aux = infer_fn(predict_with_aux)(shuffled, STATE, jax.random.PRNGKey(0))
    assert pairs == [(i, [3 * i + 2, 3 * i + 1, 3 * i]) for i in range(10)]
    assert aux["scores"] == [9 * i + 3 for i in range(10)]
    _, arrays = infer_fn(predict_with_aux, keep_aux_as_numpy=True)(shuffled, STATE, jax.random.PRNGKey(0))
    assert arrays["scores"] == aux["scores"] and isinstance(arrays["scores"][0], np.generic)


def test_each_batch_has_a_key_of_its_own_split_as_t5x_splits():
    _, aux = infer_fn(predict_with_aux)(dataset(8), STATE, jax.random.PRNGKey(3))
    expected, rng = [], jax.random.PRNGKey(3)
    for _ in range(2):
        step_rng, rng = jax.random.split(rng)
        expected += jax.random.uniform(step_rng, (4,)).tolist()
    np.testing.assert_allclose(aux["noise"], expected)


def test_progress_counts_real_examples():
    counted = []
    infer_fn(score, on_examples=counted.append)(dataset(11), STATE)
    assert counted == [4, 4, 3]


def test_no_example_is_an_error():
    with pytest.raises(ValueError, match="no example"):
        infer_fn(score)(dataset(4).take(0), STATE)
