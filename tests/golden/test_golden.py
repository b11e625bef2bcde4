"""The embedded engine against the numbers that google-research/t5x computed for the same training runs.

The runs are in golden/cases.py; golden/record_training.py recorded T5X's numbers in golden/training.json.
T5X itself, started from parameters that differ in their last bit or compiled for another instruction set, stays
within 2e-6 of its own losses over these runs: 1e-5 leaves room for the order of sums and for nothing else.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden import cases

pytestmark = pytest.mark.usefixtures("compiled_for_speed")
RECORD = json.loads(Path(__file__).with_name("training.json").read_text())
FULLY_RECORDED = [name for name, case in cases.CASES.items() if case.tensors]
RELATIVE_TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-3}


@functools.cache
def run(name: str) -> dict[str, Any]:
    return cases.run(name)


def recorded(name: str) -> dict[str, Any]:
    return RECORD["cases"][name]


def metric_tolerance(case: cases.Case, metric: str) -> dict[str, float]:
    if metric.startswith("weight_update_divided_by_weight_rms"):
        return {"rtol": 0.1}  # decided by the few weights that are nearly zero
    if metric == "accuracy":
        return {"rtol": 0.0, "atol": {"float32": 1e-7, "bfloat16": 0.02}[case.dtype]}
    return {"rtol": RELATIVE_TOLERANCE[case.dtype], "atol": 1e-12}


def test_batches_are_those_of_the_record():
    assert cases.batch_fingerprints() == RECORD["batches"]


@pytest.mark.parametrize("name", cases.CASES)
def test_losses_and_learning_rates(name):
    got, want = run(name), recorded(name)
    np.testing.assert_allclose(got["learning_rates"], want["learning_rates"], rtol=1e-6)
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=RELATIVE_TOLERANCE[cases.CASES[name].dtype])


@pytest.mark.parametrize("name", cases.CASES)
def test_metrics(name):
    got, want = run(name), recorded(name)
    for summary in {"train", "eval"} & want.keys():
        assert want[summary].keys() <= got[summary].keys()  # the engine adds some of its own
        for metric, value in want[summary].items():
            tolerance = metric_tolerance(cases.CASES[name], metric)
            np.testing.assert_allclose(got[summary][metric], value, err_msg=f"{summary}: {metric}", **tolerance)


@pytest.mark.parametrize("name", FULLY_RECORDED)
def test_initial_parameters(name):
    got, want = run(name)["initial"], recorded(name)["initial"]
    assert sorted(got) == sorted(want)
    for parameter, expected in want.items():
        found = got[parameter]
        for fact in ("shape", "dtype", "axes", "mesh"):
            assert found[fact] == expected[fact], f"{parameter}: {fact}"
        # The last bits depend on the instruction set: normal values come from a polynomial.
        np.testing.assert_allclose(_floats(found["head"]), _floats(expected["head"]), rtol=1e-5, err_msg=parameter)
        assert_same_sums(found["sums"], expected["sums"], 1e-6, parameter)


@pytest.mark.parametrize("name", FULLY_RECORDED)
def test_final_parameters_and_optimizer_state(name):
    got, want = run(name)["final"], recorded(name)["final"]
    assert sorted(got) == sorted(want)
    # relu's derivative jumps at zero, where rounding decides; second moments remember it.
    slack = 20 if name == "t5_1_0" else 1
    for array, sums in want.items():
        assert_same_sums(got[array], sums, slack * (1e-6 if array.startswith("target/") else 5e-5), array)


def assert_same_sums(got: list[float], want: list[float], tolerance: float, name: str) -> None:
    """Compares [sum, sum of magnitudes]; both tolerate errors in proportion to the magnitudes."""
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * want[1], err_msg=name)


def _floats(words: list[str]) -> np.ndarray:
    return np.array([int(word, 16) for word in words], np.uint32).view(np.float32)
