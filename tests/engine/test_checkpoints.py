"""Saving and restoring: layout, what is kept, dtypes, name maps, and errors that say what to do."""

import functools
import json
import os
import re
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import serialization
from golden import record_legacy_checkpoint

from t5x import adafactor, checkpoints, models, partitioning, utils
from t5x.embedded import checkpoint_paths, checkpoint_readers, initialization
from t5x.examples.t5 import network

SHAPES = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 4), "decoder_target_tokens": (2, 4)}


class Vocabulary:
    eos_id = 1


def initializer(optimizer=True, mlp_dim=32, **changes) -> initialization.TrainStateInitializer:
    sizes = {"emb_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "head_dim": 8}
    config = network.T5Config(vocab_size=32, mlp_dim=mlp_dim, dropout_rate=0.0, **{**sizes, **changes})
    definition = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules(), decay_rate=0.8)
    model = models.EncoderDecoderModel(network.Transformer(config), Vocabulary(), Vocabulary(), definition)
    types = dict.fromkeys(SHAPES, jnp.int32)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    definition = definition if optimizer else None
    return initialization.TrainStateInitializer(definition, model.get_initial_variables, SHAPES, partitioner, types)


@pytest.fixture(scope="module")
def make():
    return initializer()


@pytest.fixture(scope="module")
def state(make):
    return make.from_scratch(jax.random.PRNGKey(0))


def manager_of(make, folder, **settings) -> checkpoints.OrbaxCheckpointManagerInterface:
    return utils.create_orbax_checkpoint_manager(
        save_cfg=utils.SaveCheckpointConfig(**settings),
        train_state=make.global_train_state_shape,
        partitioner=partitioning.PjitPartitioner(num_partitions=1),
        model_dir=str(folder),
    )


def save(make, folder, *states, **settings) -> str:
    manager = manager_of(make, folder, **settings)
    for one in states:
        assert manager.save(one)
    manager.close()
    return checkpoints.checkpoint_path(str(folder), int(states[-1].step))


def restore(make, path, rng=None, **settings):
    return make.from_checkpoint([utils.RestoreCheckpointConfig(path, "specific", **settings)], init_rng=rng)


def assert_equal(a, b):
    flat_a, flat_b = checkpoints.flatten(a.state_dict()), checkpoints.flatten(b.state_dict())
    assert flat_a.keys() == flat_b.keys()
    for name, value in flat_a.items():
        np.testing.assert_array_equal(value, flat_b[name], err_msg=name)


def test_round_trip_is_exact_and_in_t5x_layout(make, state, tmp_path):
    state = state.replace_step(jnp.asarray(7))
    path = save(make, tmp_path, state)
    assert os.path.basename(path) == "checkpoint_7"
    assert {"_CHECKPOINT_METADATA", "commit_success.txt", "state"} <= set(os.listdir(path))
    assert {"_METADATA", "manifest.ocdbt", "d"} <= set(os.listdir(os.path.join(path, "state")))
    assert_equal(restore(make, path), state)


def test_keep_removes_the_oldest(make, state, tmp_path):
    save(make, tmp_path, *(state.replace_step(jnp.asarray(step)) for step in (1, 2, 3)), keep=2)
    assert checkpoints.all_steps(str(tmp_path)) == [2, 3]


def test_a_step_is_saved_once(make, state, tmp_path):
    manager = manager_of(make, tmp_path)
    assert manager.save(state)
    assert not manager.save(state)
    manager.close()


def test_bfloat16_is_for_parameters_only(make, state, tmp_path):
    restored = restore(make, save(make, tmp_path, state, dtype="bfloat16"))
    assert {x.dtype for x in jax.tree.leaves(restored.params)} == {jnp.dtype("bfloat16")}
    assert jnp.dtype("bfloat16") not in {x.dtype for x in jax.tree.leaves(restored.param_states)}
    back = restore(make, checkpoints.checkpoint_path(str(tmp_path), 0), dtype="float32")
    assert {x.dtype for x in jax.tree.leaves(back.params)} == {jnp.dtype("float32")}


