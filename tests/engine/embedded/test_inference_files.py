"""The files of inference: lines as T5X writes them, whole or not at all, resumable, refusing to mix two runs."""

import json
import os

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x.embedded import inference_files
from t5x.embedded.inference_files import ShardFiles, write_inferences_to_file

VOCABULARY = seqio.ByteVocabulary()
TEXTS = ["é yes", "", "no"]
EXAMPLES = tf.data.Dataset.from_tensor_slices(
    {
        "inputs_pretokenized": ["a", "b", "ü"],
        "inputs": [[5, 1, 0]] * 3,
        "weight": np.float32([1, 2, 3]),
        "id": [4, 5, 6],
    }
)


def ids(text: str) -> list[int]:
    return ([*VOCABULARY.encode(text), 1] + [0] * 8)[:8]


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(tmp_path, inferences, mode, **options) -> list[dict]:
    write_inferences_to_file(str(tmp_path / "x"), inferences, EXAMPLES, mode, VOCABULARY, **options)
    return lines(tmp_path / "x")


def test_predictions_are_texts_up_to_eos(tmp_path):
    outputs = [[*ids(text)[:7], 70] for text in TEXTS]  # what follows EOS is not part of the text
    found = written(tmp_path, (outputs, {}), "predict")
    assert found == [{"inputs": {"inputs_pretokenized": x}, "prediction": t} for x, t in zip("abü", TEXTS, strict=True)]
    assert (tmp_path / "x").read_text().splitlines()[0].endswith(r'"prediction": "\u00e9 yes"}')


def test_several_decodes_and_their_ids(tmp_path):
    outputs = [[ids(text), ids("z")] for text in TEXTS]
    assert [line["prediction"] for line in written(tmp_path, (outputs, {}), "predict")] == [[t, "z"] for t in TEXTS]
    found = written(tmp_path, ([ids(text) for text in TEXTS], {}), "predict", output_ids=True)
    assert [line["prediction_tokens"] for line in found] == [[*VOCABULARY.encode(t), 1] for t in TEXTS]


def test_scores_and_auxiliary_values(tmp_path):
    found = written(tmp_path, ([-1.5, -2.5, -3.5], {}), "score")
    assert [line["score"] for line in found] == [-1.5, -2.5, -3.5] and "aux" not in found[0]
    aux = {"scores": [1.0, 2.0, 3.0], "deep": {"ids": [[1], [2], [3]]}}
    found = written(tmp_path, ([ids(t) for t in TEXTS], aux), "predict_with_aux")
    assert [line["aux"] for line in found] == [{"scores": float(i), "deep": {"ids": [i]}} for i in (1, 2, 3)]


def test_which_inputs_are_written(tmp_path):
    inferences = ([0.0] * 3, {})
    everything = written(tmp_path, inferences, "score", include_all_inputs=True)[0]["inputs"]
    assert everything == {"inputs_pretokenized": "a", "inputs": [5, 1, 0], "weight": 1.0, "id": 4.0}
    named = written(tmp_path, inferences, "score", input_fields_to_include=["inputs"])[0]["inputs"]
    assert named == {"inputs_pretokenized": "a", "inputs": [5, 1, 0]}
    with pytest.raises(ValueError, match="exclude each other"):
        written(tmp_path, inferences, "score", include_all_inputs=True, input_fields_to_include=["inputs"])


def test_a_file_that_fails_never_appears(tmp_path):
    class Unwritable:
        pass

    with pytest.raises(TypeError):
        written(tmp_path, ([0.0, Unwritable(), 0.0], {}), "score")
    assert not (tmp_path / "x").exists()


def shard(tmp_path, chunks=0, plan=None) -> ShardFiles:
    files = ShardFiles.of(str(tmp_path), "task", "predict", "jsonl", 2, 4)
    files.start(plan or {"checkpoint": "a"})
    for i in range(chunks):
        with open(files.chunk(i), "w") as file:
            file.write(f"{i}\n")
        inference_files.mark_finished(files.chunk(i))
    return files


def test_names_are_t5x_names(tmp_path):
    files = shard(tmp_path)
    assert files.result == f"{tmp_path}/task-predict.jsonl-00002-of-00004"
    assert files.chunk(3) == f"{tmp_path}/tmp-task-00002-of-00004/task-predict.jsonl-00002-of-00004-chunk00003"


def test_chunks_count_from_the_first_and_merge_in_order(tmp_path):
    files = shard(tmp_path, chunks=12)
    assert files.count_finished_chunks() == 12
    inference_files.merge_chunks_to_file(files.output_dir, files.name, files.chunk_dir, 0)
    assert (tmp_path / files.name).read_text().split() == [str(i) for i in range(12)]
    os.remove(files.chunk(1) + ".COMPLETED")
    assert files.count_finished_chunks() == 1
    os.remove(files.chunk(1))
    with pytest.raises(ValueError, match="lacks chunk 1"):
        inference_files.merge_chunks_to_file(files.output_dir, files.name, files.chunk_dir, 0)


def test_another_plan_is_refused_once_a_chunk_is_finished(tmp_path):
    shard(tmp_path, plan={"checkpoint": "a"})
    shard(tmp_path, chunks=1, plan={"checkpoint": "b"})  # nothing was finished
    with pytest.raises(ValueError, match="checkpoint 'b', now 'a'"):
        shard(tmp_path, plan={"checkpoint": "a"})
