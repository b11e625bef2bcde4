"""What T5X's users call as `utils.…`, beyond checkpoints, data and inference, which have tests of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax.core import freeze
from flax.linen.partitioning import AxisMetadata

from t5x import adafactor, checkpoint_importer, checkpoints, models, partitioning, utils
from t5x.examples.t5 import network

SHAPES = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 4), "decoder_target_tokens": (2, 4)}
PARTITIONER = partitioning.PjitPartitioner(num_partitions=1)


class Vocabulary:
    eos_id = 1


@pytest.fixture(scope="module")
def make():
    sizes = {"emb_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "head_dim": 8}
    config = network.T5Config(vocab_size=32, mlp_dim=32, dropout_rate=0.0, **sizes)
    definition = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = models.EncoderDecoderModel(network.Transformer(config), Vocabulary(), Vocabulary(), definition)
    return utils.TrainStateInitializer(
        definition, model.get_initial_variables, SHAPES, PARTITIONER, dict.fromkeys(SHAPES, jnp.int32)
    )


@pytest.fixture(scope="module")
def folder(make, tmp_path_factory):
    """A folder with the checkpoints 0 and 1; the kernels of the second are the first's plus 1."""
    folder = tmp_path_factory.mktemp("run")
    manager = utils.create_orbax_checkpoint_manager(
        save_cfg=utils.SaveCheckpointConfig(),
        train_state=make.global_train_state_shape,
        partitioner=PARTITIONER,
        model_dir=str(folder),
    )
    state = make.from_scratch(jax.random.PRNGKey(0))
    manager.save(state)
    params = jax.tree.map(lambda x: x + 1, state.params)
    manager.save(state.replace_params(params).replace_step(jnp.asarray(1)))
    manager.close()
    return folder


def embedding(state) -> np.ndarray:
    return np.asarray(state.params["token_embedder"]["embedding"])


# --- train states ----------------------------------------------------------------------------------------------------


def test_all_checkpoints_come_with_their_paths(make, folder):
    cfg = utils.RestoreCheckpointConfig(str(folder), "all")
    found = list(make.from_checkpoints([cfg]))
    assert [path for _, path in found] == [checkpoints.checkpoint_path(str(folder), step) for step in (0, 1)]
    first, second = (embedding(state) for state, _ in found)
    np.testing.assert_array_equal(second, first + 1)


def test_the_first_configuration_that_finds_anything_counts(make, folder, tmp_path):
    nothing = utils.RestoreCheckpointConfig(str(tmp_path), "latest")
    latest = utils.RestoreCheckpointConfig(str(folder), "latest")
    cfg, paths = utils.get_first_valid_restore_config_and_paths([nothing, latest])
    assert cfg is latest and paths == [checkpoints.checkpoint_path(str(folder), 1)]
    assert utils.get_first_valid_restore_config_and_paths([nothing]) == (None, [])
    assert int(make.from_checkpoint_or_scratch([nothing, latest], init_rng=jax.random.PRNGKey(5)).step) == 1


def test_without_a_checkpoint_it_starts_from_scratch(make, tmp_path):
    nothing = utils.RestoreCheckpointConfig(str(tmp_path), "latest")
    assert make.from_checkpoint([nothing]) is None
    key = jax.random.PRNGKey(5)
    np.testing.assert_array_equal(
        embedding(make.from_checkpoint_or_scratch([nothing], init_rng=key)), embedding(make.from_scratch(key))
    )


def test_one_checkpoint_is_asked_for_and_several_are_there(make, folder):
    with pytest.raises(ValueError, match="at most 1 checkpoint"):
        make.from_checkpoint([utils.RestoreCheckpointConfig(str(folder), "all")])


def test_a_fallback_state_is_made_only_when_it_is_looked_into():
    made = []

    def init(rng):
        made.append(rng)
        return {"target": {"a": 1}}

    cfg = utils.RestoreCheckpointConfig("x", fallback_to_scratch=True)
    assert utils.get_fallback_state(utils.RestoreCheckpointConfig("x"), init, jax.random.PRNGKey(0)) is None
    with pytest.raises(ValueError, match="fallback_to_scratch needs a seed"):
        utils.get_fallback_state(cfg, init, None)
    state = utils.get_fallback_state(cfg, init, jax.random.PRNGKey(0))
    assert not made
    assert state["target"]["a"] == 1 and list(state) == ["target"] and len(made) == 1


