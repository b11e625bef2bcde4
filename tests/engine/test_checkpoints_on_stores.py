"""Checkpoints on gs:// and s3://: as on a disk, but whole from their marker on."""

import zipfile

import emulators
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from faulty_proxy import lost_removals
from golden import record_legacy_checkpoint
from test_checkpoints import assert_equal, initializer, restore, save

from t5x import checkpoints, utils
from t5xpg.base import files, stores

pytestmark = pytest.mark.usefixtures("nothing_here")


@pytest.fixture(scope="module")
def make():
    return initializer()


@pytest.fixture(scope="module")
def state(make):
    return make.from_scratch(jax.random.PRNGKey(0))


def objects(url: str) -> list[str]:
    return [path.split(f"{url.split('://')[1]}/")[1] for path in stores.file_system(url).find(url)]


def test_round_trip_is_exact_and_the_marker_is_written_last(make, state, bucket):
    files.write_whole(f"{bucket}/run/checkpoint_1/_CHECKPOINT_METADATA", "{}")  # half-written, and all that is there
    path = save(make, bucket + "/run", state.replace_step(jnp.asarray(7)))
    assert path == f"{bucket}/run/checkpoint_7"
    assert {"_CHECKPOINT_METADATA", "commit_success.txt", "state/_METADATA", "state/manifest.ocdbt"} <= {*objects(path)}
    written = {name: stores.file_system(bucket).modified(f"{path}/{name}") for name in objects(path)}
    assert max(written.values()) == written["commit_success.txt"]  # at s3:// to the second
    assert_equal(restore(make, path), state.replace_step(jnp.asarray(7)))


def test_half_written_ones_are_not_read_and_are_cleared(make, state, bucket):
    for step in (1, 2, 3):
        save(make, bucket, state.replace_step(jnp.asarray(step)))
    files.remove(f"{bucket}/checkpoint_3/commit_success.txt")
    assert checkpoints.all_steps(bucket) == [1, 2]
    assert utils.RestoreCheckpointConfig(bucket).checkpoint_paths() == [f"{bucket}/checkpoint_2"]
    save(make, bucket, state.replace_step(jnp.asarray(4)))
    assert files.names_in(bucket) == ["checkpoint_1", "checkpoint_2", "checkpoint_4"]
    save(make, bucket, state.replace_step(jnp.asarray(3)))
    assert_equal(restore(make, f"{bucket}/checkpoint_3"), state.replace_step(jnp.asarray(3)))


def test_one_that_an_older_orbax_wrote_on_a_disk_is_kept(make, state, bucket, capsys):
    files.write_whole(f"{bucket}/checkpoint_1/_CHECKPOINT_METADATA", '{"commit_timestamp_nsecs": 1700000000}')
    files.write_whole(f"{bucket}/checkpoint_1/state/manifest.ocdbt", "…")
    files.write_whole(f"{bucket}/checkpoint_2/_CHECKPOINT_METADATA", '{"commit_timestamp_nsecs": null}')
    save(make, bucket, state.replace_step(jnp.asarray(3)))
    assert files.names_in(bucket) == ["checkpoint_1", "checkpoint_3"] and checkpoints.all_steps(bucket) == [3]
    assert f"{bucket}/checkpoint_1 is kept, but does not count" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_they_are_cleared_where_the_first_answer_to_each_removal_is_lost(make, state, stores, scheme):
    bucket = emulators.new_bucket(scheme)
    files.write_whole(f"{bucket}/checkpoint_1/_CHECKPOINT_METADATA", "{}")  # as far as it was written
    with lost_removals(stores, scheme) as proxy:
        save(make, bucket, *(state.replace_step(jnp.asarray(step)) for step in (2, 3)), keep=1)
    assert files.names_in(bucket) == ["checkpoint_3"] and len(proxy.faults) >= 2
    assert_equal(restore(make, f"{bucket}/checkpoint_3"), state.replace_step(jnp.asarray(3)))


def test_a_half_written_one_is_refused_by_its_name_too(make, state, bucket):
    path = save(make, bucket, state)
    files.remove(f"{path}/commit_success.txt")
    with pytest.raises(checkpoints.DamagedCheckpointError, match=rf"^{path} cannot be read: it was not written to its"):
        restore(make, path)


def test_keep_removes_the_oldest(make, state, bucket):
    save(make, bucket, *(state.replace_step(jnp.asarray(step)) for step in (1, 2, 3)), keep=2)
    assert checkpoints.all_steps(bucket) == [2, 3] and files.names_in(bucket) == ["checkpoint_2", "checkpoint_3"]


def test_a_damaged_one_is_put_aside(make, state, bucket):
    path = save(make, bucket, state)
    files.write_whole(f"{path}/state/manifest.ocdbt", "not a manifest")
    with pytest.raises(checkpoints.DamagedCheckpointError, match=rf"^{path} cannot be read"):
        restore(make, path)
    assert checkpoints.put_aside(path) == f"{bucket}/damaged_checkpoint_0"
    assert files.names_in(bucket) == ["damaged_checkpoint_0"] and checkpoints.all_steps(bucket) == []


def test_legacy_checkpoints_of_t5x_are_read_and_kept(make, state, bucket):
    """golden/legacy_checkpoint.zip was written by T5X; Google's released ones have this layout."""
    with zipfile.ZipFile(record_legacy_checkpoint.PATH) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                files.write_whole(f"{bucket}/t5/{name}", archive.read(name))
    with files.open_binary(f"{bucket}/t5/expected.npz") as file:
        expected = dict(np.load(file))
    restored = restore(record_legacy_checkpoint.initializer(), f"{bucket}/t5/checkpoint_3")
    arrays = {k: v for k, v in checkpoints.flatten(restored.state_dict()).items() if checkpoints.has_value(v)}
    save(make, f"{bucket}/t5", state.replace_step(jnp.asarray(4)))
    assert arrays.keys() == expected.keys() and checkpoints.all_steps(f"{bucket}/t5") == [3, 4]
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name, strict=True)


def test_what_is_not_there_is_one_line(make, stores):
    for scheme in ("gs", "s3"):
        with pytest.raises(ValueError, match=r"is not a T5X checkpoint"):
            restore(make, emulators.new_bucket(scheme))


@pytest.mark.parametrize(
    ("path", "message"),
    [("ftp://host/checkpoint_1", "ftp:// cannot be read"), ("gs:/bucket/checkpoint_1", "write gs://bucket/checkpo")],
)
def test_what_is_no_url_of_ours_is_refused_by_the_configuration(path, message):
    with pytest.raises(ValueError, match=message):
        utils.RestoreCheckpointConfig(path, "specific")
