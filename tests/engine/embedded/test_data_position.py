"""Where a run is in its data: batches of any size, in any number of processes, hold the examples in one order."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from t5x.embedded import data_position
from t5x.embedded.data_position import Reading, TrainingData, arrange
from t5x.embedded.run_changes import Changes

ROWS = 240


class Position:
    """In place of a TrainIterator: which rows come next."""

    def __init__(self, dataset: tf.data.Dataset):
        self.rows = iter(dataset.unbatch().as_numpy_iterator())
        self.batch_size = int(dataset.element_spec["x"].shape[0])
        self.restored = None

    def skip(self, batches: int) -> None:
        for _ in range(batches * self.batch_size):
            next(self.rows)

    def restore(self, prefix: str) -> None:
        if stored := Path(prefix + ".index").read_bytes():
            next(self.rows)
            if stored == b"another pipeline's":
                raise tf.errors.NotFoundError(None, None, "Iterator::Root::Unbatch")
            raise tf.errors.DataLossError(None, None, "it is cut short")
        self.restored = prefix

    def take(self, count: int) -> list[int]:
        return [int(row["x"]) for row in itertools.islice(self.rows, count)]


def batches_of(batch_size: int):
    """A get_dataset: each shard has every n-th row, in batches of its part of `batch_size`."""
    rows = tf.data.Dataset.range(ROWS).map(lambda x: {"x": x})
    return lambda shard, shards: rows.shard(shards, shard).batch(batch_size // shards, drop_remainder=True)


def training_data(model_dir: Path, batch_size=8, part=0, parts=1, seed=0, allow_changes=False) -> TrainingData:
    layout = SimpleNamespace(shard_id=part, num_shards=parts)
    cfg = SimpleNamespace(batch_size=batch_size, seed=seed)
    return TrainingData(str(model_dir), cfg, layout, allow_changes, batches_of(batch_size), Position)


def start(data: TrainingData) -> Position:
    return data.make_iterator(data.get_dataset(data.layout.shard_id, data.layout.num_shards))


def begin(model_dir: Path, step: int = 0, at_another_runs_place: bool = False, **how) -> None:
    data = training_data(model_dir, **how)
    data.go_to(start(data), step, None, step, Changes(), at_another_runs_place)


def go_on(model_dir: Path, step: int, changes=None, began=0, **how) -> Position:
    data = training_data(model_dir, **how)
    path = str(model_dir / f"checkpoint_{step}")
    return data.go_to(start(data), step, path, began, changes or Changes(), False)


def store_position(model_dir: Path, step: int, part: int = 0, parts: int = 1) -> str:
    folder = model_dir / f"checkpoint_{step}" / "dataset"
    folder.mkdir(parents=True)
    (folder / f"train_ds-{part:03}-of-{parts:03}.index").touch()
    return str(folder / f"train_ds-{part:03}-of-{parts:03}")


def damage(prefix: str) -> None:
    Path(prefix + ".index").write_text("damaged")


@pytest.mark.parametrize("rest", [0, 12])
@pytest.mark.parametrize(("shards", "parts"), [(1, 1), (1, 2), (2, 1), (4, 2), (2, 4), (3, 2), (2, 3), (1, 6)])
def test_any_number_of_processes_makes_the_batches_of_the_first(shards, parts, rest):
    size = 24

    def whole_batches(of: int, shards: int, parts: int, rest: int) -> list[list[int]]:
        read = [arrange(batches_of(of), of, shards, part, parts, rest) for part in range(parts)]
        joined = zip(*(ds.as_numpy_iterator() for ds in read), strict=True)
        return [[int(x) for batch in batches for x in batch["x"]] for batches in joined]

    expected = whole_batches(size, shards, shards, 0)
    found = whole_batches(size, shards, parts, rest)
    assert len(expected) == ROWS // size
    if rest == 0:
        assert found == expected
    else:  # the order within a shard is kept, and nothing but the first of each shard is left out
        per_shard = [list(range(shard, ROWS, shards))[rest // shards :] for shard in range(shards)]
        left = [row for rows in per_shard for row in rows[: len(found) * size // shards]]
        assert sorted(left) == sorted(row for batch in found for row in batch)


def test_another_batch_size_goes_on_with_the_next_example(tmp_path, capsys):
    begin(tmp_path, batch_size=8)
    assert go_on(tmp_path, 10, batch_size=12).take(3) == [80, 81, 82]
    assert "Read past the first 80 examples" in capsys.readouterr().err
    assert go_on(tmp_path, 14, batch_size=12).take(1) == [80 + 4 * 12]
    assert go_on(tmp_path, 14, batch_size=8).take(1) == [128]
    assert go_on(tmp_path, 15, batch_size=8).take(1) == [136]
    assert go_on(tmp_path, 6, batch_size=8).take(1) == [48]  # later checkpoints could not be read
    assert data_position.read(str(tmp_path)) == [Reading(0, 0, 8, 1, 1)]


def test_another_number_of_processes_reads_the_first_ones_shards(tmp_path):
    begin(tmp_path, batch_size=8, parts=2)
    assert go_on(tmp_path, 3, batch_size=8).take(8) == [24, 26, 28, 30, 25, 27, 29, 31]
    assert go_on(tmp_path, 4, batch_size=8, part=1, parts=4).take(2) == [36, 38]
    with pytest.raises(ValueError, match="2 shards do not divide BATCH_SIZE 9"):
        go_on(tmp_path, 3, batch_size=9)


def test_a_stored_place_is_taken_only_by_a_run_that_reads_as_before(tmp_path, capsys):
    prefix = store_position(tmp_path, 10)
    begin(tmp_path)
    assert go_on(tmp_path, 10).restored == prefix
    assert "Restored the position in the training data" in capsys.readouterr().err
    other_data = Changes(is_other_data=True)
    assert go_on(tmp_path, 10, changes=other_data).take(1) == [80]
    assert go_on(tmp_path, 10).restored is None  # it is the other data's now, and this place is not
    begin(tmp_path)
    assert go_on(tmp_path, 10, batch_size=4).take(1) == [80]
    assert go_on(tmp_path, 10, seed=None, allow_changes=True).restored is None


@pytest.mark.parametrize("how", [{"batch_size": 4}, {"parts": 2}, {"changes": Changes(is_other_data=True)}])
def test_a_place_that_cannot_be_found_again_is_refused(tmp_path, how, capsys):
    store_position(tmp_path, 10)
    begin(tmp_path, seed=None)
    with pytest.raises(ValueError, match="position in the training data cannot be found again.*--allow_changes"):
        go_on(tmp_path, 10, seed=None, **how)
    assert go_on(tmp_path, 10, seed=None, allow_changes=True, **how).take(1) == [0]
    assert "The training data starts over" in capsys.readouterr().err


def test_another_runs_place_is_found_again_only_where_it_is_stored(tmp_path):
    begin(tmp_path, at_another_runs_place=True)
    prefix = store_position(tmp_path, 10)
    assert go_on(tmp_path, 10).restored == prefix
    with pytest.raises(ValueError, match="cannot be found again"):
        go_on(tmp_path, 10, batch_size=4)
    assert go_on(tmp_path, 10, batch_size=4, allow_changes=True).take(1) == [0]
    assert go_on(tmp_path, 12, batch_size=4).take(1) == [8]


def test_a_damaged_place_is_found_again_by_reading(tmp_path, capsys):
    begin(tmp_path, batch_size=8)
    damage(store_position(tmp_path, 10))
    found = go_on(tmp_path, 10)
    assert found.restored is None and found.take(2) == [80, 81]
    said = "checkpoint_10 cannot be read: its position in the data (it is cut short); the training data is read up to"
    assert said in capsys.readouterr().err
    assert go_on(tmp_path, 20).take(1) == [160]


def test_a_place_in_another_pipeline_is_found_again_by_reading(tmp_path, capsys):
    begin(tmp_path, batch_size=8)
    Path(store_position(tmp_path, 10) + ".index").write_text("another pipeline's")
    found = go_on(tmp_path, 10)
    assert found.restored is None and found.take(2) == [80, 81]
    assert (
        "its position was stored by another pipeline; the training data is read up to there" in capsys.readouterr().err
    )


@pytest.mark.parametrize("how", [{"seed": None}, {"at_another_runs_place": True}])
def test_a_damaged_place_that_reading_does_not_find_is_refused(tmp_path, how, capsys):
    begin(tmp_path, **how)
    damage(store_position(tmp_path, 10))
    seed = how.get("seed", 0)
    with pytest.raises(
        ValueError, match=r"cut short\)\. Move that checkpoint elsewhere to .*, or pass --allow_changes"
    ):
        go_on(tmp_path, 10, seed=seed)
    assert go_on(tmp_path, 10, seed=seed, allow_changes=True).take(1) == [0]
    assert "The training data starts over, as " in capsys.readouterr().err


def test_data_without_a_seed_or_a_place_starts_over_and_says_so(tmp_path, capsys):
    begin(tmp_path, seed=None)
    assert go_on(tmp_path, 10, seed=None, parts=2).take(1) == [0]
    assert "has no seed: it starts over, in a new order" in capsys.readouterr().err


def test_a_run_that_kept_no_position_goes_on_by_its_first_step_and_its_configuration(tmp_path):
    (tmp_path / "first_step.txt").write_text("20\n")
    assert data_position.first_step(str(tmp_path)) == 20
    assert go_on(tmp_path, 30, began=20).take(1) == [80]
    assert go_on(tmp_path, 30, began=20, batch_size=4, changes=Changes(batch_size=8)).take(1) == [80]
    assert data_position.first_step(str(tmp_path / "of T5X"), lambda: 7) == 7


def test_what_cannot_be_taken_apart_is_refused(tmp_path):
    begin(tmp_path)
    data = training_data(tmp_path, batch_size=12)
    data = dataclasses.replace(data, get_dataset=lambda shard, shards: iter([]))
    with pytest.raises(ValueError, match="get_dataset_fn returned a list_iterator"):
        data.go_to(start(training_data(tmp_path)), 10, str(tmp_path / "checkpoint_10"), 0, Changes(), False)


def test_a_run_that_kept_no_position_has_as_many_shards_as_its_checkpoint_stores(tmp_path, capsys):
    begin(tmp_path / "kept", parts=2)
    begin(tmp_path / "not kept", parts=2)
    (tmp_path / "not kept" / data_position.FILE_NAME).unlink()
    for folder in ("kept", "not kept"):
        for part in range(2):
            (tmp_path / folder / "checkpoint_6").mkdir(exist_ok=True)
            place = tmp_path / folder / "checkpoint_6" / "dataset" / f"process_{part}-of-2"
            place.mkdir(parents=True)
            (place / f"train_ds-{part:03}-of-002.index").touch()
    assert go_on(tmp_path / "not kept", 6).take(16) == go_on(tmp_path / "kept", 6).take(16)
    assert "is taken as" not in capsys.readouterr().err
    (tmp_path / "neither" / "checkpoint_6").mkdir(parents=True)
    go_on(tmp_path / "neither", 6, parts=2)
    assert "how many processes read the data before; it is taken as 2\n" in capsys.readouterr().err


def test_what_was_assumed_of_a_run_holds_for_later_starts_once_one_goes_on(tmp_path):
    begin(tmp_path / "kept", parts=2)
    with pytest.raises(ValueError, match="3 shards do not divide BATCH_SIZE 8"):
        go_on(tmp_path, 6, parts=3)
    assert data_position.read(str(tmp_path)) == []
    go_on(tmp_path, 6, parts=2)
    assert go_on(tmp_path, 8).take(16) == go_on(tmp_path / "kept", 8).take(16)
