"""Meshes, layouts and axis rules; and that dividing the work over devices does not change the numbers."""

import json
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from conftest import TESTS
from flax.core import freeze
from jax.sharding import PartitionSpec

from t5x import partitioning, train_state


def test_one_device():
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    assert dict(partitioner.mesh.shape) == {"data": len(jax.devices()), "model": 1}
    assert partitioner.data_partition_spec == PartitionSpec("data")
    layout = partitioner.get_data_layout(8)
    assert layout == partitioning.DataLayout(8, shard_id=0, num_shards=1, is_first_host_in_replica_set=True)


def test_partition_places_arguments_and_results():
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    double = partitioner.partition(lambda x: x * 2, in_axis_resources=PartitionSpec("data"), out_axis_resources=None)
    x = np.arange(8.0, dtype=np.float32)
    np.testing.assert_array_equal(double(x), x * 2)
    np.testing.assert_array_equal(partitioner.compile(double, x)(x), x * 2)


@pytest.mark.parametrize(
    ("activations", "parameters", "embed"),
    [(1, 1, [None]), (2, 1, ["model"]), (1, 2, ["data"]), (2, 2, ["model", "data"])],
)
def test_standard_rules(activations, parameters, embed):
    rules = partitioning.standard_logical_axis_rules(activations, parameters, [("mine", "data")])
    assert [axis for name, axis in rules if name == "embed"] == embed
    assert {("batch", "data"), ("vocab", "model"), ("mlp", "model"), ("heads", "model")} < set(rules)
    assert rules[-1] == ("mine", "data")


def test_bad_arguments_say_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match="must be 1 or 2"):
        partitioning.standard_logical_axis_rules(3)
    with pytest.raises(ValueError, match="set one"):
        partitioning.PjitPartitioner()
    with pytest.raises(ValueError, match="default_mesh needs num_partitions or model_parallel_submesh"):
        partitioning.default_mesh(None)
    with pytest.raises(ValueError, match="disagree"):
        partitioning.PjitPartitioner(num_partitions=4, model_parallel_submesh=(2, 1, 1, 1))
    monkeypatch.setattr(jax, "devices", lambda backend: [types.SimpleNamespace(platform="gpu")] * 8)
    with pytest.raises(ValueError, match=r"3 does not divide the 8 gpu devices; use one of \[1, 2, 4, 8\]"):
        _ = partitioning.PjitPartitioner(num_partitions=3).mesh


def test_a_recipe_for_a_pod_runs_on_one_cpu(caplog):
    assert dict(partitioning.PjitPartitioner(num_partitions=4).mesh.shape) == {"data": 1, "model": 1}
    assert "num_partitions is 4; 1 on these 1 CPU devices" in caplog.text
    caplog.clear()
    assert partitioning.default_mesh(1) == partitioning.PjitPartitioner(num_partitions=1).mesh
    assert not caplog.text


class OfMyOwn(partitioning.BasePjitPartitioner):
    """A partitioner as T5X's users write them: a mesh of its own, everything replicated."""

    @property
    def mesh(self):
        return jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 1), ("data", "model"))

    def get_mesh_axes(self, train_state):
        return self.get_logical_axes(train_state)


def test_a_subclass_gives_what_the_base_asks_for():
    partitioner = OfMyOwn(num_partitions=1)
    assert isinstance(partitioner, partitioning.BasePartitioner)
    assert partitioner.get_data_layout(6) == partitioning.DataLayout(6, 0, 1, True)
    assert (partitioner.data_shards, partitioner.data_shard_id) == (1, 0)
    state = train_state.InferenceState(np.int32(3), freeze({"kernel": np.ones((4, 2), np.float32)}))
    axes = partitioner.get_mesh_axes(state)
    assert axes.params["kernel"] is None and axes.step is None
    moved = partitioner.move_params_to_devices(state, axes)
    assert moved.params["kernel"].sharding.mesh == partitioner.mesh and moved.step == 3
    with pytest.raises(NotImplementedError, match="BasePjitPartitioner has no get_mesh_axes"):
        partitioning.BasePjitPartitioner(num_partitions=1).get_mesh_axes(state)
    with pytest.raises(TypeError, match="abstract"):
        partitioning.BasePartitioner(num_partitions=1)


def test_batches_are_divided_as_the_rule_for_batch_says():
    everywhere = partitioning.PjitPartitioner(num_partitions=1, logical_axis_rules=[("batch", ("data", "model"))])
    assert everywhere.data_partition_spec == PartitionSpec(("data", "model"))
    nowhere = partitioning.PjitPartitioner(num_partitions=1, logical_axis_rules=[("batch", None)])
    assert nowhere.data_mesh_size == 1
    assert nowhere.get_data_layout(5) == partitioning.DataLayout(5, 0, 1, True)


