"""predictions.jsonl: the same examples at each evaluation, predicted as SeqIO's evaluation predicts them."""

import json
import types
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf
from event_files import texts_in

from t5x.embedded import json_lines, predictions
from t5x.embedded.datasets import DatasetConfig
from t5x.partitioning import PjitPartitioner
from t5xpg.base import files

BYTES = seqio.ByteVocabulary(extra_ids=100)
LENGTHS = {"inputs": 12, "targets": 9}
TEXTS = [("to be", "or not"), ("the far", "shore"), ("a", "b"), ("c", "d")]


def lines_of(model_dir) -> list[dict]:
    return [json.loads(line) for line in (Path(model_dir) / "predictions.jsonl").read_text("utf-8").splitlines()]


def test_a_run_predicts_the_first_examples_as_seqio_s_evaluation_does(finetuned, pairs):
    model_dir, _ = finetuned
    rows = [json.loads(line) for line in Path(pairs.format(split="validation")).read_text("utf-8").splitlines()[:5]]
    found = lines_of(model_dir)
    assert [(each["step"], each["index"]) for each in found] == [(step, i) for step in (40, 60) for i in range(5)]
    for step in (40, 60):
        path = model_dir / "inference_eval" / f"pairs-{step:06}.jsonl"
        expected = [json.loads(line)["prediction"] for line in path.read_text("utf-8").splitlines()[:5]]
        shown = [each for each in found if each["step"] == step]
        assert [each["prediction"] for each in shown] == [text.strip() for text in expected]
        assert [{name: each[name] for name in ("inputs", "targets")} for each in shown] == rows
    assert {each["task"] for each in found} == {"pairs"} and all(each["time"] > 1.7e9 for each in found)
    texts = texts_in(model_dir / "training_eval" / "pairs")
    assert set(texts) == {("predictions", 40), ("predictions", 60)}
    assert f"| {rows[0]['inputs']} | {rows[0]['targets']} | " in texts["predictions", 40]


@pytest.fixture
def task():
    columns = {name: [pair[i] for pair in TEXTS] for i, name in enumerate(LENGTHS)}

    def dataset(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensor_slices(columns)

    name = "predicted"
    features = {name: seqio.Feature(BYTES, add_eos=True) for name in LENGTHS}
    steps = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim]
    source = seqio.FunctionDataSource(dataset, splits=["validation"])
    yield seqio.TaskRegistry.add(name, source=source, preprocessors=steps, output_features=features)
    seqio.TaskRegistry.remove(name)


def config(task, **settings) -> DatasetConfig:
    made = dict(task_feature_lengths=LENGTHS, split="validation", batch_size=8, shuffle=True, seed=None, pack=True)
    return DatasetConfig(task.name, **{**made, **settings})


class Echo:
    """A model that gives each example's inputs back."""

    FEATURE_CONVERTER_CLS = seqio.EncDecFeatureConverter

    def predict_batch(self, params, batch):
        return batch["encoder_input_tokens"] + params


def made(cfg, model, folder, count=3, managers=None) -> predictions.Predictions:
    axes = types.SimpleNamespace(params=None, flax_mutables=None)
    return predictions.Predictions(cfg, count, model, PjitPartitioner(1), axes, str(folder), managers or {})


