"""What a run leaves in MODEL_DIR beside its checkpoints: the latest evaluation, its start, its memory."""

import json
import math
import re

import event_files


def test_the_latest_evaluation_is_kept_whole(micro_run):
    model_dir, done = micro_run
    results = json.loads((model_dir / "eval_results.json").read_text())
    printed = re.findall(r"step +(\d+)  micro: ([\d.]+) nats/token.*accuracy ([\d.]+)%", done.stderr)[-1]
    assert results["step"] == int(printed[0]) == 20
    metrics = results["micro"]
    assert round(metrics["nats_per_token"], 4) == float(printed[1])
    assert round(100 * metrics["accuracy"], 1) == float(printed[2])
    assert math.isclose(metrics["perplexity"], math.exp(metrics["nats_per_token"]), rel_tol=1e-5)
    assert not list(model_dir.glob("*.new"))


def test_a_run_says_how_it_was_started_and_the_memory_it_has(micro_run):
    model_dir, done = micro_run
    assert done.stderr.splitlines()[-1].endswith(f"t5xpg report {model_dir} --html report.html")
    start, end = map(json.loads, (model_dir / "starts.jsonl").read_text(encoding="utf-8").splitlines())
    assert end["step"] == 20 and end["ended"] > start["time"]
    assert start["step"] == 0 and start["command"].startswith("python -m t5xpg train ")
    found = event_files.curve_of(model_dir / "train", "memory/")
    assert {step for _, step in found} == {5, 10, 15, 20}
    assert all(2**20 < value < 2**40 for value in found.values())
