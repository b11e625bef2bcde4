import numpy as np
import tensorflow as tf
from t5.data import preprocessors

from t5xpg.batchwise.documents import Chunks, SeedStream
from t5xpg.batchwise.ragged import Ragged


def test_a_chunk_at_random_is_t5s():
    length = 7
    sizes = np.random.default_rng(5).integers(1, 60, 50)
    documents = Ragged(np.arange(1, sizes.sum() + 1, dtype=np.int32), sizes)
    chosen = Chunks(length, SeedStream(31, 0))(documents)
    of_each = np.split(documents.values, np.cumsum(sizes)[:-1])
    for tokens, chunk, seed in zip(
        of_each, np.split(chosen.values, np.cumsum(chosen.sizes)[:-1]), np.stack(SeedStream(31, 0)(50), 1), strict=True
    ):
        features = {"targets": tf.constant(tokens)}
        expected = preprocessors.single_example_select_random_chunk(features, tf.constant(seed), {}, length)["targets"]
        np.testing.assert_array_equal(chunk, expected)
    assert not np.array_equal(chosen.sizes, np.minimum(sizes, length))  # some end with their document
