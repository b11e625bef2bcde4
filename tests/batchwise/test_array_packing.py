"""Packing and converting in arrays against SeqIO's own, example by example."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.batchwise import packing
from t5xpg.batchwise.stages import joined, part


def examples(lengths: dict[str, int], count: int, zeros: float) -> dict[str, np.ndarray]:
    """Of 0 to length ids each, `zeros` of which are 0, padded."""
    rng = np.random.default_rng(len(lengths))
    made = {}
    for name, length in lengths.items():
        ids = rng.integers(1, 50, (count, length)).astype(np.int32)
        exists = np.arange(length) < rng.integers(0, length + 1, (count, 1))
        made[name] = ids * exists * (rng.random(ids.shape) >= zeros)
    return made


@pytest.mark.parametrize("zeros", [0.0, 0.2])
@pytest.mark.parametrize("lengths", [{"targets": 16}, {"inputs": 24, "targets": 10}, {"a": 7, "b": 7, "c": 30}])
def test_rows_are_seqios(lengths, zeros):
    made = examples(lengths, 4 * max(lengths.values()), zeros)
    dataset = tf.data.Dataset.from_tensor_slices(made)
    theirs = list(seqio.utils.trim_and_pack_dataset(dataset, lengths).as_numpy_iterator())
    pack = packing.Pack(part(made, slice(0)), lengths)
    found = joined(*(pack(part(made, slice(start, start + 13))) for start in range(0, 4 * max(lengths.values()), 13)))
    assert len(theirs) == len(found[next(iter(lengths))]) > 4
    for name in theirs[0]:
        np.testing.assert_array_equal(found[name], np.stack([row[name] for row in theirs]), name)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(("converter_cls", "features"), [(cls, sorted(names)) for cls, names in packing.CONVERTERS])
def test_models_read_what_seqios_converters_make(converter_cls, features, pack):
    lengths = dict.fromkeys(features, 20)
    made = examples(lengths, 40, 0.0)
    dataset = tf.data.Dataset.from_tensor_slices(made)
    # Converters see examples without padding.
    trimmed = dataset.map(lambda x: {name: ids[: tf.math.count_nonzero(ids)] for name, ids in x.items()})
    theirs = list(converter_cls(pack=pack)(trimmed, lengths).as_numpy_iterator())
    rows = packing.pack(part(made, slice(0, 20)), lengths) if pack else made
    found = packing.CONVERTERS[converter_cls, frozenset(features)](rows)
    assert found.keys() == theirs[0].keys()
    for name in found:
        expected = np.stack([row[name] for row in theirs])[: len(found[name])]
        np.testing.assert_array_equal(found[name], expected, name)
        assert found[name].dtype == expected.dtype
