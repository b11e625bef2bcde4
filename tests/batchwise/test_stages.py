"""Shuffling, cutting and mixing against tf.data's own, and places that are kept as bytes."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from flax import serialization

from t5xpg.batchwise import stages
from t5xpg.batchwise.mixing import Mix
from t5xpg.batchwise.stages import Stage

NOTHING = {"x": np.zeros(0, np.int64)}


class Numbers(Stage):
    """Blocks of the numbers from `first` on, `step` apart, of 0 to 8 at a time."""

    kept = ("_given",)

    def __init__(self, first: int = 0, step: int = 1):
        self._first, self._step, self._given = first, step, 0

    def __call__(self) -> stages.Block:
        start = self._given
        self._given += self._given % 9 or 1
        return {"x": self._first + self._step * np.arange(start, self._given)}


def moved(stage: Stage, new: Stage) -> Stage:
    new.place = serialization.msgpack_restore(serialization.msgpack_serialize(stage.place))
    return new


def portions() -> stages.Portions:
    return stages.Portions(stages.Way(Numbers(), [lambda block: functools.partial(dict, block)]), 3)


def test_portions_are_the_blocks_in_order_and_go_on_where_they_were():
    way, given, places = portions(), [], []
    for _ in range(12):
        places.append(serialization.msgpack_serialize(way.place))
        given.append(way()["x"].tolist())
    assert list(itertools.chain(*given)) == list(range(len(list(itertools.chain(*given)))))
    assert max(map(len, given)) == 3
    for number, place in enumerate(places):
        way = portions()
        way.place = serialization.msgpack_restore(place)
        assert [way()["x"].tolist() for _ in given[number:]] == given[number:]


def test_what_is_wrong_with_a_block_is_raised_behind_those_before_it():
    def made_of(block):
        if 36 in block["x"]:
            raise ValueError("36 is broken")
        return functools.partial(dict, block)

    way, given = stages.Portions(stages.Way(Numbers(), [made_of]), 1000, ahead=3), []
    for _ in range(2):
        with pytest.raises(ValueError, match="36 is broken"):
            while True:
                given += way()["x"].tolist()
    assert given == list(range(35))  # where the block with 36 begins


@pytest.mark.parametrize("seed", [0, 5, 2**31 + 1])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_shuffled_as_tf_data_shuffles(seed, size):
    theirs = tf.data.Dataset.range(10**9).shuffle(size, seed=seed).as_numpy_iterator()
    numbers, shuffle, found = Numbers(), stages.Shuffle(NOTHING, size, seed), []
    while len(found) < 400:
        found += shuffle(numbers())["x"].tolist()
        shuffle = moved(shuffle, stages.Shuffle(NOTHING, size, seed))
    assert found == list(itertools.islice(theirs, len(found)))


@pytest.mark.parametrize("rates", [[1.0, 3.0], [0.1, 5.0, 2.0]])
def test_mixed_as_tf_data_samples(rates):
    datasets = [tf.data.Dataset.range(task, 10**9, len(rates)) for task in range(len(rates))]
    theirs = tf.data.Dataset.sample_from_datasets(datasets, rates, 4, stop_on_empty_dataset=True).as_numpy_iterator()

    def mix() -> Mix:
        return Mix([Numbers(task, len(rates)) for task in range(len(rates))], NOTHING, rates, 4)

    mixed, found = mix(), []
    while len(found) < 3000:
        found += mixed()["x"].tolist()
        mixed = moved(mixed, mix())
    assert found == list(itertools.islice(theirs, len(found)))
