import types

import pytest
import tensorflow as tf
from clu.data.dataset_iterator import TfDatasetIterator

from t5x import checkpoints
from t5x.embedded.checkpoint_datasets import dataset_file_name, restore_dataset

LAYOUT = types.SimpleNamespace(shard_id=0, num_shards=1)
DAMAGES = {
    "cut short": lambda content: content[: len(content) // 2],
    "altered": lambda content: content[: len(content) // 2] + b"\xff" + content[len(content) // 2 + 1 :],
    "empty": lambda content: b"",
}


def batches(shuffled: bool = True) -> TfDatasetIterator:
    numbers = tf.data.Dataset.range(100)
    numbers = numbers.shuffle(10, seed=1) if shuffled else numbers.batch(2)
    return TfDatasetIterator(numbers.map(lambda n: {"n": n}), checkpoint=True)


@pytest.fixture
def stored(tmp_path):
    """A checkpoint's folder with the position after two elements."""
    (tmp_path / "dataset").mkdir()
    saved = batches()
    next(saved), next(saved)
    saved.save(str(tmp_path / "dataset" / dataset_file_name(LAYOUT)))
    return tmp_path


def test_a_position_is_found_again(stored):
    straight, resumed = batches(), batches()
    next(straight), next(straight)
    assert restore_dataset(str(stored), resumed, LAYOUT)
    assert [next(resumed) for _ in range(98)] == [next(straight) for _ in range(98)]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_a_damaged_position_is_a_damaged_checkpoint(stored, suffix, damage):
    file = stored / "dataset" / (dataset_file_name(LAYOUT) + suffix)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(checkpoints.DamagedCheckpointError, match=rf"^{stored} cannot be read: its position in the dat"):
        restore_dataset(str(stored), batches(), LAYOUT)


def test_a_position_in_other_data_is_no_damage(stored):
    with pytest.raises(tf.errors.OpError) as raised:
        restore_dataset(str(stored), batches(shuffled=False), LAYOUT)
    assert type(raised.value) is not tf.errors.OpError


def test_a_checkpoint_without_a_position_says_so(tmp_path):
    assert not restore_dataset(str(tmp_path), batches(), LAYOUT)
