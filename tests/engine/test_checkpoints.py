"""Saving and restoring: layout, what is kept, dtypes, name maps, and errors that say what to do."""

import os
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from flax.core import freeze
from golden import record_legacy_checkpoint
from jax.sharding import PartitionSpec

from t5x import adafactor, checkpoints, models, partitioning
from t5x.embedded import initialization
from t5x.examples.t5 import network
from t5x.train_state import InferenceState

SHAPES = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 4), "decoder_target_tokens": (2, 4)}


class Vocabulary:
    eos_id = 1


def initializer(optimizer=True, mlp_dim=32, **changes) -> initialization.TrainStateInitializer:
    sizes = {"emb_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "head_dim": 8}
    config = network.T5Config(vocab_size=32, mlp_dim=mlp_dim, dropout_rate=0.0, **{**sizes, **changes})
    rules = adafactor.standard_logical_factor_rules()
    definition = adafactor.Adafactor(decay_rate=0.8, logical_factor_rules=rules)
    model = models.EncoderDecoderModel(network.Transformer(config), Vocabulary(), Vocabulary(), definition)
    types = dict.fromkeys(SHAPES, jnp.int32)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    optimizer_def = definition if optimizer else None
    return initialization.TrainStateInitializer(optimizer_def, model.get_initial_variables, SHAPES, partitioner, types)


@pytest.fixture(scope="module")
def make():
    return initializer()


@pytest.fixture(scope="module")
def state(make):
    return make.from_scratch(jax.random.PRNGKey(0))


def save(folder, *states, **settings) -> str:
    manager = checkpoints.CheckpointManager(str(folder), checkpoints.SaveCheckpointConfig(**settings))
    for one in states:
        assert manager.save(one)
    manager.close()
    return checkpoints.checkpoint_path(str(folder), int(states[-1].step))


def restore(make, path, rng=None, **settings):
    return make.from_checkpoint(path, checkpoints.RestoreCheckpointConfig(path, "specific", **settings), rng)


def assert_equal(a, b):
    flat_a, flat_b = checkpoints.flatten(a.state_dict()), checkpoints.flatten(b.state_dict())
    assert flat_a.keys() == flat_b.keys()
    for name, value in flat_a.items():
        np.testing.assert_array_equal(value, flat_b[name], err_msg=name)


def test_round_trip_is_exact_and_in_t5x_layout(make, state, tmp_path):
    state = state.replace_step(jnp.asarray(7))
    path = save(tmp_path, state)
    assert os.path.basename(path) == "checkpoint_7"
    assert {"_CHECKPOINT_METADATA", "commit_success.txt", "state"} <= set(os.listdir(path))
    assert {"_METADATA", "manifest.ocdbt", "d"} <= set(os.listdir(os.path.join(path, "state")))
    assert_equal(restore(make, path), state)


def test_keep_removes_the_oldest(state, tmp_path):
    save(tmp_path, *(state.replace_step(jnp.asarray(step)) for step in (1, 2, 3)), keep=2)
    assert checkpoints.all_steps(str(tmp_path)) == [2, 3]


def test_a_step_is_saved_once(state, tmp_path):
    manager = checkpoints.CheckpointManager(str(tmp_path), checkpoints.SaveCheckpointConfig())
    assert manager.save(state)
    assert not manager.save(state)
    manager.close()


def test_bfloat16_is_for_parameters_only(make, state, tmp_path):
    restored = restore(make, save(tmp_path, state, dtype="bfloat16"))
    assert {x.dtype for x in jax.tree.leaves(restored.params)} == {jnp.dtype("bfloat16")}
    assert jnp.dtype("bfloat16") not in {x.dtype for x in jax.tree.leaves(restored.param_states)}
    back = restore(make, checkpoints.checkpoint_path(str(tmp_path), 0), dtype="float32")
    assert {x.dtype for x in jax.tree.leaves(back.params)} == {jnp.dtype("float32")}


def test_unfinished_checkpoints_do_not_count(state, tmp_path):
    save(tmp_path, state)
    os.makedirs(tmp_path / "checkpoint_5" / "state")
    os.makedirs(tmp_path / "checkpoint_9.orbax-checkpoint-tmp-1")
    assert checkpoints.all_steps(str(tmp_path)) == [0]


def test_latest_and_all(state, tmp_path):
    save(tmp_path, state, state.replace_step(jnp.asarray(10)))
    paths = [checkpoints.checkpoint_path(str(tmp_path), step) for step in (0, 10)]
    assert checkpoints.RestoreCheckpointConfig(str(tmp_path)).checkpoint_paths() == paths[1:]
    assert checkpoints.RestoreCheckpointConfig(str(tmp_path), "all").checkpoint_paths() == paths
    assert checkpoints.RestoreCheckpointConfig([]).checkpoint_paths() == []


def test_another_shape_is_refused_by_name(state, tmp_path):
    path = save(tmp_path, state)
    with pytest.raises(ValueError, match=r"mlp/wi/kernel is \(16, 32\) there and \(16, 48\) in the model"):
        restore(initializer(mlp_dim=48), path)


def test_what_is_missing_is_named_or_initialized(state, tmp_path):
    path = save(tmp_path, state)
    deeper = initializer(num_decoder_layers=2)
    with pytest.raises(ValueError, match=r"lacks \[.*decoder/layers_1.*fallback_to_scratch = True"):
        restore(deeper, path)
    restored = restore(deeper, path, jax.random.PRNGKey(3), fallback_to_scratch=True)
    fresh = deeper.from_scratch(jax.random.PRNGKey(3))
    kernel = lambda s, layer: s.params["decoder"][f"layers_{layer}"]["mlp"]["wo"]["kernel"]  # noqa: E731
    np.testing.assert_array_equal(kernel(restored, 0), kernel(state, 0))
    np.testing.assert_array_equal(kernel(restored, 1), kernel(fresh, 1))


def test_assignment_map_renames(state, tmp_path):
    path = save(tmp_path, state)
    deeper = initializer(num_decoder_layers=2)
    restored = restore(deeper, path, assignment_map=[(r"(.*decoder/)layers_1(.*)", r"\1layers_0\2")])
    layers = restored.params["decoder"]
    jax.tree.map(np.testing.assert_array_equal, layers["layers_1"], layers["layers_0"])
    # A training step takes the memory of what it is given: two names may not stand for one array.
    step = jax.jit(lambda state: state.apply_gradient(state.params, learning_rate=jnp.float32(0.1)), donate_argnums=0)
    stepped = step(restored).params["decoder"]
    jax.tree.map(np.testing.assert_array_equal, stepped["layers_1"], stepped["layers_0"])


def test_names_of_one_array_are_placed_each_as_its_own(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("data", "model"))
    one = jnp.ones((2, 2))
    state = InferenceState(jnp.int32(0), freeze({"a": one, "b": one, "c": jnp.zeros(2)}))
    specs = InferenceState(None, freeze({"a": PartitionSpec("data"), "b": PartitionSpec(None, "model"), "c": None}))
    parted = initialization.part_arrays(state, specs, mesh).params
    assert {name: x.sharding.spec for name, x in parted.items()} == {
        "a": PartitionSpec("data"),
        "b": PartitionSpec(None, "model"),
        "c": PartitionSpec(),
    }
    assert parted["a"].unsafe_buffer_pointer() != parted["b"].unsafe_buffer_pointer()


@pytest.mark.parametrize(
    ("rule", "message"),
    [(("nothing", "x"), "match no name in the model"), ((r"target/(.*)", r"other/\1"), "which the checkpoint lacks")],
)
def test_a_wrong_assignment_map_is_refused(make, state, tmp_path, rule, message):
    with pytest.raises(ValueError, match=message):
        restore(make, save(tmp_path, state), assignment_map=[rule])


def test_a_model_without_optimizer_state_starts_a_new_one(make, state, tmp_path):
    bare = initializer(optimizer=False)
    path = save(tmp_path, bare.from_scratch(jax.random.PRNGKey(0)))
    restored = restore(make, path, jax.random.PRNGKey(5))
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, restored.param_states, state.param_states)


