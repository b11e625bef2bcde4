"""A run that other numbers of processes go on with, after kills and as SLURM starts and stops them: the same run."""

import re
from pathlib import Path
from signal import SIGKILL, SIGTERM

import numpy as np
import pytest
from conftest import TESTS
from event_files import curve
from processes import Processes, slurm_step

from t5x import checkpoints

TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
JOB = slurm_step(2, **TWO_DEVICES)  # requeued, it has the same number
CHAIN = [  # (processes, what srun tells each, (signal, the processes that get it some steps later))
    (1, None, (SIGKILL, [0])),
    (2, JOB, (SIGKILL, [1])),
    (2, JOB, (SIGTERM, [0, 1])),
    (4, slurm_step(4), (SIGKILL, [2])),
    (1, None, (SIGKILL, [0])),
    (1, None, None),
]
LATER, STEPS = 5, 40


def rows(model_dir: Path, index: int, first: int = 0) -> list[tuple[int, list[str]]]:
    """(step, the checksums of its rows) of what process `index` read, in order, but for the first lines."""
    path = model_dir / f"rows_{index}.txt"
    lines = [line.split() for line in path.read_text().splitlines()[first:]] if path.exists() else []
    return [(int(step), sums) for step, *sums in lines]


def train(folder: Path, corpus, *words, **how) -> Processes:
    return Processes(folder, TESTS / "dying.gin", f"FILES={corpus}", f"MODEL_DIR={folder}/run", *words, **how)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, corpus) -> Path:
    """The MODEL_DIR of one process's run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    one = train(folder, corpus, f"utils.SaveCheckpointConfig.period={STEPS}", count=1)
    assert one.end() == [0], one.output
    return folder / "run"


@pytest.fixture(scope="module")
def chain(tmp_path_factory, corpus) -> tuple[Path, list[list]]:
    """(the MODEL_DIR of the run of CHAIN, what each of its starts read: [(step, checksums of the batch's rows)])."""
    folder, read = tmp_path_factory.mktemp("chain"), []
    for count, environments, signalled in CHAIN:
        before = [len(rows(folder / "run", index)) for index in range(count)]
        saved = checkpoints.all_steps(str(folder / "run"))
        dies = signalled and ((saved or [0])[-1] + LATER, int(signalled[0]), signalled[1])
        words = [] if dies is None else [f"dying_trainer.DyingTrainer.dies={dies}"]
        run = train(folder, corpus, *words, count=count, environments=environments)
        assert run.end() == statuses(count, signalled), run.output
        said = run.logs[0].read_text()
        assert not saved or f"Continuing from step {saved[-1]} " in said, run.output
        if signalled and signalled[0] == SIGTERM:
            (stopped,) = re.findall(r"Stopped at step (\d+): saved", said)
            assert checkpoints.all_steps(str(folder / "run"))[-1] == int(stopped), run.output
        elif environments is JOB:
            assert "on 4 cpu devices" in said, run.output
        parts = [rows(folder / "run", index, first) for index, first in enumerate(before)]
        assert all(len({step for step, _ in each}) == 1 for each in zip(*parts, strict=False))
        read.append([(each[0][0], sum((sums for _, sums in each), [])) for each in zip(*parts, strict=False)])
    return folder / "run", read


def statuses(count: int, signalled) -> list[int]:
    """Those that the processes are to end with: SIGTERM makes them save, and of one that is killed the others tell."""
    if signalled is None:
        return [0] * count
    number, which = signalled
    return [128 + SIGTERM] * count if number == SIGTERM else [-SIGKILL if i in which else 1 for i in range(count)]


def test_1_2_4_and_1_processes_train_on_the_batches_of_one(uninterrupted, chain):
    expected = dict(rows(uninterrupted, 0))
    assert set(range(STEPS)) <= expected.keys() and len({tuple(sums) for sums in expected.values()}) == len(expected)
    for batches in chain[1]:
        assert len(batches) >= 2 and batches == [(step, expected[step]) for step, _ in batches]
    assert {step for batches in chain[1] for step, _ in batches} >= set(range(STEPS))


def test_1_2_4_and_1_processes_have_the_losses_of_one(uninterrupted, chain):
    found, straight = curve(chain[0] / "train"), curve(uninterrupted / "train")
    losses = {step: value for (tag, step), value in straight.items() if tag == "loss"}
    of_the_last = {step + 1 for step, _ in chain[1][-1] if step < STEPS}
    assert losses.keys() == set(range(1, STEPS + 1)) and len(of_the_last) > 5
    for step, value in losses.items():
        if step in of_the_last or ("loss", step) in found:  # a kill may cost a line of an event file
            np.testing.assert_allclose(found["loss", step], value, rtol=1e-5, err_msg=f"step {step}")