def test_unfinished_checkpoints_do_not_count(make, state, tmp_path):
    save(make, tmp_path, state)
    os.makedirs(tmp_path / "checkpoint_5" / "state")
    os.makedirs(tmp_path / "checkpoint_9.orbax-checkpoint-tmp-1")
    assert checkpoints.all_steps(str(tmp_path)) == [0]


def test_latest_and_all(make, state, tmp_path):
    save(make, tmp_path, state, state.replace_step(jnp.asarray(10)))
    paths = [checkpoints.checkpoint_path(str(tmp_path), step) for step in (0, 10)]
    assert utils.RestoreCheckpointConfig(str(tmp_path)).checkpoint_paths() == paths[1:]
    assert utils.RestoreCheckpointConfig(str(tmp_path), "all").checkpoint_paths() == paths
    assert utils.RestoreCheckpointConfig([]).checkpoint_paths() == []


def test_another_shape_is_refused_by_name(make, state, tmp_path):
    path = save(make, tmp_path, state)
    with pytest.raises(ValueError, match=r"mlp/wi/kernel is \(16, 32\) there and \(16, 48\) in the model"):
        restore(initializer(mlp_dim=48), path)


def test_what_is_missing_is_named_or_initialized(make, state, tmp_path):
    path = save(make, tmp_path, state)
    deeper = initializer(num_decoder_layers=2)
    with pytest.raises(ValueError) as error:
        restore(deeper, path)
    assert re.search(r"lacks target/decoder/layers_1.* and \d+ more, .*fallback_to_scratch = True", str(error.value))
    assert str(error.value).count("target/") == 3  # the others are in the log
    restored = restore(deeper, path, jax.random.PRNGKey(3), fallback_to_scratch=True)
    fresh = deeper.from_scratch(jax.random.PRNGKey(3))
    kernel = lambda s, layer: s.params["decoder"][f"layers_{layer}"]["mlp"]["wo"]["kernel"]  # noqa: E731
    np.testing.assert_array_equal(kernel(restored, 0), kernel(state, 0))
    np.testing.assert_array_equal(kernel(restored, 1), kernel(fresh, 1))


def test_assignment_map_renames(make, state, tmp_path):
    path = save(make, tmp_path, state)
    deeper = initializer(num_decoder_layers=2)
    restored = restore(deeper, path, assignment_map=[(r"(.*decoder/)layers_1(.*)", r"\1layers_0\2")])
    layers = restored.params["decoder"]
    jax.tree.map(np.testing.assert_array_equal, layers["layers_1"], layers["layers_0"])
    # A training step takes the memory of what it is given: two names may not stand for one array.
    step = jax.jit(lambda state: state.apply_gradient(state.params, learning_rate=jnp.float32(0.1)), donate_argnums=0)
    stepped = step(restored).params["decoder"]
    jax.tree.map(np.testing.assert_array_equal, stepped["layers_1"], stepped["layers_0"])


def test_what_the_model_lacks_is_named_not_dropped(make, state, tmp_path, capsys):
    deeper = initializer(num_decoder_layers=2)
    both = [(r"(.*decoder/)layers_1(.*)", r"\1layers_0\2")]
    path = save(deeper, tmp_path / "deeper", restore(deeper, save(make, tmp_path, state), assignment_map=both))
    named = r"target/decoder/layers_1/\S+, target/decoder/layers_1/\S+, target/decoder/layers_1/\S+ and 10 more"
    with pytest.raises(ValueError, match=f"holds parameters that the model lacks: {named}.*strict = False"):
        restore(make, path)
    assert_equal(restore(make, path, strict=False), state)
    assert re.search(f"Not in the model, so not restored: {named}", capsys.readouterr().err)


def test_two_names_of_one_stored_array_get_an_array_each(make, state, tmp_path):
    path = save(make, tmp_path, state)
    deeper = initializer(num_decoder_layers=2)
    restored = restore(deeper, path, assignment_map=[(r"(.*decoder/)layers_1(.*)", r"\1layers_0\2")])
    buffers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(restored.params)]
    assert len(set(buffers)) == len(buffers)  # or the first training step donates one of them twice