def state(step: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(step=step, params=np.int32(0), flax_mutables=None)


def test_packed_and_shuffled_data_is_shown_example_by_example_once_a_step(task, tmp_path):
    shown = made(config(task), Echo(), tmp_path)
    for step in (5, 5, 10):
        shown.write(state(step))
    expected = [(step, index, *TEXTS[index], TEXTS[index][0]) for step in (5, 10) for index in range(3)]
    names = ("step", "index", "inputs", "targets", "prediction")
    assert [tuple(each[name] for name in names) for each in lines_of(tmp_path)] == expected


def test_a_small_split_is_shown_whole_and_no_example_where_none_is_asked_for(task, tmp_path):
    made(config(task), Echo(), tmp_path, count=9).write(state(5))
    assert len(lines_of(tmp_path)) == len(TEXTS)
    made(config(task), Echo(), tmp_path / "none", count=0).write(state(5))
    assert not (tmp_path / "none").exists()


class Silent:
    FEATURE_CONVERTER_CLS = seqio.EncDecFeatureConverter


class Broken(Echo):
    def predict_batch(self, params, batch):
        raise NotImplementedError("this model\ncannot")


@pytest.mark.parametrize(
    ("model", "settings", "why"),
    [
        (Silent(), {}, "AttributeError: 'Silent' object has no attribute 'predict_batch'"),
        (Broken(), {}, "NotImplementedError: this model"),
        (Echo(), {"mixture_or_task_name": "unknown"}, "unknown"),
        (Echo(), {"task_feature_lengths": {"inputs": 9}}, "targets"),
    ],
)
def test_what_cannot_be_predicted_is_said_once_and_the_run_goes_on(task, tmp_path, capsys, model, settings, why):
    cfg = config(task)
    for name, value in settings.items():
        setattr(cfg, name, value)
    shown = made(cfg, model, tmp_path)
    shown.write(state(5))
    shown.write(state(10))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("There will be no predictions.jsonl (") and why in line
    assert not (tmp_path / "predictions.jsonl").exists()


def test_what_cannot_be_written_is_said_and_tried_again(task, tmp_path, monkeypatch, capsys):
    shown = made(config(task), Echo(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "append", lambda path, text: (_ for _ in ()).throw(OSError(28, "No space left")))
        shown.write(state(5))
    assert "Step 5 is not in predictions.jsonl: OSError: [Errno 28] No space left" in capsys.readouterr().err
    shown.write(state(10))
    assert {each["step"] for each in lines_of(tmp_path)} >= {10}


@pytest.mark.parametrize("alone", [False, True])
def test_long_targets_are_decoded_up_to_a_limit(task, monkeypatch, alone):
    monkeypatch.setattr(predictions, "LONGEST", 4)
    cls = seqio.DecoderFeatureConverter if alone else seqio.EncDecFeatureConverter
    found = predictions.read(task, config(task), 2, types.SimpleNamespace(FEATURE_CONVERTER_CLS=cls))
    lengths = {name: x.shape for name, x in found.batch.items()}
    decoder = (2, 12 + 4 if alone else 4)
    assert {shape for name, shape in lengths.items() if name.startswith("decoder_")} == {decoder}
    assert alone or lengths["encoder_input_tokens"] == (2, 12)
    assert predictions.texts_of(found, 0, [*BYTES.encode("or no"), 1, 70])["prediction"] == "or no"


def test_a_masked_language_model_s_text_is_filled_in(task):
    targets, selected = np.array([*BYTES.encode("ab cd"), 1]), np.array([0, 1, 0, 0, 1, 0])
    masked = np.where(selected, 358, targets)
    rows = [{"inputs": masked, "targets": targets}]
    padded = {"decoder_loss_weights": np.array([[*selected, 0, 0]]), "encoder_input_tokens": masked[None]}
    guess = [*BYTES.encode("xyzuv"), 9, 9, 9]
    assert predictions.texts_of(predictions.Examples(task, rows, padded), 0, guess) == {
        "inputs": "a⟨0⟩ c⟨0⟩",
        "targets": "ab cd",
        "prediction": "ay cv",
    }


def test_tensorboard_shows_texts_as_they_are():
    table = predictions.as_table([{"inputs": "a|b\n<i>", "prediction": "*c*"}])
    assert table.splitlines() == ["| inputs | prediction |", "| --- | --- |", "| a&#124;b⏎&#60;i&#62; | &#42;c&#42; |"]


def test_a_run_that_goes_on_drops_later_predictions(tmp_path):
    lines = json_lines.lines_in(str(tmp_path), json_lines.PREDICTIONS_NAME)
    for step in (10, 20, 30):
        lines.add({"step": step})
    json_lines.go_on_from(str(tmp_path), 20)
    assert lines_of(tmp_path) == [{"step": 10}, {"step": 20}]
