"""Reading runs: from the files of the embedded engine, and from those that T5X and SeqIO write."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS
from written_runs import metrics_line, write_run

from t5xpg.base import files
from t5xpg.report import curves, event_files, facts, reading


@pytest.fixture
def run(tmp_path):
    return reading.read(str(write_run(tmp_path / "run")))


def write_lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_all_that_a_run_has_written_is_read(run):
    assert (run.last_step, run.total_steps, run.is_finished, run.parameters) == (400, 400, True, 1_050_624)
    assert run.series["train", "accuracy"].steps == list(range(10, 401, 10))
    assert run.tasks("training_eval/") == ["training_eval/books"]
    assert [(each.step, each.index) for each in run.predictions] == [(100, 0), (200, 0), (300, 0), (400, 0)]
    assert run.setting("loss_normalizing_factor") is None and run.setting("jsonl_task.objective") == "span_corruption"
    assert run.setting("VOCABULARY") == "@seqio.ByteVocabulary()"


def test_a_run_that_was_taken_up_again_earlier_has_its_new_numbers_alone(tmp_path):
    lines = [
        metrics_line("train", step, {"loss": value}) for step, value in ((10, 5), (20, 4), (30, 3), (20, 7), (25, 6))
    ]
    write_lines(tmp_path / "metrics.jsonl", *lines)
    series = reading.read(str(tmp_path)).series["train", "loss"]
    assert (series.steps, series.values) == ([10, 20, 25], [5, 7, 6])


def test_scores_of_checkpoints_in_any_order_are_all_kept(tmp_path):
    lines = [metrics_line("inference_eval/qa", step, {"em": value}) for step, value in ((20, 4), (10, 5), (20, 6))]
    write_lines(tmp_path / "metrics.jsonl", *lines)
    series = reading.read(str(tmp_path)).series["inference_eval/qa", "em"]
    assert (series.steps, series.values) == ([10, 20], [5, 6])


def test_a_run_that_counts_from_its_initial_checkpoint_ends_so_many_steps_later(tmp_path):
    folder = write_run(tmp_path / "run", done=300)
    config = (folder / "config.gin").read_text()
    (folder / "config.gin").write_text(config.replace("STEPS = 400", "STEPS = None") + "TRAIN_STEPS_RELATIVE = 300\n")
    found = reading.read(str(folder))
    assert found.total_steps == 300
    found.starts[0]["step"] = 100
    assert found.total_steps == 400


def test_a_run_has_ended_when_it_says_so_after_its_last_evaluation(tmp_path):
    folder = write_run(tmp_path / "run")
    start, end = map(json.loads, (folder / "starts.jsonl").read_text(encoding="utf-8").splitlines())
    for lines, is_finished in (([start, end], True), ([start], False), ([start, end, start], False)):
        write_lines(folder / "starts.jsonl", *lines)
        assert reading.read(str(folder)).is_finished is is_finished
    (folder / "starts.jsonl").unlink()  # T5X's has none
    assert reading.read(str(folder)).is_finished
    assert not reading.read(str(write_run(tmp_path / "half", done=200))).is_finished


def test_a_score_has_one_name_wherever_it_was_written(tmp_path):
    write_lines(tmp_path / "a" / "metrics.jsonl", metrics_line("inference_eval/qa", 10, {"eval/em": 5.0}))
    write_lines(tmp_path / "b" / "inference_eval" / "qa-metrics.jsonl", {"step": 10, "em": 5.0})
    write_lines(tmp_path / "b" / "metrics.jsonl", metrics_line("train", 10, {"loss": 1.0}))
    for name in ("a", "b"):
        assert reading.read(str(tmp_path / name)).series["inference_eval/qa", "em"].values == [5.0]


def test_a_runs_config_is_not_followed_to_other_files(run):
    config = Path(run.folder) / "config.gin"
    config.write_text("include 'https://there.example/other.gin'\n")
    with pytest.raises(
        ValueError, match=r"config.gin includes https://there.example/other.gin; the config.gin of a run"
    ):
        reading.read(run.folder)


def test_what_is_being_written_is_left_out_and_what_is_broken_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = metrics_line("train", 10, {"loss": 2.0, "text": "words", "flag": True, "none": "NaN"})
    write_lines(path, line, line[:30])
    found = reading.read(str(tmp_path)).series
    assert set(found) == {("train", "loss"), ("train", "none")} and math.isnan(found["train", "none"].values[0])
    write_lines(path, line, line[:30] + "\n", line)
    with pytest.raises(ValueError, match=r"metrics.jsonl:2 is not JSON"):
        reading.read(str(tmp_path))
    write_lines(path, {"step": 1})
    with pytest.raises(ValueError, match=r"metrics.jsonl:1 has no name, step, time and metrics; found \['step'\]"):
        reading.read(str(tmp_path))
    write_lines(path, "[1]\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl:1 is not a JSON object"):
        reading.read(str(tmp_path))
    write_lines(path, line)
    write_lines(tmp_path / "predictions.jsonl", {"step": 1})
    with pytest.raises(ValueError, match=r"predictions.jsonl:1 does not have all of step, task, index"):
        reading.read(str(tmp_path))


@pytest.mark.parametrize(
    ("made", "said"),
    [("", "there is no such folder"), ("other", "it is empty"), ("other/notes", "there are only notes")],
)
def test_what_is_no_run_is_refused(made, said, tmp_path):
    folder = tmp_path / "other"
    if made:
        (tmp_path / made).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"holds no run: .*{said}.*Give the MODEL_DIR"):
        reading.read(str(folder))


def test_runs_are_named_by_as_much_of_their_paths_as_tells_them_apart():
    assert reading.short_names(["/a/runs/x", "/a/runs/y/"]) == ["x", "y"]
    assert reading.short_names(["/a/x", "/b/x"]) == ["a/x", "b/x"]
    assert reading.short_names(["gs://b/x", "gs://b/x"]) == ["gs://b/x (1)", "gs://b/x (2)"]


# ---- T5X's own runs ----


def write_events(folder, rows):
    """Writes numbers as T5X does, by clu: tensors. `rows`: (step, tag, value)."""
    from clu import metric_writers

    writer = metric_writers.SummaryWriter(str(folder))
    for step, tag, value in rows:
        writer.write_scalars(step, {tag: value})
    writer.write_texts(1, {"config": "not a number"})
    writer.close()


def test_event_files_are_read_as_tensorboard_reads_them(tmp_path):
    from event_files import curve as by_tensorboard

    rows = [(step, tag, step * 0.3 + len(tag)) for step in (0, 5, 10) for tag in ("loss", "accuracy")]
    write_events(tmp_path, rows)
    found = {(each.tag, each.step): each.value for each in event_files.numbers_in(str(tmp_path))}
    assert found == by_tensorboard(tmp_path) and len(found) == len(rows)
    (path,) = tmp_path.iterdir()
    whole = list(event_files.records(path.read_bytes()))
    assert list(event_files.records(path.read_bytes()[:-3])) == whole[:-1]


def test_numbers_of_tensorflow_1_are_read_and_damage_is_named(tmp_path):
    from tensorboard.compat.proto import event_pb2

    event = event_pb2.Event(wall_time=2.0, step=3)
    event.summary.value.add(tag="em", simple_value=0.5)
    path = tmp_path / "events.out.tfevents.1"
    record = event.SerializeToString()
    path.write_bytes(event_files.HEADER.pack(len(record), 0) + record + b"\0" * 4)
    assert list(event_files.numbers_in(str(tmp_path))) == [(2.0, 3, "em", 0.5)]
    path.write_bytes(event_files.HEADER.pack(2, 0) + b"\xff\xff" + b"\0" * 4)
    with pytest.raises(ValueError, match="is not an event file of TensorBoard"):
        list(event_files.numbers_in(str(tmp_path)))


def test_a_run_of_t5x_has_the_same_curves(tmp_path):
    nats, share = 2.5, 0.8
    write_events(tmp_path / "train", [(10, "learning_rate", 0.1), (10, "timing/steps_per_second", 4.0)])
    rows = [
        (10, "cross_ent_loss_per_all_target_tokens", nats * share),
        (10, "non_padding_fraction/loss_weights", share),
    ]
    write_events(tmp_path / "training_eval" / "books", rows)
    place = tmp_path / "inference_eval"
    write_lines(place / "squad-metrics.jsonl", {"step": 10, "em": 50.0, "note": "words"}, {"step": 20, "em": 60.0})
    row = {"input": {"inputs_pretokenized": "why?"}, "prediction": "so", "target": "because"}
    write_lines(place / "squad-000010.jsonl", *[row] * 9)
    run = reading.read(str(tmp_path))
    panels = {panel.title: panel for panel in curves.panels([run])}
    (loss,) = panels["Loss"].lines
    assert loss.steps == [10] and loss.values[0] == pytest.approx(nats, rel=1e-6) and loss.part == "books"
    assert panels["Time of a step"].lines[0].values == [250.0]
    assert panels["em"].lines[0].values == [50.0, 60.0]
    assert len(run.predictions) == reading.SHOWN
    assert run.predictions[0] == reading.Prediction(10, "squad", 0, "why?", "because", "so")


@pytest.mark.parametrize(("factor", "nats"), [("None", 2.5), ("'NUM_REAL_TARGET_TOKENS'", 3.0), ("233472", None)])
def test_nats_are_those_of_the_loss_that_t5x_was_told_to_compute(factor, nats, tmp_path):
    folder = write_run(tmp_path / "run")
    config = folder / "config.gin"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("FACTOR = None", f"FACTOR = {factor}"), encoding="utf-8")
    tags = {
        "cross_ent_loss": 3.0,
        "cross_ent_loss_per_all_target_tokens": 2.0,
        "non_padding_fraction/loss_weights": 0.8,
    }
    write_lines(folder / "metrics.jsonl", metrics_line("train", 10, tags))
    found = curves.nats(reading.read(str(folder)), "train")
    assert found == (([10], [pytest.approx(nats)]) if nats else ([], []))


def test_runs_at_stores_are_read(bucket, tmp_path):
    folder = write_run(tmp_path / "run")
    write_lines(folder / "inference_eval" / "squad-metrics.jsonl", {"step": 10, "em": 50.0})
    for path in filter(Path.is_file, folder.rglob("*")):
        files.write_whole(f"{bucket}/runs/a/{path.relative_to(folder)}", path.read_bytes())
    here, there = reading.read(str(folder)), reading.read(f"{bucket}/runs/a/")
    assert (there.series, there.predictions, there.starts) == (here.series, here.predictions, here.starts)
    assert there.bindings == here.bindings and there.parameters == here.parameters
    with pytest.raises(ValueError, match="no such folder"):
        reading.read(f"{bucket}/runs/b")


# ---- What is said ----


def test_what_differs_is_the_bindings_that_do(tmp_path):
    a, b = (reading.read(str(write_run(tmp_path / n, rate=r))) for n, r in (("a", 0.01), ("b", 0.002)))
    name = "utils.create_learning_rate_scheduler.base_learning_rate"
    assert facts.differences([a, b]) == [(name, ["0.01", "0.002"])]
    assert facts.differences([a, a]) == []


def test_the_summary_has_the_latest_evaluation_and_sums_of_the_training(run):
    found = {fact.name: fact for fact in facts.summary(run)}
    evaluated = run.series["training_eval/books", "nats_per_token"].values[-1]
    assert found["loss"].value == f"{evaluated:.4g}" and f"{evaluated / math.log(2):.3g} bits" in found["loss"].note
    assert found["time"].value == "1 min 40 s"  # 40 rounds of 2.5 s
    rates = run.series["train", "timing/target_tokens_per_second"].values
    assert found["target tokens"].value == f"{sum(rates) * 2.5 * 0.98 / 1000:.3g}k"


def test_the_data_are_named_with_the_command_that_looks_into_them(run):
    found = {fact.name: fact for fact in facts.data(run)}
    assert found["its examples"].value == f"t5xpg inspect {run.folder}/config.gin --html data.html"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.25, "0.25 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3912, "1 h 5 min"),
        (90_000, "25 h"),
        (1e6, "12 days"),
    ],
)
def test_durations(seconds, words):
    assert facts.duration(seconds) == words


def test_only_a_pretraining_run_with_the_flax_recipe_is_put_beside_the_example(run, tmp_path):
    assert not facts.is_flax_counterpart(run)
    folder = write_run(tmp_path / "flax")
    with open(folder / "config.gin", "a", encoding="utf-8") as config:
        config.write("from t5xpg import schedules\nschedules.linear_decay_factor.total_steps = %TRAIN_STEPS\n")
    assert facts.is_flax_counterpart(reading.read(str(folder)))
    masked = write_run(tmp_path / "masked")
    with open(masked / "config.gin", "a", encoding="utf-8") as config:
        config.write("from t5xpg import schedules\nschedules.linear_decay_factor.total_steps = %TRAIN_STEPS\n")
        config.write("TASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8, 'selected': 8}\n")
    assert not facts.is_flax_counterpart(reading.read(str(masked)))
    write_lines(folder / "inference_eval" / "squad-metrics.jsonl", {"step": 1, "em": 1.0})
    assert not facts.is_flax_counterpart(reading.read(str(folder)))


def test_a_report_loads_neither_tensorflow_nor_jax(tmp_path):
    folder = write_run(tmp_path / "run")
    code = (
        "import sys\nfrom t5xpg.cli.main import main\n"
        f"assert main(['report', {str(folder)!r}]) == 0\n"
        f"assert main(['report', {str(folder)!r}, '--html', {str(tmp_path / 'r.html')!r}]) == 0\n"
        "print(sorted({'tensorflow', 'jax', 'seqio', 'tensorboard', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "r.html").exists()