def test_state_transformations_see_names_and_shapes_and_may_put_arrays(make, state, tmp_path):
    def double_embedding(state_dict, target_state_dict, *, is_resuming=False):
        assert state_dict["target"]["token_embedder"]["embedding"].shape == (32, 16)
        assert target_state_dict["target"]["token_embedder"]["embedding"].shape == (32, 16)
        new = {"embedding": np.full((32, 16), 1.0 if is_resuming else 2.0, np.float32)}
        return {**state_dict, "target": {**state_dict["target"], "token_embedder": new}}

    path = save(make, tmp_path, state)
    restored = restore(make, path, state_transformation_fns=[double_embedding])
    assert (np.asarray(restored.params["token_embedder"]["embedding"]) == 2).all()
    restored = restore(make, path, state_transformation_fns=[functools.partial(double_embedding, is_resuming=True)])
    assert (np.asarray(restored.params["token_embedder"]["embedding"]) == 1).all()
    jax.tree.map(np.testing.assert_array_equal, restored.params["decoder"], state.params["decoder"])


def test_save_transformations_change_what_is_stored(make, state, tmp_path):
    def without_decoder(state_dict, names):
        assert names["target"]["decoder"]["decoder_norm"]["scale"] == "target/decoder/decoder_norm/scale"
        drop = lambda tree: {**tree, "target": {"encoder": tree["target"]["encoder"]}}  # noqa: E731
        return drop(state_dict), drop(names)

    manager = manager_of(make, tmp_path)
    assert manager.save(state, [without_decoder])
    manager.close()
    assert set(checkpoints.load_t5x_checkpoint(str(tmp_path))["target"]) == {"encoder"}


@pytest.mark.parametrize("lazy", [False, True])
def test_a_checkpoint_loads_without_its_model(make, state, tmp_path, lazy):
    path = save(make, tmp_path, state.replace_step(jnp.asarray(4)))
    assert checkpoints.find_checkpoint(str(tmp_path)) == checkpoints.find_checkpoint(path) == path
    loaded = checkpoints.load_t5x_checkpoint(str(tmp_path), 4, restore_dtype=jnp.bfloat16, lazy_parameters=lazy)
    embedding = loaded["target"]["token_embedder"]["embedding"]
    embedding = embedding.get() if lazy else embedding
    np.testing.assert_array_equal(embedding, state.params["token_embedder"]["embedding"].astype(jnp.bfloat16))
    with pytest.raises(ValueError, match=f"no checkpoint of step 5 in {tmp_path}; {tmp_path} holds the checkpoints 4"):
        checkpoints.find_checkpoint(str(tmp_path), 5)


def test_a_folder_of_checkpoints_stands_for_its_latest(make, state, tmp_path):
    save(make, tmp_path, state, state.replace_step(jnp.asarray(10)))
    assert utils.RestoreCheckpointConfig(str(tmp_path), "specific").checkpoint_paths() == [f"{tmp_path}/checkpoint_10"]
    for path in (tmp_path, tmp_path / "checkpoint_10"):
        assert int(restore(make, str(path)).step) == int(manager_of(make, tmp_path).restore(path=str(path)).step) == 10


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(make, state, tmp_path):
    save(make, tmp_path, *(state.replace_step(jnp.asarray(step)) for step in (0, 20)))
    for name, mode in (("checkpoint_30", "specific"), ("checkpoint_20", "latest")):  # the second holds none
        cfg = utils.RestoreCheckpointConfig(str(tmp_path / name), mode)
        with pytest.raises(ValueError, match=f"{tmp_path} holds the checkpoints 0, 20"):
            checkpoints.open_checkpoint(cfg.found_checkpoint_paths()[0])
    assert checkpoint_paths.describe_steps(str(tmp_path / "nowhere" / "at all")) == "no checkpoint is there"


