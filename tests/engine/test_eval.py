"""Evaluation by what a model generates, during fine-tuning and by `t5xpg eval`: files, metrics, checkpoints."""

import dataclasses
import json
import re
import threading
import types
from concurrent.futures import Future
from unittest import mock

import pytest
from command import run_t5xpg
from conftest import TESTS, program_settings
from t5.evaluation import metrics as t5_metrics

from t5x import eval as eval_program
from t5x import train
from t5x.embedded import evaluation
from t5x.embedded.actions import BaseAction
from t5x.utils import RestoreCheckpointConfig


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def settings(finetuned, pairs, output_dir, *more) -> dict:
    """Arguments of `evaluate`, by the recipe that ships."""
    return program_settings(
        eval_program.evaluate,
        *("configs/byt5_tiny_eval.gin", TESTS / "micro_model.gin", *(m for m in more if str(m).endswith(".gin"))),
        f"FILES = {pairs!r}",
        f"CHECKPOINT_PATH = '{finetuned[0]}'",
        f"EVAL_OUTPUT_DIR = '{output_dir}'",
        *(m for m in more if not str(m).endswith(".gin")),
    )


def test_finetuning_evaluates_what_the_model_generates(finetuned):
    model_dir, done = finetuned
    folder = model_dir / "inference_eval"
    recorded = lines(folder / "pairs-metrics.jsonl")
    assert [metrics["step"] for metrics in recorded] == [40, 60]
    for metrics in recorded:
        rows = lines(folder / f"pairs-{metrics['step']:06}.jsonl")
        assert len(rows) == 37
        targets, predictions = [[row["target"]] for row in rows], [row["prediction"] for row in rows]
        want = t5_metrics.squad(targets, predictions)
        assert {name: metrics[name] for name in want} == pytest.approx(want)
    assert recorded[-1]["em"] > 50  # it learns
    printed = re.findall(r"step +(\d+)  pairs: em ([\d.]+), f1", done.stderr)
    assert [(int(step), float(em)) for step, em in printed] == [
        (m["step"], pytest.approx(m["em"], rel=1e-3)) for m in recorded
    ]


def test_metrics_are_in_tensorboard(finetuned):
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.summary.summary_iterator import summary_iterator

    (path,) = (finetuned[0] / "inference_eval" / "pairs").glob("events*")
    values = {
        (value.tag, event.step): float(tensor_util.MakeNdarray(value.tensor))
        for event in summary_iterator(str(path))
        for value in event.summary.value
    }
    recorded = lines(finetuned[0] / "inference_eval" / "pairs-metrics.jsonl")
    assert values == {
        (f"eval/{name}", m["step"]): pytest.approx(m[name], rel=1e-6) for m in recorded for name in ("em", "f1")
    }


def test_all_checkpoints_give_what_training_gave(finetuned, pairs, tmp_path):
    model_dir = finetuned[0]
    done = run_t5xpg(
        *("eval", "configs/byt5_tiny_eval.gin", TESTS / "micro_model.gin", f"FILES={pairs}"),
        *(f"CHECKPOINT_PATH={model_dir}", f"EVAL_OUTPUT_DIR={tmp_path}", "utils.RestoreCheckpointConfig.mode=all"),
    )
    assert done.returncode == 0, done.stderr
    for name in ("pairs-metrics.jsonl", "pairs-000040.jsonl", "pairs-000060.jsonl"):
        assert lines(tmp_path / "inference_eval" / name) == lines(model_dir / "inference_eval" / name)
    paths = [f"{model_dir}/checkpoint_{step}" for step in (40, 60)]
    assert (tmp_path / "eval.pairs.ckpt").read_text().split() == paths
    left = eval_program.checkpoints_to_evaluate(
        RestoreCheckpointConfig(str(model_dir), "all"), str(tmp_path / "eval.pairs.ckpt")
    )
    assert left == []


def test_the_latest_checkpoint_of_a_model_dir_with_teacher_forcing_too(finetuned, pairs, tmp_path, capsys):
    recipe = tmp_path / "teacher.gin"
    recipe.write_text(
        "from __gin__ import dynamic_registration\nimport __main__ as eval_script\n"
        "from t5x import trainer\nfrom t5x import utils\n"
        "TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 16}\n"
        "eval_script.evaluate.training_evaluator_cls = @trainer.Trainer\n"
        "eval_script.evaluate.train_eval_get_dataset_fn = @utils.get_training_eval_datasets\n"
        "utils.get_training_eval_datasets.eval_steps = 2\n"
    )
    eval_program.evaluate(**settings(finetuned, pairs, tmp_path, recipe))
    printed = capsys.readouterr().err
    assert "checkpoint_60" in printed and "checkpoint_40" not in printed
    assert re.search(r"step +60  pairs: [\d.]+ nats/token", printed)
    assert list((tmp_path / "training_eval" / "pairs").glob("events*"))


def test_bad_input_is_named(finetuned, pairs, tmp_path, monkeypatch):
    arguments = settings(finetuned, pairs, tmp_path)
    with pytest.raises(ValueError, match="no split 'test'"):
        eval_program.evaluate(
            **arguments | {"dataset_cfg": dataclasses.replace(arguments["dataset_cfg"], split="test")}
        )
    monkeypatch.setattr(eval_program, "InferenceEvaluator", lambda *_: types.SimpleNamespace(eval_tasks=[]))
    with pytest.raises(
        ValueError, match="pairs has no metrics to evaluate 'validation' with; give the task metric_fns"
    ):
        eval_program.evaluate(**arguments)
    with pytest.raises(ValueError, match="no finished checkpoint"):
        eval_program.checkpoints_to_evaluate(RestoreCheckpointConfig(str(tmp_path), "latest"), "")


class StopAt50(BaseAction):
    def run(self, train_state, metrics_by_task) -> bool:
        return metrics_by_task["pairs"]["em"] >= 50


@pytest.mark.parametrize("concurrent", [True, False])
def test_actions_see_what_was_decoded(concurrent):
    """INFER_EVAL actions wait for the metrics, also where these are computed beside training."""
    trainer = types.SimpleNamespace(train_state=None, stop_training=False, train_metrics_manager=mock.Mock())
    run = train.TrainingRun(trainer, None, None, None, {}, {"INFER_EVAL": [StopAt50()]}, "unused")
    metrics = Future()
    threading.Timer(0.2, metrics.set_result, [{"pairs": {"em": 50.0}}]).start()
    run.decode_with(mock.Mock(evaluate=lambda state, train_state_axes: metrics), None, concurrent)
    run._evaluate(step=10)
    assert trainer.stop_training


def test_metric_functions_that_fail_stop_the_run():
    evaluator = object.__new__(evaluation.InferenceEvaluator)
    failed = Future()
    failed.set_exception(ValueError("Failed to evaluate task pairs"))
    evaluator._evaluator, evaluator._pending = mock.Mock(), failed
    evaluation.say_metrics(3, failed)
    with pytest.raises(ValueError, match="Failed to evaluate"):
        evaluator.close()
