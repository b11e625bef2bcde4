"""A run that finds its programs compiled is the run that compiles them, also where what it finds is damaged."""

import os

import pytest
from command import run_t5xpg
from conftest import TESTS

from t5x import checkpoints


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def train(cache, corpus, folder):
    """Runs ten steps; returns (the lines it printed, the arrays of its last checkpoint)."""
    done = run_t5xpg(
        *("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={folder}", "TRAIN_STEPS=10"),
        *("train_script.train.stats_period=1", "train_script.train.train_eval_dataset_cfg=None"),
        XDG_CACHE_HOME=str(cache),
        JAX_COMPILATION_CACHE_DIR="",
    )
    assert done.returncode == 0, done.stderr
    arrays = checkpoints.load_t5x_checkpoint(f"{folder}/checkpoint_10")
    return done.stderr.splitlines(), checkpoints.flatten(arrays)


def losses(lines):
    return [line.split(" nats")[0] for line in lines if line.startswith("step ")]


def entries(cache):
    return sorted((cache / "t5xpg" / "jax").glob("*/*"))


def test_a_run_is_the_same_compiled_now_compiled_before_and_with_damaged_entries(cache, corpus, tmp_path):
    lines, arrays = train(cache, corpus, tmp_path / "first")
    assert any(line.startswith("Compiled the training step in ") for line in lines)
    assert any("train_step" in path.name for path in entries(cache)) and len(losses(lines)) == 10
    kept = {path: path.read_bytes() for path in entries(cache)}

    again, same = train(cache, corpus, tmp_path / "again")
    loaded = [line for line in again if line.startswith("Loaded the training step, compiled before, in ")]
    assert len(loaded) == 1 and str(entries(cache)[0].parent) in loaded[0]
    assert {path: path.read_bytes() for path in entries(cache)} == kept

    for number, (path, content) in enumerate(kept.items()):
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes([flipped, content[:middle], b""][number % 3])
    damaged, repaired = train(cache, corpus, tmp_path / "damaged")
    assert any(line.startswith("Compiled the training step in ") for line in damaged)

    assert losses(lines) == losses(again) == losses(damaged)
    for other in (same, repaired):
        assert arrays.keys() == other.keys()
        assert all(bytes(memoryview(arrays[name])) == bytes(memoryview(other[name])) for name in arrays)
    assert os.stat(entries(cache)[0].parent).st_mode & 0o077 == 0
