"""A run at gs:// and s3:// from its first step to its export, killed on the way and behind a proxy that fails: what
it ends with is what the same run has on the disk, and nothing of it is on the disk.
"""

import os
import random
from pathlib import Path

import emulators
import numpy as np
import pytest
from command import run_t5xpg
from conftest import TESTS, program_settings
from faulty_proxy import faulty_store
from kills import parameters, train_through_kills

from t5x import checkpoints
from t5x import eval as eval_program
from t5x import infer as infer_program
from t5x.embedded import best_checkpoints
from t5xpg import Model, recipes
from t5xpg.base import files
from t5xpg.cli import scores

pytestmark = pytest.mark.usefixtures("nothing_here")

LEFT_BY_LIBRARIES = ("__autograph", "__pycache__", "torchinductor", "pymp-")  # TensorFlow, PyTorch, multiprocessing
LENGTHS = "{'inputs': 64, 'targets': 16}"


@pytest.fixture(scope="module", params=["gs", "s3"])
def run(request, stores, micro_run, pairs, tmp_path_factory):
    """(MODEL_DIR, what it printed, the proxy) of the session's fine-tuning at a URL, killed once on the way."""
    bucket, here = emulators.new_bucket(request.param), tmp_path_factory.mktemp("here")
    files.send_folder(str(micro_run[0] / "checkpoint_20"), f"{bucket}/pretrained/checkpoint_20", "commit_success.txt")
    files.write_whole(f"{bucket}/recipes/model.gin", (TESTS / "micro_model.gin").read_bytes())
    arguments = [
        *("configs/byt5_tiny_finetune.gin", f"{bucket}/recipes/model.gin", f"FILES={pairs}"),
        *(f"MODEL_DIR={bucket}/run", f"INITIAL_CHECKPOINT_PATH={bucket}/pretrained/checkpoint_20"),
        *("TRAIN_STEPS_RELATIVE=40", "EVAL_PERIOD=20", "utils.SaveCheckpointConfig.period=20"),
        *("utils.create_learning_rate_scheduler.base_learning_rate=0.01", "train.stats_period=20"),
        f"TASK_FEATURE_LENGTHS={LENGTHS}",
    ]
    seed = random.randrange(2**32)
    print(f"the kill's seed: {seed}")  # pytest shows it when a test fails
    with pytest.MonkeyPatch.context() as patch, faulty_store(stores, request.param, every=10) as proxy:
        patch.setenv("TMPDIR", str(here))
        log = tmp_path_factory.mktemp("log") / "log.txt"
        output = train_through_kills(arguments, 1, random.Random(seed), log)
    assert folders_of_urls() == []
    assert [name for name in os.listdir(here) if not name.startswith(LEFT_BY_LIBRARIES)] == []
    return f"{bucket}/run", output, proxy


def folders_of_urls() -> list[str]:
    """Returns the names that only a URL can have got into the commands' working directory, the repository."""
    return [name for name in os.listdir(TESTS.parent) if ":" in name]


def test_a_kill_and_failing_requests_change_no_bit(run, finetuned):
    model_dir, output, proxy = run
    expected, found = parameters(str(finetuned[0])), parameters(model_dir)
    assert expected.keys() == found.keys() and len(proxy.faults) > 10
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert f"step 60 is in {model_dir}\n" in output


def test_all_of_a_run_is_at_the_url(run, finetuned):
    model_dir, _, _ = run
    on_the_disk = {*os.listdir(finetuned[0])}
    assert {*files.names_in(model_dir)} == on_the_disk - {".lock"}
    assert checkpoints.all_steps(model_dir) == checkpoints.all_steps(str(finetuned[0])) == [40, 60]
    assert "Gin configuration" in files.read_text(f"{model_dir}/train.log")
    for name in files.names_in(f"{model_dir}/inference_eval"):
        if name.endswith("-000060.jsonl"):
            assert (
                files.read_bytes(f"{model_dir}/inference_eval/{name}")
                == Path(finetuned[0], "inference_eval", name).read_bytes()
            )