def test_constraints_hold_inside_partitioned_functions_only():
    seen = []

    def double(x):
        seen.append(partitioning.global_mesh_defined())
        return 2 * partitioning.with_sharding_constraint(x, PartitionSpec("data"))

    x = np.arange(4.0, dtype=np.float32)
    np.testing.assert_array_equal(double(x), 2 * x)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    np.testing.assert_array_equal(partitioner.partition(double, None, None)(x), 2 * x)
    assert seen == [False, True]


def test_local_arrays_become_global_ones():
    mesh = partitioning.default_mesh(1)
    local = {"a": np.arange(4), "b": np.float32(3)}
    made = partitioning.host_local_array_to_global_array(local, mesh, {"a": PartitionSpec("data"), "b": None})
    assert made["a"].sharding.spec == PartitionSpec("data") and made["b"].sharding.mesh == mesh
    jax.tree.map(np.testing.assert_array_equal, made, local)


def run_on_devices(count: int, *command: str):
    """Runs Python in a process with `count` virtual CPU devices; returns the JSON it printed last."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "PYTHONPATH": str(TESTS.parent)}
    words = [sys.executable, *command]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **flags}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def eight_devices():
    return run_on_devices(8, str(TESTS / "helpers" / "mesh_losses.py"))


@pytest.fixture(scope="module")
def one_device():
    return run_on_devices(1, str(TESTS / "helpers" / "mesh_losses.py"))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("data", {"data": 8, "model": 1}),
        ("both", {"data": 4, "model": 2}),
        ("model", {"data": 1, "model": 8}),
        ("submesh", {"data": 2, "model": 4}),
        ("2d", {"data": 4, "model": 2}),
        ("slices", {"replica": 2, "data": 2, "model": 2}),
    ],
)
def test_losses_do_not_depend_on_the_mesh(name, mesh, eight_devices, one_device):
    assert eight_devices[name]["mesh"] == mesh
    np.testing.assert_allclose(eight_devices[name]["losses"], one_device["whole"]["losses"], rtol=1e-5)


def test_fused_attention_is_divided_over_a_mesh(eight_devices, one_device):
    assert eight_devices["fused"]["mesh"] == {"data": 4, "model": 2}
    for found in (eight_devices, one_device):
        np.testing.assert_allclose(found["fused"]["losses"], one_device["whole"]["losses"], rtol=1e-5)


def test_rematerialised_layers_keep_of_residuals_what_is_a_devices_own(eight_devices, one_device):
    found = eight_devices["scanned"]
    assert found["mesh"] == {"data": 2, "model": 4}
    np.testing.assert_allclose(found["losses"], one_device["scanned"]["losses"], rtol=1e-5)
    # Of 16 sequences of 12 positions it has 8, of emb_dim 32 it has 8; the decoder keeps what it gathers.
    assert "f32[2,8,12,8]" in found["arrays"]


def test_kernels_divided_over_the_batchs_devices_are_gathered_rather_than_the_batch(eight_devices, one_device):
    found = eight_devices["spread"]
    assert found["mesh"] == {"data": 8, "model": 1} and found["shard"] == [4, 2, 64]
    np.testing.assert_allclose(found["losses"], one_device["scanned"]["losses"], rtol=1e-5)
    assert found["arrays"] == []  # none has all 16 sequences of 12 positions


def test_microbatches_on_a_mesh(eight_devices, one_device):
    np.testing.assert_allclose(eight_devices["micro"]["losses"], one_device["micro"]["losses"], rtol=1e-5)
    assert eight_devices["gathered"] == 0


def test_parameters_are_really_divided(eight_devices):
    assert eight_devices["data"]["shard"] == [32, 64]
    assert eight_devices["both"]["shard"] == [32, 32]
    assert eight_devices["model"]["shard"] == [32, 8]
    assert eight_devices["2d"]["shard"] == [8, 32]


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest():
    code = (
        "import t5xpg, json\nfrom t5x import partitioning\n"
        "try: partitioning.PjitPartitioner(num_partitions=1).get_data_layout(12)\n"
        "except ValueError as error: print(json.dumps(str(error)))"
    )
    assert run_on_devices(8, "-c", code) == "batch_size 12 must be a multiple of the 8 data shards; nearest 8 or 16."
