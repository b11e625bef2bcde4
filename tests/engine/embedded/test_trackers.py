"""Weights & Biases in its offline mode: what it wrote is what metrics.jsonl has, in one run over two starts."""

import json

import pytest
import wandb_files
from command import run_t5xpg
from conftest import TESTS

from t5x.embedded import trackers
from t5xpg.base import run_settings


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """A run of two starts: its MODEL_DIR."""
    model_dir = tmp_path_factory.mktemp("tracked") / "books"
    arguments = ("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={model_dir}", "--wandb=shelf")
    for steps in (10, 20):
        done = run_t5xpg(*arguments, f"TRAIN_STEPS={steps}", WANDB_MODE="offline")
        assert done.returncode == 0, done.stderr
        assert f"Weights & Biases: {model_dir}/wandb/offline-run-" in done.stderr
    return model_dir


def test_it_has_the_numbers_and_the_settings_of_both_starts_in_one_run(runs):
    kept = json.loads((runs / "wandb.json").read_text())
    paths = sorted(runs.glob("wandb/offline-run-*/run-*.wandb"))
    assert kept["project"] == "shelf" and [path.name for path in paths] == [f"run-{kept['id']}.wandb"] * 2
    found = [record for path in paths for record in wandb_files.records(path)]
    began = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    assert {(run.project, run.run_id, run.display_name) for run in began} == {("shelf", kept["id"], "books")}
    config = wandb_files.values(began[-1].config.update)
    assert config["config.gin"] == (runs / "config.gin").read_text()
    assert config["train.total_steps"] == 20 and "SpanCorruption" in config["tasks.jsonl_task.objective"]

    history = [wandb_files.values(record.history.item) for record in found if record.HasField("history")]
    sent = {(tag, row["step"]): value for row in history for tag, value in row.items() if is_number_of_a_step(tag)}
    lines = [json.loads(line) for line in (runs / "metrics.jsonl").read_text().splitlines()]
    written = {(f"{x['name']}/{tag}", x["step"]): value for x in lines for tag, value in x["metrics"].items()}
    assert sent == {key: value for key, value in written.items() if is_number_of_a_step(key[0])}
    assert ("train/loss", 20) in sent and ("training_eval/micro/accuracy", 10) in sent


def is_number_of_a_step(tag: str) -> bool:
    return tag.startswith("train") and "/timing/" not in tag


def test_another_project_or_a_run_that_begins_anew_has_another_id(tmp_path):
    first = trackers.run_id("shelf", str(tmp_path), is_new=True)
    assert trackers.run_id("shelf", str(tmp_path), is_new=False) == first
    other = trackers.run_id("board", str(tmp_path), is_new=False)
    assert other != first and trackers.run_id("board", str(tmp_path), is_new=True) != other


def test_without_a_key_it_says_how_to_go_on(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "login", lambda prompt: False)
    tracking = trackers.weights_and_biases("shelf", str(tmp_path), is_new=True)
    with pytest.raises(ValueError, match="no API key of yours; run `wandb login`, or set WANDB_MODE=offline"), tracking:
        pytest.fail("a run began")
    assert trackers.writers("train") == []


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setattr(run_settings.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^--wandb=shelf needs the package wandb: pip install 't5xpg\[wandb\]'$"):
        run_settings.check_wandb("shelf")
    with pytest.raises(ValueError, match=r"--wandb\) is ''"):
        run_settings.check_wandb("")


def test_nothing_is_asked_for_by_default(tmp_path):
    with trackers.weights_and_biases(None, str(tmp_path), is_new=True):
        assert trackers.writers("train") == []
    assert not list(tmp_path.iterdir())
