"""metrics.jsonl: it has what the event files have, whole lines, and each step of a run once."""

import json
import math
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from event_files import curve

from t5x.embedded import json_lines, metric_lines
from t5x.trainer import MetricsManager
from t5xpg.base import files, stores


def records(path) -> list[dict]:
    return [json.loads(line) for line in files.read_text(path).splitlines()]


def numbers(path, name: str) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of one collection in the event files' float32, times and memory aside."""
    lines = [each for each in records(path) if each["name"] == name]
    found = {(tag, each["step"]): value for each in lines for tag, value in each["metrics"].items()}
    return {k: float(np.float32(value)) for k, value in found.items() if not k[0].startswith(("timing/", "memory/"))}


def test_a_run_has_the_numbers_of_its_event_files(finetuned):
    model_dir = finetuned[0]
    names = {each["name"] for each in records(model_dir / "metrics.jsonl")}
    assert names == {"train", "training_eval/pairs", "inference_eval/pairs"}
    for name in names:
        expected = curve(model_dir / name)
        assert expected and numbers(model_dir / "metrics.jsonl", name) == expected


def test_a_line_says_when_and_what(micro_run):
    path = micro_run[0] / "metrics.jsonl"
    written = path.stat().st_mtime
    for each in records(path):
        assert set(each) == {"time", "step", "name", "metrics"} and abs(each["time"] - written) < 3600
    rounds = [each for each in records(path) if "timing/steps_per_second" in each["metrics"]]
    assert [each["step"] for each in rounds if each["name"] == "train"] == [5, 10, 15, 20]


def test_what_json_has_no_number_for_is_a_text_that_float_reads(tmp_path):
    manager = MetricsManager("train", str(tmp_path))
    values = {
        "nan": np.nan,
        "up": jnp.inf,
        "down": np.float32(-np.inf),
        "half": np.float16(0.5),
    }
    manager.write_scalars(3, values)
    manager.close()
    (line,) = records(tmp_path / "metrics.jsonl")
    assert line["metrics"] == {"nan": "NaN", "up": "Infinity", "down": "-Infinity", "half": 0.5}
    assert math.isnan(float(line["metrics"]["nan"])) and float(line["metrics"]["down"]) == -math.inf


def test_texts_and_histograms_are_left_to_the_event_files(tmp_path):
    writer = metric_lines.MetricLines(str(tmp_path), "train")
    writer.write_texts(1, {"a": "b"})
    writer.write_histograms(1, {"a": np.ones(3)}, num_buckets={"a": 2})
    writer.write_hparams({"a": 1})
    writer.close()
    assert not (tmp_path / "metrics.jsonl").exists()


def write(folder: str, *steps: int) -> None:
    for step in steps:
        json_lines.add_metrics(folder, "train", step, {"loss": step})


@pytest.mark.parametrize(("step", "left"), [(10, [5, 10]), (20, [5, 10, 15]), (0, []), (None, [])])
def test_a_run_that_goes_on_drops_what_is_beyond_its_step_and_what_is_no_line(tmp_path, step, left):
    path = tmp_path / "metrics.jsonl"
    json_lines.go_on_from(str(tmp_path), step)
    assert not path.exists()
    write(str(tmp_path), 5, 10, 15)
    with open(path, "ab") as file:
        file.write(b'\0\0\0\n[1]\n{"step": "9"}\n{"time": 1.0, "step": 5, "na')
    json_lines.go_on_from(str(tmp_path), step)
    assert [each["step"] for each in records(path)] == left
    write(str(tmp_path), 16)
    assert [each["step"] for each in records(path)] == [*left, 16]


def test_a_file_that_needs_no_change_is_not_written_again(tmp_path, monkeypatch):
    write(str(tmp_path), 5, 10)
    monkeypatch.setattr(files, "write_whole", None)
    json_lines.go_on_from(str(tmp_path), 10)
    assert len(records(tmp_path / "metrics.jsonl")) == 2


def test_threads_write_whole_lines(tmp_path):
    threads = [threading.Thread(target=write, args=(str(tmp_path), *range(200))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = [each["step"] for each in records(tmp_path / "metrics.jsonl")]
    assert sorted(steps) == sorted([*range(200)] * 8)


def test_a_store_gets_the_lines_at_a_flush_and_after_a_minute(bucket, monkeypatch):
    folder, path = f"{bucket}/run", f"{bucket}/run/metrics.jsonl"
    write(folder, 1)
    assert not files.exists(path)
    first, second = (metric_lines.MetricLines(folder, name) for name in ("train", "training_eval/a"))
    second.write_scalars(2, {"loss": 1.0})
    first.flush()
    assert [(each["step"], each["name"]) for each in records(path)] == [(1, "train"), (2, "training_eval/a")]
    monkeypatch.setattr(json_lines, "SEND_PERIOD", -1.0)
    write(folder, 3)
    assert len(records(path)) == 3
    json_lines.go_on_from(folder, 2)
    assert len(records(path)) == 2


def test_what_a_store_does_not_take_is_sent_the_next_time(monkeypatch):
    sent, answers = [], [stores.StoreError("gs://b: the store failed"), None]

    def append(path: str, text: str) -> None:
        if answer := answers.pop(0):
            raise answer
        sent.append((Path(path).name, [json.loads(line)["step"] for line in text.splitlines()]))

    monkeypatch.setattr(files, "append", append)
    monkeypatch.setattr(json_lines, "SEND_PERIOD", -1.0)
    write("gs://b/run", 1, 2)
    assert sent == [("metrics.jsonl", [1, 2])]
    answers.append(stores.StoreError("gs://b: the store failed"))
    monkeypatch.setattr(json_lines, "SEND_PERIOD", 60.0)
    write("gs://b/run", 3)
    with pytest.raises(stores.StoreError):
        metric_lines.MetricLines("gs://b/run", "train").close()