def write_metric(folder, values: dict[int, float], tag: str = "loss") -> None:
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step, value in values.items():
            tf.summary.scalar(tag, value, step)


METRIC = {"metric_name_to_monitor": "training_eval/task/loss", "metric_mode": "min"}


@pytest.mark.parametrize("by", ["checkpointer", "manager"])
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [2, 3, 5]),
        ({"force_keep_period": 4}, [2, 3, 4, 5]),
        ({"metric_mode": "max"}, [1, 4, 5]),
    ],
)
def test_the_best_by_a_metric_are_kept_and_the_latest(make, state, tmp_path, by, settings, kept):
    settings = {**METRIC, **settings}
    write_metric(tmp_path / "training_eval" / "task", {1: 5.0, 2: 1.0, 3: 2.0, 4: 4.0})
    cls = {
        "checkpointer": {"checkpointer_cls": functools.partial(checkpoints.SaveBestCheckpointer, **settings)},
        "manager": {
            "checkpoint_manager_cls": functools.partial(checkpoints.OrbaxCheckpointManagerInterface, **settings)
        },
    }[by]
    save(make, tmp_path, *(state.replace_step(jnp.asarray(step)) for step in (1, 2, 3, 4, 5)), keep=2, **cls)
    assert checkpoints.all_steps(str(tmp_path)) == kept


@pytest.mark.parametrize(("keeps", "kept"), [(True, [1, 2, 3, 4]), (False, [2, 3, 4])])
def test_checkpoints_without_a_metric_stay_or_go_first(make, state, tmp_path, keeps, kept):
    write_metric(tmp_path / "training_eval" / "task", {2: 1.0, 3: 2.0})
    best = functools.partial(checkpoints.SaveBestCheckpointer, **METRIC, keep_checkpoints_without_metrics=keeps)
    save(make, tmp_path, *(state.replace_step(jnp.asarray(s)) for s in (1, 2, 3, 4)), keep=2, checkpointer_cls=best)
    assert checkpoints.all_steps(str(tmp_path)) == kept


def test_a_metric_needs_a_folder_and_a_mode(make):
    with pytest.raises(ValueError, match="metric_name_to_monitor is 'loss'"):
        checkpoints.SaveBestCheckpointer(None, None, "", metric_name_to_monitor="loss")
    with pytest.raises(ValueError, match="metric_mode is 'best'"):
        checkpoints.SaveBestCheckpointer(None, None, "", metric_mode="best")


def test_a_source_that_cannot_be_saved_is_told_to_be_cached(make, state, tmp_path):
    ds = tf.data.Dataset.from_generator(lambda: iter(range(9)), output_signature=tf.TensorSpec((), tf.int32))
    ds = ds.map(lambda x: {"inputs": tf.fill([2], x)}).batch(2)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    train_iter = utils.prepare_train_iter(
        ds.repeat(), partitioner=partitioner, checkpoint_cfg=None, data_layout=partitioner.get_data_layout(2)
    )
    manager = checkpoints.OrbaxCheckpointManagerInterface(
        str(tmp_path), make.global_train_state_shape, partitioner, train_iter
    )
    with pytest.raises(ValueError, match="Cache the task with `t5xpg cache`"):
        manager.save(state)


def test_two_manager_classes_are_refused(make):
    with pytest.raises(ValueError, match="different checkpoint_manager_cls"):
        utils.create_orbax_checkpoint_manager(
            save_cfg=utils.SaveCheckpointConfig(),
            restore_cfg=utils.RestoreCheckpointConfig([], checkpoint_manager_cls=None),
            train_state=make.global_train_state_shape,
            partitioner=None,
        )


@pytest.mark.parametrize(
    ("rule", "message"),
    [(("nothing", "x"), "match no name in the model"), ((r"target/(.*)", r"other/\1"), "which the checkpoint lacks")],
)
def test_a_wrong_assignment_map_is_refused(make, state, tmp_path, rule, message):
    with pytest.raises(ValueError, match=message):
        restore(make, save(make, tmp_path, state), assignment_map=[rule])


