"""The inference program: `python -m t5xpg.t5x infer --gin_file=… --gin.CHECKPOINT_PATH=…`, and `infer` for Python.

A shard of a task is inferred in chunks of checkpoint_period batches. Finished chunks are files of their own, so that
the same command goes on after the last of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import seqio
import tensorflow as tf
from jax.experimental import multihost_utils

from t5x import gin_utils, models, utils
from t5x.embedded import console, datasets, inference, initialization, vocabulary_check, waiting
from t5x.embedded.checkpoint_configs import RestoreCheckpointConfig
from t5x.embedded.contract import refuse_missing
from t5x.embedded.inference_files import (  # T5X's names for gin: infer_script.write_inferences_to_file, …
    MODES,
    ShardFiles,
    is_finished,
    mark_finished,
    merge_chunks_to_file,
    write_inferences_to_file,
)
from t5x.embedded.initialization import TrainStateInitializer
from t5x.embedded.packing import make_converter
from t5xpg.base import stores
from t5xpg.base.files import make_folder, remove

refuse_missing(globals(), "infer")


def infer(
    *,
    mode: str,
    model: models.BaseTransformerModel,
    dataset_cfg: datasets.DatasetConfig,
    restore_checkpoint_cfg: RestoreCheckpointConfig,
    partitioner,
    output_dir: str,
    checkpoint_period: int,
    shard_id: int = 0,
    num_shards: int = 1,
    merge_chunked_results: bool = True,
    write_fn: Callable = write_inferences_to_file,
    checkpoint_ds_iter: bool = True,
    train_state_initializer_cls: type[TrainStateInitializer] = TrainStateInitializer,
    fallback_init_rng: int | None = None,
    merge_fn: Callable = merge_chunks_to_file,
    summarize_config_fn: Callable = gin_utils.summarize_gin_config,
    verify_matching_vocabs_fn: Callable | None = vocabulary_check.verify_matching_vocabs,
    output_vocab_feature_name: str = "targets",
    file_extension: str = "jsonl",
    keep_aux_as_numpy: bool = False,
    use_orbax: bool = True,
) -> None:
    """Predicts or scores every example of a task, or of each task of a mixture, into files.

    The result is `<task>-<mode>.<extension>-<shard>-of-<shards>`, with an empty file `….COMPLETED` next to it.

    Args:
      mode: "predict" decodes targets, "score" gives the log likelihood of given ones, "predict_with_aux" decodes
        and gives the decode's score too.
      model: what to run.
      dataset_cfg: the task and split.
      restore_checkpoint_cfg: the checkpoint.
      partitioner: partitioning.PjitPartitioner.
      output_dir: where everything is written.
      checkpoint_period: batches of a chunk, the most work that can be lost.
      shard_id, num_shards: which part of the examples this run infers.
      merge_chunked_results: whether to merge the chunks into the result; they stay in tmp-<task>-… otherwise.
      write_fn: (path, inferences, examples, mode, vocabulary) -> None, writes a chunk.
      checkpoint_ds_iter: accepted for T5X's gin files, where it stores the place in the data; a resumed
        run here reads past the examples that are done.
      train_state_initializer_cls: replaces initialization.TrainStateInitializer.
      fallback_init_rng: a seed for parameters that the checkpoint lacks, where restoring may fall back to scratch.
      merge_fn: (output_dir, name of the result, chunk_dir, step) -> None.
      summarize_config_fn: (model_dir=, summary_writer=, step=) -> None, writes the configuration.
      verify_matching_vocabs_fn: (dataset config, model) -> None, raises where vocabularies differ.
      output_vocab_feature_name: the task's feature whose vocabulary decodes predictions.
      file_extension: of the result.
      keep_aux_as_numpy: leave auxiliary values as arrays for write_fn.
      use_orbax: accepted for T5X's gin files.

    Raises:
      ValueError: the mode is unknown, there is not exactly one checkpoint, or the split has no example.
    """
    check_arguments(mode, shard_id, num_shards)
    output_dir = stores.plain(output_dir)
    make_folder(output_dir)
    vocabulary_check.import_task_module(dataset_cfg.module)
    if verify_matching_vocabs_fn is not None:
        verify_matching_vocabs_fn(dataset_cfg, model)
    provider = dataset_cfg.mixture_or_task_name
    provider = seqio.get_mixture_or_task(provider) if isinstance(provider, str) else provider
    converter = make_converter(model.FEATURE_CONVERTER_CLS, pack=False)
    data = InferenceData(dataset_cfg, converter, shard_id, num_shards, checkpoint_period)
    shapes, types = data.batch_spec(provider)
    initializer = train_state_initializer_cls(
        optimizer_def=None,
        init_fn=model.get_initial_variables,
        input_shapes=shapes,
        input_types=types,
        partitioner=partitioner,
    )
    initialization.check_divisible(initializer, partitioner.mesh)
    if shard_id == 0:
        summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
        state_shape = initializer.global_train_state_shape
        utils.log_model_info(os.path.join(output_dir, "model-info.txt"), state_shape, partitioner)
    path = single_checkpoint(restore_checkpoint_cfg)
    init_rng = None if fallback_init_rng is None else jax.random.PRNGKey(fallback_init_rng)
    state, _ = utils.create_checkpoint_manager_and_restore(
        initializer, partitioner, restore_checkpoint_cfg, path, init_rng, model_dir=output_dir
    )
    step = int(state.step)
    console.say(f"Restored step {step:,} of {path}, parameters in {restore_checkpoint_cfg.dtype or 'their own dtype'}")

    axes = initializer.train_state_axes
    runner = ChunkRunner(mode, model, dataset_cfg.batch_size, state, axes, partitioner, keep_aux_as_numpy)
    for task in seqio.get_subtasks(provider):
        files = ShardFiles.of(output_dir, task.name, mode, file_extension, shard_id, num_shards)
        if is_finished(files.result):
            console.say(f"{files.result} is finished already; remove it and its .COMPLETED to infer it again.")
            continue
        vocabulary = task.output_features[output_vocab_feature_name].vocabulary
        count = runner.run(task, data, files, {"checkpoint": path, "step": step, **data.plan()}, write_fn, vocabulary)
        if jax.process_index() == 0:
            finish(files, merge_fn if merge_chunked_results else None, step)
        multihost_utils.sync_global_devices(f"inferred {task.name}")
        console.say(f"{count:,} examples of {task.name} are in {files.result}")


def create_task_from_tfexample_file(
    paths: Sequence[str],
    file_type: str,
    inputs_key: str,
    targets_key: str | None,
    features: Mapping[str, seqio.Feature],
    task_id: str | None = None,
) -> str:
    """Registers a task over files of TFExamples, and returns its name; its one split is "infer".

    Args:
      paths: files or patterns of them.
      file_type: "tfrecord".
      inputs_key, targets_key: the examples' features that hold the UTF-8 texts; without a targets_key there are none.
      features: {"inputs": …} and, with a targets_key, "targets": vocabulary, add_eos and so on.
      task_id: the task is named infer_<task_id>; by default a hash of the files and keys.

    Raises:
      ValueError: there is no such file, or the file_type is unknown.
    """
    if file_type != "tfrecord":
        raise ValueError(f"file_type is {file_type!r}; only 'tfrecord' can be read.")
    if not tf.io.gfile.glob(paths):
        raise ValueError(f"There is no file {paths} to infer from; check the paths.")
    keys = {"inputs": inputs_key} | ({"targets": targets_key} if targets_key else {})
    if task_id is None:
        task_id = hashlib.sha256(":".join([*paths, *keys.values()]).encode()).hexdigest()[:10]
    task = seqio.TaskRegistry.add(
        f"infer_{task_id}",
        source=seqio.TFExampleDataSource(
            {"infer": paths}, {key: tf.io.FixedLenFeature([], tf.string) for key in keys.values()}
        ),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={"inputs": inputs_key, "targets": targets_key}),
            seqio.preprocessors.tokenize_and_append_eos,
        ],
        output_features=features,
    )
    return task.name


def check_arguments(mode: str, shard_id: int, num_shards: int) -> None:
    if mode not in MODES:
        raise ValueError(f"infer.mode is {mode!r}; use one of {MODES}.")
    if not 0 <= shard_id < num_shards:
        raise ValueError(f"shard_id is {shard_id} of num_shards {num_shards}; shards count from 0.")


def single_checkpoint(cfg: RestoreCheckpointConfig) -> str:
    paths = cfg.found_checkpoint_paths()
    if len(paths) > 1:
        raise ValueError(f"Inference needs one checkpoint, and RestoreCheckpointConfig names {paths}.")
    return paths[0]


class InferenceData:
    """A shard's examples in chunks, as the task gives them and as the model reads them.

    Args:
      cfg: the split and lengths; examples are not shuffled.
      converter: the model's seqio.FeatureConverter.
      shard_id, num_shards: the part of the examples.
      checkpoint_period: batches of a chunk.
    """

    def __init__(self, cfg, converter: seqio.FeatureConverter, shard_id: int, num_shards: int, checkpoint_period: int):
        self._cfg, self._converter = cfg, converter
        self._shard = seqio.ShardInfo(index=shard_id, num_shards=num_shards)
        self._chunk_size = checkpoint_period * cfg.batch_size

    def plan(self) -> dict:
        """Returns the settings that decide which examples a chunk holds, and how they look."""
        cfg = self._cfg
        return {
            "split": cfg.split,
            "lengths": dict(cfg.task_feature_lengths),
            "batch_size": cfg.batch_size,
            "checkpoint_period": self._chunk_size // cfg.batch_size,
        }

    def batch_spec(self, provider) -> tuple[dict[str, tuple[int, ...]], dict]:
        """Returns ({feature: shape}, {feature: dtype}) of a batch."""
        datasets.check_split(self._cfg)
        _, features = self._read(provider)
        spec = features.element_spec
        shapes = {name: (self._cfg.batch_size, *feature.shape) for name, feature in spec.items()}
        return shapes, {name: feature.dtype.as_numpy_dtype for name, feature in spec.items()}

    def chunks(self, task: seqio.Task, first: int) -> Iterator[tuple[tf.data.Dataset, tf.data.Dataset]]:
        """Yields (the task's examples, the model's features) of each chunk from the `first` on."""
        examples, features = self._read(task)
        chunks = tf.data.Dataset.zip((examples, features)).padded_batch(self._chunk_size)
        for parts in chunks.skip(first).prefetch(tf.data.AUTOTUNE):
            yield tuple(tf.data.Dataset.from_tensor_slices(part) for part in parts)

    def _read(self, provider) -> tuple[tf.data.Dataset, tf.data.Dataset]:
        """Returns (the task's examples, the model's features)."""
        examples = provider.get_dataset(
            sequence_length=self._cfg.task_feature_lengths,
            split=self._cfg.split,
            shuffle=False,
            num_epochs=1,
            shard_info=self._shard,
            use_cached=self._cfg.use_cached,
            seed=self._cfg.seed,
        )
        return examples, self._converter(examples, self._cfg.task_feature_lengths)


class ChunkRunner:
    """Runs a restored model over a task's chunks; each is written while the next one is computed."""

    def __init__(self, mode: str, model, batch_size: int, train_state, axes, partitioner, keep_aux_as_numpy: bool):
        self._mode = mode
        names = {"predict": "predict_batch", "score": "score_batch", "predict_with_aux": "predict_batch_with_aux"}
        infer_fn = inference.get_infer_fn(
            getattr(model, names[mode]), batch_size, axes, partitioner, keep_aux_as_numpy, self._report
        )
        self._infer = functools.partial(infer_fn, train_state=train_state)
        self._bar = None

    def _report(self, count: int) -> None:
        self._bar.update(count)

    def run(self, task: seqio.Task, data: InferenceData, files: ShardFiles, plan: dict, write_fn, vocabulary) -> int:
        """Infers the chunks that are not finished; returns how many examples they had."""
        done = self._start(files, plan)
        written, count = None, 0
        with ThreadPoolExecutor(max_workers=1) as pool, console.counter(f"infer {task.name}") as self._bar:
            chunks = waiting.Batches(data.chunks(task, done).__next__, task.name)
            for index, (examples, features) in enumerate(chunks, done):
                result = self._infer(features.enumerate(), rng=jax.random.fold_in(jax.random.PRNGKey(0), index))
                pairs, aux = result if isinstance(result, tuple) else (result, {})
                outputs = [output for _, output in pairs]
                count += len(outputs)
                if jax.process_index() == 0:
                    if written is not None:
                        written.result()  # raises the error of the write
                    arguments = (files.chunk(index), (outputs, aux), examples, self._mode, vocabulary)
                    written = pool.submit(write_chunk, write_fn, *arguments)
            if written is not None:
                written.result()
        if not done and not count:
            raise ValueError(f"{task.name} has no example in this split and shard; check the split and its files.")
        return count

    def _start(self, files: ShardFiles, plan: dict) -> int:
        """Returns how many chunks an earlier run has finished, the same number in every process."""
        done = 0
        if jax.process_index() == 0:
            files.start(plan)
            done = files.count_finished_chunks()
        done = int(multihost_utils.broadcast_one_to_all(np.int32(done)))
        if done:
            console.say(f"Going on after {done:,} finished chunks of {plan['checkpoint_period']} batches")
        return done


def write_chunk(write_fn: Callable, path: str, *what) -> None:
    write_fn(path, *what)
    mark_finished(path)


def finish(files: ShardFiles, merge_fn: Callable | None, step: int) -> None:
    """Merges the chunks if asked to, marks the result as finished, and only then removes the chunks."""
    if merge_fn is not None:
        merge_fn(files.output_dir, files.name, files.chunk_dir, step)
    mark_finished(files.result)
    if merge_fn is not None:
        remove(files.chunk_dir)


if __name__ == "__main__":
    from t5x.embedded import programs

    programs.define_gin_flags()
    programs.define_distributed_flags()
    programs.define_infer_flags()
    programs.run(infer, "INFER_OUTPUT_DIR", overriding_flags=("shard_id",))