def test_inference_restores_parameters_of_a_training_checkpoint(state, tmp_path):
    restored = restore(initializer(optimizer=False), save(tmp_path, state))
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)


def test_not_a_checkpoint(make, tmp_path):
    with pytest.raises(ValueError, match="is no T5X checkpoint"):
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
    if layout == "legacy":
        make = record_legacy_checkpoint.initializer()
        with zipfile.ZipFile(record_legacy_checkpoint.PATH) as archive:
            archive.extractall(tmp_path)
        path = str(tmp_path / "checkpoint_3")
    else:
        path = save(tmp_path, state)
    whole, refused = restore(make, path), 0
    files = sorted(p for p in (Path(path) if layout == "legacy" else Path(path, "state")).rglob("*") if p.is_file())
    for file in files[:: 5 if layout == "legacy" else 1]:
        content = file.read_bytes()
        for damage in (lambda: file.write_bytes(content[: len(content) // 2]), file.unlink):  # noqa: B023
            damage()
            try:
                assert_equal(restore(make, path), whole)
            except ValueError as error:
                refused += 1
                assert path in str(error) and "\n" not in str(error)
        file.write_bytes(content)
    assert refused > len(files) // (5 if layout == "legacy" else 1) // 2
    assert_equal(restore(make, path), whole)


def test_configurations_check_their_values():
    with pytest.raises(ValueError, match="SaveCheckpointConfig.dtype is 'int8'"):
        checkpoints.SaveCheckpointConfig(dtype="int8")
    with pytest.raises(ValueError, match="RestoreCheckpointConfig.mode is 'best'"):
        checkpoints.RestoreCheckpointConfig("x", "best")