def test_a_model_without_optimizer_state_starts_a_new_one(make, state, tmp_path):
    bare = initializer(optimizer=False)
    path = save(make, tmp_path, bare.from_scratch(jax.random.PRNGKey(0)))
    restored = restore(make, path, jax.random.PRNGKey(5))
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, restored.param_states, state.param_states)


def test_inference_restores_parameters_of_a_training_checkpoint(make, state, tmp_path):
    restored = restore(initializer(optimizer=False), save(make, tmp_path, state))
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)


@pytest.mark.parametrize("as_list", [False, True])
def test_without_a_model_dir_the_configuration_names_the_folder(make, state, tmp_path, as_list):
    path, partitioner = save(make, tmp_path, state), partitioning.PjitPartitioner(num_partitions=1)
    cfg = utils.RestoreCheckpointConfig([path] if as_list else path, "specific")
    restored, manager = utils.create_checkpoint_manager_and_restore(make, partitioner, cfg, path, None)
    assert_equal(restored, state)
    assert str(manager.directory) == path
    with pytest.raises(ValueError, match="pass model_dir"):
        utils.create_checkpoint_manager_and_restore(make, partitioner, None, None, None)


def test_not_a_checkpoint(make, tmp_path):
    with pytest.raises(ValueError, match="is not a T5X checkpoint"):
        restore(make, str(tmp_path))


def test_legacy_checkpoints_of_t5x_are_read(tmp_path):
    """golden/legacy_checkpoint.zip was written by T5X."""
    with zipfile.ZipFile(record_legacy_checkpoint.PATH) as archive:
        archive.extractall(tmp_path)
    expected = np.load(tmp_path / "expected.npz")
    assert checkpoints.all_steps(str(tmp_path)) == [3]
    restored = restore(record_legacy_checkpoint.initializer(), str(tmp_path / "checkpoint_3"))
    arrays = {k: v for k, v in checkpoints.flatten(restored.state_dict()).items() if checkpoints.has_value(v)}
    assert arrays.keys() == set(expected.files)
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name, strict=True)
    assert int(restored.step) == 3 and any(np.asarray(v).any() for n, v in arrays.items() if "v_row" in n)


def test_a_legacy_index_reaches_no_file_outside_its_checkpoint(tmp_path):
    with zipfile.ZipFile(record_legacy_checkpoint.PATH) as archive:
        archive.extractall(tmp_path)
    index = tmp_path / "checkpoint_3" / "checkpoint"
    tree = serialization.msgpack_restore(index.read_bytes())
    tree["optimizer"]["target"]["token_embedder"]["embedding"]["kvstore"]["path"] = "../elsewhere/"
    index.write_bytes(serialization.msgpack_serialize(tree))
    with pytest.raises(checkpoints.DamagedCheckpointError, match="'../elsewhere/', which is not a folder in it"):
        restore(record_legacy_checkpoint.initializer(), str(tmp_path / "checkpoint_3"))


