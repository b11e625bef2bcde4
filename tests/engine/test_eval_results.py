"""MODEL_DIR/eval_results.json: the numbers of the latest evaluation."""

import json
import math
import re


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