def test_metrics_and_scores_are_read_from_there(run, finetuned, capsys):
    for name in ("train/nats_per_token", "training_eval/pairs/nats_per_token"):
        expected = best_checkpoints.populate_metrics_for_steps(str(finetuned[0]), name, [60])
        assert best_checkpoints.populate_metrics_for_steps(run[0], name, [60]) == expected != {}
    assert scores.show(run[0])
    table = capsys.readouterr().out
    assert scores.show(str(finetuned[0]))
    assert table.splitlines()[2:] == capsys.readouterr().out.splitlines()[2:]


def test_a_model_and_a_recipe_are_read_from_there(run, finetuned):
    texts = ["the water below", "grey"]
    assert Model.restore(run[0]).predict(texts) == Model.restore(str(finetuned[0])).predict(texts)
    assert recipes.read_run(run[0]).program == "train"


def test_it_is_evaluated_and_inferred_into_urls(run, finetuned, pairs):
    bucket = os.path.dirname(run[0])
    common = (TESTS / "micro_model.gin", f"FILES = {pairs!r}", f"TASK_FEATURE_LENGTHS = {LENGTHS}")
    arguments = program_settings(
        *(eval_program.evaluate, "configs/byt5_tiny_eval.gin", *common),
        *(f"CHECKPOINT_PATH = '{run[0]}/checkpoint_60'", f"EVAL_OUTPUT_DIR = '{bucket}/eval'"),
    )
    eval_program.evaluate(**arguments)
    recorded = (finetuned[0] / "inference_eval" / "pairs-metrics.jsonl").read_text().splitlines()
    assert files.read_text(f"{bucket}/eval/inference_eval/pairs-metrics.jsonl").splitlines() == recorded[-1:]
    assert files.read_text(f"{bucket}/eval/eval.pairs.ckpt") == f"{run[0]}/checkpoint_60"

    arguments = program_settings(
        *(infer_program.infer, "configs/byt5_tiny_infer.gin", *common, "infer.checkpoint_period = 3"),
        *(f"CHECKPOINT_PATH = '{run[0]}/checkpoint_60'", f"INFER_OUTPUT_DIR = '{bucket}/predictions'"),
    )
    infer_program.infer(**arguments)
    name = "pairs-predict.jsonl-00000-of-00001"
    assert files.names_in(f"{bucket}/predictions") == ["config.gin", "model-info.txt", name, f"{name}.COMPLETED"]
    assert len(files.read_text(f"{bucket}/predictions/{name}").splitlines()) == 37


def test_it_is_exported_to_a_url_and_imported_again(run):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from t5xpg import hf

    out, again = (f"{os.path.dirname(run[0])}/{name}" for name in ("exported", "imported"))
    hf.export_model(run[0], out)
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {*files.names_in(out)}
    assert "training_eval" not in files.read_text(f"{out}/README.md") and "| pairs |" in files.read_text(
        f"{out}/README.md"
    )
    path, _ = hf.import_model(out, again)
    assert path == f"{again}/checkpoint_60"
    np.testing.assert_allclose(
        parameters(again)["target/token_embedder/embedding"], parameters(run[0])["target/token_embedder/embedding"]
    )


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("MODEL_DIR=https://host/run", "MODEL_DIR https://host/run: https:// can only be read; write to a local path"),
        ("MODEL_DIR=ftp://host/run", "ftp://host/run: ftp:// cannot be read or written; take a local path"),
        ("MODEL_DIR=gs:/bucket/run", "gs:/bucket/run: a URL has two slashes; write gs://bucket/run."),
        ("MODEL_DIR=gs://no-such-bucket/run", "gs://no-such-bucket/run.*: there is no bucket gs://no-such-bucket"),
    ],
)
def test_what_cannot_be_written_to_is_refused_in_one_line(binding, message, stores, pairs):
    done = run_t5xpg("train", TESTS / "micro.gin", f"FILES={pairs}", binding)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len([line for line in lines if "error: " in line]) == 1
    assert lines[-1].startswith("t5xpg: error: ") and message.split(".*")[-1] in lines[-1]
    assert "Compiled" not in done.stderr and folders_of_urls() == []