@pytest.mark.parametrize("layout", ["orbax", "legacy"])
def test_a_damaged_file_is_named_and_nothing_is_half_loaded(make, state, tmp_path, layout):
    """Every file in turn is cut short, and then missing: either all arrays are right, or the checkpoint is refused."""
    path = save(make, tmp_path, state)
    if layout == "legacy":
        make, path = record_legacy_checkpoint.initializer(), str(tmp_path / "checkpoint_3")
        with zipfile.ZipFile(record_legacy_checkpoint.PATH) as archive:
            archive.extractall(tmp_path)
    whole, refused = restore(make, path), []
    files = sorted(p for p in (Path(path) if layout == "legacy" else Path(path, "state")).rglob("*") if p.is_file())
    for file in files[:: 5 if layout == "legacy" else 1]:
        content = file.read_bytes()
        for damage in (lambda: file.write_bytes(content[: len(content) // 2]), file.unlink):  # noqa: B023
            damage()
            try:
                assert_equal(restore(make, path), whole)
            except ValueError as error:
                refused.append((file.relative_to(path).parts, file.exists()))
                assert path in str(error) and "\n" not in str(error)
        file.write_bytes(content)
    # How many data files an OCDBT has depends on its threads, and not all of them are read.
    kinds = {(parts[1], is_there) for parts, is_there in refused} if layout == "orbax" else set()
    needed = {(kind, is_there) for kind in ("_METADATA", "manifest.ocdbt", "d") for is_there in (True, False)}
    assert needed <= kinds and len(refused) > 8 if kinds else len(refused) > len(files) // 5 // 2
    assert_equal(restore(make, path), whole)


def test_a_flipped_bit_is_never_read_as_a_weight(make, state, tmp_path):
    """An array of random bits is stored as it is, compression or not: it can be found in the file."""
    name = "target/token_embedder/embedding"
    bits = np.random.default_rng(0).integers(0, 2**32, (32, 16), np.uint32)
    arrays = checkpoints.flatten(state.state_dict()) | {name: jnp.asarray(bits.view(np.float32))}
    state = state.restore_state(checkpoints.unflatten(arrays))
    path = save(make, tmp_path, state)
    (file,) = [
        file for file in Path(path, "state").rglob("*") if file.is_file() and bits.tobytes() in file.read_bytes()
    ]
    content = file.read_bytes()
    first = content.index(bits.tobytes())
    for i, place in enumerate((first, first + 1001, first + bits.nbytes - 1)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << i % 8]) + content[place + 1 :])
        with pytest.raises(checkpoints.DamagedCheckpointError, match=f"read: 1 of .*saved .checksums., {name} for one"):
            restore(make, path)
    file.write_bytes(content)
    assert_equal(restore(make, path), state)


def test_checksums_say_which_array_is_not_what_was_saved(make, state, tmp_path):
    path = save(make, tmp_path, state)
    file = Path(path, "checksums", "lowbias32.json")
    sums = json.loads(file.read_text())
    assert sums.keys() == {name for name, x in checkpoints.flatten(state.state_dict()).items() if x is not None}
    name = "target/token_embedder/embedding"
    file.write_text(json.dumps({**sums, name: sums[name] + 1}))
    with pytest.raises(checkpoints.DamagedCheckpointError, match=f"1 of .* not what was saved .checksums., {name}"):
        restore(make, path)
    file.write_text(json.dumps({**sums, "target/lost": 1}))
    with pytest.raises(checkpoints.DamagedCheckpointError, match="1 differ, target/lost for one"):
        restore(make, path)
    file.unlink()  # T5X's own have none
    assert_equal(restore(make, path), state)


def test_arrays_are_cast_as_numpy_casts_them_however_many_at_a_time(make, state, tmp_path, monkeypatch):
    path = save(make, tmp_path, state)
    monkeypatch.setattr(checkpoint_readers, "GROUP_BYTES", 3000)  # several arrays, or one larger one
    for name, value in checkpoints.flatten(restore(make, path, dtype="bfloat16").state_dict()["target"]).items():
        stored = np.asarray(checkpoints.flatten(state.params)[name])
        np.testing.assert_array_equal(value, stored.astype(jnp.bfloat16), err_msg=name, strict=True)


def test_configurations_check_their_values():
    with pytest.raises(ValueError, match="SaveCheckpointConfig.dtype is 'int8'"):
        utils.SaveCheckpointConfig(dtype="int8")
    with pytest.raises(ValueError, match="RestoreCheckpointConfig.mode is 'best'"):
        utils.RestoreCheckpointConfig("x", "best")


def test_an_event_file_that_a_kill_cut_short_is_read_up_to_there(tmp_path):
    folder = tmp_path / "training_eval" / "pairs"
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for step in (1, 2):
            tf.summary.scalar("loss", float(step), step)
            writer.flush()
    writer.close()
    (path,) = folder.glob("*tfevents*")
    path.write_bytes(path.read_bytes()[:-5])
    found = checkpoints.populate_metrics_for_steps(str(tmp_path), "training_eval/pairs/loss", [1, 2])
    assert found == {1: 1.0}