# --- axes and shapes -------------------------------------------------------------------------------------------------


def variables():
    axes = {"dense": {"kernel_axes": AxisMetadata(names=("embed", "mlp")), "bias_axes": AxisMetadata(names=("mlp",))}}
    params = {"dense": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}
    return freeze({"params": params, "params_axes": axes})


def test_axis_names_are_overridden_by_the_first_pattern_that_matches_the_whole_name():
    overrides = [(r"dense/kernel", ("embed", "joined_kv")), (r".*kernel", ("a", "b")), (r"bias", ("never",))]
    axes = utils.override_params_axes_names(variables(), overrides)["params_axes"]["dense"]
    assert axes["kernel_axes"].names == ("embed", "joined_kv")
    assert axes["bias_axes"].names == ("mlp",)


def test_overrides_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"dense/kernel has 2 axes, and params_axes_names_override names \('a',\)"):
        utils.override_params_axes_names(variables(), [(r".*kernel", ("a",))])
    with pytest.raises(ValueError, match="no 'params_axes' to override"):
        utils.override_params_axes_names({"params": variables()["params"]}, [(r".*", ("a",))])


def test_batches_of_zeros_have_a_datasets_shapes():
    dataset = tf.data.Dataset.from_tensors({"a": tf.ones([2, 3], tf.int32), "b": tf.ones([2], tf.float32)})
    batch = utils.get_zeros_batch_like_dataset(dataset)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        "a": ((2, 3), jnp.int32),
        "b": ((2,), jnp.float32),
    }
    assert utils.get_zeros_batch_like_dataset(dataset, batch_size=8)["a"].shape == (8, 3)
    spec = utils.get_zeros_batch_like_spec({"a": jax.ShapeDtypeStruct((4, 1), jnp.bfloat16)})
    assert spec["a"].shape == (4, 1) and spec["a"].dtype == jnp.bfloat16 and not spec["a"].any()


def test_a_training_iterator_starts_over_when_it_is_reset():
    dataset = tf.data.Dataset.range(6).batch(2).map(lambda x: {"ids": x})
    layout = partitioning.DataLayout(2, 0, 1, True)
    batches = utils.prepare_train_iter(dataset, partitioner=PARTITIONER, checkpoint_cfg=None, data_layout=layout)
    first = np.asarray(next(batches)["ids"])
    assert np.asarray(next(batches)["ids"]).tolist() == [2, 3]
    batches.reset()
    np.testing.assert_array_equal(next(batches)["ids"], first)
    with pytest.raises(ValueError, match="get_dataset_fn returned a list"):
        utils.prepare_train_iter([], partitioner=PARTITIONER, checkpoint_cfg=None, data_layout=layout)


def test_model_info_lists_every_variable_in_t5xs_words(make, tmp_path):
    path = tmp_path / "model-info.txt"
    utils.log_model_info(str(path), make.global_train_state_shape, PARTITIONER)
    lines = path.read_text().splitlines()
    expected = "Variable token_embedder/embedding size 512 shape (vocab=32, embed=16) partition spec ('model', None)"
    assert expected in [" ".join(line.split()) for line in lines]
    count = sum(x.size for x in jax.tree.leaves(make.global_train_state_shape.params))
    assert f"Total number of parameters: {count}" in lines


def test_a_lazy_array_reads_its_values_when_asked():
    reads = []

    def read():
        reads.append(1)
        return np.ones((2, 3), np.float32)

    array = checkpoint_importer.LazyArray((2, 3), np.float32, read).astype(np.int32)
    assert (array.shape, array.dtype, array.nbytes) == ((2, 3), np.int32, 24) and not reads
    assert array.get().dtype == np.int32 and len(reads) == 1
