"""Packing by batches against SeqIO's loop, and datasets built without AutoGraph."""

import functools
import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x import utils
from t5x.embedded import packing

LENGTHS = {"inputs": 24, "targets": 10}


def dataset(lengths: dict[str, int], rows: int = 200, zeros: float = 0.0, seed: int = 0) -> tf.data.Dataset:
    """Rows of 0 to length + 5 random ids, `zeros` of which are 0, and a feature that is not packed."""
    rng = np.random.default_rng(seed)

    def ids(length: int) -> np.ndarray:
        x = rng.integers(1, 50, rng.integers(0, length + 5))
        return np.where(rng.random(x.shape) < zeros, 0, x)

    made = [{name: ids(length) for name, length in lengths.items()} for _ in range(rows)]
    spec = {name: tf.TensorSpec([None], tf.int64) for name in lengths} | {"id": tf.TensorSpec([], tf.int32)}
    return tf.data.Dataset.from_generator(
        lambda: iter({**row, "id": i} for i, row in enumerate(made)), output_signature=spec
    )


def as_a_task(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: tf.cast(row[name], tf.int32)[:5] for name in LENGTHS}


def assert_same(ours: tf.data.Dataset, theirs: tf.data.Dataset) -> int:
    count = 0
    for a, b in itertools.zip_longest(ours.as_numpy_iterator(), theirs.as_numpy_iterator()):
        assert a is not None and b is not None and a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            np.testing.assert_array_equal(a[name], b[name], name)
        count += 1
    return count


@pytest.mark.parametrize("zeros", [0.0, 0.2])
@pytest.mark.parametrize("lengths", [LENGTHS, {"targets": 16}, {"inputs": 7, "targets": 7, "answers": 30}])
def test_rows_are_seqio_s(lengths, zeros):
    rows = dataset(lengths, zeros=zeros)
    ours, theirs = packing.pack_dataset(rows, lengths), seqio.utils.trim_and_pack_dataset(rows, lengths)
    assert ours.element_spec == theirs.element_spec
    assert assert_same(ours, theirs) > 20


def test_what_cannot_be_packed_is_refused_in_seqio_s_words():
    rows = dataset(LENGTHS)
    with pytest.raises(ValueError, match="Feature 'answers' not found"):
        packing.pack_dataset(rows, {"answers": 4})
    with pytest.raises(ValueError, match="must be one-dimensional. 'id'"):
        packing.pack_dataset(rows, {"id": 4})


@pytest.mark.parametrize("converter", [seqio.EncDecFeatureConverter, seqio.PrefixLMFeatureConverter])
def test_a_converter_s_features_are_the_same(converter):
    rows = dataset(LENGTHS).map(as_a_task)
    ours = packing.make_converter(converter, pack=True)
    assert type(ours)._pack_or_pad is not seqio.FeatureConverter._pack_or_pad
    assert assert_same(ours(rows, LENGTHS), converter(pack=True)(rows, LENGTHS)) > 20


@pytest.mark.parametrize(
    "save, restore",
    [
        (packing.pack_dataset, packing.pack_dataset),
        (packing.pack_dataset, seqio.utils.trim_and_pack_dataset),
        (seqio.utils.trim_and_pack_dataset, packing.pack_dataset),
    ],
)
def test_a_saved_place_fits_both(tmp_path, save, restore):
    rows = tf.data.Dataset.range(300).map(
        lambda i: {name: tf.fill([1 + i % (length - 1)], i + 1) for name, length in LENGTHS.items()}
    )
    iterator = iter(save(rows, LENGTHS))
    for _ in range(15):
        next(iterator)
    place = tf.train.Checkpoint(ds=iterator).write(str(tmp_path / "place"))
    resumed = iter(restore(rows, LENGTHS))
    tf.train.Checkpoint(ds=resumed).read(place).assert_consumed()
    for _ in range(15):
        expected, found = next(iterator), next(resumed)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_padding_and_other_packing_are_left_alone():
    class Own(seqio.EncDecFeatureConverter):
        def _pack_or_pad(self, ds, packed_lengths):
            raise NotImplementedError("its own")

    with pytest.raises(NotImplementedError, match="its own"):
        packing.make_converter(Own, pack=True)(dataset(LENGTHS).map(as_a_task), LENGTHS)
    theirs = seqio.EncDecFeatureConverter(pack=False)
    ours = packing.make_converter(functools.partial(seqio.EncDecFeatureConverter, pack=True), pack=False)
    assert isinstance(ours, seqio.EncDecFeatureConverter) and not ours.pack
    for x, y in zip(*(c(dataset(LENGTHS).map(as_a_task), LENGTHS) for c in (theirs, ours)), strict=True):
        assert all(np.array_equal(x[name], y[name]) for name in x)


def test_a_user_s_converter_is_converted_by_autograph():
    """An `if` over a tensor in its own map function runs as it does without us."""

    class Halving(seqio.EncDecFeatureConverter):
        def _convert_example(self, features):
            converted = super()._convert_example(features)
            if converted["decoder_target_tokens"][0] > 0:
                converted["decoder_loss_weights"] = converted["decoder_loss_weights"] * 2
            return converted

    def rows(converter):
        return list(converter(dataset(LENGTHS).map(as_a_task), LENGTHS).as_numpy_iterator())

    for expected, found in zip(rows(Halving(pack=True)), rows(packing.make_converter(Halving, pack=True)), strict=True):
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
        assert found["decoder_loss_weights"].max() == 2


def test_a_user_s_preprocessor_is_built_once(tmp_path):
    """Whatever it raises is its own error, at once."""
    calls = []

    def broken(ds):
        calls.append(1)
        raise TypeError("the user's own mistake")

    vocabulary = seqio.ByteVocabulary()
    task = seqio.Task(
        "broken_preprocessor",
        seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: tf.data.Dataset.range(3), ["train"]),
        output_features={name: seqio.Feature(vocabulary) for name in ("inputs", "targets")},
        preprocessors=[broken],
    )
    cfg = utils.DatasetConfig(task, {"inputs": 4, "targets": 4}, "train", 1, False, 0)
    with pytest.raises(TypeError, match="the user's own mistake"):
        utils.get_dataset(cfg, 0, 1, seqio.EncDecFeatureConverter)
    assert calls == [1]


def test_a_user_s_preprocessor_is_converted_by_autograph():
    @seqio.map_over_dataset
    def ids(x):
        if x % 2 == 0:
            x = x + 10
        return {"inputs": tf.fill([2], x), "targets": tf.fill([2], x)}

    vocabulary = seqio.ByteVocabulary(extra_ids=0)
    task = seqio.Task(
        "converted_preprocessor",
        seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.range(1, 4, output_type=tf.int32), ["train"]
        ),
        output_features={name: seqio.Feature(vocabulary, add_eos=False) for name in ("inputs", "targets")},
        preprocessors=[ids],
    )
    cfg = utils.DatasetConfig(task, {"inputs": 2, "targets": 2}, "train", 1, False, 0)
    rows = utils.get_dataset(cfg, 0, 1, seqio.EncDecFeatureConverter, num_epochs=1).as_numpy_iterator()
    assert [int(row["encoder_input_tokens"][0, 0]) for row in rows] == [1, 12, 3]
