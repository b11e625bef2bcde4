"""Training runs killed by SIGKILL and started again: they train on the batches, and end with the parameters, of a
run that nothing interrupted. The task is shuffled, packed and cached, its vocabulary SentencePiece.
"""

import functools
import json
import os
import random
import signal
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from command import run_t5xpg, start_t5xpg
from conftest import TESTS

ROWS, STEPS = 60, 100
BATCH_TOKENS = 8 * 64  # of a batch's inputs, as tests/recorded.gin has it


@pytest.fixture(scope="module")
def arguments(corpus, tmp_path_factory) -> list[str]:
    """What `t5xpg train` is called with, but for MODEL_DIR; the vocabulary and the cache are made by their commands."""
    folder = tmp_path_factory.mktemp("resume")
    lines = Path(corpus.replace("{split}", "train")).read_text().splitlines()[:ROWS]
    files, model, cache = folder / "few_{split}.jsonl", folder / "t5.model", folder / "cache"
    (folder / "few_train.jsonl").write_text("\n".join(lines))
    recipe = [str(TESTS / "recorded.gin"), f"FILES={files}", f"VOCABULARY_FILE={model}"]
    call("tokenizer", "train", "--input", folder / "few_train.jsonl", "--vocab_size", "280", "--output", model)
    call("cache", *recipe, "--output_cache_dir", cache, "--splits", "train", "--processes", "1")
    stats = json.loads((cache / "micro" / "stats.train.json").read_text())
    assert stats["targets_tokens"] < STEPS * BATCH_TOKENS  # a run goes over the corpus more than once
    return [*recipe, f"--seqio_additional_cache_dirs={cache}", f"TRAIN_STEPS={STEPS}"]


@pytest.fixture(scope="module")
def uninterrupted(arguments, tmp_path_factory) -> Path:
    """The MODEL_DIR of a run that nothing interrupted; it saves at its end only."""
    model_dir = tmp_path_factory.mktemp("uninterrupted")
    options = [f"MODEL_DIR={model_dir}", f"utils.SaveCheckpointConfig.period={STEPS}"]
    call("train", *arguments, *options)
    return model_dir


def call(*words) -> None:
    done = run_t5xpg(*words)
    assert done.returncode == 0, done.stderr


def train_with_kills(arguments: list[str], model_dir: Path, kills: int, rng: random.Random) -> str:
    """Trains to the end, but for `kills` kills at random moments; returns what the runs printed."""
    log = model_dir / "output.txt"
    train = functools.partial(start_t5xpg, "train", *arguments, f"MODEL_DIR={model_dir}", stdout=log, stderr=log)
    for kill in range(kills):
        batches = rng.randint(0, 6) if kill else 6  # the first comes when there is a checkpoint to go on from
        delay = rng.uniform(0, 0.1)  # seconds
        goal = len(record(model_dir)) + batches
        process = train()
        while process.is_alive() and len(record(model_dir)) < goal:
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, log.read_text()
    process = train()
    process.join()
    assert process.exitcode == 0, log.read_text()
    return log.read_text()


def record(model_dir: Path) -> list[tuple[int, str]]:
    """(step, checksum) of every batch trained on, in order; a step that a kill undid is there again."""
    path = model_dir / "batches.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), checksum) for step, checksum in map(str.split, lines)]


def parameters(model_dir: Path) -> dict[str, np.ndarray]:
    state = ocp.PyTreeCheckpointer().restore(model_dir / f"checkpoint_{STEPS}" / "state")
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.parametrize(
    ("save_dataset", "kills", "said"),
    [(True, 10, "Restored the position in the training data"), (False, 1, "Read past the first")],
)
def test_kill_9_changes_nothing(arguments, uninterrupted, tmp_path, save_dataset, kills, said):
    seed = random.randrange(2**32)
    print(f"the kills' seed: {seed}")  # pytest shows it when the test fails
    options = [*arguments, f"utils.SaveCheckpointConfig.save_dataset={save_dataset}"]
    output = train_with_kills(options, tmp_path, kills, random.Random(seed))
    assert said in output

    expected, found = record(uninterrupted), record(tmp_path)
    assert [step for step, _ in expected] == list(range(STEPS))
    assert len({checksum for _, checksum in expected}) == STEPS  # or the checksums could not tell batches apart
    assert [pair for pair in found if pair not in expected] == []
    assert {step for step, _ in found} == set(range(STEPS))
    straight, resumed = parameters(uninterrupted), parameters(tmp_path)
    assert straight.keys() == resumed.keys()
    for name in straight:
        np.testing.assert_array_equal(resumed[name], straight[name], err_msg=name)
