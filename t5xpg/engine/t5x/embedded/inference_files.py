"""The files of inference: a task's shard is written in chunks, so that it can be resumed, and merged at the end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base import files

Inferences = tuple[Sequence[Any], Mapping[str, Any]]  # (an output for each example, {name: a value for each example})
MODES = ("predict", "score", "predict_with_aux")


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """Where the results of one shard of a task go, and which of them exist.

    A chunk or result counts as finished when an empty file `<its name>.COMPLETED` is next to it.

    Attributes:
      output_dir: of all tasks and shards.
      name: of the result, `<task>-<mode>.<extension>-<shard>-of-<shards>`.
      chunk_dir: a folder for this shard's chunks.
    """

    output_dir: str
    name: str
    chunk_dir: str

    @classmethod
    def of(cls, output_dir: str, task: str, mode: str, extension: str, shard_id: int, num_shards: int) -> ShardFiles:
        shard = f"{shard_id:05}-of-{num_shards:05}"
        return cls(output_dir, f"{task}-{mode}.{extension}-{shard}", os.path.join(output_dir, f"tmp-{task}-{shard}"))

    @property
    def result(self) -> str:
        return os.path.join(self.output_dir, self.name)

    def chunk(self, index: int) -> str:
        return os.path.join(self.chunk_dir, f"{self.name}-chunk{index:05}")

    def count_finished_chunks(self) -> int:
        """Returns how many chunks are finished without a gap, from the first on."""
        count = 0
        while is_finished(self.chunk(count)):
            count += 1
        return count

    def start(self, plan: Mapping[str, Any]) -> None:
        """Makes the folder of chunks, and writes `plan`, which decides what is in a chunk, into it.

        Raises:
          ValueError: the folder holds finished chunks of another plan.
        """
        path = os.path.join(self.chunk_dir, "plan.json")
        wanted = json.loads(json.dumps(plan))
        if self.count_finished_chunks() and files.exists(path):
            found = json.loads(files.read_text(path))
            if differing := [f"{k} {found.get(k)!r}, now {v!r}" for k, v in wanted.items() if found.get(k) != v]:
                raise ValueError(
                    f"{self.chunk_dir} holds unfinished work with {'; '.join(differing)}. Finish it as it was started, "
                    "remove the folder, or take another INFER_OUTPUT_DIR."
                )
        files.write_whole(path, json.dumps(wanted))


def is_finished(path: str) -> bool:
    return files.exists(f"{path}.COMPLETED")


def mark_finished(path: str) -> None:
    files.write_whole(f"{path}.COMPLETED", "")


def merge_chunks_to_file(output_dir: str, output_fname: str, tmp_dir: str, step: int | None) -> None:
    """Writes `output_dir/output_fname`, the chunks of `tmp_dir` one after the other.

    `step` is part of T5X's interface of merge functions.

    Raises:
      ValueError: there is no chunk, or one is missing.
    """
    pattern = re.compile(re.escape(output_fname) + r"-chunk(\d+)")
    found = {int(match[1]): match[0] for match in map(pattern.fullmatch, files.names_in(tmp_dir)) if match}
    missing = sorted({*range(max(found, default=0) + 1)} - {*found})
    if missing:
        raise ValueError(f"{tmp_dir} lacks chunk {missing[0]} of {output_fname}; run the same command again.")
    with files.open_whole(os.path.join(output_dir, output_fname), "wb") as merged:
        for index in sorted(found):
            with files.open_binary(os.path.join(tmp_dir, found[index])) as chunk:
                shutil.copyfileobj(chunk, merged)


def write_inferences_to_file(
    path: str,
    inferences: Inferences,
    task_ds: tf.data.Dataset,
    mode: str,
    vocabulary: seqio.Vocabulary | None = None,
    json_encoder_cls: type[json.JSONEncoder] = seqio.TensorAndNumpyEncoder,
    include_all_inputs: bool = False,
    input_fields_to_include: Sequence[str] | None = None,
    output_ids: bool = False,
) -> None:
    """Writes a JSON line {"inputs", "prediction" or "score", …} for each example.

    Args:
      path: the file; it appears once it is whole.
      inferences: token ids [length] (or [decodes, length]) or a score for each example, and auxiliary values.
      task_ds: the examples as the task gives them, in the same order.
      mode: "predict", "score" or "predict_with_aux".
      vocabulary: turns predicted ids into text.
      json_encoder_cls: encodes what JSON does not know.
      include_all_inputs: write all features of an example rather than those named `…_pretokenized`.
      input_fields_to_include: write these features, with their `…_pretokenized` texts.
      output_ids: also write "prediction_tokens", the ids up to the first padding.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; use one of {MODES}.")
    if include_all_inputs and input_fields_to_include is not None:
        raise ValueError("include_all_inputs and input_fields_to_include exclude each other; set one.")
    outputs, aux_values = inferences
    texts = None if mode == "score" else decode_all(outputs, vocabulary)
    with files.open_whole(path) as file:
        for i, example in enumerate(task_ds.as_numpy_iterator()):
            chosen = [k for k in example if include_all_inputs or is_chosen(k, input_fields_to_include)]
            line = {"inputs": {name: to_json(example[name]) for name in chosen}}
            if mode == "score":
                line["score"] = to_json(outputs[i])
            else:
                line["prediction"] = to_json(texts[i])
            if mode != "score" and output_ids:
                line["prediction_tokens"] = before_padding(outputs[i])
            if mode == "predict_with_aux" or (mode == "score" and aux_values):
                line["aux"] = jax.tree.map(lambda v, i=i: to_json(v[i]), aux_values, is_leaf=is_values)
            file.write(json.dumps(line, cls=json_encoder_cls) + "\n")


def decode_all(ids: Sequence, vocabulary: seqio.Vocabulary | None) -> np.ndarray:
    """Returns the texts, bytes, of ids [examples, …, length], up to their EOS."""
    if vocabulary is None:
        raise ValueError("Predictions need a vocabulary to become text; pass the task's output vocabulary.")
    ids = np.asarray(ids, np.int32)
    texts = vocabulary.decode_tf(tf.constant(ids.reshape(-1, ids.shape[-1]))).numpy()
    return texts.reshape(ids.shape[:-1])


def is_chosen(name: str, fields: Sequence[str] | None) -> bool:
    if fields is None:
        return name.endswith("_pretokenized")
    return name in fields or (name.endswith("_pretokenized") and name.removesuffix("_pretokenized") in fields)


def is_values(tree: Any) -> bool:
    return isinstance(tree, (np.ndarray, list))


def before_padding(ids: Sequence[int]) -> list[int]:
    ids = list(ids)
    return ids[: ids.index(0)] if 0 in ids else ids


def to_json(value: Any) -> Any:
    """Turns bytes (UTF-8), arrays and scalars into plain Python values."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [to_json(item) for item in value]
    if isinstance(value, (np.ndarray, jax.Array)):
        return value.tolist()
    return float(value) if isinstance(value, np.number) else value  # integers too, as T5X writes them
