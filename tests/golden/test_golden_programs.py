"""Fine-tuning, evaluation and inference against what google-research/t5x's programs gave (golden/programs.json)."""

import json
from pathlib import Path

import pytest

from golden import program_runs

pytestmark = pytest.mark.usefixtures("compiled_for_speed")
RECORD = json.loads(Path(__file__).with_name("programs.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def got(tmp_path_factory):
    return program_runs.run(tmp_path_factory.mktemp("golden"))


def test_metrics_during_training(got):
    want = RECORD["metrics"]
    assert [m["step"] for m in got["metrics"]] == [m["step"] for m in want] == [20, 40]
    one_example = 100 / 37  # where two continuations are all but equally likely, rounding decides
    for found, expected in zip(got["metrics"], want, strict=True):
        assert found == pytest.approx(expected, abs=1.01 * one_example)


def test_predictions(got):
    differing = [pair for pair in zip(got["predict"], RECORD["predict"], strict=True) if pair[0] != pair[1]]
    assert len(differing) <= 1, differing


@pytest.mark.parametrize("mode", ["score", "predict_with_aux"])
def test_scores_after_forty_steps(got, mode):
    assert got[mode] == pytest.approx(RECORD[mode], rel=1e-3, abs=1e-3)
