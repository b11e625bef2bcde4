"""The inference program as a user runs it: its files, its modes, shards, and going on after an interruption."""

import json
import math
import os

import pytest
import seqio
import tensorflow as tf
from command import run_t5xpg
from conftest import TESTS, program_settings

from t5x import infer as infer_program
from t5x.embedded.inference_files import write_inferences_to_file
from t5x.utils import RestoreCheckpointConfig
from t5xpg import Model


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def predicted(finetuned, pairs, tmp_path_factory):
    """The folder of predictions that `t5xpg infer` made."""
    folder = tmp_path_factory.mktemp("predicted")
    done = run_t5xpg(
        *("infer", "configs/byt5_tiny_infer.gin", TESTS / "micro_model.gin", f"FILES={pairs}"),
        *(f"CHECKPOINT_PATH={finetuned[0]}", f"INFER_OUTPUT_DIR={folder}"),
        *("TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}", "infer.checkpoint_period=3", "--shard_id=0"),
        "utils.DatasetConfig.batch_size=4",
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def infer(finetuned, pairs):
    """Runs `infer` in this process, by the recipe that ships, with some arguments replaced."""
    arguments = program_settings(
        infer_program.infer,
        *("configs/byt5_tiny_infer.gin", TESTS / "micro_model.gin", f"FILES = {pairs!r}"),
        *(f"CHECKPOINT_PATH = '{finetuned[0]}/checkpoint_60'", "INFER_OUTPUT_DIR = 'unused'"),
        *("TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 16}", "infer.checkpoint_period = 3"),
        "utils.DatasetConfig.batch_size = 4",
    )
    return lambda output_dir, **replaced: infer_program.infer(**arguments | {"output_dir": str(output_dir)} | replaced)


def test_predictions_are_those_of_the_evaluation(predicted, finetuned):
    found = lines(predicted / "pairs-predict.jsonl-00000-of-00001")
    evaluated = lines(finetuned[0] / "inference_eval" / "pairs-000060.jsonl")
    assert [line["prediction"] for line in found] == [line["prediction"] for line in evaluated]
    assert [line["inputs"] for line in found] == [
        {name: line["input"][name] for name in ("inputs_pretokenized", "targets_pretokenized")} for line in evaluated
    ]


def test_a_model_dir_does_wherever_a_checkpoint_does(predicted, finetuned, micro_run):
    """The fixtures are given nothing else; tests/engine/test_eval.py evaluates one."""
    assert f"Restored step 60 of {finetuned[0]}/checkpoint_60," in (predicted / "infer.log").read_text()
    assert f"Starting from step 20 of {micro_run[0]}/checkpoint_20" in finetuned[1].stderr


def test_leaves_t5x_files_and_nothing_else(predicted):
    assert sorted(os.listdir(predicted)) == [
        "config.gin",
        "infer.log",
        "model-info.txt",
        "pairs-predict.jsonl-00000-of-00001",
        "pairs-predict.jsonl-00000-of-00001.COMPLETED",
    ]


def test_a_finished_result_is_not_computed_again(infer, predicted, capsys):
    infer(predicted)
    assert "is finished already" in capsys.readouterr().err


def test_scores_are_log_likelihoods(infer, finetuned, tmp_path):
    infer(tmp_path, mode="score")
    found = lines(tmp_path / "pairs-score.jsonl-00000-of-00001")
    texts = [[line["inputs"][f"{name}_pretokenized"] for line in found] for name in ("inputs", "targets")]
    want = Model.restore(str(finetuned[0])).score(*texts)
    assert [line["score"] for line in found] == pytest.approx(want.tolist(), rel=1e-4)


def test_shards_and_chunks_together_are_the_whole(infer, predicted, tmp_path):
    found = {}
    for shard in (1, 0):
        infer(tmp_path, mode="predict_with_aux", shard_id=shard, num_shards=2, merge_chunked_results=False)
        name = f"pairs-predict_with_aux.jsonl-0000{shard}-of-00002"
        chunks = sorted((tmp_path / f"tmp-pairs-0000{shard}-of-00002").glob(f"{name}-chunk?????"))
        assert len(chunks) == math.ceil(37 / 2 / 12) and (tmp_path / f"{name}.COMPLETED").exists()
        found |= {json.dumps(line["inputs"]): line for path in chunks for line in lines(path)}
    whole = {json.dumps(line["inputs"]): line for line in lines(predicted / "pairs-predict.jsonl-00000-of-00001")}
    assert {key: line["prediction"] for key, line in found.items()} == {k: v["prediction"] for k, v in whole.items()}
    assert all(line["aux"]["scores"] < 0 for line in found.values())


def test_goes_on_after_the_last_finished_chunk(infer, predicted, tmp_path, capsys):
    """A run that stops while it writes its third chunk."""
    name, chunks = "pairs-predict.jsonl-00000-of-00001", tmp_path / "tmp-pairs-00000-of-00001"

    def stop_at_third(path, *what):
        if path.endswith("chunk00002"):
            raise OSError(28, "No space left on device")
        write_inferences_to_file(path, *what)

    with pytest.raises(OSError, match="No space left"):
        infer(tmp_path, write_fn=stop_at_third)
    assert not (tmp_path / name).exists()
    with pytest.raises(ValueError, match="checkpoint_period 3, now 2"):
        infer(tmp_path, checkpoint_period=2)
    (chunks / f"{name}-chunk00001").write_text('{"kept": true}\n')
    infer(tmp_path)
    assert "Going on after 2 finished chunks" in capsys.readouterr().err
    whole = lines(predicted / name)
    assert lines(tmp_path / name) == [*whole[:12], {"kept": True}, *whole[24:]]
    assert not chunks.exists()


@pytest.mark.parametrize("verb", ["train", "eval", "infer", "export hf", "export ct2"])
def test_every_program_lists_the_checkpoints_that_are_there(finetuned, pairs, tmp_path, verb):
    path, words = f"{finetuned[0]}/checkpoint_50", (TESTS / "micro_model.gin", f"FILES={pairs}")
    arguments = {
        "train": ("configs/byt5_tiny_finetune.gin", *words, f"INITIAL_CHECKPOINT_PATH={path}", f"MODEL_DIR={tmp_path}"),
        "eval": ("configs/byt5_tiny_eval.gin", *words, f"CHECKPOINT_PATH={path}", f"EVAL_OUTPUT_DIR={tmp_path}"),
        "infer": ("configs/byt5_tiny_infer.gin", *words, f"CHECKPOINT_PATH={path}", f"INFER_OUTPUT_DIR={tmp_path}"),
    }
    done = run_t5xpg(*verb.split(), *arguments.get(verb, (path, tmp_path / "out")))
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert last.startswith("t5xpg: error: ") and f"{finetuned[0]} holds the checkpoints 40, 60" in last, done.stderr


def test_bad_input_is_named(infer, tmp_path):
    with pytest.raises(ValueError, match="use one of"):
        infer(tmp_path, mode="guess")
    with pytest.raises(ValueError, match="count from 0"):
        infer(tmp_path, shard_id=1)
    with pytest.raises(ValueError, match="no finished checkpoint"):
        infer(tmp_path, restore_checkpoint_cfg=RestoreCheckpointConfig(str(tmp_path), "latest"))


def test_a_task_of_tfexample_files(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"hi"]))
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(tf.train.Example(features=tf.train.Features(feature={"question": text})).SerializeToString())
    features = {"inputs": seqio.Feature(seqio.ByteVocabulary()), "targets": seqio.Feature(seqio.ByteVocabulary())}
    name = infer_program.create_task_from_tfexample_file([path], "tfrecord", "question", None, features, "tfexamples")
    assert name == "infer_tfexamples"
    (row,) = seqio.get_mixture_or_task(name).get_dataset({"inputs": 8}, "infer", shuffle=False).as_numpy_iterator()
    assert row["inputs"].tolist() == [ord("h") + 3, ord("i") + 3, 1] and row["inputs_pretokenized"] == b"hi"
    with pytest.raises(ValueError, match="There is no file"):
        infer_program.create_task_from_tfexample_file([path + "x"], "tfrecord", "question", None, features)
    with pytest.raises(ValueError, match="file_type is 'sstable'"):
        infer_program.create_task_from_tfexample_file([path], "sstable", "question", None, features)
